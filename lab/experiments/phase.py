"""Where each method stops recovering: corruption against rank, and against feature dimension.

Features are orthonormal (κ = 1), the friendliest there are, and outliers the paper's. A run goes to the method's own
end, within the budget; L is recovered if it is then right to 1e-3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .drawing import hub, new_figure, present, setting
from .harness import Rules
from .methods import METHODS
from .plan import Experiment, Records, beyond_failure
from .problems import Case, square

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

N, RANK, D = 300, 5, 50
LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
RANKS = (2, 5, 10, 20, 40)
DIMENSIONS = (10, 20, 50, 100, 150)
RECOVERED = 1e-3
ACROSS = 6  # heat maps side by side


def ended_right(record: dict[str, Any]) -> bool:
    return record["error"] <= RECOVERED


def grid(
    n: int, levels: tuple[float, ...], rank: int, ranks: tuple[int, ...], d: int, dimensions: tuple[int, ...]
) -> tuple[Case, ...]:
    """Both sweeps; where they cross they share their runs. Corruption goes up last, so that failures are known."""
    sizes = dict.fromkeys([(d, r) for r in ranks] + [(k, rank) for k in dimensions])
    return tuple(square(n, k, r, share, features="conditioned") for share in levels for k, r in sizes)


def share_recovered(records: Records, x: str, xs: list[float], levels: list[float]) -> np.ndarray:
    """Share of seeds per level and x, NaN where nothing was run."""
    shares = np.full((len(levels), len(xs)), np.nan)
    for i, level in enumerate(levels):
        for j, value in enumerate(xs):
            found = [ended_right(r) for r in records if r["corruption"] == level and r[x] == value]
            if found:
                shares[i, j] = np.mean(found)
    return shares


def _draw(records: Records) -> Figure:
    methods = present(records)
    deep = -(-len(methods) // ACROSS)
    title = f"share of seeds with ‖L − L*‖ ≤ {RECOVERED:g} ‖L*‖ at the method's own end: {setting(records)}"
    note = "white: no seed, dark: all seeds   hatched: not run, two lower levels having failed for all seeds"
    figure = new_figure(13, 1.4 + 3.6 * deep, title, records, note)
    base = hub(records, ["d1", "rank"])
    sweeps = {"rank": ("rank r", "d1"), "d1": ("features d", "rank")}
    for part, (x, (label, other)) in zip(figure.subfigures(2, 1), sweeps.items(), strict=True):
        chosen = [record for record in records if record[other] == base[other]]
        part.suptitle(f"corruption against {label}, at {setting(chosen, ('n1', 'condition'))}", fontsize=9)
        part.supxlabel(label, fontsize=8)
        part.supylabel("share of corrupted entries", fontsize=8)
        xs, levels = (sorted({record[name] for record in chosen}) for name in (x, "corruption"))
        axes = part.subplots(deep, ACROSS, squeeze=False, sharex=True, sharey=True)
        for cell in axes.flat[len(methods) :]:
            cell.set_visible(False)
        for cell, method in zip(axes.flat, methods, strict=False):
            own = [record for record in chosen if record["method"] == method.name]
            _map(cell, share_recovered(own, x, xs, levels), xs, levels)
            cell.set_title(method.label, fontsize=8)
    return figure


def _map(axes: Axes, shares: np.ndarray, xs: list[float], levels: list[float]) -> None:
    axes.patch.set(hatch="/////", edgecolor="0.75", facecolor="0.95")
    axes.pcolormesh(np.ma.masked_invalid(shares), cmap="Greens", vmin=0, vmax=1, edgecolors="0.85", linewidth=0.5)
    axes.set_xticks(np.arange(len(xs)) + 0.5, [f"{x:g}" for x in xs], fontsize=6)
    axes.set_yticks(np.arange(len(levels)) + 0.5, [f"{level:.0%}" for level in levels], fontsize=6)


PHASE = Experiment(
    "phase",
    grid(N, LEVELS, RANK, RANKS, D, DIMENSIONS),
    grid(60, (0.1, 0.5), 2, (2, 3), 6, (6, 8)),
    tuple(METHODS.values()),
    _draw,
    Rules(budget=2.0, tol=1e-7, to_own_end=True, refusals=True),
    seeds=3,
    given_up=beyond_failure(ended_right),
)
