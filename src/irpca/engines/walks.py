"""How a thread walks its share of the rows of a piece of M, in tiles that fit in cache.

A tile of a dense piece is a rectangle, one of a listed piece a run of entries in the order of memory, which kernels
take for a rectangle of one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from ..lowrank import Array
from . import kernels
from .arithmetic import Moments
from .questions import Masked, Tally, Trimmed, limits_of

TILE_BYTES = 5 << 19  # one tile of L or T, unless it were a large part of M
TILE_SHARE = 32  # tiles of M, at least, that are not smaller than a sixteenth of the above
TILE_ROWS = 64  # of a wide matrix; a narrow one gets more, to fill its tiles: whole rows are read fastest
LISTED_ENTRIES = 1 << 15  # of a tile of a listed piece

Limits = tuple[Array, Array | None]  # of rows and columns, whose product is the limit of an entry; None stands for ones


@dataclass(frozen=True, eq=False)
class DenseTile:
    """Some rows and columns of an array.

    Attributes
    ----------
    M, place : an array, and where the tile begins in it
    """

    M: Array
    rows: slice
    cols: slice

    @property
    def place(self) -> tuple[int, int]:
        return self.rows.start, self.cols.start

    @property
    def width(self) -> int:
        return self.cols.stop - self.cols.start

    @property
    def values(self) -> Array:
        return self.M[self.rows, self.cols]

    def fit(self, buffer: Array) -> Array:
        """A buffer in the shape of the tile."""
        height = self.rows.stop - self.rows.start
        return buffer[: height * self.width].reshape(height, self.width)

    def of_rows(self, a: Array) -> Array:
        """What belongs to the row of each entry; ``a`` has a number for every row of M."""
        return a[self.rows, None]

    def of_cols(self, b: Array) -> Array:
        return b[self.cols]

    def columns(self, at: Array) -> Array:
        """The columns of entries that :func:`.collect` found."""
        return at.copy()

    def count(self, at: Array, in_row: Array, counts: Array) -> None:
        """Add to the counts of rows how many it found there."""
        counts[self.rows] = in_row[: self.rows.stop - self.rows.start]

    def limits(self, rows: Array, cols: Array | None) -> Limits:
        return rows[self.rows], None if cols is None else cols[self.cols]

    def low_rank(self, U: Array, V: Array, buffer: Array) -> Array:
        return np.matmul(U[self.rows], V[self.cols].T, out=self.fit(buffer))

    def times(self, A: Array, B: Array, out: Array) -> None:
        """Add ``A @ B`` to the rows of the tile in ``out``."""
        out += A @ B[self.cols]

    def t_times(self, A: Array, B: Array, out: Array) -> None:
        """Add ``A.T @ B`` to ``out``."""
        out[self.cols] += A.T @ B[self.rows]

    def weigh(self, values: Array, T: Array, W: Array, noise: tuple[Array, ...], sums: tuple[Array, ...]) -> None:
        kernels.weigh_tile(values, T, W, noise, sums)

    def moments(self, T: Array, W: Array, factors: Array, pairs: Array, spread: Array, axis: int, to: Moments) -> None:
        """Add what the regressions of rows (axis 0), which are whole ones, or columns need; T is weighted by W."""
        if axis == 0:
            for weights, B, out in ((W, pairs, to.H), (T, factors, to.g), (W, spread, to.kappa)):
                np.matmul(weights, B, out=out[self.rows])
        else:
            to.H += W.T @ pairs[self.rows]
            to.g += T.T @ factors[self.rows]
            to.kappa += W.T @ spread[self.rows]


class DenseTiles:
    """Some rows of an array, cut into tiles: such that fit in cache, or whole rows of about ``most`` entries."""

    def __init__(self, A: Array, rows: range, most: int | None = None) -> None:
        self.A, self.rows, n2 = A, rows, A.shape[1]
        size = min(TILE_BYTES, max(A.nbytes // TILE_SHARE, TILE_BYTES // 16))
        entries = most or max(1, size // A.dtype.itemsize)
        widest = n2 if most else max(1, entries // min(TILE_ROWS, len(rows)))
        self.width = -(-n2 // -(-n2 // widest))
        self.height = min(len(rows), max(1, entries // self.width))

    def __iter__(self) -> Iterator[DenseTile]:
        n2 = self.A.shape[1]
        for first in range(self.rows.start, self.rows.stop, self.height):
            rows = slice(first, min(first + self.height, self.rows.stop))
            for left in range(0, n2, self.width):
                yield DenseTile(self.A, rows, slice(left, min(left + self.width, n2)))

    def buffer(self, dtype: Any = None) -> Array:
        return np.empty(self.height * self.width, dtype or self.A.dtype)


def even_runs(ends: Array, parts: int) -> list[range]:
    """Lines in ``parts`` runs that have about as many entries each; those of line i end at ``ends[i + 1]``."""
    edges = np.searchsorted(ends, [int(ends[-1]) * part // parts for part in range(1, parts)])
    return [range(first, last) for first, last in pairwise([0, *edges.tolist(), len(ends) - 1])]


def read_only(A: Array) -> Array:
    """A view that cannot be written to: one compiled kernel then serves M, which is the user's, and what is made."""
    view = A.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, eq=False)
