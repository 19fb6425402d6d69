"""The engine in plain NumPy: dense temporaries, no tricks. Every other engine equals this one."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from ..lowrank import Array, LowRank
from .base import Trim, in_precision, not_finite


class ReferenceEngine:
    """M as a dense array, each question answered by its formula."""

    name = "reference"

    def __init__(self, M: Array) -> None:
        self.M = M
        self.reads = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        return self.M.shape[0], self.M.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.M.dtype

    @property
    def n_observed(self) -> int:
        return self.M.size

    def place(self, B: Array) -> Array:
        return np.ascontiguousarray(B, dtype=self.dtype)

    def _trimmed(self, L: LowRank, zeta: float, about: LowRank | None = None) -> tuple[Array, Array, Trim]:
        """T in double precision, the kept mask K, and what rides along."""
        self.reads += 1
        residual = self.M - L.dense().astype(float)
        judged = residual if about is None else self.M - about.dense().astype(float)
        if not np.isfinite(judged).all():
            raise not_finite(_bad(self.M))
        # The paper's P_zeta is strict: only |a| > zeta goes to S.
        kept = np.abs(judged) <= in_precision(zeta, self.dtype)
        T = np.where(kept, residual, 0.0)
        n_kept = int(kept.sum())
        return T, kept, Trim(n_kept, kept.size - n_kept, float((T**2).sum()), float(np.abs(T).max()))

    def core(self, L: LowRank, zeta: float, Q1: Array, Q2: Array, about: LowRank | None = None) -> tuple[Array, Trim]:
        T, _, trim = self._trimmed(L, zeta, about)
        return Q1.T @ T @ Q2, trim

    def times(
        self, L: LowRank, zeta: float, X: Array, weights: Array | None = None
    ) -> tuple[Array, Array | None, Trim]:
        T, kept, trim = self._trimmed(L, zeta)
        sums = None if weights is None else (kept @ weights).astype(self.dtype)
        return (T @ X).astype(self.dtype), sums, trim

    def t_times(
        self, L: LowRank, zeta: float, Y: Array, weights: Array | None = None
    ) -> tuple[Array, Array | None, Trim]:
        T, kept, trim = self._trimmed(L, zeta)
        sums = None if weights is None else (kept.T @ weights).astype(self.dtype)
        return (T.T @ Y).astype(self.dtype), sums, trim

    def corruption(self, L: LowRank, zeta: float) -> tuple[csr_array, Trim]:
        _, kept, trim = self._trimmed(L, zeta)
        # Not from a dense S: a zero residual beyond a negative zeta belongs to it.
        rows, cols = np.nonzero(~kept)
        values = (self.M - L.dense())[rows, cols].astype(self.dtype)
        return csr_array((values, (rows, cols)), shape=self.shape), trim

    def block(self, rows: Array, cols: Array) -> Array:
        self.reads += len(rows) * len(cols) / self.M.size
        piece = self.M[np.ix_(rows, cols)]
        if bad := _bad(piece):
            raise not_finite(bad)
        return piece

    def entries(self, rows: Array, cols: Array) -> Array:
        self.reads += len(rows) / self.M.size
        picked = self.M[rows, cols]
        if bad := _bad(picked):
            raise not_finite(bad)
        return picked


def _bad(values: Array) -> int:
    return values.size - int(np.isfinite(values).sum())
