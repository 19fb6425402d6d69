"""Some rows of M on a device, dense or listed, and the arithmetic of every question on them, in torch.

What is said here for one entry is done for all entries of a slab at once: of a dense one as a matrix, of a list as a
vector. It is the plain version: :mod:`.kernels` does the same to dense slabs in one read.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import lgamma
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base import CAUCHY, COMPONENTS, MEDIAN, MOST_SPREAD, Standardised
from ..kernels import LOG_2PI, TINY
from ..questions import Listing, Masked, Regression, Tally, Trimmed

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
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(ends, indices, values, shape, check_invariants=False)


# T, and what rides along


def trimmed(slab: Slab, asked: Trimmed | Masked) -> tuple[Tensor, Tensor]:
    """The entries that a question about products is about, and what rides along."""
    decides = asked.by if isinstance(asked, Masked) else asked
    M = slab.values(asked.U.dtype)
    R = M - slab.low_rank(decides.U, decides.V)
    size = R.abs()
    kept = size <= decides.zeta
    T = torch.where(kept, R, 0)
    along = rode(M, size, decides.zeta, kept, T)
    if isinstance(asked, Masked):
        T = torch.where(kept, slab.low_rank(asked.U, asked.V), 0)
    elif asked.ones:
        T = kept.to(T.dtype)
    return T, along


def rode(M: Tensor, size: Tensor, limit: Any, kept: Tensor, T: Tensor) -> Tensor:
    beyond = (size > limit) & (size < torch.inf)
    wide = T.double()
    found = kept.sum(), M.isnan().sum(), beyond.sum(), (wide * wide).sum(), wide.abs().max()
    return torch.stack([part.double() for part in found])


def gathered(parts: list[Tensor]) -> Tensor:
    """What rode along on all slabs."""
    all_of = torch.stack(parts)
    return torch.cat([all_of[:, :COUNTED].sum(0), all_of[:, COUNTED:].amax(0)])


def tally_of(rode_along: Tensor, entries: int) -> Tally:
    """The same on the host; what is neither kept, beyond the limit nor missing is not finite."""
    kept, missing, beyond, energy, largest = rode_along.tolist()
    tally = Tally()
    tally.add(entries, (int(kept), kept + missing + beyond == entries, energy, largest, int(missing)))
    return tally


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
    R = M - slab.low_rank(asked.U, asked.V)
    size, limit = R.abs(), asked.limit
    if isinstance(limit, Standardised):
        limit = limit.limit * torch.sqrt(slab.of_rows(limit.rows) * slab.of_cols(limit.cols))
    kept = size <= limit
    along = rode(M, size, limit, kept, torch.where(kept, R, 0))
    chosen = size > limit
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
    square = R * R
    var = torch.minimum(slab.inner(noise.row_spread, noise.col_spread), MOST_SPREAD * s2)
    if np.isfinite(noise.zeta):
        w, trust, totals = _within(R, square, noise.zeta)
    elif np.isfinite(noise.nu):
        w, trust, totals = _student(square, var, s2, noise.nu)
    else:
        w, trust, totals = _mixture(square, var, s2, [float(x) for x in noise.parameters])
    omega = torch.where(seen, w / s2, 0)
    energy, trust = omega * (square + var), torch.where(seen, trust, 0)
    ones = [side.new_ones((len(side), 1)) for side in (asked.U, asked.V)]
    of_rows = torch.cat([slab.times(part, ones[1]) for part in (energy, trust)], 1)
    of_cols = torch.cat([slab.t_times(part, ones[0]) for part in (energy, trust)], 1)
    of_all = torch.stack([torch.where(seen, part, 0).sum() for part in totals])
    return omega * R, omega, (of_rows, of_cols, of_all)


def in_units(slab: Slab, M: Tensor, asked: Regression) -> Tensor:
    """M divided by the units of its rows or columns, if there are any."""
    if asked.row_units is not None:
        return M / slab.of_rows(asked.row_units)
    return M if asked.col_units is None else M / slab.of_cols(asked.col_units)


def _within(R: Tensor, square: Tensor, zeta: float) -> tuple[Tensor, Tensor, list[Tensor]]:
    w = (R.abs() <= zeta).double()
    nothing = torch.zeros_like(w)
    return w, w, [w, nothing, nothing, 1 - w, (1 - w) * square, nothing, nothing]


def _student(square: Tensor, var: Tensor, s2: Tensor, nu: float) -> tuple[Tensor, Tensor, list[Tensor]]:
    relative = (square + var) / s2
    density = student_constant(nu) - 0.5 * torch.log(s2) - 0.5 * (nu + 1) * torch.log1p(relative / nu)
    nothing, one = torch.zeros_like(square), torch.ones_like(square)
    return (nu + 1) / (nu + relative), one, [one, nothing, nothing, nothing, nothing, density, nothing]


def student_constant(nu: float) -> float:
    return lgamma((nu + 1) / 2) - lgamma(nu / 2) - 0.5 * float(np.log(np.pi * nu))


def _mixture(square: Tensor, var: Tensor, s2: Tensor, parameters: list[float]) -> tuple[Tensor, Tensor, list[Tensor]]:
    *shares, gross, broad, _, _, heavy = parameters
    densities = []
    for share, c in zip(shares, COMPONENTS, strict=True):
        total = c * c * s2 + var
        densities.append((1 - gross) * share * torch.exp(-0.5 * square / total) / torch.sqrt(total))
    inner = 1 / (1 + square / (MEDIAN * broad) ** 2)
    light = (1 - heavy) * gross * torch.exp(-0.5 * square / broad**2) / broad
    tails = heavy * gross * CAUCHY * inner / broad + TINY
    total = densities[0] + densities[1] + densities[2] + light + tails
    parts, P = [density / total for density in densities], (light + tails) / total
    energy = (light + tails * 2 / MEDIAN**2 * inner) * square / total
    w = parts[0] + parts[1] / COMPONENTS[1] ** 2 + parts[2] / COMPONENTS[2] ** 2
    return w, 1 - P, [*parts, P, energy, torch.log(total) - 0.5 * LOG_2PI, tails / total]
