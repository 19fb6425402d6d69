"""The name table: every algorithm behind one word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..result import State
from .accaltproj import accaltproj
from .altproj import altproj
from .ircur import ircur
from .irpca import irpca
from .irpca_iht import irpca_iht
from .pca import pca
from .pcp import pcp
from .pcpf import pcpf
from .rpca_gd import rpca_gd
from .scaledgd import scaledgd


@dataclass(frozen=True)
class Solver:
    """An algorithm and what it does with what it is given.

    Attributes
    ----------
    run : generator of States
    rank : "chosen" if it finds one by itself where none is given, "needed" if not, "found" if it takes none
    features : whether it uses them
    """

    run: Callable[..., Iterator[State]]
    rank: Literal["chosen", "needed", "found"]
    features: bool


SOLVERS = {
    "irpca": Solver(irpca, "chosen", features=True),
    "irpca_iht": Solver(irpca_iht, "needed", features=True),
    "pcpf": Solver(pcpf, "found", features=True),
    "pcp": Solver(pcp, "found", features=False),
    "altproj": Solver(altproj, "needed", features=False),
    "accaltproj": Solver(accaltproj, "needed", features=False),
    "rpca_gd": Solver(rpca_gd, "needed", features=False),
    "scaledgd": Solver(scaledgd, "needed", features=False),
    "ircur": Solver(ircur, "needed", features=False),
    "pca": Solver(pca, "needed", features=False),
}
