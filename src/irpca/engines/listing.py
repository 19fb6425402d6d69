"""S as it is found: the flagged entries of some lines of M at a time, written where they will stay.

How many there are is known only at the end. Room is made for as many as the lines read so far suggest, within limits,
so that there is no second copy of S, but for what is found in one chunk of M.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..lowrank import Array
from . import kernels
from .arithmetic import Counts
from .questions import Tally

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SPARE = 1.05  # of the room that the lines read so far suggest
AT_FIRST = 1 / 8  # of all entries: no more room is made before it is known to be needed
TILE_BYTES = 1 << 18  # what is listed at a time, and room for all of it: larger tiles are hardly faster
CHUNK = 1 << 19  # entries that a thread looks through before it hands over what it found
STRIP = 1 << 21  # the same when lines are stored columns: narrower strips use memory badly
WIDTH = 64  # stored columns, of which a strip has a multiple: a word of the kernel, some lines of cache


@dataclass(eq=False)
class Found:
    """The flagged entries of some lines, in order: where they are in their line, and by how much."""

    where: Array
    values: Array
    counts: Array  # for each line
    tally: Tally
    n: int = 0  # that many of the first two; the rest is spare room

    def make_room(self, more: int) -> None:
        if self.n + more > len(self.where):
            old = self.where, self.values
            self.where, self.values = (np.empty(self.n + self.n // 4 + more, room.dtype) for room in old)
            self.where[: self.n], self.values[: self.n] = (room[: self.n] for room in old)


class Lister:
    """Finds the entries of some lines of M that differ from L by more than a limit.

    Parameters
    ----------
    A : array whose rows lie together in memory, or nearly
    factors : of L, as A is stored
    limits : of the stored rows and columns, in the precision of A; their product is the limit of an entry
    index : dtype of positions
    across : bool
        Lines are stored columns. A strip of them is read along the stored rows, then what was found is turned.
    parts : int
        The least number of chunks to make.
    holes : bool
        Whether some entries are known to be NaN.
    """

    def __init__(
        self,
        A: Array,
        factors: tuple[Array, Array],
        limits: tuple[Array, Array],
        index: np.dtype,
        across: bool,
        parts: int,
        holes: bool = False,
    ) -> None:
        self.A, self.factors, self.limits, self.index, self.across = A, factors, limits, index, across
        self.holes = holes or None
        lines, length = A.shape[::-1] if across else A.shape
        step = max(1, min((STRIP if across else CHUNK) // length, lines // parts))
        step = -(-step // WIDTH) * WIDTH if across else step
        self.chunks = [slice(first, min(first + step, lines)) for first in range(0, lines, step)]
        width = min(step, lines) if across else A.shape[1]
        self.height = max(1, min(TILE_BYTES // A.dtype.itemsize, step * length // 4) // width)
        self.tile = self.height * width
        self.tiles: list[Array] = []  # buffers, to be used again
        self.rooms: list[tuple[Array, Array]] = []

    def __call__(self, chunk: slice) -> Found:
        n1, n2 = self.A.shape
        if not self.across:
            return self._found(chunk, slice(0, n2))
        return self._turned(self._found(slice(0, n1), chunk), chunk.stop - chunk.start)

    def release(self, found: Found) -> None:
        """What was found has been written elsewhere."""
        self.rooms.append((found.where, found.values))

    def _found(self, rows: slice, cols: slice) -> Found:
        found = Found(*self._room(), np.empty(rows.stop - rows.start, np.int64), Tally())
        tile = self._tile()
        width = cols.stop - cols.start
        for first in range(rows.start, rows.stop, self.height):
            some = slice(first, min(first + self.height, rows.stop))
            P = tile[: (some.stop - first) * width].reshape(-1, width)
            counts = found.counts[first - rows.start : some.stop - rows.start]
            found.make_room(P.size)
            holes = self.holes  # which another thread may meet first
            counted = self._flag(some, cols, P, found, counts, holes)
            if not counted[1] and holes is None:  # as in Trimmed
                self.holes = True
                counted = self._flag(some, cols, P, found, counts, True)
            found.tally.add(P.size, counted)
            found.n += int(counts.sum())
        self.tiles.append(tile)
        return found

    def _flag(self, rows: slice, cols: slice, P: Array, found: Found, counts: Array, holes: bool | None) -> Counts:
        np.matmul(self.factors[0][rows], self.factors[1][:, cols], out=P)
        where, values = found.where[found.n :], found.values[found.n :]
        return kernels.flag(self.A, rows.start, cols.start, P, *self.limits, where, values, counts, holes)

    def _turned(self, found: Found, lines: int) -> Found:
        turned = Found(*self._room(), np.empty(lines, np.int64), found.tally)
        turned.make_room(found.n)
        turned.n = n = found.n
        kernels.turn(
            found.where[:n], found.values[:n], found.counts, turned.where[:n], turned.values[:n], turned.counts
        )
        self.release(found)
        return turned

    def _tile(self) -> Array:
        try:
            return self.tiles.pop()
        except IndexError:
            return np.empty(self.tile, self.A.dtype)

    def _room(self) -> tuple[Array, Array]:
        try:
            return self.rooms.pop()
        except IndexError:
            return np.empty(self.tile, self.index), np.empty(self.tile, self.A.dtype)


class GrowingRows:
    """A CSR array that receives a few rows at a time."""

    def __init__(self, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.index = np.dtype(np.int32 if shape[1] <= np.iinfo(np.int32).max else np.int64)
        self.ends = np.zeros(shape[0] + 1, np.int64)
        self.rows = 0
        self.room: tuple[Array, Array] | None = None

    def append(self, found: Found) -> None:
        used, rows = int(self.ends[self.rows]), self.rows + len(found.counts)
        self.ends[self.rows + 1 : rows + 1] = used + np.cumsum(found.counts)
        self.rows, end = rows, int(self.ends[rows])
        suggested = int(SPARE * end * self.shape[0] / rows) + 1
        suggested = max(end, min(suggested, max(3 * end // 2, int(AT_FIRST * self.shape[0] * self.shape[1]))))
        if self.room is None:
            self.room = np.empty(suggested, self.index), np.empty(suggested, self.dtype)
        elif end > len(self.room[0]):
            self._resize(suggested)
        self.room[0][used:end], self.room[1][used:end] = found.where[: found.n], found.values[: found.n]

    def finished(self) -> csr_array:
        from scipy.sparse import csr_array  # takes as long to import as all the rest

        assert self.room is not None and self.rows == self.shape[0]
        self._resize(int(self.ends[-1]))
        indices, values = self.room
        # SciPy brings both kinds of indices to one type, the smallest that can count the entries of S.
        ends = self.ends if self.ends[-1] > np.iinfo(np.int32).max else self.ends.astype(self.index)
        S = csr_array((values, indices, ends), shape=self.shape)
        S.has_canonical_format = True  # in order, nothing twice: to find that out would be another read of S
        return S

    def _resize(self, size: int) -> None:
        """In place where the system can; for a moment both may be there, which is rare: a room has some to spare."""
        for room in self.room or ():
            room.resize(size, refcheck=False)
