"""What a solver may ask of the owner of M.

With R = M − L and T = R where ``|R| <= zeta``, else 0, every algorithm of this field needs only thin products with T.
A solver sees those; M, and anything of its size, stays with the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.sparse import csr_array

from ..lowrank import Array, LowRank


@dataclass(frozen=True)
class Trim:
    """What rode along on a read of M.

    Attributes
    ----------
    kept : number of entries with ``|M - L| <= zeta``
    trimmed : number of the others
    energy : ``‖T‖²_F``
    largest : ``‖T‖_∞``
    """

    kept: int
    trimmed: int
    energy: float
    largest: float

    @property
    def kept_share(self) -> float:
        return self.kept / (self.kept + self.trimmed)


class Engine(Protocol):
    """The only owner of M.

    Each method marked * reads M once and adds 1 to ``reads``; the others add the share of M they touch.
    ``about``, where given, decides which entries are kept (``|M - about| <= zeta``) while the values still come from
    ``M - L``: that is how least squares on a frozen set of kept entries is asked for.
    ``weights`` (n×k) asks for the sums of its rows over the kept entries, K @ weights, beside the product with T.
    """

    name: str
    reads: float

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def n_observed(self) -> int: ...

    def place(self, B: Array) -> Array:
        """Keep a tall thin block next to M, in M's precision."""
        ...

    def core(
        self, L: LowRank, zeta: float, Q1: Array, Q2: Array, about: LowRank | None = None
    ) -> tuple[Array, Trim]:
        """* ``Q1.T @ T @ Q2``, d1×d2. Costs 2·n1·n2·(r + d2) flops."""
        ...

    def times(
        self, L: LowRank, zeta: float, X: Array, weights: Array | None = None
    ) -> tuple[Array, Array | None, Trim]:
        """* ``T @ X`` and, if asked, ``K @ weights``. Costs 2·n1·n2·(r + columns) flops."""
        ...

    def t_times(
        self, L: LowRank, zeta: float, Y: Array, weights: Array | None = None
    ) -> tuple[Array, Array | None, Trim]:
        """* ``T.T @ Y`` and, if asked, ``K.T @ weights``. Costs 2·n1·n2·(r + columns) flops."""
        ...

    def corruption(self, L: LowRank, zeta: float) -> tuple[csr_array, Trim]:
        """* S = M − L where ``|M - L| > zeta``, as a CSR array. Costs 2·n1·n2·r flops and writes S once."""
        ...

    def block(self, rows: Array, cols: Array) -> Array:
        """The small dense ``M[rows][:, cols]``."""
        ...

    def entries(self, rows: Array, cols: Array) -> Array:
        """M at the scattered entries ``(rows[k], cols[k])``."""
        ...


def not_finite(count: int) -> ValueError:
    """The error for NaN or infinite entries, met on the first read that sees them."""
    return ValueError(
        f"M holds {count} entries that are NaN or infinite; replace or remove them first "
        "(missing entries are not supported yet)"
    )
