"""Some rows of M on a device, dense or listed, and what three questions about them are answered, in torch.

What is said here for one entry is done for all entries of a slab at once: of a dense one as a matrix, of a list as a
vector. It is the plain version: :mod:`.triton_kernels` answers the same questions about dense slabs in one read.
Questions have been cut to the rows of the slab, and their arrays are on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...cached import cached_property
from ...lowrank import Array
from .. import arithmetic
from ..base import Standardised, in_precision
from ..questions import Listing, Masked, Regression, Trimmed
from .sparse import DeviceSparse, ends_of, numpy_type, sparse_product

NAME = "torch"


class Known:
    """What was found out about the entries of M, by whoever met them.

    Attributes
    ----------
    look : answers a few of them
    holes : whether some are not observed; as long as that is not known, a dense M is taken as complete
    """

    def __init__(self, look: Callable[[], Array], holes: bool = False) -> None:
        self.look, self.holes = look, holes

    @cached_property
    def typical(self) -> float:
        """How large M is, by a few of its entries."""
        seen = np.abs(self.look().astype(float))
        return float(np.max(seen, initial=0.0, where=np.isfinite(seen)))


@dataclass(eq=False)
class DenseSlab:
    """Some rows of a dense M, in any order, NaN where it is not observed.

    Attributes
    ----------
    M : tensor
    rows : which ones
    known : what was found out about M
    """

    M: Tensor
    rows: slice
    known: Known

    def values(self, dtype: torch.dtype) -> Tensor:
        """M at each entry."""
        return self.M.to(dtype)

    def of_rows(self, a: Tensor) -> Tensor:
        """What belongs to the row of each entry; ``a`` has one number for every row."""
        return a[:, None]

    def of_cols(self, b: Tensor) -> Tensor:
        return b[None, :]

    def low_rank(self, U: Tensor, V: Tensor) -> Tensor:
        """``U @ V.T`` at each entry."""
        return U @ V.T

    def times(self, A: Tensor, X: Tensor) -> Tensor:
        """``A @ X``; A has a number for each entry."""
        return A @ X

    def t_times(self, A: Tensor, Y: Tensor) -> Tensor:
        """``A.T @ Y``."""
        return A.T @ Y

    def pick(self, chosen: Tensor, A: Tensor) -> DeviceSparse:
        """Some of the entries, with the numbers that A has for them."""
        return DeviceSparse(tuple(self.M.shape), ends_of(chosen.sum(1)), chosen.nonzero()[:, 1], A[chosen])


@dataclass(eq=False)
class ListedSlab:
    """The same of all rows of an M whose observed entries are listed, row by row."""

    M: DeviceSparse

    @property
    def rows(self) -> slice:
        return slice(0, self.M.shape[0])

    def values(self, dtype: torch.dtype) -> Tensor:
        return self.M.data.to(dtype)

    def of_rows(self, a: Tensor) -> Tensor:
        return a[self.M.rows]

    def of_cols(self, b: Tensor) -> Tensor:
        return b[self.M.indices]

    def low_rank(self, U: Tensor, V: Tensor) -> Tensor:
        total = torch.zeros(self.M.nnz, dtype=U.dtype, device=U.device)
        for k in range(U.shape[1]):  # a column at a time: no more than a few vectors as long as the list are made
            total += self.of_rows(U[:, k]) * self.of_cols(V[:, k])
        return total

    def times(self, A: Tensor, X: Tensor) -> Tensor:
        return sparse_product(self.M.indptr, self.M.indices, A, X)

    def t_times(self, A: Tensor, Y: Tensor) -> Tensor:
        order, ends = self.M.by_column
        return sparse_product(ends, self.M.rows[order], A[order], Y)

    def pick(self, chosen: Tensor, A: Tensor) -> DeviceSparse:
        return replace(self.M, data=A, counts=None).only(chosen)


Slab: TypeAlias = DenseSlab | ListedSlab


def trim(
    slab: Slab, asked: Trimmed | Masked, X: Tensor | None, Y: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """What a question about products is about, times X and, turned, times Y; and what rides along.

    What rides along is that of :func:`~irpca.engines.arithmetic.trim`.
    """
    decides = asked.by if isinstance(asked, Masked) else asked
    M = slab.values(asked.U.dtype)
    _, T, kept, along = arithmetic.trim(M, slab.low_rank(decides.U, decides.V), precise(decides.zeta, M.dtype))
    if isinstance(asked, Masked):
        T = torch.where(kept, slab.low_rank(asked.U, asked.V), 0)
    elif asked.ones:
        T = kept.to(T.dtype)
    return None if X is None else slab.times(T, X), None if Y is None else slab.t_times(T, Y), along


def find(slab: Slab, asked: Listing) -> tuple[DeviceSparse, Tensor]:
    """The entries of M − L beyond the limit, and what rides along."""
    M = slab.values(asked.U.dtype)
    limit: Any = asked.limit
    if isinstance(limit, Standardised):
        limit = limit.limit * torch.sqrt(slab.of_rows(limit.rows) * slab.of_cols(limit.cols))
    else:
        limit = precise(limit, M.dtype)
    R, _, kept, along = arithmetic.trim(M, slab.low_rank(asked.U, asked.V), limit)
    return slab.pick(~kept & ~R.isnan(), R), along


def weigh(slab: Slab, asked: Regression) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """``ω (M − L)`` and ω at each entry, in double precision; and the sums of rows, of columns and of all."""
    M, noise = in_units(slab, slab.values(torch.float64), asked), asked.noise
    seen = ~M.isnan()
    R = torch.where(seen, M - slab.low_rank(asked.U, asked.V), 0)
    s2 = slab.of_rows(noise.rows) * slab.of_cols(noise.cols)
    var = slab.low_rank(noise.row_spread, noise.col_spread)
    omega, energy, trust, totals = arithmetic.weigh(R, seen, s2, var, noise.parameters)
    ones = [side.new_ones((len(side), 1)) for side in (asked.U, asked.V)]
    of_rows = torch.cat([slab.times(part, ones[1]) for part in (energy, trust)], 1)
    of_cols = torch.cat([slab.t_times(part, ones[0]) for part in (energy, trust)], 1)
    return omega * R, omega, (of_rows, of_cols, totals)


def in_units(slab: Slab, M: Tensor, asked: Regression) -> Tensor:
    """M divided by the units of its rows or columns, if there are any."""
    if asked.row_units is not None:
        return M / slab.of_rows(asked.row_units)
    return M if asked.col_units is None else M / slab.of_cols(asked.col_units)


def precise(limit: float, dtype: torch.dtype) -> float:
    """A limit in the precision of M."""
    return float(in_precision(limit, numpy_type(dtype)))


def summed_along(parts: Tensor, unit: float = 1.0) -> Tensor:
    """What rode along on all parts, of which each has a row: sums, and the largest of the last. See trim.

    The energy is in squares of a unit.
    """
    kept, missing, beyond, energy = parts[:, :4].sum(0)
    return torch.stack([kept, missing, beyond, energy * unit**2, parts[:, 4].amax()])
