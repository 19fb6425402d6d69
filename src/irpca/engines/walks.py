"""How a thread walks its share of the rows of a piece of M, in tiles that fit in cache.

A tile of a dense piece is a rectangle, one of a listed piece a run of entries in the order of memory, which kernels
take for a rectangle of one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..lowrank import Array
from . import kernels
from .arithmetic import Counts
from .base import in_precision
from .questions import Masked, Tally, Trimmed

TILE_BYTES = 5 << 19  # one tile of L or T, unless it were a large part of M
TILE_SHARE = 32  # tiles of M, at least, that are not smaller than a sixteenth of the above
TILE_ROWS = 64  # of a wide matrix; a narrow one gets more, to fill its tiles: whole rows are read fastest
LISTED_ENTRIES = 1 << 15  # of a tile of a listed piece


@dataclass(frozen=True, eq=False)
class DenseTile:
    """Some rows and columns of an array.

    Attributes
    ----------
    M, top, left : an array, and where the tile begins in it
    """

    M: Array
    rows: slice
    cols: slice

    @property
    def top(self) -> int:
        return self.rows.start

    @property
    def left(self) -> int:
        return self.cols.start

    def fit(self, buffer: Array) -> Array:
        """A buffer in the shape of the tile."""
        height, width = self.rows.stop - self.rows.start, self.cols.stop - self.cols.start
        return buffer[: height * width].reshape(height, width)

    def low_rank(self, U: Array, Vt: Array, buffer: Array) -> Array:
        return np.matmul(U[self.rows], Vt[:, self.cols], out=self.fit(buffer))

    def times(self, A: Array, B: Array, out: Array) -> None:
        """Add ``A @ B`` to the rows of the tile in ``out``."""
        out += A @ B[self.cols]

    def t_times(self, A: Array, B: Array, out: Array) -> None:
        """Add ``A.T @ B`` to ``out``."""
        out[self.cols] += A.T @ B[self.rows]


class DenseTiles:
    """Some rows of an array, cut into tiles."""

    def __init__(self, A: Array, rows: range) -> None:
        self.A, self.rows = A, rows
        size = min(TILE_BYTES, max(A.nbytes // TILE_SHARE, TILE_BYTES // 16))
        entries = max(1, size // A.dtype.itemsize)
        widest = max(1, entries // min(TILE_ROWS, len(rows)))
        across = -(-A.shape[1] // widest)
        self.width = -(-A.shape[1] // across)
        self.height = min(len(rows), max(1, entries // self.width))

    def __iter__(self) -> Iterator[tuple[slice, Iterator[DenseTile]]]:
        """Some rows, and the tiles along them."""
        for first in range(self.rows.start, self.rows.stop, self.height):
            rows = slice(first, min(first + self.height, self.rows.stop))
            yield rows, self._along(rows)

    def _along(self, rows: slice) -> Iterator[DenseTile]:
        n2 = self.A.shape[1]
        for first in range(0, n2, self.width):
            yield DenseTile(self.A, rows, slice(first, min(first + self.width, n2)))

    def buffer(self) -> Array:
        return np.empty(self.height * self.width, self.A.dtype)


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
    """Some entries that follow each other; the first and the last row may have more.

    Attributes
    ----------
    rows : the rows they are in
    starts : where each of these begins, counted from the first entry, and where the last one ends
    indices : their columns
    M, top, left : their values as an array of one row, and where the tile begins in it
    """

    rows: slice
    starts: Array
    indices: Array
    M: Array
    top: int = 0
    left: int = 0

    @property
    def row_of_each(self) -> Array:
        return np.repeat(np.arange(self.rows.start, self.rows.stop), np.diff(self.starts))

    def fit(self, buffer: Array) -> Array:
        return buffer[: len(self.indices)][None]

    def low_rank(self, U: Array, V: Array, buffer: Array) -> Array:
        P = self.fit(buffer)
        kernels.low_rank(self.starts, self.indices, U[self.rows], V, P[0])
        return P

    def times(self, A: Array, B: Array, out: Array) -> None:
        """Add ``A @ B`` to the rows of the tile in ``out``; A has a number for every entry, and is zero elsewhere."""
        kernels.along(self.starts, self.indices, A[0], B, out)

    def t_times(self, A: Array, B: Array, out: Array) -> None:
        """Add ``A.T @ B`` to ``out``."""
        kernels.across(self.starts, self.indices, A[0], B[self.rows], out)


class ListedTiles:
    """The observed entries of some rows, cut into tiles."""

    def __init__(self, M: Entries, rows: range) -> None:
        self.M, self.first, self.last = M, int(M.ends[rows.start]), int(M.ends[rows.stop])

    def __iter__(self) -> Iterator[tuple[slice, list[ListedTile]]]:
        for tile in self.tiles():
            yield tile.rows, [tile]

    def tiles(self) -> Iterator[ListedTile]:
        M = self.M
        for start in range(self.first, self.last, LISTED_ENTRIES):
            at = slice(start, min(start + LISTED_ENTRIES, self.last))
            top, bottom = M.rows_of(np.array([start, at.stop - 1])).tolist()
            starts = np.clip(M.ends[top : bottom + 2], start, at.stop) - start
            yield ListedTile(slice(top, bottom + 1), starts, M.indices[at], M.values[at][None])

    def buffer(self, dtype: Any = None) -> Array:
        return np.empty(min(LISTED_ENTRIES, self.last - self.first), dtype or self.M.values.dtype)


class Walk:
    """The tiles of T, or of what else is asked for, one after the other; each overwrites the last.

    A tile that turns out to have holes is made again by the kernel that looks for them, and so are those that follow.

    Parameters
    ----------
    tiles : DenseTiles or ListedTiles
    asked : Trimmed or Masked
        In the order of stored rows and columns, with the second factor as ``low_rank`` of a tile wants it.
    dtype : that of M
    holes : bool
        Whether some entries are known to be NaN.
    """

    def __init__(
        self, tiles: DenseTiles | ListedTiles, asked: Trimmed | Masked, dtype: np.dtype, holes: bool = False
    ) -> None:
        self.tiles, self.asked, self.holes, self.tally = tiles, asked, holes or None, Tally()
        self.trimmed = asked.by if isinstance(asked, Masked) else asked
        self.zeta = in_precision(self.trimmed.zeta, dtype)
        self.P, self.K = tiles.buffer(), tiles.buffer() if self.trimmed.ones or asked is not self.trimmed else None

    def __iter__(self) -> Iterator[tuple[slice, Iterator[tuple[Any, Array]]]]:
        """Some rows, and the tiles along them, each with what was asked for."""
        for rows, tiles in self.tiles:
            yield rows, ((tile, self._made(tile)) for tile in tiles)

    def _made(self, tile: Any) -> Array:
        asked, K = self.asked, tile.fit(self.K) if self.K is not None else None
        T, counted = self._trim(tile, K)
        if not counted[1] and self.holes is None:
            self.holes = True
            T, counted = self._trim(tile, K)
        self.tally.add(T.size, counted)
        if isinstance(asked, Masked):
            T = tile.low_rank(asked.U, asked.V, self.P)
            kernels.mask(T, K)
        return T if K is None or not self.trimmed.ones else K

    def _trim(self, tile: Any, K: Array | None) -> tuple[Array, Counts]:
        """T, and K as ones where an entry is kept."""
        T = tile.low_rank(self.trimmed.U, self.trimmed.V, self.P)
        return T, kernels.trim(tile.M, tile.top, tile.left, T, K, self.zeta, self.holes)
