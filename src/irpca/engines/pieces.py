"""A rectangle of M in memory: dense, with NaN for what is not observed, or a list of its observed entries.

Both can be walked by several threads, each its own rows, in parts that fit in cache, and both answer the same questions
(:mod:`irpca.engines.questions`). All that a new storage has to supply is pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..lowrank import Array
from ..threads import in_order
from . import kernels, walks
from .arithmetic import Moments
from .base import ONCE, Sums, all_counted, bad_entries, not_finite
from .holes import LONGEST, compressed, stack_entries
from .questions import Listing, Masked, Regression, Tally, Trimmed, limits_of
from .regressions import buffers
from .walks import DenseTiles, Entries, ListedTiles, Tiles, Walk, even_runs, read_only

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from ..model.maps import ColumnMaps

INLINE_ENTRIES = 1 << 17  # of a dense piece: below, another thread costs more than it brings
INLINE_LISTED = 1 << 15  # the same of a list, and of entries that are weighed
WEIGHED_ENTRIES = 1 << 15  # whose weights are made at a time: they stay in cache
FEW_SHARES = 1 << 21  # entries below which S is found in as many shares as there are threads
FLAGGED_BYTES = 1 << 19  # of L whose entries of S are found at a time
SUMS = 4  # numbers per observed entry, of which the sums over rows that threads keep for themselves may consist

Pair = tuple[Array, Array]  # something of the stored rows, and of the stored columns
Flagged = tuple[list[Pair], Tally]  # columns and values of entries of S, run by run, and what rode along


class Piece(ABC):
    """What both kinds answer.

    Attributes
    ----------
    turned : bool
        Whether stored rows are columns of M: what is said below about rows and columns is of the stored ones.
    stored, size, shape : how many rows and columns are stored, how many entries, and the shape of M
    small : whether one thread is enough
    where : which rows and columns of M it consists of, for messages; empty: all of them
    sum_dtype : of sums over entries
    """

    turned = False
    shape: tuple[int, int]
    stored: tuple[int, int]
    size: int
    small: bool
    where: str
    dtype: np.dtype
    sum_dtype: np.dtype

    @property
    @abstractmethod
    def n_observed(self) -> int: ...

    @property
    @abstractmethod
    def counts(self) -> Pair:
        """How many entries of each row and column of M are observed. Counting reads M, once, and not as an answer."""

    @abstractmethod
    def shares(self, parts: int) -> list[range]:
        """The rows in ``parts`` runs of about as many entries."""

    @abstractmethod
    def tiles(self, share: range, most: int | None = None) -> Tiles:
        """Some rows in tiles; of a dense piece in whole rows of about so many entries, if that is told."""

    def most_sums(self, width: int) -> int | None:
        """How many threads may have sums of their own, of ``width`` numbers for each column. None: any number."""
        return None

    @abstractmethod
    def mapped(self, maps: ColumnMaps) -> Piece:
        """The latent values of M: a piece of its own."""

    @abstractmethod
    def rows(self, some: slice) -> Piece:
        """Some rows of M."""

    @abstractmethod
    def whole(self) -> Array:
        """All of it as a dense array, in the same way as :meth:`block`."""

    @abstractmethod
    def block(self, rows: Array, cols: Array) -> Array:
        """``M[rows][:, cols]``, NaN where it is not observed; refused if some are infinite."""

    @abstractmethod
    def entries(self, rows: Array, cols: Array) -> Array:
        """M at the entries ``(rows[k], cols[k])``, in the same way."""

    def walks(self, asked: Trimmed | Masked, parts: int) -> list[Walk]:
        """All rows, in ``parts`` walks that different threads can take."""
        asked = asked.converted(read_only)  # for one compiled kernel
        return [Walk(self.tiles(share), asked, self.dtype) for share in self.shares(parts)]

    def moments(self, asked: Regression, threads: int) -> tuple[Moments, Sums]:
        """What the regressions of rows or columns of M need, and what rides along."""
        asked = asked.T if self.turned else asked
        (U, V), axis, noise, units = asked.factors, asked.axis, asked.noise, (asked.row_units, asked.col_units)
        other, spread = (np.ascontiguousarray(side) for side in asked.other)
        pairs = self.pairs(other)

        def weigh(share: range, mine: Moments, sums: Sums) -> None:
            tiles = self.tiles(share, WEIGHED_ENTRIES)
            P, Q, scaled = (tiles.buffer(float) for _ in range(3))
            for tile in tiles:
                T, W, values = tile.low_rank(U, V, P), tile.fit(Q), tile.values
                for unit, lines in zip(units, (tile.of_rows, tile.of_cols), strict=True):
                    if unit is not None:
                        values = read_only(np.divide(values, lines(unit), out=tile.fit(scaled).reshape(values.shape)))
                tile.weigh(values, T, W, noise.part(tile.rows), sums.part(tile.rows))
                tile.moments(T, W, other, pairs, spread, axis, mine)

        shares = self.shares(1 if self.size < INLINE_LISTED else threads)
        moments, sums = sum_shares(weigh, shares, axis, self.stored, U.shape[1])
        if not sums.finite:
            raise self.blamed()
        self.met(self.size - sums.n_observed)
        return moments, sums.T if self.turned else sums

    def pairs(self, factors: Array) -> Any:
        """The products of factors that moments are sums of, if they are made once and for all."""
        return None

    def listed(self, asked: Listing, threads: int) -> tuple[csr_array, Tally]:
        """S, in the orientation of M, from a question about stored rows and columns."""
        counts, asked = np.zeros(self.stored[0], np.int64), asked.converted(read_only)
        limits = limits_of(asked.limit, self.stored[0], self.dtype)
        index = np.int32 if self.stored[1] <= LONGEST else np.int64

        def find(share: range) -> Flagged:
            found, total, tiles = [], Tally(), self.tiles(share, max(1, FLAGGED_BYTES // self.dtype.itemsize))
            buffer, mask, values, where = (tiles.buffer(kind) for kind in (self.dtype, bool, self.dtype, index))
            in_row = np.empty(len(share), np.int64)
            for tile in tiles:
                R, beyond = tile.low_rank(asked.U, asked.V, buffer), tile.fit(mask)
                counted = kernels.trim(tile.M, *tile.place, R, beyond, *tile.limits(*limits), True)
                total.add(R.size, counted)
                n = kernels.collect(beyond, R, where, values, in_row)
                found.append((tile.columns(where[:n]), values[:n].copy()))
                tile.count(where[:n], in_row, counts)
            return found, total

        # Many shares let all threads end at about the same time, but to hand one over takes a tenth of a millisecond.
        shares = self.shares(1 if self.small else threads * (1 if self.size < FEW_SHARES else 8))
        answers = in_order(find, shares, min(threads, len(shares)), ahead=len(shares))
        parts, tallies = zip(*answers, strict=True)
        total = Tally.of(tallies)
        self.seen(total)
        S = stack_entries(list(chain(*parts)), counts, self.stored, self.dtype)
        if self.turned:
            S = S.T.tocsr()
            S.has_canonical_format = True
        return S, total

    def seen(self, tally: Tally) -> None:
        """Take note of a walk: M − L that is not finite is refused, and missing entries are remembered."""
        if not tally.finite:
            raise self.blamed()
        self.met(tally.missing)

    def met(self, missing: int) -> None:
        """So many entries that are stored turned out not to be observed."""
        return

    def blamed(self) -> Exception:
        """Whose fault it is that M − L is not finite; a list was looked at when it came."""
        return not_finite(0)


class Dense(Piece):
    """A two-dimensional array, never copied and never upcast; NaN is not observed.

    Parameters
    ----------
    M : float32 or float64 array, in any order; rows or columns that lie together in memory are read fastest
    holes : bool
        Whether some entries are known to be NaN. If not, M is taken as complete until the first is met.
    where : str
    """

    def __init__(self, M: Array, holes: bool = False, where: str = "") -> None:
        # Fortran order is the C order of the transposed matrix: the same rows of memory, the roles swapped.
        self.turned = not M.flags.c_contiguous and abs(M.strides[0]) < abs(M.strides[1])
        self.A = read_only(np.asarray(M.T if self.turned else M))
        self.holes, self.where, self.dtype, self.sum_dtype = holes, where, self.A.dtype, self.A.dtype
        self.stored, self.size, self.shape = self.A.shape, self.A.size, M.shape
        self.small = self.size < INLINE_ENTRIES
        self._counts: Pair | None = None

    @property
    def n_observed(self) -> int:
        return int(self.counts[0].sum()) if self.holes else self.A.size

    @property
    def counts(self) -> Pair:
        if not self.holes:
            return all_counted(self.shape)
        if self._counts is None:
            self._counts = self._counted()
        return self._counts

    def _counted(self) -> Pair:
        n1, n2 = self.A.shape
        rows, cols, step = np.empty(n1, np.int64), np.zeros(n2, np.int64), max(1, ONCE // n2)
        for first in range(0, n1, step):
            seen = ~np.isnan(self.A[first : first + step])
            rows[first : first + step] = np.count_nonzero(seen, axis=1)
            cols += np.count_nonzero(seen, axis=0)
        return (cols, rows) if self.turned else (rows, cols)

    def shares(self, parts: int) -> list[range]:
        n, parts = len(self.A), min(parts, len(self.A))
        return [range(first, last) for first, last in pairwise(n * part // parts for part in range(parts + 1))]

    def tiles(self, share: range, most: int | None = None) -> DenseTiles:
        return DenseTiles(self.A, share, most)

    def mapped(self, maps: ColumnMaps) -> Dense:
        return Dense(maps.table(self.A.T if self.turned else self.A), self.holes, self.where)

    def rows(self, some: slice) -> Dense:
        return Dense(self.A.T[some] if self.turned else self.A[some], self.holes, self.where)

    def pairs(self, factors: Array) -> Array:
        K = factors.shape[1]
        products = buffers.get("products", (len(factors), K * (K + 1) // 2))
        kernels.pairs(factors, products)
        return products

    def whole(self) -> Array:
        return self._finite(self.A.T if self.turned else self.A)

    def block(self, rows: Array, cols: Array) -> Array:
        return self._finite(self.A[np.ix_(cols, rows)].T if self.turned else self.A[np.ix_(rows, cols)])

    def entries(self, rows: Array, cols: Array) -> Array:
        return self._finite(self.A[cols, rows] if self.turned else self.A[rows, cols])

    def _finite(self, values: Array) -> Array:
        missing, infinite = bad_entries(values)
        if infinite:
            raise not_finite(infinite, self.where)
        self.met(missing)
        return values

    def met(self, missing: int) -> None:
        self.holes |= missing > 0

    def blamed(self) -> Exception:
        """M is read once more."""
        return not_finite(int(sum(bad_entries(row)[1] for row in self.A)), self.where)


class Listed(Piece):
    """The observed entries, row by row, and nothing for the others: cost and memory are those of the entries.

    Parameters
    ----------
    M : csr_array of float32 or float64, whose stored entries are the observed ones
        In canonical format: columns sorted in each row, none twice. A stored zero is an observation. Not copied.
    where : str
    """

    sum_dtype = np.dtype(np.float64)  # entries of a column come one by one: in single precision, errors would add up

    def __init__(self, M: csr_array, where: str = "") -> None:
        if not M.has_canonical_format:
            raise ValueError("columns of M must be sorted in each row, and none may occur twice")
        if bad := M.nnz - int(np.isfinite(M.data).sum()):
            raise ValueError(
                f"{bad} of the observed entries of M are NaN or infinite{where}; leave them out or replace them"
            )
        index = np.int32 if M.shape[1] <= LONGEST else np.int64
        ends, indices = M.indptr.astype(np.int64, copy=False), M.indices.astype(index, copy=False)
        self.M = Entries(M.shape, read_only(ends), read_only(indices), read_only(M.data))
        self.where, self.dtype, self.stored, self.shape = where, M.data.dtype, M.shape, M.shape
        self.size = self.M.size
        self.small = self.size < INLINE_LISTED

    @property
    def n_observed(self) -> int:
        return self.size

    @property
    def counts(self) -> Pair:
        return np.diff(self.M.ends), np.bincount(self.M.indices, minlength=self.shape[1])

    def shares(self, parts: int) -> list[range]:
        return even_runs(self.M.ends, max(1, min(parts, self.shape[0])))

    def tiles(self, share: range, most: int | None = None) -> ListedTiles:
        return ListedTiles(self.M, share)

    def most_sums(self, width: int) -> int | None:
        return max(1, SUMS * self.n_observed // (self.shape[1] * max(1, width)))

    def mapped(self, maps: ColumnMaps) -> Listed:
        M = self.M
        part = compressed(maps.cells(M.values, M.indices), M.indices, M.ends, M.shape)
        part.has_canonical_format = True
        return Listed(part, self.where)

    def rows(self, some: slice) -> Listed:
        M, first, last = self.M, int(self.M.ends[some.start]), int(self.M.ends[some.stop])
        shape, ends = (some.stop - some.start, M.shape[1]), M.ends[some.start : some.stop + 1] - first
        part = compressed(M.values[first:last], M.indices[first:last], ends, shape)
        part.has_canonical_format = True
        return Listed(part, self.where)

    def whole(self) -> Array:
        found = np.full(self.shape, np.nan, self.dtype)
        found[np.repeat(np.arange(self.shape[0]), np.diff(self.M.ends)), self.M.indices] = self.M.values
        return found

    def block(self, rows: Array, cols: Array) -> Array:
        rows, ends = np.asarray(rows), self.M.ends
        wanted, back = np.unique(cols, return_inverse=True)
        place = np.full(self.shape[1], -1)
        place[wanted] = np.arange(len(wanted))
        found = np.full((len(rows), len(wanted)), np.nan, self.dtype)
        counts = ends[rows + 1] - ends[rows]
        totals = np.append(0, np.cumsum(counts))
        for run in even_runs(totals, 1 + int(totals[-1]) // walks.LISTED_ENTRIES):
            some = slice(run.start, run.stop)
            at = np.arange(totals[run.start], totals[run.stop])
            at += np.repeat(ends[rows[some]] - totals[some], counts[some])
            to, lines = place[self.M.indices[at]], np.repeat(np.arange(run.start, run.stop), counts[some])
            inside = to >= 0
            found[lines[inside], to[inside]] = self.M.values[at[inside]]
        return found if np.array_equal(wanted, cols) else found[:, back]

    def entries(self, rows: Array, cols: Array) -> Array:
        if not self.n_observed:
            return np.full(len(rows), np.nan, self.dtype)
        at, there = self.M.find(rows, cols)
        return np.where(there, self.M.values[at], self.dtype.type(np.nan))

    def at(self, positions: Array) -> tuple[Array, Array, Array]:
        """Rows, columns and values of some of the entries, by their position in the list."""
        return self.M.rows_of(positions), self.M.indices[positions].astype(np.int64), self.M.values[positions]


def sum_shares(
    weigh: Callable[[range, Moments, Sums], None], shares: Sequence[range], axis: int, shape: tuple[int, int], K: int
) -> tuple[Moments, Sums]:
    """The moments of rows (``axis=0``), of which each thread fills some, or of columns; and the sums."""
    n, parts = shape[axis], len(shares)
    found = [
        Moments(buffers.get(f"moments {part}", (n, K * (K + 1) // 2)), np.zeros((n, K)), np.zeros(n))
        for part in range(parts if axis else 1)  # made by the thread that will add them up
    ]
    for mine in found:
        mine.H.fill(0)

    def work(part: int) -> Sums:
        sums = Sums.zero(shape)
        weigh(shares[part], found[part if axis else 0], sums)
        return sums

    if parts == 1:
        return found[0], work(0)
    total, *others = in_order(work, range(parts), parts, ahead=parts)
    for sums in others:
        total.add(sums)
    for mine in found[1:]:
        for name in ("H", "g", "kappa"):
            summed = getattr(found[0], name)
            summed += getattr(mine, name)
    return found[0], total


def piece_of(M: Any, holes: bool = False, where: str = "") -> Piece:
    """An array, or a list of observed entries in CSR format."""
    return Listed(M, where) if hasattr(M, "tocsr") else Dense(M, holes, where)
