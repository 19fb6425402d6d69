"""Figure 1: running time against sparsity, rank, feature dimension and condition number (section 5.1).

The paper gives no values for its sweeps; these are ours. The baseline is n = 1000, d = 20, r = 5, z/n = 0.1 and the
generator as printed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .drawing import Column, block, new_figure, setting
from .harness import Rules
from .methods import ROBUST
from .plan import Experiment, Records, beyond_failure, recovered
from .problems import Case, square

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N, TINY = 1000, 120
RULES = Rules(budget=5.0)


def panels(records: Records, **axis: Any) -> list[Column]:
    """The two criteria side by side, and how wrong the run was when it ended."""
    column = partial(Column, records, **axis)
    paper = column(title="to the paper's criterion: ‖M − L − S‖ ≤ 1e-3 ‖M‖", criterion="residual")
    recovery = column(title="to recovery: ‖L − L*‖ ≤ 1e-6 ‖L*‖", criterion="recovery")
    end = column(title="when the run ended, which recovery ends", values=(("error", "‖L − L*‖ / ‖L*‖"),))
    return [paper, recovery, end]


def _draw(records: Records, what: str, **axis: Any) -> Figure:
    figure = new_figure(13, 6.2, f"{what}: {setting(records)}", records)
    block(figure, panels(records, **axis))
    return figure


def _experiment(letter: str, what: str, cases: list[Case], quick: list[Case], axis: dict[str, Any], **more: Any) -> Any:
    draw = partial(_draw, what=f"Figure 1({letter}), {what}", **axis)
    return Experiment(f"fig1{letter}", tuple(cases), tuple(quick), ROBUST, draw, **{"rules": RULES, **more})


FIG1A = _experiment(
    "a",
    "sparsity",
    [square(N, 20, 5, share) for share in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)],
    [square(TINY, 6, 2, share) for share in (0.1, 0.3)],
    {"x": "corruption", "xlabel": "share of corrupted entries, z/n"},
    given_up=beyond_failure(recovered),
    rules=Rules(RULES.budget, refusals=True),  # gradient methods cannot be told of more than they can set aside
)
FIG1B = _experiment(
    "b",
    "rank",
    [square(N, 50, rank, 0.1) for rank in (5, 10, 20, 30, 40)],
    [square(TINY, 8, rank, 0.1) for rank in (2, 3)],
    {"x": "rank", "xlabel": "rank r"},
)
FIG1C = _experiment(
    "c",
    "feature dimension",
    [square(N, d, 5, 0.1) for d in (10, 20, 50, 100, 200)],
    [square(TINY, d, 2, 0.1) for d in (5, 8)],
    {"x": "d1", "xlabel": "features per row and column, d"},
)
FIG1D = _experiment(
    "d",
    "condition number",
    [square(N, 20, 5, 0.1, kappa, "conditioned") for kappa in (1.0, 3.0, 10.0, 30.0, 100.0)],
    [square(TINY, 6, 2, 0.1, kappa, "conditioned") for kappa in (1.0, 30.0)],
    {"x": "condition", "xlabel": "condition number of the features, κ(F)"},
)
