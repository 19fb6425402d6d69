"""Time and reads of M to recovery, against n, d and r, on features with κ = 1 and 10 % corruption.

The floor is the oracle read: who knows L still has to read M once to write S.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .drawing import Column, block, hub, new_figure, setting
from .harness import Rules
from .methods import ORACLE, ROBUST
from .plan import Experiment, Records, beyond_budget
from .problems import Case, square

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = {"n1": 2000, "d1": 50, "rank": 5}
SWEEPS = {"n1": (500, 1000, 2000, 4000, 8000), "d1": (10, 20, 50, 100, 200), "rank": (2, 5, 10, 20, 40)}
LABELS = {"n1": "rows and columns, n", "d1": "features, d", "rank": "rank, r"}


def sweeps(base: dict[str, int], values: dict[str, tuple[int, ...]]) -> tuple[Case, ...]:
    """Every sweep through the base, smaller sizes first: whoever fails there is not asked for more."""
    sizes = {tuple((base | {x: value}).values()) for x, sweep in values.items() for value in sweep}
    return tuple(square(*size, 0.1, features="conditioned") for size in sorted(sizes))


def _draw(records: Records) -> Figure:
    base = hub(records, list(BASE))
    title = f"time and reads of M to recovery, ‖L − L*‖ ≤ 1e-6 ‖L*‖: {setting(records)}"
    figure = new_figure(13, 8.5, title, records)
    values = (("seconds_recovery", "seconds"), ("reads_recovery", "reads of M"))
    columns = []
    for x, label in LABELS.items():
        others = {y: base[y] for y in BASE if y != x}
        chosen = [record for record in records if all(record[y] == value for y, value in others.items())]
        columns.append(Column(chosen, x, label, setting(chosen, ("corruption", "condition")), "recovery", values))
    block(figure, columns)
    return figure


SCALING = Experiment(
    "scaling",
    sweeps(BASE, SWEEPS),
    sweeps({"n1": 100, "d1": 6, "rank": 2}, {"n1": (60, 100), "d1": (4, 6), "rank": (2, 3)}),
    (*ROBUST, ORACLE),
    _draw,
    Rules(budget=10.0),
    seeds=3,
    given_up=beyond_budget,
)