class Entries:
    """The observed entries of M, row by row: CSR with sorted columns, as 64-bit ends and read-only arrays."""

    shape: tuple[int, int]
    ends: Array
    indices: Array
    values: Array

    @property
    def size(self) -> int:
        return len(self.values)

    def rows_of(self, positions: Array) -> Array:
        return np.searchsorted(self.ends, positions, side="right") - 1

    def find(self, rows: Array, cols: Array) -> tuple[Array, Array]:
        """Positions of the entries ``(rows[k], cols[k])``, by halving their rows; and whether they are observed."""
        first, end = self.ends[rows], self.ends[np.asarray(rows) + 1]
        last = end
        while (wide := first < last).any():
            middle = (first + last) // 2
            before = self.indices[np.minimum(middle, self.size - 1)] < cols
            first, last = np.where(wide & before, middle + 1, first), np.where(wide & ~before, middle, last)
        at = np.minimum(first, self.size - 1)
        return at, (first < end) & (self.indices[at] == cols)


@dataclass(frozen=True, eq=False)
class ListedTile:
    """Some entries that follow each other, as :class:`DenseTile`; the first and the last row may have more.

    Attributes
    ----------
    rows : the rows they are in
    starts : where each of these begins, counted from the first entry, and where the last one ends
    indices : their columns
    M, place : their values as an array of one row, and where the tile begins in it
    """

    rows: slice
    starts: Array
    indices: Array
    M: Array
    place: tuple[int, int] = (0, 0)

    @property
    def values(self) -> Array:
        return self.M[0]

    @property
    def row_of_each(self) -> Array:
        return np.repeat(np.arange(self.rows.start, self.rows.stop), np.diff(self.starts))

    def fit(self, buffer: Array) -> Array:
        return buffer[: len(self.indices)][None]

    def of_rows(self, a: Array) -> Array:
        return a[self.row_of_each]

    def of_cols(self, b: Array) -> Array:
        return b[self.indices]

    def columns(self, at: Array) -> Array:
        return self.indices[at]

    def count(self, at: Array, in_row: Array, counts: Array) -> None:
        counts[self.rows] += np.diff(np.searchsorted(at, self.starts))

    def limits(self, rows: Array, cols: Array | None) -> Limits:
        if cols is None:
            return rows[:1], None  # the same for all
        return np.ones(1, rows.dtype), self.of_rows(rows) * self.of_cols(cols)

    def low_rank(self, U: Array, V: Array, buffer: Array) -> Array:
        P = self.fit(buffer)
        kernels.low_rank(self.starts, self.indices, U[self.rows], V, P[0])
        return P

    def times(self, A: Array, B: Array, out: Array) -> None:
        """A has a number for every entry, and is zero elsewhere."""
        kernels.times(self.starts, self.indices, A[0], B, out)

    def t_times(self, A: Array, B: Array, out: Array) -> None:
        kernels.t_times(self.starts, self.indices, A[0], B[self.rows], out)

    def weigh(self, values: Array, T: Array, W: Array, noise: tuple[Array, ...], sums: tuple[Array, ...]) -> None:
        kernels.weigh_list(self.starts, self.indices, values, T[0], W[0], noise, sums)

    def moments(self, T: Array, W: Array, factors: Array, pairs: None, spread: Array, axis: int, to: Moments) -> None:
        listed = self.starts, self.indices, T[0], W[0]
        if axis == 0:
            kernels.sum_along(*listed, factors, spread, to.H[self.rows], to.g[self.rows], to.kappa[self.rows])
        else:
            kernels.sum_across(*listed, factors[self.rows], spread[self.rows], to.H, to.g, to.kappa)


class ListedTiles:
    """The observed entries of some rows, cut into tiles."""

    def __init__(self, M: Entries, rows: range) -> None:
        self.M, self.first, self.last = M, int(M.ends[rows.start]), int(M.ends[rows.stop])

    def __iter__(self) -> Iterator[ListedTile]:
        M = self.M
        for start in range(self.first, self.last, LISTED_ENTRIES):
            at = slice(start, min(start + LISTED_ENTRIES, self.last))
            top, bottom = M.rows_of(np.array([start, at.stop - 1])).tolist()
            starts = np.clip(M.ends[top : bottom + 2], start, at.stop) - start
            yield ListedTile(slice(top, bottom + 1), starts, M.indices[at], M.values[at][None])

    def buffer(self, dtype: Any = None) -> Array:
        return np.empty(min(LISTED_ENTRIES, self.last - self.first), dtype or self.M.values.dtype)


Tile: TypeAlias = DenseTile | ListedTile
Tiles: TypeAlias = DenseTiles | ListedTiles


class Walk:
    """The tiles of T, or of what else is asked for, one after the other; each overwrites the last.

    Parameters
    ----------
    tiles : DenseTiles or ListedTiles
    asked : Trimmed or Masked
        In the order of stored rows and columns.
    dtype : that of M
    """

    def __init__(self, tiles: Tiles, asked: Trimmed | Masked, dtype: np.dtype) -> None:
        self.tiles, self.asked, self.tally = tiles, asked, Tally()
        self.trimmed = asked.by if isinstance(asked, Masked) else asked
        self.limits = limits_of(self.trimmed.zeta, len(self.trimmed.U), dtype)
        self.P, self.K = tiles.buffer(), tiles.buffer() if self.trimmed.ones or asked is not self.trimmed else None

    def __iter__(self) -> Iterator[tuple[Any, Array]]:
        """The tiles, each with what was asked for."""
        asked, by = self.asked, self.trimmed
        for tile in self.tiles:
            T, K = tile.low_rank(by.U, by.V, self.P), None if self.K is None else tile.fit(self.K)
            counted = kernels.trim(tile.M, *tile.place, T, K, *tile.limits(*self.limits), None)
            self.tally.add(T.size, counted)
            if isinstance(asked, Masked):
                T = tile.low_rank(asked.U, asked.V, self.P)
                T *= K
            yield tile, K if by.ones and K is not None else T
