"""The name table: every algorithm behind one word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..result import State
from .irpca import irpca
from .irpca_iht import irpca_iht


@dataclass(frozen=True)
class Solver:
    """An algorithm and what it needs."""

    run: Callable[..., Iterator[State]]
    chooses_rank: bool


SOLVERS = {
    "irpca": Solver(irpca, chooses_rank=True),
    "irpca_iht": Solver(irpca_iht, chooses_rank=False),
}
