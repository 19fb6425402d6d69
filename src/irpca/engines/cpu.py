"""The engine for arrays in memory or memory-mapped: tiles that fit in cache, one thread pool, single-threaded BLAS.

Each thread owns a block of rows at a time. Alternating a threaded BLAS with another pool of threads costs more than
the arithmetic, so BLAS is held to one thread inside a pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import csr_array

from ..lowrank import Array, LowRank
from . import kernels
from .base import Trim, not_finite

TILE_BYTES = 1 << 20  # one tile of L or T; two or three of them share a core's cache
TILE_ROWS = 256
INLINE_ENTRIES = 1 << 17  # below this a pool costs more than it brings

Result = TypeVar("Result")


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def _single_threaded_blas() -> Iterator[None]:
    with _blas().limit(limits=1, user_api="blas"):
        yield


class CpuEngine:
    """M as a NumPy array or memmap, never copied and never upcast.

    Parameters
    ----------
    M : float32 or float64 array, C or Fortran order
    threads : int or None
        None: one per available core.
    """

    name = "cpu"

    def __init__(self, M: Array, threads: int | None = None) -> None:
        self.transposed = not M.flags.c_contiguous and M.flags.f_contiguous
        # Fortran order is the C order of the transposed matrix: the same rows of memory, the roles swapped.
        self.A = np.asarray(M.T if self.transposed else M)
        self.threads = threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
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

    def core(
        self, L: LowRank, zeta: float, Q1: Array, Q2: Array, about: LowRank | None = None
    ) -> tuple[Array, Trim]:
        if self.transposed:
            L, Q1, Q2, about = L.T, Q2, Q1, None if about is None else about.T
        Q1, Q2 = self.place(Q1), self.place(Q2)

        def work(tiles: _Tiles) -> tuple[Array, _Tally]:
            G, tally = np.zeros((Q1.shape[1], Q2.shape[1])), _Tally()
            for rows, parts in tiles:
                TQ2 = np.zeros((rows.stop - rows.start, Q2.shape[1]), self.dtype)
                for cols, T, _ in parts(tally):
                    TQ2 += T @ Q2[cols]
                G += Q1[rows].T @ TQ2
            return G, tally

        pieces, trim = self._pass(work, L, zeta, about)
        G = sum(pieces)
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

    def _spread(
        self, L: LowRank, zeta: float, X: Array, weights: Array | None
    ) -> tuple[Array, Array | None, Trim]:
        """T X for the stored order: every thread fills its own rows of the answer."""
        X = self.place(X)
        weights = None if weights is None else self.place(weights)
        n = self.A.shape[0]
        TX = np.zeros((n, X.shape[1]), self.dtype)
        KW = None if weights is None else np.zeros((n, weights.shape[1]), self.dtype)

        def work(tiles: _Tiles) -> tuple[None, _Tally]:
            tally = _Tally()
            for rows, parts in tiles:
                for cols, T, K in parts(tally):
                    TX[rows] += T @ X[cols]
                    if KW is not None and weights is not None:
                        KW[rows] += K @ weights[cols]
            return None, tally

        _, trim = self._pass(work, L, zeta, None, want_kept=weights is not None)
        return TX, KW, trim

    def _gather(
        self, L: LowRank, zeta: float, Y: Array, weights: Array | None
    ) -> tuple[Array, Array | None, Trim]:
        """Tᵀ Y for the stored order: every thread sums over its rows, the sums are added at the end."""
        Y = self.place(Y)
        weights = None if weights is None else self.place(weights)
        n = self.A.shape[1]

        def work(tiles: _Tiles) -> tuple[tuple[Array, Array | None], _Tally]:
            tally = _Tally()
            TY = np.zeros((n, Y.shape[1]), self.dtype)
            KW = None if weights is None else np.zeros((n, weights.shape[1]), self.dtype)
            for rows, parts in tiles:
                for cols, T, K in parts(tally):
                    TY[cols] += T.T @ Y[rows]
                    if KW is not None and weights is not None:
                        KW[cols] += K.T @ weights[rows]
            return (TY, KW), tally

        pieces, trim = self._pass(work, L, zeta, None, want_kept=weights is not None)
        TY = sum(piece[0] for piece in pieces)
        KW = None if weights is None else sum(piece[1] for piece in pieces)
        return TY, KW, trim

    def corruption(self, L: LowRank, zeta: float) -> tuple[csr_array, Trim]:
        U, Vt = self._factors(L.T if self.transposed else L)
        n1, n2 = self.A.shape
        step = max(1, min(TILE_ROWS, TILE_BYTES // (n2 * self.dtype.itemsize)))
        counts = np.zeros(n1 + 1, np.int64)
        index_dtype = np.int32 if n2 < 2**31 else np.int64

        def work(first: int) -> tuple[Array, Array, _Tally]:
            last = min(first + step, n1)
            P = U[first:last] @ Vt
            cols, values = np.empty(P.size + 1, index_dtype), np.empty(P.size + 1, self.dtype)
            tally = _Tally()
            tally.add(P.size, kernels.flag(self.A, first, P, zeta, cols, values, counts[first + 1 : last + 1]))
            n = P.size - tally.kept
            return cols[:n].copy(), values[:n].copy(), tally

        with _single_threaded_blas():
            pieces = list(self._map(work, range(0, n1, step)))
        self.reads += 1
        trim = _combined(piece[2] for piece in pieces)
        indices = np.concatenate([piece[0] for piece in pieces])
        values = np.concatenate([piece[1] for piece in pieces])
        indptr = np.cumsum(counts)
        if indptr[-1] < 2**31:
            indptr = indptr.astype(index_dtype)
        S = csr_array((values, indices, indptr), shape=(n1, n2))
        return (csr_array(S.T) if self.transposed else S), trim

    def block(self, rows: Array, cols: Array) -> Array:
        self.reads += len(rows) * len(cols) / self.A.size
        piece = self.A[np.ix_(cols, rows)].T if self.transposed else self.A[np.ix_(rows, cols)]
        return _finite(piece)

    def entries(self, rows: Array, cols: Array) -> Array:
        self.reads += len(rows) / self.A.size
        return _finite(self.A[cols, rows] if self.transposed else self.A[rows, cols])

    def _factors(self, L: LowRank) -> tuple[Array, Array]:
        U, V = L.thin()
        return self.place(U), self.place(V.T)

    def _pass(
        self,
        work: Callable[[_Tiles], tuple[Any, _Tally]],
        L: LowRank,
        zeta: float,
        about: LowRank | None,
        want_kept: bool = False,
    ) -> tuple[list[Any], Trim]:
        """Let every thread walk its share of the tiles once."""
        factors = self._factors(L)
        judge = None if about is None else self._factors(about)
        self.reads += 1
        n1, n2 = self.A.shape
        workers = 1 if self.A.size < INLINE_ENTRIES else min(self.threads, n1)
        edges = np.linspace(0, n1, workers + 1).astype(int)
        shares = [
            _Tiles(self.A, factors, judge, zeta, range(first, last), want_kept)
            for first, last in zip(edges[:-1], edges[1:], strict=True)
        ]
        with _single_threaded_blas():
            done = list(self._map(work, shares))
        return [piece for piece, _ in done], _combined(tally for _, tally in done)

    def _map(self, work: Callable[[Any], Result], shares: Any) -> Iterator[Result]:
        shares = list(shares)
        if len(shares) == 1 or self.threads == 1:
            yield from map(work, shares)
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                yield from pool.map(work, shares)


class _Tally:
    """Running totals of what rides along."""

    def __init__(self) -> None:
        self.size, self.kept, self.bad, self.energy, self.largest = 0, 0, 0, 0.0, 0.0

    def add(self, size: int, counted: tuple[int, int, float, float]) -> None:
        kept, bad, energy, largest = counted
        self.size += size
        self.kept += kept
        self.bad += bad
        self.energy += energy
        self.largest = max(self.largest, largest)


class _Tiles:
    """One thread's share of M: blocks of rows, each a run of tiles of T."""

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
        self.want_kept = want_kept
        self.height = max(1, min(TILE_ROWS, len(rows)))
        self.width = max(1, min(A.shape[1], TILE_BYTES // (self.height * A.dtype.itemsize)))

    def __iter__(self) -> Iterator[tuple[slice, Callable[[_Tally], Iterator[tuple[slice, Array, Array]]]]]:
        for first in range(self.rows.start, self.rows.stop, self.height):
            rows = slice(first, min(first + self.height, self.rows.stop))
            yield rows, lambda tally, rows=rows: self._run(rows, tally)  # type: ignore[misc]

    def _run(self, rows: slice, tally: _Tally) -> Iterator[tuple[slice, Array, Array]]:
        (U, Vt), n2 = self.factors, self.A.shape[1]
        for first in range(0, n2, self.width):
            cols = slice(first, min(first + self.width, n2))
            T = U[rows] @ Vt[:, cols]
            judged = T if self.judge is None else self.judge[0][rows] @ self.judge[1][:, cols]
            K = np.empty(T.shape if self.want_kept else (0, 0), T.dtype)
            tally.add(T.size, kernels.trim(self.A, rows.start, first, T, judged, K, self.zeta))
            yield cols, T, K


def _combined(tallies: Iterator[_Tally]) -> Trim:
    total = _Tally()
    for tally in tallies:
        total.add(tally.size, (tally.kept, tally.bad, tally.energy, tally.largest))
    if total.bad:
        raise not_finite(total.bad)
    return Trim(total.kept, total.size - total.kept, total.energy, total.largest)


def _finite(values: Array) -> Array:
    if bad := values.size - int(np.isfinite(values).sum()):
        raise not_finite(bad)
    return values
