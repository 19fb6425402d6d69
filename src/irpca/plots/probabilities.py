"""Whether probabilities are to be believed, where it is known what was wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..arguments import naming, whole
from ..lowrank import Array
from ..wording import count
from .drawing import BLUE, GREY, TICK_SIZE, axes_of, plain_frame, title

MOST_BINS = 1000  # more cannot be drawn


def reliability(probability: ArrayLike, wrong: ArrayLike, ax: Any = None, bins: int = 10) -> Any:
    """Draw which share of cells was really wrong, against the probability of being an outlier that was predicted.

    Parameters
    ----------
    probability : array
        Predicted, between 0 and 1, such as the field of ``model.outliers()``.
    wrong : array of bool, of the same shape
        Whether the cell really was an outlier.
    bins : int
        Of equal width, between 0 and 1.
    ax : matplotlib Axes, or None
        None: the current Axes.

    Returns
    -------
    matplotlib Axes
        One point for each bin, at its mean probability, with a 95 % interval for the share (Clopper and Pearson); on
        the diagonal, probabilities are right. The number of cells is above each.

    Examples
    --------
    >>> from irpca import plots
    >>> from matplotlib.figure import Figure
    >>> rng = np.random.default_rng(1)
    >>> p = rng.random(1000)
    >>> ax = plots.reliability(p, rng.random(1000) < p, bins=5, ax=Figure().subplots())
    >>> len(ax.lines[1].get_xdata())
    5
    """
    bins = whole(bins, "bins", least=1, most=MOST_BINS)
    from scipy.stats import binomtest

    p, really = _checked(probability, wrong)
    cell = np.minimum((p * bins).astype(int), bins - 1)
    counts = np.bincount(cell, minlength=bins)
    full = np.flatnonzero(counts)
    n, k = counts[full], np.bincount(cell, really, bins)[full]
    x, share = np.bincount(cell, p, bins)[full] / n, k / n
    low, high = np.transpose([binomtest(int(one), int(of)).proportion_ci() for one, of in zip(k, n, strict=True)])
    ax = axes_of(ax)
    ax.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="probabilities are right")
    bars = ax.errorbar(
        x, share, yerr=[share - low, high - share], fmt="o", color=BLUE, markersize=5, elinewidth=1.2, capsize=3
    )
    bars.set_label("share that was wrong, with its 95 % interval")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    ax.set(xlabel="predicted probability of being an outlier", ylabel="share of cells that really were wrong")
    top = ax.secondary_xaxis("top")
    top.set_xticks(x, [f"{of:,}" for of in n], fontsize=TICK_SIZE, rotation=90 if len(x) > 5 else 0)
    top.set_xlabel("number of cells", fontsize=TICK_SIZE)
    top.spines["top"].set_visible(False)
    plain_frame(ax)
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    title(ax, f"Are the probabilities right? {count(len(p), 'cell')}, {int(really.sum()):,} of them wrong")
    return ax


def _checked(probability: ArrayLike, wrong: ArrayLike) -> tuple[Array, Array]:
    with naming("probability"):
        p = np.asarray(probability, float)
    with naming("wrong"):
        really = np.asarray(wrong)
    if p.shape != really.shape:
        raise ValueError(f"probability has shape {p.shape} and wrong {really.shape}: they must be of the same cells")
    if not p.size:
        raise ValueError("probability is empty: there is nothing to compare")
    if bad := int((~((p >= 0) & (p <= 1))).sum()):
        raise ValueError(
            f"probability must be between 0 and 1; {bad} of {p.size} values are not, or are NaN: leave them out"
        )
    if not np.isin(really, (0, 1)).all():
        raise ValueError("wrong must be boolean: whether each cell really was an outlier")
    return p.ravel(), really.ravel().astype(float)
