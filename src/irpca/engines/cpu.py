"""The engine for arrays in memory or memory-mapped: tiles that fit in cache, threads, single-threaded BLAS.

Each thread owns a block of rows at a time. Alternating a threaded BLAS with another pool of threads costs
more than the arithmetic, so BLAS is held to one thread inside a pass.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import csr_array

from ..lowrank import Array, LowRank
from . import kernels
from .base import Trim, in_precision, not_finite

TILE_BYTES = 1 << 20  # one tile of L or T; two or three of them share a core's cache
TILE_ROWS = 64  # of a wide matrix; a narrow one gets more, to fill its tiles
INLINE_ENTRIES = 1 << 17  # below this a pool costs more than it brings

Share = TypeVar("Share")
Piece = TypeVar("Piece")


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class _SingleThreadedBlas(ContextDecorator):
    """Holds BLAS to one thread for as long as any pass is under way.

    The setting belongs to the whole process, so passes of several engines in several threads share it: the
    first one in sets it, the last one out puts back what was there.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.limit: Any = None

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.limit = _blas().limit(limits=1, user_api="blas")
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.limit.restore_original_limits()


single_threaded_blas = _SingleThreadedBlas()


class CpuEngine:
    """M as a NumPy array or memmap, never copied and never upcast.

    Parameters
    ----------
    M : float32 or float64 array, in any order; rows or columns that lie together in memory are read fastest
    threads : int or None
        None: one per available core.
    """

    name = "cpu"

    def __init__(self, M: Array, threads: int | None = None) -> None:
        # Fortran order is the C order of the transposed matrix: the same rows of memory, the roles swapped.
        self.transposed = not M.flags.c_contiguous and abs(M.strides[0]) < abs(M.strides[1])
        self.A = np.asarray(M.T if self.transposed else M).view()
        self.A.flags.writeable = False  # it is the user's; and one compiled kernel serves both kinds
        self.threads = threads or _available_cores()
        self.reads = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        n1, n2 = self.A.shape
        return (n2, n1) if self.transposed else (n1, n2)

    @property
    def dtype(self) -> np.dtype:
        return self.A.dtype

    @property
    def n_observed(self) -> int:
        return self.A.size

    def place(self, B: Array) -> Array:
        return np.ascontiguousarray(B, dtype=self.dtype)

    def core(self, L: LowRank, zeta: float, Q1: Array, Q2: Array, about: LowRank | None = None) -> tuple[Array, Trim]:
        if self.transposed:
            L, Q1, Q2, about = L.T, Q2, Q1, None if about is None else about.T
        Q1, Q2 = self.place(Q1), self.place(Q2)

        def work(tiles: _Tiles) -> Array:
            G = np.zeros((Q1.shape[1], Q2.shape[1]))
            for rows in tiles:
                TQ2 = np.zeros((rows.stop - rows.start, Q2.shape[1]), self.dtype)
                for cols, T, _ in tiles.along(rows):
                    TQ2 += T @ Q2[cols]
                G += Q1[rows].T @ TQ2
            return G

        pieces, trim = self._pass(work, L, zeta, about)
        G = np.sum(pieces, axis=0)
        return (G.T if self.transposed else G), trim

    def times(
        self, L: LowRank, zeta: float, X: Array, weights: Array | None = None
    ) -> tuple[Array, Array | None, Trim]:
        if self.transposed:
            return self._gather(L.T, zeta, X, weights)
        return self._spread(L, zeta, X, weights)

    def t_times(
        self, L: LowRank, zeta: float, Y: Array, weights: Array | None = None
    ) -> tuple[Array, Array | None, Trim]:
        if self.transposed:
            return self._spread(L.T, zeta, Y, weights)
        return self._gather(L, zeta, Y, weights)

    def _spread(self, L: LowRank, zeta: float, X: Array, weights: Array | None) -> tuple[Array, Array | None, Trim]:
        """T X for the stored order: every thread fills its own rows of the answer."""
        X = self.place(X)
        weights = None if weights is None else self.place(weights)
        n = self.A.shape[0]
        TX = np.zeros((n, X.shape[1]), self.dtype)
        KW = None if weights is None else np.zeros((n, weights.shape[1]), self.dtype)

        def work(tiles: _Tiles) -> None:
            for rows in tiles:
                for cols, T, K in tiles.along(rows):
                    TX[rows] += T @ X[cols]
                    if KW is not None and weights is not None:
                        KW[rows] += K @ weights[cols]

        _, trim = self._pass(work, L, zeta, want_kept=weights is not None)
        return TX, KW, trim

    def _gather(self, L: LowRank, zeta: float, Y: Array, weights: Array | None) -> tuple[Array, Array | None, Trim]:
        """Tᵀ Y for the stored order: every thread sums over its rows, the sums are added at the end."""
        Y = self.place(Y)
        weights = None if weights is None else self.place(weights)
        n = self.A.shape[1]

        def work(tiles: _Tiles) -> tuple[Array, Array | None]:
            TY = np.zeros((n, Y.shape[1]), self.dtype)
            KW = None if weights is None else np.zeros((n, weights.shape[1]), self.dtype)
            for rows in tiles:
                for cols, T, K in tiles.along(rows):
                    TY[cols] += T.T @ Y[rows]
                    if KW is not None and weights is not None:
                        KW[cols] += K.T @ weights[rows]
            return TY, KW

        pieces, trim = self._pass(work, L, zeta, want_kept=weights is not None)
        TYs, KWs = zip(*pieces, strict=True)
        return np.sum(TYs, axis=0), None if weights is None else np.sum(KWs, axis=0), trim

    def corruption(self, L: LowRank, zeta: float) -> tuple[csr_array, Trim]:
        self.reads += 1
        U, Vt = self._factors(L.T if self.transposed else L)
        zeta = in_precision(zeta, self.dtype)
        n1, n2 = self.A.shape
        step = max(1, TILE_BYTES // (n2 * self.dtype.itemsize))
        counts = np.zeros(n1 + 1, np.int64)
        index_dtype = np.int32 if n2 <= np.iinfo(np.int32).max else np.int64

        def work(first: int) -> tuple[Array, Array, _Tally]:
            last = min(first + step, n1)
            P = U[first:last] @ Vt
            cols, values = np.empty(P.size + 1, index_dtype), np.empty(P.size + 1, self.dtype)
            tally = _Tally()
            found = kernels.flag(self.A, first, P, zeta, cols, values, counts[first + 1 : last + 1])
            tally.add(P.size, found)
            n = P.size - tally.kept
            return cols[:n].copy(), values[:n].copy(), tally

        indices, values, tallies = zip(*self._map(work, range(0, n1, step)), strict=True)
        trim = self._combined(tallies)
        # SciPy brings both kinds of indices to one type, the smallest that can count the entries of S.
        indptr = np.cumsum(counts)
        if indptr[-1] <= np.iinfo(np.int32).max:  # or SciPy widens the indices to match
            indptr = indptr.astype(index_dtype)
        S = csr_array((np.concatenate(values), np.concatenate(indices), indptr), shape=(n1, n2))
        return (csr_array(S.T) if self.transposed else S), trim

    def block(self, rows: Array, cols: Array) -> Array:
        self.reads += len(rows) * len(cols) / self.A.size
        return _finite(self.A[np.ix_(cols, rows)].T if self.transposed else self.A[np.ix_(rows, cols)])

    def entries(self, rows: Array, cols: Array) -> Array:
        self.reads += len(rows) / self.A.size
        return _finite(self.A[cols, rows] if self.transposed else self.A[rows, cols])

    def _factors(self, L: LowRank) -> tuple[Array, Array]:
        U, V = L.thin()
        return self.place(U), self.place(V.T)

    def _pass(
        self,
        work: Callable[[_Tiles], Piece],
        L: LowRank,
        zeta: float,
        about: LowRank | None = None,
        want_kept: bool = False,
    ) -> tuple[list[Piece], Trim]:
        """Let every thread walk its share of the tiles once."""
        self.reads += 1
        factors = self._factors(L)
        judge = None if about is None else self._factors(about)
        zeta = in_precision(zeta, self.dtype)
        n = self.A.shape[0]
        edges = np.linspace(0, n, (1 if self._small else min(self.threads, n)) + 1).astype(int)
        ranges = [range(first, last) for first, last in pairwise(edges)]
        shares = [_Tiles(self.A, factors, judge, zeta, rows, want_kept) for rows in ranges]
        return self._map(work, shares), self._combined(share.tally for share in shares)

    @property
    def _small(self) -> bool:
        return self.A.size < INLINE_ENTRIES

    def _map(self, work: Callable[[Share], Piece], shares: Iterable[Share]) -> list[Piece]:
        with single_threaded_blas:
            if self._small or self.threads == 1:
                return list(map(work, shares))
            with ThreadPoolExecutor(self.threads) as pool:
                return list(pool.map(work, shares))

    def _combined(self, tallies: Iterable[_Tally]) -> Trim:
        total = _Tally()
        for tally in tallies:
            total.add(tally.size, (tally.kept, tally.bad, tally.energy, tally.largest))
        if total.bad:
            raise not_finite(sum(_bad(row) for row in self.A))
        return Trim(total.kept, total.size - total.kept, total.energy, total.largest)


class _Tally:
    """Running totals of what rides along."""

    def __init__(self) -> None:
        self.size, self.kept, self.bad, self.energy, self.largest = 0, 0, 0, 0.0, 0.0

    def add(self, size: int, counted: kernels.Counts) -> None:
        kept, bad, energy, largest = counted
        self.size += size
        self.kept += kept
        self.bad += bad
        self.energy += energy
        self.largest = max(self.largest, largest)


class _Tiles:
    """One thread's share of M: blocks of rows, each a run of tiles of T made in the same memory."""

    def __init__(
        self,
        A: Array,
        factors: tuple[Array, Array],
        judge: tuple[Array, Array] | None,
        zeta: float,
        rows: range,
        want_kept: bool,
    ) -> None:
        self.A, self.factors, self.judge, self.zeta, self.rows = A, factors, judge, zeta, rows
        self.tally = _Tally()
        entries = max(1, TILE_BYTES // A.dtype.itemsize)
        self.width = min(A.shape[1], max(1, entries // min(TILE_ROWS, len(rows))))
        self.height = min(len(rows), max(1, entries // self.width))
        self.T = np.empty(self.height * self.width, A.dtype)
        self.judged = None if judge is None else np.empty_like(self.T)
        self.K = np.empty_like(self.T) if want_kept else None

    def __iter__(self) -> Iterator[slice]:
        for first in range(self.rows.start, self.rows.stop, self.height):
            yield slice(first, min(first + self.height, self.rows.stop))

    def along(self, rows: slice) -> Iterator[tuple[slice, Array, Array]]:
        """Columns, T and, if wanted, the kept entries as ones; each tile overwrites the last."""
        n2 = self.A.shape[1]
        for first in range(0, n2, self.width):
            cols = slice(first, min(first + self.width, n2))
            T, judged, K = (self._part(buffer, rows, cols) for buffer in (self.T, self.judged, self.K))
            np.matmul(self.factors[0][rows], self.factors[1][:, cols], out=T)
            if self.judge is not None:
                np.matmul(self.judge[0][rows], self.judge[1][:, cols], out=judged)
            self.tally.add(T.size, kernels.trim(self.A, rows.start, first, T, judged, K, self.zeta))
            yield cols, T, K

    def _part(self, buffer: Array | None, rows: slice, cols: slice) -> Any:
        height, width = rows.stop - rows.start, cols.stop - cols.start
        return None if buffer is None else buffer[: height * width].reshape(height, width)


def _finite(values: Array) -> Array:
    if bad := _bad(values):
        raise not_finite(bad)
    return values


def _bad(values: Array) -> int:
    return values.size - int(np.isfinite(values).sum())
