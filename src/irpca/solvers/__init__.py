"""The solvers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..arguments import text
from ..engines.base import Look
from ..result import State
from .accaltproj import accaltproj
from .altproj import altproj
from .ircur import ircur
from .irpca import irpca, irpca_looks
from .irpca_iht import irpca_iht
from .pca import pca
from .pcp import pcp
from .pcpf import pcpf
from .rpca_gd import rpca_gd
from .scaledgd import scaledgd
from .trimmed import trimmed


@dataclass(frozen=True)
class Solver:
    """An algorithm, and which of the arguments it uses.

    Attributes
    ----------
    run : generator of States
    rank : "chosen" if it chooses one where none is given, "needed" if one must be given, "found" if it takes none
    features : whether it uses them
    spawns : whether it takes a SeedSequence for ``random_state``, and spawns from it; else a Generator
    needs : what an engine must be capable of
    looks : what it will look at first, as far as that does not depend on M; takes what ``run`` takes, and a shape
    """

    run: Callable[..., Iterator[State]]
    rank: Literal["chosen", "needed", "found"]
    features: bool
    spawns: bool = False
    needs: frozenset[str] = frozenset()
    looks: Callable[..., list[Look]] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Names of its options besides rank and features."""
        known = inspect.signature(self.run).parameters.values()
        return tuple(p.name for p in known if p.kind is p.KEYWORD_ONLY and p.name != "random_state")


SOLVERS = {
    "irpca": Solver(irpca, "chosen", features=True, spawns=True, looks=irpca_looks),
    "trimmed": Solver(trimmed, "chosen", features=True, spawns=True),
    "irpca_iht": Solver(irpca_iht, "needed", features=True),
    "pcpf": Solver(pcpf, "found", features=True, needs=frozenset({"whole"})),
    "pcp": Solver(pcp, "found", features=False, needs=frozenset({"whole"})),
    "altproj": Solver(altproj, "needed", features=False),
    "accaltproj": Solver(accaltproj, "needed", features=False),
    "rpca_gd": Solver(rpca_gd, "needed", features=False, needs=frozenset({"whole"})),
    "scaledgd": Solver(scaledgd, "needed", features=False, needs=frozenset({"whole"})),
    "ircur": Solver(ircur, "needed", features=False),
    "pca": Solver(pca, "needed", features=False),
}


def solver_named(name: str) -> Solver:
    """The solver of this name, or an error that lists them."""
    if text(name, "solver") == "bayes":
        raise ValueError("solver='bayes' no longer exists: the default solver does its job now; leave solver out")
    if name not in SOLVERS:
        raise ValueError(f"solver={name!r} is unknown; choose one of {', '.join(map(repr, SOLVERS))}")
    return SOLVERS[name]
