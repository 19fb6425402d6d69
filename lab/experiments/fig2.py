"""Figure 2: MovieLens 100K (section 5.2), time and error of S, in both readings of the scale.

As printed, outliers are 0.012 to 0.024 and ratings 1 to 5 stars: gross errors of half a percent of the data, and below
a share of about 4 % the paper's criterion is met by S = 0. So L* must have been rescaled, we do not know how; here
max|L*| is made the largest outlier.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .drawing import Column, block, new_figure, setting
from .fig1 import panels
from .harness import Rules
from .methods import ROBUST
from .plan import Experiment, Records
from .problems import Case

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = {
    "printed": "as printed: L* in stars, outliers of 5 to 10 r/√(n1 n2)",
    "rescaled": "rescaled: max|L*| is the largest outlier",
}
SOURCES = {"movielens": "MovieLens 100K", "stars": "drawn ratings"}


def _draw(records: Records) -> Figure:
    source = SOURCES[records[0]["features"]]
    figure = new_figure(20, 12, f"Figure 2, {source}: {setting(records)}", records)
    present = [scale for scale in SCALES if any(record["scale"] == scale for record in records)]
    for part, scale in zip(figure.subfigures(len(present), 1, squeeze=False)[:, 0], present, strict=True):
        part.suptitle(SCALES[scale], fontsize=10, fontweight="bold")
        chosen = [record for record in records if record["scale"] == scale]
        axis = {"x": "corruption", "xlabel": "share of corrupted entries, z/n"}
        column = partial(Column, chosen, **axis)
        paper, recovery, _ = panels(chosen, **axis)
        then = column(title="when the paper's criterion held", values=(("s_error_residual", "‖S − S*‖ / ‖S*‖"),))
        sparse = column(title="to ‖S − S*‖ ≤ 1e-2 ‖S*‖", criterion="sparse")
        end = column(title="when the run ended, which recovery ends", values=(("s_error", "‖S − S*‖ / ‖S*‖"),))
        block(part, [paper, then, recovery, sparse, end])
    return figure


def _cases(n1: int, n2: int, d1: int, d2: int, source: str, shares: tuple[float, ...]) -> tuple[Case, ...]:
    return tuple(Case(n1, n2, d1, d2, 3, share, 1.0, source, scale) for scale in SCALES for share in shares)


FIG2 = Experiment(
    "fig2",
    _cases(943, 1682, 20, 25, "movielens", (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)),
    _cases(90, 70, 6, 7, "stars", (0.1,)),
    ROBUST,
    _draw,
    Rules(budget=5.0, sparse=True, refusals=True),
    seeds=3,
)
