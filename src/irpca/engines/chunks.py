"""How a thread walks its share of the observed entries of M: in the order of memory, some that fit in cache at a time.

The kernels for tiles serve here as well: some entries in a row of memory are a tile of one row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..lowrank import Array
from . import kernels
from .base import Standardised
from .tiles import Factors, Tally

CHUNK = 1 << 15  # entries


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

    def chunks(self, rows: range) -> Iterator[Chunk]:
        first, last = int(self.ends[rows.start]), int(self.ends[rows.stop])
        for start in range(first, last, CHUNK):
            stop = min(start + CHUNK, last)
            top, bottom = self.rows_of(np.array([start, stop - 1])).tolist()
            starts = np.clip(self.ends[top : bottom + 2], start, stop) - start
            yield Chunk(slice(start, stop), slice(top, bottom + 1), starts, self.indices[start:stop])


@dataclass(eq=False)
class Chunk:
    """Some entries that follow each other; the first and the last row may have more.

    Attributes
    ----------
    at : their positions among all
    rows : the rows they are in
    starts : where each of these begins, counted from the first entry, and where the last one ends
    indices : their columns
    T, K : what was made of them
    """

    at: slice
    rows: slice
    starts: Array
    indices: Array
    T: Any = None
    K: Any = None

    @property
    def row_of_each(self) -> Array:
        return np.repeat(np.arange(self.rows.start, self.rows.stop), np.diff(self.starts))

    def times(self, A: Array, B: Array, out: Array) -> None:
        """Add ``A @ B`` to the rows of the chunk in ``out``; A has a number for every entry, and is zero elsewhere."""
        kernels.along(self.starts, self.indices, A, B, out)

    def t_times(self, A: Array, B: Array, out: Array) -> None:
        """Add ``A.T @ B`` to ``out``."""
        kernels.across(self.starts, self.indices, A, B[self.rows], out)


class Chunks(ABC):
    """The observed entries of some rows, chunk by chunk; what is made of them is left to the classes below."""

    def __init__(self, M: Entries, rows: range) -> None:
        self.M, self.rows = M, rows
        self.tally = Tally()
        self.room = min(CHUNK, int(M.ends[rows.stop] - M.ends[rows.start]))

    def __iter__(self) -> Iterator[tuple[slice, list[Chunk]]]:
        """The rows of each chunk, and the chunk with what is made of it; the next one overwrites it."""
        for chunk in self.M.chunks(self.rows):
            chunk.T, chunk.K = self.made(chunk)
            yield chunk.rows, [chunk]

    @abstractmethod
    def made(self, chunk: Chunk) -> tuple[Array, Any]: ...

    def buffer(self) -> Array:
        return np.empty(self.room, self.M.values.dtype)

    def low_rank(self, chunk: Chunk, factors: Factors, buffer: Array) -> Array:
        P = buffer[: len(chunk.indices)]
        kernels.low_rank(chunk.starts, chunk.indices, factors[0][chunk.rows], factors[1], P)
        return P


class Trimmed(Chunks):
    """T = M − L where that is at most zeta, else 0; and the kept entries as ones, if wanted.

    These are in an array of their own or in ``remember``, as long as M has entries, if given.
    """

    def __init__(
        self,
        M: Entries,
        rows: range,
        factors: Factors,
        zeta: Any,
        want_kept: bool = False,
        remember: Array | None = None,
    ) -> None:
        super().__init__(M, rows)
        self.factors, self.zeta, self.remember = factors, zeta, remember
        self.P = self.buffer()
        self.K = self.buffer() if want_kept else None

    def made(self, chunk: Chunk) -> tuple[Array, Any]:
        T, K = self.low_rank(chunk, self.factors, self.P), None
        if self.remember is not None:
            K = self.remember[chunk.at]
        elif self.K is not None:
            K = self.K[: len(T)]
        ones = None if K is None else K[None]
        self.tally.add(len(T), kernels.trim(self.M.values[chunk.at][None], 0, 0, T[None], ones, self.zeta))
        return T, K


class Masked(Chunks):
    """A low-rank matrix where K is one, else 0."""

    def __init__(self, M: Entries, rows: range, factors: Factors, K: Array) -> None:
        super().__init__(M, rows)
        self.factors, self.K = factors, K
        self.P = self.buffer()

    def made(self, chunk: Chunk) -> tuple[Array, Any]:
        P = self.low_rank(chunk, self.factors, self.P)
        kernels.mask(P[None], self.K[chunk.at][None])
        return P, None


class Again(Masked):
    """The same, with what is kept found again on the way: by a threshold for the residuals of another L."""

    def __init__(self, M: Entries, rows: range, factors: Factors, frozen: Factors, zeta: Any) -> None:
        super().__init__(M, rows, factors, M.values)
        self.decided = Trimmed(M, rows, frozen, zeta, want_kept=True)

    def made(self, chunk: Chunk) -> tuple[Array, Any]:
        _, K = self.decided.made(chunk)
        P = self.low_rank(chunk, self.factors, self.P)
        kernels.mask(P[None], K[None])
        return P, None


class Flagged(Chunks):
    """The entries of S: where they are in the chunk, and M − L there. The limit is in the precision of M."""

    def __init__(self, M: Entries, rows: range, factors: Factors, limit: Any) -> None:
        super().__init__(M, rows)
        self.factors, self.limit = factors, limit
        self.P, self.found, self.where = self.buffer(), self.buffer(), np.empty(self.room, np.int32)

    def made(self, chunk: Chunk) -> tuple[Array, Any]:
        P, count = self.low_rank(chunk, self.factors, self.P), np.empty(1, np.int64)
        values, limit, flag = self.M.values[chunk.at], self.limit, kernels.flag
        if isinstance(limit, Standardised):
            scale = limit.rows[chunk.row_of_each] * limit.cols[chunk.indices]
            limit, flag = limit.limit * np.sqrt(scale)[None], kernels.flag_each
        counted = flag(values[None], 0, 0, P[None], limit, self.where, self.found, count)
        self.tally.add(len(P), counted)
        return self.where[: count[0]], self.found[: count[0]]
