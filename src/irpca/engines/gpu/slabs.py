"""Some rows of M on a device, dense or listed, and the arithmetic of every question on them, in torch.

What is said here for one entry is done for all entries of a slab at once: of a dense one as a matrix, of a list as a
vector. It is the plain version: :mod:`.kernels` does the same to dense slabs in one read.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .. import arithmetic
from ..base import Standardised
from ..questions import Listing, Masked, Regression, Trimmed

COUNTED = (
    4  # of the numbers that ride along are summed: kept, missing, beyond the limit, energy; the last is the largest
)


class Slab(ABC):
    """Some rows of M.

    Attributes
    ----------
    rows : which ones
    """

    rows: slice

    @property
    @abstractmethod
    def entries(self) -> int:
        """How many there are, observed or not."""

    @abstractmethod
    def values(self, dtype: torch.dtype) -> Tensor:
        """M, NaN where it is not observed."""

    @abstractmethod
    def of_rows(self, a: Tensor) -> Tensor:
        """What belongs to the row of each entry; ``a`` has one number for every row of M."""

    @abstractmethod
    def of_cols(self, b: Tensor) -> Tensor: ...

    @abstractmethod
    def low_rank(self, U: Tensor, V: Tensor) -> Tensor:
        """``U @ V.T`` at each entry."""

    @abstractmethod
    def times(self, A: Tensor, X: Tensor) -> Tensor:
        """``A @ X`` for these rows; A has a number for each entry."""

    @abstractmethod
    def t_times(self, A: Tensor, Y: Tensor) -> Tensor:
        """``A.T @ Y``, Y having all rows of M."""

    @abstractmethod
    def places(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """How many entries of each row are chosen, and their columns, row by row."""

    def inner(self, U: Tensor, V: Tensor) -> Tensor:
        """``U @ V.T`` where both have two columns, and may be of another precision than M."""
        return self.of_rows(U[:, 0]) * self.of_cols(V[:, 0]) + self.of_rows(U[:, 1]) * self.of_cols(V[:, 1])


@dataclass(eq=False)
class Dense(Slab):
    M: Tensor
    rows: slice

    @property
    def entries(self) -> int:
        return self.M.numel()

    def values(self, dtype: torch.dtype) -> Tensor:
        return self.M.to(dtype)

    def of_rows(self, a: Tensor) -> Tensor:
        return a[self.rows, None]

    def of_cols(self, b: Tensor) -> Tensor:
        return b[None, :]

    def low_rank(self, U: Tensor, V: Tensor) -> Tensor:
        return U[self.rows] @ V.T

    def times(self, A: Tensor, X: Tensor) -> Tensor:
        return A @ X

    def t_times(self, A: Tensor, Y: Tensor) -> Tensor:
        return A.T @ Y[self.rows]

    def places(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        return chosen.sum(1), chosen.nonzero()[:, 1]


@dataclass(eq=False)
class Listed(Slab):
    """Entries listed row by row; all rows of M.

    Attributes
    ----------
    ends : where the entries of each row end, with a 0 before them
    cols, listed : the column and the value of each
    by_column : their order by columns
    """

    ends: Tensor
    cols: Tensor
    listed: Tensor
    n2: int
    rows: slice = field(init=False)
    at: Tensor = field(init=False)
    by_column: Tensor = field(init=False)
    col_ends: Tensor = field(init=False)

    def __post_init__(self) -> None:
        n1 = len(self.ends) - 1
        self.rows = slice(0, n1)
        self.at = torch.repeat_interleave(torch.arange(n1, device=self.ends.device), self.ends.diff())
        self.by_column = torch.argsort(self.cols, stable=True)
        counts = torch.bincount(self.cols, minlength=self.n2)
        self.col_ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])

    @property
    def entries(self) -> int:
        return len(self.listed)

    def values(self, dtype: torch.dtype) -> Tensor:
        return self.listed.to(dtype)

    def of_rows(self, a: Tensor) -> Tensor:
        return a[self.at]

    def of_cols(self, b: Tensor) -> Tensor:
        return b[self.cols]

    def low_rank(self, U: Tensor, V: Tensor) -> Tensor:
        total = torch.zeros(self.entries, dtype=U.dtype, device=U.device)
        for k in range(U.shape[1]):  # a column at a time: no more than a few vectors as long as the list are made
            total += U[:, k][self.at] * V[:, k][self.cols]
        return total

    def times(self, A: Tensor, X: Tensor) -> Tensor:
        return _sparse_product(self.ends, self.cols, A, X)

    def t_times(self, A: Tensor, Y: Tensor) -> Tensor:
        return _sparse_product(self.col_ends, self.at[self.by_column], A[self.by_column], Y)

    def places(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        return torch.bincount(self.at[chosen], minlength=self.rows.stop), self.cols[chosen]


def _sparse_product(ends: Tensor, indices: Tensor, values: Tensor, B: Tensor) -> Tensor:
    if not len(values) or not B.shape[1]:
        return B.new_zeros((len(ends) - 1, B.shape[1]))
    return csr_tensor(ends, indices, values, (len(ends) - 1, len(B))) @ B.contiguous()


def csr_tensor(ends: Tensor, indices: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """As torch has it; that such tensors are in beta state is nothing a user could act upon."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state|Sparse invariant checks")
        return torch.sparse_csr_tensor(ends, indices, values, shape, check_invariants=False)


