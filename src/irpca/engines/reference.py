"""The engine in plain NumPy: dense temporaries, no tricks. Every other engine equals this one."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..lowrank import Array, LowRank
from .arithmetic import Moments, Posteriors, weigh
from .base import (
    Engine,
    Lines,
    Noise,
    Prior,
    Sink,
    Standardised,
    Sums,
    Trim,
    bad_entries,
    drawn,
    in_precision,
    not_finite,
    refuse_large_block,
    spread_places,
)
from .regressions import solve_bands

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from ..model.maps import ColumnMaps


class ReferenceEngine(Engine):
    """M as a dense array, each question answered by its formula.

    Parameters
    ----------
    M : float32 or float64 array, NaN being not observed
    """

    name = "reference"
    capabilities = frozenset({"whole"})

    def __init__(self, M: Array) -> None:
        self.observed = ~np.isnan(M)
        self.M = np.where(self.observed, M, M.dtype.type(0))
        self.reads = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        return self.M.shape[0], self.M.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.M.dtype

    @property
    def n_observed(self) -> int:
        return int(self.observed.sum())

    @property
    def counts(self) -> tuple[Array, Array]:
        return self.observed.sum(axis=1), self.observed.sum(axis=0)

    def mapped(self, maps: ColumnMaps) -> ReferenceEngine:
        new = copy(self)
        new.M = np.where(self.observed, maps.latent(self.M), 0.0).astype(self.dtype)
        return new

    def glance(self, size: int) -> Array:
        rows, cols = spread_places(self.shape, size)
        return np.where(self.observed[rows, cols], self.M[rows, cols], np.nan)

    def _residual(self, L: LowRank) -> Array:
        """M − L in double precision, zero where M is not observed."""
        residual = np.where(self.observed, self.M - L.dense().astype(float), 0.0)
        if not np.isfinite(residual).all():
            raise not_finite(bad_entries(self.M)[1])
        return residual

    def _trimmed(self, L: LowRank, zeta: float | Standardised) -> tuple[Array, Array, Trim]:
        """T in double precision, the kept mask, and what rides along."""
        self.reads += 1
        residual = self._residual(L)
        # The paper's P_zeta is strict: only |a| > zeta goes to S.
        if isinstance(zeta, Standardised):
            kept = np.abs(residual) <= zeta.limit * np.sqrt(np.multiply.outer(zeta.rows, zeta.cols))
        else:
            kept = np.abs(residual) <= in_precision(zeta, self.dtype)
        kept &= self.observed
        T = np.where(kept, residual, 0.0)
        n_kept = int(kept.sum())
        return T, kept, Trim(n_kept, self.n_observed - n_kept, float((T**2).sum()), float(np.abs(T).max()))

    def core(self, L: LowRank, zeta: float, Q1: Array, Q2: Array) -> tuple[Array, Trim]:
        T, _, trim = self._trimmed(L, zeta)
        return Q1.T @ T @ Q2, trim

    def normal(self, L: LowRank, zeta: float, Q1: Array | None, Q2: Array) -> ReferenceNormal:
        return ReferenceNormal(self, L, zeta, Q1, Q2)

    def products(
        self, L: LowRank, zeta: float, X: Array | None = None, Y: Array | None = None, kept: bool = False
    ) -> tuple[Any, Any, Trim]:
        T, K, trim = self._trimmed(L, zeta)
        A = K.astype(float) if kept else T
        return (
            None if X is None else (A @ X).astype(self.dtype),
            None if Y is None else (A.T @ Y).astype(self.dtype),
            trim,
        )

    def solve_lines(self, axis: int, U: Array, V: Array, noise: Noise, prior: Prior) -> Lines:
        self.reads += 1
        self._residual(LowRank(U, np.eye(U.shape[1]), V))  # refused if it is not finite
        M = self.M if noise.units is None else self.M / noise.units
        if axis == 0:
            return _solve_rows(M, self.observed, U, V, noise, prior)
        lines = _solve_rows(M.T, self.observed.T, V, U, noise.T, prior)
        return replace(lines, sums=lines.sums.T)

    def whole(self) -> Array:
        self.reads += 1
        if infinite := bad_entries(self.M)[1]:
            raise not_finite(infinite)
        return np.where(self.observed, self.M, self.dtype.type(np.nan))

    def corruption(self, L: LowRank, limit: float | Standardised) -> tuple[csr_array, Trim]:
        from scipy.sparse import csr_array

        _, kept, trim = self._trimmed(L, limit)
        # Not from a dense S: a zero residual beyond a negative zeta belongs to it.
        rows, cols = np.nonzero(self.observed & ~kept)
        values = (self.M - L.dense())[rows, cols].astype(self.dtype)
        return csr_array((values, (rows, cols)), shape=self.shape), trim

    def write(self, L: LowRank, limit: float | Standardised, sink: Sink) -> tuple[tuple[Array, Array], Trim]:
        S, trim = self.corruption(L, limit)
        S = S.tocoo()
        kept = sink.write((0, 0), S.row, S.col, self.M[S.row, S.col], L.entries(S.row, S.col))
        flagged = tuple(np.bincount(at[kept], minlength=n) for at, n in zip((S.row, S.col), self.shape, strict=True))
        dropped = int((~kept).sum())
        return flagged, replace(trim, kept=trim.kept + dropped, trimmed=trim.trimmed - dropped)  # type: ignore[return-value]

    def block(self, rows: Array, cols: Array) -> Array:
        refuse_large_block(rows, cols)
        at = np.ix_(rows, cols)
        return self._seen(self.M[at], self.observed[at])

    def entries(self, rows: Array, cols: Array) -> Array:
        return self._seen(self.M[rows, cols], self.observed[rows, cols])

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        at = np.flatnonzero(self.observed)[drawn(self.n_observed, size, rng)]
        rows, cols = np.divmod(at, self.shape[1])
        return rows, cols, self.entries(rows, cols)

    def _seen(self, values: Array, observed: Array) -> Array:
        self.reads += observed.sum() / self.n_observed
        if infinite := bad_entries(values)[1]:
            raise not_finite(infinite)
        return np.where(observed, values, self.dtype.type(np.nan))


class ReferenceNormal:
    """Normal equations with a dense mask."""

    def __init__(self, engine: ReferenceEngine, L: LowRank, zeta: float, Q1: Array | None, Q2: Array) -> None:
        Q1 = np.eye(engine.shape[0]) if Q1 is None else Q1
        self.engine, self.Q1, self.Q2 = engine, Q1, Q2
        T, self.K, self.trim = engine._trimmed(L, zeta)
        self.gradient = Q1.T @ T @ Q2

    def times(self, P: Array) -> Array:
        self.engine.reads += 1
        return self.Q1.T @ (self.K * (self.Q1 @ P @ self.Q2.T)) @ self.Q2

    def products(self, L: LowRank, X: Array, Y: Array) -> tuple[Array, Array]:
        self.engine.reads += 1
        K = self.K * L.dense()
        return (K @ X).astype(self.engine.dtype), (K.T @ Y).astype(self.engine.dtype)


def _solve_rows(M: Array, observed: Array, U: Array, V: Array, noise: Noise, prior: Prior) -> Lines:
    """The regression of every row of M on V."""
    R = np.where(observed, M - U.astype(float) @ V.T, 0.0)
    s2, var = np.multiply.outer(noise.rows, noise.cols), noise.row_spread @ noise.col_spread.T
    omega, energy, trust, totals = weigh(R, observed, s2, var, noise.parameters)
    of_rows, of_cols = (np.column_stack([energy.sum(axis=axis), trust.sum(axis=axis)]) for axis in (1, 0))
    p, q = np.tril_indices(V.shape[1])
    moments = Moments(omega @ (V[:, p] * V[:, q]), (omega * R) @ V, omega @ prior.other_spread)
    lines = Posteriors(moments, U.astype(float), prior)
    return solve_bands(lambda name, *args: [getattr(lines, name)(*args)], prior, Sums(of_rows, of_cols, totals))
