"""The solvers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..arguments import text
from ..engines.base import Look
from ..result import State
from . import (
    accaltproj,
    altproj,
    bayes,
    ircur,
    irpca,
    irpca_iht,
    pca,
    pcp,
    pcpf,
    rpca_gd,
    scaledgd,
    trimmed,
)

OF_SOLVE = ("tol", "max_iter")  # arguments of solve() that some solvers take, too


@dataclass(frozen=True)
class Solver:
    """An algorithm, and which of the arguments it uses.

    Attributes
    ----------
    run : generator of States; takes a Problem, and options
    rank : "chosen" if it chooses one where none is given, "needed" if one must be given, "found" if it takes none
    features : whether it uses them
    needs : what an engine must be capable of
    looks : what it will look at first, as far as that does not depend on M; takes what ``run`` takes
    """

    run: Callable[..., Iterator[State]]
    rank: Literal["chosen", "needed", "found"]
    features: bool
    needs: frozenset[str] = frozenset()
    looks: Callable[..., list[Look]] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Names of its options besides rank and features."""
        known = inspect.signature(self.run).parameters.values()
        return tuple(p.name for p in known if p.kind is p.KEYWORD_ONLY and p.name not in (*OF_SOLVE, "start"))

    def takes(self, name: str) -> bool:
        """Whether it takes an argument of solve()."""
        return name in inspect.signature(self.run).parameters


WHOLE = frozenset({"whole"})
SOLVERS = {
    "irpca": Solver(irpca.iterate, "chosen", features=True, looks=irpca.looks),
    "trimmed": Solver(trimmed.iterate, "chosen", features=True),
    "bayes": Solver(bayes.iterate, "chosen", features=True, looks=bayes.looks),
    "irpca_iht": Solver(irpca_iht.iterate, "needed", features=True),
    "pcpf": Solver(pcpf.iterate, "found", features=True, needs=WHOLE),
    "pcp": Solver(pcp.iterate, "found", features=False, needs=WHOLE),
    "altproj": Solver(altproj.iterate, "needed", features=False),
    "accaltproj": Solver(accaltproj.iterate, "needed", features=False),
    "rpca_gd": Solver(rpca_gd.iterate, "needed", features=False, needs=WHOLE),
    "scaledgd": Solver(scaledgd.iterate, "needed", features=False, needs=WHOLE),
    "ircur": Solver(ircur.iterate, "needed", features=False),
    "pca": Solver(pca.iterate, "needed", features=False),
}


def solver_named(name: str) -> Solver:
    """The solver of this name, or an error that lists them."""
    if text(name, "solver") not in SOLVERS:
        raise ValueError(f"solver={name!r} is unknown; choose one of {', '.join(map(repr, SOLVERS))}")
    return SOLVERS[name]
