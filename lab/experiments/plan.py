"""An experiment as data: what is swept, who takes part, when it is given up, how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .harness import Rules
from .ledger import CASE
from .methods import Method
from .problems import Case

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Records = Sequence[dict[str, Any]]
GiveUp = Callable[[Records, Case, int], bool]


@dataclass(frozen=True)
class Experiment:
    """One figure and the runs behind it.

    Attributes
    ----------
    cases, quick : the sweep, and the tiny one of ``--quick``
    given_up : given a method's records so far, whether a case need not be run for it
    draw : the figure, from records alone
    """

    name: str
    cases: tuple[Case, ...]
    quick: tuple[Case, ...]
    methods: tuple[Method, ...]
    draw: Callable[[Records], Figure]
    rules: Rules
    seeds: int = 5
    given_up: GiveUp = lambda records, case, seeds: False

    def small(self) -> Experiment:
        """The ``--quick`` version: seconds in all."""
        return replace(self, cases=self.quick, seeds=1, rules=replace(self.rules, budget=0.3))


def recovered(record: dict[str, Any]) -> bool:
    return record["seconds_recovery"] == record["seconds_recovery"]  # not NaN


def beyond_failure(succeeded: Callable[[dict[str, Any]], bool]) -> GiveUp:
    """Give up once two consecutive lower levels of corruption failed for all seeds: more corruption is no easier."""

    def given_up(records: Records, case: Case, seeds: int) -> bool:
        same = [name for name in CASE if name != "corruption"]
        levels: dict[float, list[bool]] = {}
        for record in records:
            if record["corruption"] < case.corruption and all(record[name] == getattr(case, name) for name in same):
                levels.setdefault(record["corruption"], []).append(succeeded(record))
        failed = [len(seen) >= seeds and not any(seen) for _, seen in sorted(levels.items())]
        return any(lower and upper for lower, upper in pairwise(failed))

    return given_up


def beyond_budget(records: Records, case: Case, seeds: int) -> bool:
    """Give up once no seed ended within the budget at a case that is smaller in n, d or r, and else the same."""
    sizes = ("n1", "d1", "rank")
    here = tuple(getattr(case, name) for name in sizes)
    smaller: dict[tuple[float, ...], list[bool]] = {}
    for record in records:
        there = tuple(record[name] for name in sizes)
        differing = [(a, b) for a, b in zip(there, here, strict=True) if a != b]
        if len(differing) == 1 and differing[0][0] < differing[0][1]:
            smaller.setdefault(there, []).append(record["status"] == "BUDGET")
    return any(len(over) >= seeds and all(over) for over in smaller.values())
