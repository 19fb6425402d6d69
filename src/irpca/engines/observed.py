"""The engine for matrices with holes: cost and memory are those of the observed entries.

Only the rows are stored, as CSR. Each thread owns a run of them and walks their entries in chunks that fit in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..lowrank import Array, LowRank
from . import chunks, kernels
from .base import (
    Ascent,
    Cut,
    Limit,
    Lines,
    Noise,
    Prior,
    Standardised,
    Trim,
    drawn,
    in_precision,
    not_finite,
    refuse_large_block,
    refuse_wrong_length,
)
from .chunks import Chunks, Duals, Entries, Flagged, Masked, Trimmed, even_runs
from .holes import LONGEST, compressed
from .lines import solve_listed
from .threads import available_cores, in_order
from .tiles import Factors, Step, Tally

if TYPE_CHECKING:
    from scipy.sparse import csr_array

INLINE_ENTRIES = 1 << 15  # below this a pool costs more than it brings
SUMS = 4  # numbers per observed entry, of which the sums over rows that threads keep for themselves may consist

Share = TypeVar("Share")
Piece = TypeVar("Piece")
Factor = tuple[Array, Array | None]  # a block to multiply with T, and one to multiply with the kept entries
Product = tuple[Any, Any]


class ObservedEngine:
    """The observed entries of M, and nothing for the others.

    Parameters
    ----------
    M : csr_array of float32 or float64, whose stored entries are the observed ones
        In canonical format: columns sorted in each row, none twice. A stored zero is an observation. Not copied.
    threads : int or None
        None: one per available core.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> engine = ObservedEngine(csr_array(np.array([[1.0, 0.0], [0.0, 2.0]])))
    >>> engine.n_observed, engine.entries(np.array([0, 0]), np.array([0, 1]))
    (2, array([ 1., nan]))
    """

    name = "observed"

    def __init__(self, M: csr_array, threads: int | None = None) -> None:
        if not M.has_canonical_format:
            raise ValueError("columns of M must be sorted in each row, and none may occur twice")
        if M.nnz == 0:
            raise ValueError("every cell of M is missing")
        if bad := M.nnz - int(np.isfinite(M.data).sum()):
            raise ValueError(f"{bad} of the observed entries of M are NaN or infinite; leave them out or replace them")
        index = np.int32 if M.shape[1] <= LONGEST else np.int64
        ends, indices = M.indptr.astype(np.int64, copy=False), M.indices.astype(index, copy=False)
        self.M = Entries(M.shape, _read_only(ends), _read_only(indices), _read_only(M.data))
        self.threads = threads or available_cores()
        self.reads = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        return self.M.shape

    @property
    def dtype(self) -> np.dtype:
        return self.M.values.dtype

    @property
    def n_observed(self) -> int:
        return self.M.size

    @cached_property
    def counts(self) -> tuple[Array, Array]:
        return np.diff(self.M.ends), np.bincount(self.M.indices, minlength=self.shape[1])

    def place(self, B: Array) -> Array:
        return np.ascontiguousarray(B, dtype=self.dtype)

    def core(self, L: LowRank, zeta: Limit, Q1: Array, Q2: Array) -> tuple[Array, Trim]:
        return self._core(self._trimmed(L, zeta), Q1, Q2)

    def normal(self, L: LowRank, zeta: float, Q1: Array, Q2: Array) -> ObservedNormal:
        return ObservedNormal(self, L, zeta, Q1, Q2)

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
        shares = even_runs(self.M.ends, self._parts(self.shape[0]))
        return solve_listed(self.M, axis, U, V, noise, prior, shares, self.threads)

    def cut(self, L: LowRank, per_row: int, per_col: int) -> Cut:
        self.reads += 1
        sizes = self._sizes(L)
        rows = self._next_largest(self.M.ends, sizes, per_row)
        across = compressed(sizes, self.M.indices, self.M.ends, self.shape).tocsc()
        return Cut(rows, self._next_largest(across.indptr.astype(np.int64), across.data, per_col))

    def dual(self) -> ObservedDual:
        return ObservedDual(self)

    def corruption(self, L: LowRank, limit: float | Standardised) -> tuple[csr_array, Trim]:
        factors = self._factors(L)
        limit = limit if isinstance(limit, Standardised) else in_precision(limit, self.dtype)
        counts = np.zeros(self.shape[0] + 1, np.int64)

        def work(share: Chunks) -> list[tuple[Array, Array]]:
            found = []
            for chunk, where, values in share:
                found.append((chunk.indices[where], values.copy()))
                counts[1:][chunk.rows] += np.diff(np.searchsorted(where, chunk.starts))
            return found

        pieces, trim = self._pass(work, lambda rows: Flagged(self.M, rows, factors, limit))
        indices, values = (np.concatenate(parts) for parts in zip(*chain(*pieces), strict=True))
        S = compressed(values, indices, np.cumsum(counts), self.shape)
        S.has_canonical_format = True  # as M is: to find that out would be another read of S
        return S, trim

    def block(self, rows: Array, cols: Array) -> Array:
        refuse_large_block(rows, cols)
        rows, ends = np.asarray(rows), self.M.ends
        wanted, back = np.unique(cols, return_inverse=True)
        place = np.full(self.shape[1], -1)
        place[wanted] = np.arange(len(wanted))
        found = np.full((len(rows), len(wanted)), np.nan, self.dtype)
        counts = ends[rows + 1] - ends[rows]
        totals = np.append(0, np.cumsum(counts))
        for run in even_runs(totals, 1 + int(totals[-1]) // chunks.CHUNK):
            some = slice(run.start, run.stop)
            at = np.arange(totals[run.start], totals[run.stop])
            at += np.repeat(ends[rows[some]] - totals[some], counts[some])
            to, lines = place[self.M.indices[at]], np.repeat(np.arange(run.start, run.stop), counts[some])
            inside = to >= 0
            found[lines[inside], to[inside]] = self.M.values[at[inside]]
        return self._seen(found if np.array_equal(wanted, cols) else found[:, back])

    def entries(self, rows: Array, cols: Array) -> Array:
        at, there = self.M.find(rows, cols)
        return self._seen(np.where(there, self.M.values[at], self.dtype.type(np.nan)))

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        at = drawn(self.n_observed, size, rng)
        return self.M.rows_of(at), self.M.indices[at].astype(np.int64), self._seen(self.M.values[at])

    def _seen(self, values: Array) -> Array:
        self.reads += np.count_nonzero(~np.isnan(values)) / self.n_observed
        return values

    def _trimmed(
        self, L: LowRank, zeta: Limit, want_kept: bool = False, remember: Array | None = None
    ) -> Callable[[range], Chunks]:
        """What makes T of one thread's rows."""
        factors = self._factors(L)
        limit = zeta if isinstance(zeta, Cut) else in_precision(zeta, self.dtype)
        return lambda rows: Trimmed(self.M, rows, factors, limit, want_kept, remember)

    def _core(self, chunks_of: Callable[[range], Chunks], Q1: Array, Q2: Array) -> tuple[Array, Trim]:
        """``Q1.T @ T @ Q2``: every thread sums over its rows."""
        Q1, Q2 = self._placed(Q1, 0), self._placed(Q2, 1)

        def work(share: Chunks) -> Array:
            G = np.zeros((Q1.shape[1], Q2.shape[1]))
            for chunk, T, _ in share:
                TQ2 = np.zeros((len(chunk.starts) - 1, Q2.shape[1]), self.dtype)
                kernels.along(chunk.starts, chunk.indices, T, Q2, TQ2)
                G += Q1[chunk.rows].T @ TQ2
            return G

        pieces, trim = self._pass(work, chunks_of)
        return np.sum(pieces, axis=0), trim

    def _products(
        self, chunks_of: Callable[[range], Chunks], right: Factor | None, left: Factor | None
    ) -> tuple[Product, Product, Trim]:
        """T X and K W for ``right = (X, W)``, Tᵀ Y and Kᵀ V for ``left = (Y, V)``, in one read.

        Along the rows every thread fills its own rows of the answer; across them every thread has a sum of its own,
        in double precision, and these are added at the end.
        """
        n1, n2 = self.shape
        X, W = (self._placed(B, 1) for B in right or (None, None))
        Y, V = (self._placed(B, 0) for B in left or (None, None))
        TX, KW = (None if B is None else np.zeros((n1, B.shape[1]), self.dtype) for B in (X, W))

        def work(share: Chunks) -> list[Array | None]:
            TY, KV = (None if B is None else np.zeros((n2, B.shape[1])) for B in (Y, V))
            for chunk, T, K in share:
                for out, A, B in ((TX, T, X), (KW, K, W)):
                    if out is not None:
                        kernels.along(chunk.starts, chunk.indices, A, B, out[chunk.rows])
                for out, A, B in ((TY, T, Y), (KV, K, V)):
                    if out is not None and B is not None:
                        kernels.across(chunk.starts, chunk.indices, A, B[chunk.rows], out)
            return [TY, KV]

        width = sum(B.shape[1] for B in (Y, V) if B is not None)
        pieces, trim = self._pass(work, chunks_of, most=max(1, SUMS * self.n_observed // (n2 * max(1, width))))
        TY, KV = (self._sum(pieces, side) for side in (0, 1))
        return (TX, KW), (TY, KV), trim

    def _sum(self, pieces: list[list[Array | None]], side: int) -> Any:
        total = pieces[0][side]
        for piece in pieces[1:]:
            if total is not None:
                total += piece[side]
                piece[side] = None  # no longer than needed
        return None if total is None else total.astype(self.dtype, copy=False)

    def _sizes(self, L: LowRank) -> Array:
        """``|M − L|`` at the observed entries."""
        sizes = np.empty(self.n_observed, self.dtype)

        def work(share: Chunks) -> None:
            for chunk, R, _ in share:
                np.abs(R, out=sizes[chunk.at])

        self._pass(work, self._trimmed(L, np.inf))
        return sizes

    def _next_largest(self, ends: Array, sizes: Array, largest: int) -> Array:
        """The size next below the ``largest`` largest of every line."""
        found = np.empty(len(ends) - 1, self.dtype)

        def work(share: range) -> None:
            starts, first = ends[share.start : share.stop + 1], ends[share.start]
            kernels.next_largest(starts - first, sizes[first : starts[-1]], largest, found[share.start : share.stop])

        self._map(work, even_runs(ends, self._parts(len(found))))
        return found

    def _factors(self, L: LowRank) -> Factors:
        if self.shape[0] > self.shape[1]:  # the core goes to the shorter side: less to compute, less to store
            V, U = L.T.thin()
        else:
            U, V = L.thin()
        return self._placed(U, 0), self._placed(V, 1)

    def _placed(self, B: Array | None, side: int) -> Any:
        """As ``place``; read-only, so that one compiled kernel serves both kinds."""
        if B is None:
            return None
        refuse_wrong_length(B, self.shape[side])
        return _read_only(self.place(B))

    def _pass(
        self, work: Callable[[Chunks], Piece], chunks_of: Callable[[range], Chunks], most: int | None = None
    ) -> tuple[list[Piece], Trim]:
        """Let every thread, ``most`` of them, walk its share of the entries once."""
        self.reads += 1
        parts = self._parts(self.shape[0])
        shares = [chunks_of(rows) for rows in even_runs(self.M.ends, min(parts, most or parts))]
        pieces, total = self._map(work, shares), Tally()
        for share in shares:
            total.include(share.tally)
        if not total.finite:
            raise not_finite(0, 0)  # M was looked at when it came
        return pieces, Trim(total.kept, total.size - total.kept, total.energy, total.largest)

    def _parts(self, lines: int) -> int:
        return 1 if self.n_observed < INLINE_ENTRIES else min(self.threads, lines)

    def _map(self, work: Callable[[Share], Piece], shares: Sequence[Share]) -> list[Piece]:
        return list(in_order(work, shares, self.threads if len(shares) > 1 else 1, ahead=len(shares)))


class ObservedNormal:
    """Normal equations; the kept entries are remembered in a byte for each observed one."""

    def __init__(self, engine: ObservedEngine, L: LowRank, zeta: float, Q1: Array, Q2: Array) -> None:
        self.engine, self.Q1, self.Q2 = engine, engine.place(Q1), engine.place(Q2)
        self.K = np.empty(engine.n_observed, np.uint8)
        self.gradient, self.trim = engine._core(engine._trimmed(L, zeta, remember=self.K), self.Q1, self.Q2)

    def times(self, P: Array) -> Array:
        return self.engine._core(self._masked(LowRank(self.Q1, P, self.Q2)), self.Q1, self.Q2)[0]

    def sides(self, L: LowRank, X: Array, Y: Array) -> tuple[Array, Array]:
        (KX, _), (KY, _), _ = self.engine._products(self._masked(L), (X, None), (Y, None))
        return KX, KY

    def _masked(self, L: LowRank) -> Callable[[range], Chunks]:
        factors = self.engine._factors(L)
        return lambda rows: Masked(self.engine.M, rows, factors, self.K)


class ObservedDual:
    """A dual variable at the observed entries; it is zero elsewhere."""

    def __init__(self, engine: ObservedEngine) -> None:
        self.engine = engine
        self.Y = np.zeros(engine.n_observed, engine.dtype)

    def core(self, Q1: Array, Q2: Array, step: Ascent | None = None) -> tuple[Array, Trim]:
        return self.engine._core(self._chunks(step), Q1, Q2)

    def times(self, X: Array, step: Ascent | None = None) -> tuple[Array, Trim]:
        (YX, _), _, trim = self.engine._products(self._chunks(step), (X, None), None)
        return YX, trim

    def t_times(self, X: Array, step: Ascent | None = None) -> tuple[Array, Trim]:
        _, (YX, _), trim = self.engine._products(self._chunks(step), None, (X, None))
        return YX, trim

    def _chunks(self, step: Ascent | None) -> Callable[[range], Chunks]:
        engine, made = self.engine, None
        if step is not None:
            numbers = (in_precision(x, engine.dtype) for x in (step.penalty, step.bound, step.box))
            made = Step(engine._factors(step.B), *numbers)
        return lambda rows: Duals(engine.M, rows, self.Y, made)


def _read_only(A: Array) -> Array:
    view = A.view()
    view.flags.writeable = False
    return view
