"""How a thread walks its share of M: blocks of rows, each a run of tiles that fit in cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..lowrank import Array
from . import kernels
from .base import Trim

TILE_BYTES = 5 << 19  # one tile of L or T, unless it were a large part of M
TILE_SHARE = 32  # tiles of M, at least, that are not smaller than a sixteenth of the above
TILE_ROWS = 64  # of a wide matrix; a narrow one gets more, to fill its tiles: whole rows are read fastest

Factors = tuple[Array, Array]


class Tally:
    """Running totals of what rides along."""

    def __init__(self) -> None:
        self.size, self.kept, self.finite, self.energy, self.largest, self.missing = 0, 0, True, 0.0, 0.0, 0

    def add(self, size: int, counted: kernels.Counts) -> None:
        kept, finite, energy, largest, missing = counted
        self.size += size - missing
        self.missing += missing
        self.kept += kept
        self.finite &= finite
        self.energy += energy
        self.largest = max(self.largest, largest)

    def include(self, other: Tally) -> None:
        counted = other.kept, other.finite, other.energy, other.largest, other.missing
        self.add(other.size + other.missing, counted)

    @classmethod
    def of(cls, tallies: Iterable[Tally]) -> Tally:
        """The total of several."""
        total = cls()
        for tally in tallies:
            total.include(tally)
        return total

    @property
    def trim(self) -> Trim:
        return Trim(self.kept, self.size - self.kept, self.energy, self.largest)


@dataclass(frozen=True, eq=False)
class Tile:
    """A tile of T, and its kept entries as ones, if wanted."""

    rows: slice
    cols: slice
    T: Array
    K: Any

    def times(self, A: Array, B: Array, out: Array) -> None:
        """Add ``A @ B`` to the rows of the tile in ``out``; A is T or K."""
        out += A @ B[self.cols]

    def t_times(self, A: Array, B: Array, out: Array) -> None:
        """Add ``A.T @ B`` to ``out``."""
        out[self.cols] += A.T @ B[self.rows]


class Tiles(ABC):
    """Some rows of A, cut into tiles; what is made of a tile is left to the classes below."""

    def __init__(self, A: Array, rows: range) -> None:
        self.A, self.rows = A, rows
        self.tally = Tally()
        size = min(TILE_BYTES, max(A.nbytes // TILE_SHARE, TILE_BYTES // 16))
        entries = max(1, size // A.dtype.itemsize)
        widest = max(1, entries // min(TILE_ROWS, len(rows)))
        across = -(-A.shape[1] // widest)
        self.width = -(-A.shape[1] // across)
        self.height = min(len(rows), max(1, entries // self.width))

    def __iter__(self) -> Iterator[tuple[slice, Iterator[Tile]]]:
        """Some rows, and the tiles along them; each tile overwrites the last."""
        for first in range(self.rows.start, self.rows.stop, self.height):
            rows = slice(first, min(first + self.height, self.rows.stop))
            yield rows, self._along(rows)

    def _along(self, rows: slice) -> Iterator[Tile]:
        n2 = self.A.shape[1]
        for first in range(0, n2, self.width):
            cols = slice(first, min(first + self.width, n2))
            yield Tile(rows, cols, *self.made(rows, cols))

    @abstractmethod
    def made(self, rows: slice, cols: slice) -> tuple[Array, Any]:
        """The tile at these rows and columns, and its kept entries if wanted."""

    def buffer(self) -> Array:
        return np.empty(self.height * self.width, self.A.dtype)


def _part(buffer: Array | None, rows: slice, cols: slice) -> Any:
    height, width = rows.stop - rows.start, cols.stop - cols.start
    return None if buffer is None else buffer[: height * width].reshape(height, width)


class Trimmed(Tiles):
    """Tiles of T = M − L where that is at most zeta, else 0.

    The kept entries are ones in a tile of their own, if wanted, or in the matrix ``remember``, as large as A, if given.
    A tile that turns out to have holes is made again by the kernel that looks for them, and so are those that follow.
    """

    def __init__(
        self,
        A: Array,
        rows: range,
        factors: Factors,
        zeta: Any,
        want_kept: bool = False,
        remember: Array | None = None,
        holes: bool = False,
    ) -> None:
        super().__init__(A, rows)
        self.factors, self.zeta, self.holes = factors, zeta, holes or None
        self.T, self.remember = self.buffer(), remember
        self.K = self.buffer() if want_kept else None

    def made(self, rows: slice, cols: slice) -> tuple[Array, Any]:
        T, K = _part(self.T, rows, cols), _part(self.K, rows, cols)
        if self.remember is not None:
            K = self.remember[rows, cols]
        counted = self._trim(rows, cols, T, K)
        if not counted[1] and self.holes is None:
            self.holes = True
            counted = self._trim(rows, cols, T, K)
        self.tally.add(T.size, counted)
        return T, K

    def _trim(self, rows: slice, cols: slice, T: Array, K: Array | None) -> kernels.Counts:
        np.matmul(self.factors[0][rows], self.factors[1][:, cols], out=T)
        return kernels.trim(self.A, rows.start, cols.start, T, K, self.zeta, self.holes)


class Masked(Tiles):
    """Tiles of a low-rank matrix where K is one, else 0."""

    def __init__(self, A: Array, rows: range, factors: Factors, K: Array) -> None:
        super().__init__(A, rows)
        self.factors, self.K = factors, K
        self.P = self.buffer()

    def made(self, rows: slice, cols: slice) -> tuple[Array, Any]:
        P = _part(self.P, rows, cols)
        np.matmul(self.factors[0][rows], self.factors[1][:, cols], out=P)
        kernels.mask(P, self.K[rows, cols])
        return P, None


class Again(Masked):
    """The same, with what is kept found again on the way: by a threshold for the residuals of another L."""

    def __init__(self, A: Array, rows: range, factors: Factors, frozen: Factors, zeta: Any) -> None:
        super().__init__(A, rows, factors, A)
        self.decided = Trimmed(A, rows, frozen, zeta, want_kept=True)

    def made(self, rows: slice, cols: slice) -> tuple[Array, Any]:
        _, K = self.decided.made(rows, cols)
        P = _part(self.P, rows, cols)
        np.matmul(self.factors[0][rows], self.factors[1][:, cols], out=P)
        kernels.mask(P, K)
        return P, None