# T, and what rides along


def trimmed(slab: Slab, asked: Trimmed | Masked) -> tuple[Tensor, Tensor]:
    """The entries that a question about products is about, and what rides along."""
    decides = asked.by if isinstance(asked, Masked) else asked
    M = slab.values(asked.U.dtype)
    _, T, kept, along = arithmetic.trim(M, slab.low_rank(decides.U, decides.V), decides.zeta)
    if isinstance(asked, Masked):
        T = torch.where(kept, slab.low_rank(asked.U, asked.V), 0)
    elif asked.ones:
        T = kept.to(T.dtype)
    return T, along


def gathered(parts: list[Tensor]) -> Tensor:
    """What rode along on all slabs."""
    all_of = torch.stack(parts)
    return torch.cat([all_of[:, :COUNTED].sum(0), all_of[:, COUNTED:].amax(0)])


@dataclass(eq=False)
class Found:
    """The entries beyond the limit.

    Attributes
    ----------
    ends : where the rows of the slab end, with a 0 before them
    counts : how many each of its rows, and each column, has; in host memory
    cols, values : their columns and M − L, row by row; a kernel may still be writing them
    rode : what rides along
    """

    ends: Tensor
    counts: tuple[Tensor, Tensor]
    cols: Tensor
    values: Tensor
    rode: Tensor


def flagged(slab: Slab, asked: Listing, index: torch.dtype) -> Found:
    """The entries beyond the limit."""
    M = slab.values(asked.U.dtype)
    limit = asked.limit
    if isinstance(limit, Standardised):
        limit = limit.limit * torch.sqrt(slab.of_rows(limit.rows) * slab.of_cols(limit.cols))
    R, _, kept, along = arithmetic.trim(M, slab.low_rank(asked.U, asked.V), limit)
    chosen = ~kept & ~R.isnan()
    counts, columns = slab.places(chosen)
    across = torch.bincount(columns, minlength=len(asked.V))
    ends = torch.cat([counts.new_zeros(1, dtype=torch.int64), counts.cumsum(0, dtype=torch.int64)])
    return Found(ends, (counts.cpu(), across.cpu()), columns.to(index), R[chosen], along)


# Weights under a noise model, in double precision


def weighed(slab: Slab, asked: Regression) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """``ω (M − L)`` and ω at each entry; and the sums of rows, of columns and of all. See irpca.engines.kernels."""
    M, noise = in_units(slab, slab.values(torch.float64), asked), asked.noise
    seen = ~M.isnan()
    R = torch.where(seen, M - slab.low_rank(asked.U, asked.V), 0)
    s2 = slab.of_rows(noise.rows) * slab.of_cols(noise.cols)
    var = slab.inner(noise.row_spread, noise.col_spread)
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
