"""The engine for arrays in memory or memory-mapped: tiles that fit in cache, threads, single-threaded BLAS.

Each thread owns a block of rows at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..lowrank import Array, LowRank
from . import tiles
from .base import (
    ONCE,
    Ascent,
    Cut,
    Limit,
    Lines,
    Noise,
    Prior,
    Standardised,
    Trim,
    all_counted,
    bad_entries,
    blamed,
    drawn_anywhere,
    in_precision,
    not_finite,
    refuse_large_block,
    refuse_wrong_length,
)
from .lines import solve_dense
from .listing import GrowingRows, Lister
from .threads import available_cores, in_order
from .tiles import Duals, Factors, Masked, Step, Tally, Tiles, Trimmed

if TYPE_CHECKING:
    from scipy.sparse import csr_array

INLINE_ENTRIES = 1 << 17  # below this a pool costs more than it brings
FEW_CHUNKS = 1 << 21  # below this, S is found in as many pieces as there are threads

Share = TypeVar("Share")
Piece = TypeVar("Piece")
Factor = tuple[Array, Array | None]  # a block to multiply with T, and one to multiply with the kept entries
Product = tuple[Any, Any]


class CpuEngine:
    """M as a NumPy array or memmap, never copied and never upcast. NaN is not observed.

    Parameters
    ----------
    M : float32 or float64 array, in any order; rows or columns that lie together in memory are read fastest
    threads : int or None
        None: one per available core.
    holes : bool
        Whether some entries are known to be NaN. If not, M is taken as complete until the first is met.

    Examples
    --------
    >>> engine = CpuEngine(np.array([[1.0, np.nan], [0.0, 2.0]]), holes=True)
    >>> engine.n_observed, engine.counts[1]
    (3, array([2, 1]))
    """

    name = "cpu"

    def __init__(self, M: Array, threads: int | None = None, holes: bool = False) -> None:
        # Fortran order is the C order of the transposed matrix: the same rows of memory, the roles swapped.
        self.transposed = not M.flags.c_contiguous and abs(M.strides[0]) < abs(M.strides[1])
        self.A = np.asarray(M.T if self.transposed else M).view()
        self.A.flags.writeable = False  # it is the user's; and one compiled kernel serves both kinds
        self.threads = threads or available_cores()
        self.holes = holes
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
        return int(self._counted[0].sum()) if self.holes else self.A.size

    @property
    def counts(self) -> tuple[Array, Array]:
        if not self.holes:
            return all_counted(self.shape)
        return self._counted[::-1] if self.transposed else self._counted

    @cached_property
    def _counted(self) -> tuple[Array, Array]:
        """How many entries of each stored row and column are observed: M is read, once, and not as an answer."""
        n1, n2 = self.A.shape
        step = max(1, ONCE // n2)
        rows = np.empty(n1, np.int64)

        def work(first: int) -> Array:
            seen = ~np.isnan(self.A[first : first + step])
            rows[first : first + step] = np.count_nonzero(seen, axis=1)
            return np.count_nonzero(seen, axis=0)

        cols = np.zeros(n2, np.int64)
        for some in self._in_order(work, range(0, n1, step)):
            cols += some
        if not rows.any():
            raise ValueError("every cell of M is missing")
        return rows, cols

    def place(self, B: Array) -> Array:
        return np.ascontiguousarray(B, dtype=self.dtype)

    def core(self, L: LowRank, zeta: Limit, Q1: Array, Q2: Array) -> tuple[Array, Trim]:
        return self._core(self._trimmed(L, zeta), Q1, Q2)

    def normal(self, L: LowRank, zeta: float, Q1: Array, Q2: Array) -> CpuNormal:
        return CpuNormal(self, L, zeta, Q1, Q2)

    def times(
        self, L: LowRank, zeta: Limit, X: Array, weights: Array | None = None
    ) -> tuple[Array, Array | None, Trim]:
        (TX, KW), _, trim = self._products(self._trimmed(L, zeta, want_kept=weights is not None), (X, weights), None)
        return TX, KW, trim

    def t_times(
        self, L: LowRank, zeta: Limit, Y: Array, weights: Array | None = None
    ) -> tuple[Array, Array | None, Trim]:
        _, (TY, KW), trim = self._products(self._trimmed(L, zeta, want_kept=weights is not None), None, (Y, weights))
        return TY, KW, trim

    def sides(self, L: LowRank, zeta: Limit, X: Array, Y: Array) -> tuple[Array, Array, Trim]:
        (TX, _), (TY, _), trim = self._products(self._trimmed(L, zeta), (X, None), (Y, None))
        return TX, TY, trim

    def solve_rows(self, U: Array, V: Array, noise: Noise, prior: Prior) -> Lines:
        return self._lines(0, U, V, noise, prior)

    def solve_cols(self, U: Array, V: Array, noise: Noise, prior: Prior) -> Lines:
        return self._lines(1, U, V, noise, prior)

    def _lines(self, axis: int, U: Array, V: Array, noise: Noise, prior: Prior) -> Lines:
        self.reads += 1
        if not self.transposed:
            lines = solve_dense(self.A, axis, U, V, noise, prior, self.threads)
        else:
            lines = solve_dense(self.A, 1 - axis, V, U, noise.T, prior, self.threads)
            lines = replace(lines, sums=lines.sums.T)
        self.holes |= lines.sums.n_observed < self.A.size
        return lines

    def cut(self, L: LowRank, per_row: int, per_col: int) -> Cut:
        if self.transposed:
            return Cut(*self._ranked(L.T, per_col, per_row)).T
        return Cut(*self._ranked(L, per_row, per_col))

    def dual(self) -> CpuDual:
        return CpuDual(self)

    def corruption(self, L: LowRank, limit: float | Standardised) -> tuple[csr_array, Trim]:
        self.reads += 1
        factors = self._factors(L.T if self.transposed else L)
        S = GrowingRows(self.shape, self.dtype)
        if not isinstance(limit, Standardised):
            limit = in_precision(limit, self.dtype)
        elif self.transposed:
            limit = limit.T
        # Many chunks let all threads end at about the same time, but to hand one over takes a tenth of a millisecond.
        parts = self.threads * (1 if self.A.size < FEW_CHUNKS else 8)
        find = Lister(self.A, factors, limit, S.index, self.transposed, parts, self.holes)
        total = Tally()
        with closing(self._in_order(find, find.chunks)) as pieces:
            for found in pieces:
                S.append(found)
                total.include(found.tally)
                find.release(found)
        return S.finished(), self._trim(total)

    def block(self, rows: Array, cols: Array) -> Array:
        refuse_large_block(rows, cols)
        return self._seen(self.A[np.ix_(cols, rows)].T if self.transposed else self.A[np.ix_(rows, cols)])

    def entries(self, rows: Array, cols: Array) -> Array:
        return self._seen(self.A[cols, rows] if self.transposed else self.A[rows, cols])

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        return drawn_anywhere(self, size, rng)

    def _seen(self, values: Array) -> Array:
        missing, infinite = bad_entries(values)
        if infinite:
            raise not_finite(missing, infinite)
        self.holes |= missing > 0
        self.reads += (values.size - missing) / self.n_observed
        return values

    def _trimmed(
        self, L: LowRank, zeta: Limit, want_kept: bool = False, remember: Array | None = None
    ) -> Callable[[range], Tiles]:
        """What makes tiles of T for one thread's rows."""
        if self.transposed:
            L, zeta = L.T, zeta.T if isinstance(zeta, Cut) else zeta
        limit = zeta if isinstance(zeta, Cut) else in_precision(zeta, self.dtype)
        factors = self._factors(L)
        return lambda rows: Trimmed(self.A, rows, factors, limit, want_kept, remember, self.holes)

    def _core(self, tiles_of: Callable[[range], Tiles], Q1: Array, Q2: Array) -> tuple[Array, Trim]:
        """``Q1.T @ T @ Q2``: every thread sums over its rows."""
        if self.transposed:
            Q1, Q2 = Q2, Q1
        Q1, Q2 = self._fit(Q1, 0), self._fit(Q2, 1)

        def work(share: Tiles) -> Array:
            G = np.zeros((Q1.shape[1], Q2.shape[1]))
            for rows in share:
                TQ2 = np.zeros((rows.stop - rows.start, Q2.shape[1]), self.dtype)
                for cols, T, _ in share.along(rows):
                    TQ2 += T @ Q2[cols]
                G += Q1[rows].T @ TQ2
            return G

        pieces, trim = self._pass(work, tiles_of)
        G = np.sum(pieces, axis=0)
        return (G.T if self.transposed else G), trim

    def _products(
        self, tiles_of: Callable[[range], Tiles], right: Factor | None, left: Factor | None
    ) -> tuple[Product, Product, Trim]:
        """T X and K W for ``right = (X, W)``, Tᵀ Y and Kᵀ V for ``left = (Y, V)``, in one read.

        Along the stored rows every thread fills its own rows of the answer; across them every thread has a sum
        of its own, and these are added at the end.
        """
        if self.transposed:
            right, left = left, right
        n1, n2 = self.A.shape
        X, W = self._placed(right, 1)
        Y, V = self._placed(left, 0)
        TX, KW = self._zeros(n1, X), self._zeros(n1, W)

        def work(share: Tiles) -> tuple[Array | None, Array | None]:
            TY, KV = self._zeros(n2, Y), self._zeros(n2, V)
            for rows in share:
                for cols, T, K in share.along(rows):
                    for out, A, B in ((TX, T, X), (KW, K, W)):
                        if out is not None and B is not None:
                            out[rows] += A @ B[cols]
                    for out, A, B in ((TY, T, Y), (KV, K, V)):
                        if out is not None and B is not None:
                            out[cols] += A.T @ B[rows]
            return TY, KV

        pieces, trim = self._pass(work, tiles_of)
        TY, KV = (None if parts[0] is None else np.sum(parts, axis=0) for parts in zip(*pieces, strict=True))
        if self.transposed:
            return (TY, KV), (TX, KW), trim
        return (TX, KW), (TY, KV), trim

    def _placed(self, factor: Factor | None, side: int) -> Product:
        blocks = factor or (None, None)
        return tuple(None if B is None else self._fit(B, side) for B in blocks)  # type: ignore[return-value]

    def _fit(self, B: Array, side: int) -> Array:
        """As ``place``, for the stored rows (0) or columns."""
        refuse_wrong_length(B, self.A.shape[side])
        return self.place(B)

    def _zeros(self, n: int, like: Array | None) -> Array | None:
        return None if like is None else np.zeros((n, like.shape[1]), self.dtype)

    def _ranked(self, L: LowRank, per_row: int, per_col: int) -> tuple[Array, Array]:
        """The magnitudes of M − L next below the largest few, for every stored row and column."""
        U, Vt = self._factors(L)
        rows = self._along(self.A, U, Vt, per_row)
        cols = self._along(self.A.T, np.ascontiguousarray(Vt.T), np.ascontiguousarray(U.T), per_col)
        return rows, cols

    def _along(self, A: Array, U: Array, Vt: Array, largest: int) -> Array:
        self.reads += 1
        n, m = A.shape
        found, holes = np.zeros(n, self.dtype), [self.holes]
        step = max(1, tiles.TILE_BYTES // (m * self.dtype.itemsize))

        def work(first: int) -> bool:
            lines = slice(first, min(first + step, n))
            size = U[lines] @ Vt
            np.abs(np.subtract(A[lines], size, out=size), out=size)
            finite = bool(np.isfinite(size).all())
            if not finite:
                missing = np.isnan(A[lines])
                size[missing] = 0  # below all others
                finite = bool(np.isfinite(size).all())
                holes.append(bool(missing.any()))
            if finite and largest < m:
                size.partition(m - 1 - largest, axis=1)
                found[lines] = size[:, m - 1 - largest]
            return finite

        if not all(self._in_order(work, range(0, n, step))):
            raise blamed(self.A)
        self.holes |= any(holes)
        return found

    def _factors(self, L: LowRank) -> Factors:
        U, V = L.thin()
        refuse_wrong_length(V, self.A.shape[1])
        return self._fit(U, 0), self.place(V.T)

    def _pass(self, work: Callable[[Tiles], Piece], tiles_of: Callable[[range], Tiles]) -> tuple[list[Piece], Trim]:
        """Let every thread walk its share of the tiles once."""
        self.reads += 1
        n = self.A.shape[0]
        parts = 1 if self._small else min(self.threads, n)
        edges = [n * part // parts for part in range(parts + 1)]
        shares = [tiles_of(range(first, last)) for first, last in pairwise(edges)]
        pieces, total = self._map(work, shares), Tally()
        for share in shares:
            total.include(share.tally)
        return pieces, self._trim(total)

    @property
    def _small(self) -> bool:
        return self.A.size < INLINE_ENTRIES

    def _map(self, work: Callable[[Share], Piece], shares: Sequence[Share]) -> list[Piece]:
        return list(self._in_order(work, shares, ahead=len(shares)))

    def _in_order(
        self, work: Callable[[Share], Piece], shares: Iterable[Share], ahead: int | None = None
    ) -> Generator[Piece, None, None]:
        return in_order(work, shares, 1 if self._small else self.threads, ahead)

    def _trim(self, total: Tally) -> Trim:
        if not total.finite:
            raise blamed(self.A)
        self.holes |= total.missing > 0
        if total.missing == self.A.size:
            raise ValueError("every cell of M is missing")
        return Trim(total.kept, total.size - total.kept, total.energy, total.largest)


class CpuNormal:
    """Normal equations; the kept entries are remembered in a byte each."""

    def __init__(self, engine: CpuEngine, L: LowRank, zeta: float, Q1: Array, Q2: Array) -> None:
        self.engine, self.Q1, self.Q2 = engine, engine.place(Q1), engine.place(Q2)
        self.K = np.empty(engine.A.shape, np.uint8)
        self.gradient, self.trim = engine._core(engine._trimmed(L, zeta, remember=self.K), self.Q1, self.Q2)

    def times(self, P: Array) -> Array:
        return self.engine._core(self._masked(LowRank(self.Q1, P, self.Q2)), self.Q1, self.Q2)[0]

    def sides(self, L: LowRank, X: Array, Y: Array) -> tuple[Array, Array]:
        (KX, _), (KY, _), _ = self.engine._products(self._masked(L), (X, None), (Y, None))
        return KX, KY

    def _masked(self, L: LowRank) -> Callable[[range], Tiles]:
        factors = self.engine._factors(L.T if self.engine.transposed else L)
        return lambda rows: Masked(self.engine.A, rows, factors, self.K)


class CpuDual:
    """A dual variable in memory, stored in the order of M and walked in the same tiles."""

    def __init__(self, engine: CpuEngine) -> None:
        self.engine = engine
        size = engine.A.nbytes
        if size > _memory():
            raise MemoryError(
                f"this solver keeps a second matrix of the size of M in memory, {size / 1e9:.1f} GB, more than this "
                "machine has; take solver='irpca', which keeps none"
            )
        self.Y = np.zeros(engine.A.shape, engine.dtype)

    def core(self, Q1: Array, Q2: Array, step: Ascent | None = None) -> tuple[Array, Trim]:
        G, trim = self.engine._core(self._tiles(step), Q1, Q2)
        return G, self._rode(step, trim)

    def times(self, X: Array, step: Ascent | None = None) -> tuple[Array, Trim]:
        (YX, _), _, trim = self.engine._products(self._tiles(step), (X, None), None)
        return YX, self._rode(step, trim)

    def t_times(self, X: Array, step: Ascent | None = None) -> tuple[Array, Trim]:
        _, (YX, _), trim = self.engine._products(self._tiles(step), None, (X, None))
        return YX, self._rode(step, trim)

    def _rode(self, step: Ascent | None, trim: Trim) -> Trim:
        """Without a step M is not read, and what is not observed not met."""
        return trim if step is not None else Trim(self.engine.n_observed, 0, 0.0, 0.0)

    def _tiles(self, step: Ascent | None) -> Callable[[range], Tiles]:
        engine, made = self.engine, None
        if step is not None:
            factors = engine._factors(step.B.T if engine.transposed else step.B)
            made = Step(factors, *(in_precision(x, engine.dtype) for x in (step.penalty, step.bound, step.box)))
        return lambda rows: Duals(engine.A, rows, self.Y, made)


def _memory() -> float:
    """Bytes of memory of this machine, as far as it tells."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # not on Windows
        return np.inf
