"""How a fit was found: candidates by what was held out, and convergence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arguments import text
from ..lowrank import Array
from ..result import Result, Status
from ..wording import count
from .drawing import BLUE, GREY, LIGHT, ORANGE, TICK_SIZE, axes_of, legend, plain_frame, sentence, title
from .fitted import Fitted

FAR = 6.0  # times the distance of the best to the median: candidates further behind are drawn at the edge
WORDS = {
    "features only": "features only",
    "few directions": "few components",
    "from columns": "started at column medians",
    "from earlier": "started at an earlier fit",
    "from (": "started at (",
    "shifted": "moved to the densest residuals",
    "noise not looked for afresh": "noise estimated once",
    "without piled-up values": "repeated values left out",
}


def candidates(model: Any, ax: Any = None) -> Any:
    """Draw how well every candidate fit predicted cells that it had not seen, and which one was chosen.

    Parameters
    ----------
    model, ax : as in :func:`cell_map`

    Returns
    -------
    matplotlib Axes
        One line for each candidate, the best on top: its mean log predictive density at held-out cells (the higher the
        better), and its mean absolute error at the left (without column features, in units of the spread of each
        column). Density alone does not decide: see :mod:`irpca.model.choice`.

    Examples
    --------
    >>> import irpca
    >>> from irpca import plots
    >>> from matplotlib.figure import Figure
    >>> data = irpca.datasets.load_life_expectancy()
    >>> model = irpca.InductiveRobustPCA(2).fit(data.M[:50])
    >>> ax = plots.candidates(model, ax=Figure().subplots())
    >>> ax.get_xlabel()
    'mean log predictive density at held-out cells (higher is better)'
    """
    result, heading = Fitted(model).result, "Candidate fits"
    if result.certificate is None:
        return sentence(axes_of(ax), heading, _why_none(result))
    tried = sorted(result.certificate.candidates, key=lambda candidate: -np.nan_to_num(candidate[1], nan=-np.inf))
    names = plain_names([name for name, *_ in tried])
    density = np.array([value for _, value, _ in tried])
    chosen = np.array([name == result.certificate.chosen for name, *_ in tried])
    ax, y = axes_of(ax, max(3.6, 1.4 + 0.4 * len(tried))), np.arange(len(tried))
    low = _lowest(density)
    x = np.maximum(np.nan_to_num(density, nan=low), low)
    ax.hlines(y, low, x, color=GREY, linewidth=0.6, alpha=0.5)
    ax.plot(x[~chosen], y[~chosen], "o", color=GREY, markersize=5, markerfacecolor="white")
    ax.plot(x[chosen], y[chosen], "D", color=ORANGE, markersize=7)
    for k, name in enumerate(names):
        behind = f" ({density[k]:.3g}, not to scale)" if density[k] < low else ""
        text, style = (f"{name} (chosen)", "bold") if chosen[k] else (name + behind, "normal")
        ax.text(0.01, k - 0.3, text, transform=ax.get_yaxis_transform(), va="center", fontsize=8, fontweight=style)
    ax.set_yticks(y, [f"{error:.3g}" for *_, error in tried], fontsize=TICK_SIZE)
    ax.set_ylim(len(tried) - 0.4, -0.8)
    ax.set_xlabel("mean log predictive density at held-out cells (higher is better)")
    ax.set_ylabel("mean absolute error there (lower is better)")
    plain_frame(ax)
    title(ax, f"{count(len(tried), 'candidate fit')}, compared at cells that none of them had seen")
    return ax


def _lowest(density: Array) -> float:
    """Where the axis begins: a candidate that failed shall not push all others together."""
    finite = density[np.isfinite(density)]
    if not len(finite):
        return 0.0
    best = float(finite.max())
    spread = max(best - float(np.median(finite)), 0.05)
    return max(float(finite.min()), best - FAR * spread) - 0.03 * spread


def _why_none(result: Result) -> str:
    if result.solver != "irpca":
        return f"solver={result.solver!r} makes one fit, so there are no candidates to compare."
    if result.noise == 0:
        return "The fit is exact: it meets most cells to rounding, so no other candidate was needed."
    return "One fit was made, so there are no candidates to compare."


def plain_names(names: Sequence[str]) -> list[str]:
    """Names of candidates in plain words, numbered; those that go on from another give its number.

    Examples
    --------
    >>> plain_names(["few directions, from columns", "from (few directions, from columns)"])
    ['1: few components, started at column medians', '2: all components, started at fit 1']
    """
    plain = []
    for k, name in enumerate(names, 1):
        said = name if name.startswith(("features only", "few directions")) else f"all components, {name}"
        for other, before in enumerate(names, 1):
            said = said.replace(f"from ({before})", f"started at fit {other}")
        for words, meaning in WORDS.items():
            said = said.replace(words, meaning)
        plain.append(f"{k}: {said}")
    return plain


def convergence(model: Any, ax: Any = None, *, against: str = "seconds") -> Any:
    """Draw by how much the low-rank part changed in every iteration.

    Parameters
    ----------
    model : InductiveRobustPCA or Result
        After ``fit``, or what :func:`irpca.solve` returned.
    against : {"seconds", "reads", "iterations"}
        What the horizontal axis is: the time since the start, how often all of M had been read, or the iteration.
    ax : matplotlib Axes, or None
        None: the current Axes.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import irpca
    >>> from irpca import plots
    >>> from matplotlib.figure import Figure
    >>> problem = irpca.datasets.make_problem(80, 50, d1=6, d2=5, rank=2, corruption=0.1)
    >>> result = irpca.solve(problem.M, problem.F1, problem.F2, rank=2, solver="irpca_iht")
    >>> ax = plots.convergence(result, ax=Figure().subplots())
    >>> len(ax.lines[0].get_ydata()) == result.n_iter
    True
    """
    across = {"seconds": "seconds since the start", "reads": "times that all of M was read", "iterations": "iteration"}
    if text(against, "against") not in across:
        raise ValueError(f"against must be one of {', '.join(map(repr, across))}, got {against!r}")
    result = model if isinstance(model, Result) else Fitted(model).result
    history, ax = result.history, axes_of(ax)
    if not len(history):
        return sentence(ax, "Convergence", "Nothing was fitted iteratively here, so there are no steps to show.")
    x = np.arange(1, len(history) + 1) if against == "iterations" else np.array(getattr(history, against))
    last = np.array([not stage for stage in history.stage]) if any(history.stage) else np.ones(len(x), bool)
    if not last.all():
        ax.axvspan(0, x[~last].max(), color=LIGHT, linewidth=0, label="comparing candidate fits")
    x, step = x[last], np.array(history.step, float)[last]
    shown, none = np.isfinite(step) & (step > 0), step == 0
    ax.plot(x, np.where(shown, step, np.nan), "o-", color=BLUE, linewidth=1.2, markersize=4, label="change")
    if none.any():  # a logarithm has no room for it
        floor = np.full(none.sum(), step[shown].min(initial=1.0) / 10)
        ax.plot(x[none], floor, "v", color=ORANGE, markersize=6, label="no change at all (not to scale)")
    ax.set_yscale("log")
    ax.set(xlabel=across[against], ylabel="relative change of the expected values", xlim=(0, 1.04 * x.max()))
    plain_frame(ax)
    legend(ax, loc="lower left")
    endings = {Status.MAX_ITER: "not converged", Status.SATURATED: "failed"}
    ending = endings.get(result.status, result.status.name.lower())
    title(ax, f"Convergence: {ending} after {count(int(last.sum()), 'iteration')}")
    return ax
