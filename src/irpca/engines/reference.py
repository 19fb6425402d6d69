"""The engine in plain NumPy: dense temporaries, no tricks. Every other engine equals this one."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..lowrank import Array, LowRank
from .arithmetic import Moments, Posteriors, weigh
from .base import (
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
from .body import PiecedEngine
from .questions import Answer, Core, Masked, Products, Question, Regression, Tally
from .regressions import asked_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from ..model.maps import ColumnMaps


class ReferenceEngine(PiecedEngine):
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

    def _trimmed(self, U: Array, V: Array, limit: float | Standardised) -> tuple[Array, Array, Tally]:
        """M − U Vᵀ in double precision, zero where M is not observed; the kept mask; and what rides along."""
        residual = self._finite(np.where(self.observed, self.M - U.astype(float) @ V.T, 0.0))
        # The paper's P_zeta is strict: only |a| > zeta goes to S.
        if isinstance(limit, Standardised):
            kept = np.abs(residual) <= limit.limit * np.sqrt(np.multiply.outer(limit.rows, limit.cols))
        else:
            kept = np.abs(residual) <= in_precision(limit, self.dtype)
        kept &= self.observed
        T, tally = np.where(kept, residual, 0.0), Tally()
        missing = int(self.M.size - self.n_observed)
        tally.add(self.M.size, (int(kept.sum()), True, float((T**2).sum()), float(np.abs(T).max()), missing))
        return residual, kept, tally

    def _finite(self, residual: Array) -> Array:
        if not np.isfinite(residual).all():
            raise not_finite(bad_entries(self.M)[1])
        return residual

    def ask(self, question: Question) -> Answer:
        assert isinstance(question, (Core, Products))
        of = question.of
        by = of.by if isinstance(of, Masked) else of
        T, kept, tally = self._trimmed(by.U, by.V, by.zeta)
        T = np.where(kept, of.U.astype(float) @ of.V.T if isinstance(of, Masked) else 1.0 if by.ones else T, 0.0)
        if isinstance(question, Core):
            return Answer((question.Q1.T @ T @ question.Q2,), (), (), tally)
        rows, cols = (
            () if B is None else ((A @ B).astype(self.dtype),) for A, B in ((T, question.X), (T.T, question.Y))
        )
        return Answer((), rows, cols, tally)

    def ask_lines(self, question: Regression, mean: Array, prior: Prior) -> tuple[Callable[..., list[Any]], Sums]:
        asked = question.T if question.axis else question  # of the rows of M, or of its transpose
        M, observed = (self.M.T, self.observed.T) if question.axis else (self.M, self.observed)
        M = M if asked.col_units is None else M / asked.col_units
        M = M if asked.row_units is None else M / asked.row_units[:, None]
        V, noise, (p, q) = asked.V, asked.noise, np.tril_indices(asked.V.shape[1])
        R = self._finite(np.where(observed, M - asked.U.astype(float) @ V.T, 0.0))
        s2, var = np.multiply.outer(noise.rows, noise.cols), noise.row_spread @ noise.col_spread.T
        omega, energy, trust, totals = weigh(R, observed, s2, var, noise.parameters)
        of_rows, of_cols = (np.column_stack([energy.sum(axis=k), trust.sum(axis=k)]) for k in (1, 0))
        sums = Sums(of_rows, of_cols, totals)
        moments = Moments(omega @ (V[:, p] * V[:, q]), (omega * R) @ V, omega @ prior.other_spread)
        return asked_of(Posteriors(moments, mean.astype(float), prior)), sums.T if question.axis else sums

    def whole(self) -> Array:
        self.reads += 1
        self._finite(self.M)
        return np.where(self.observed, self.M, self.dtype.type(np.nan))

    def corruption(self, L: LowRank, limit: float | Standardised) -> tuple[csr_array, Trim]:
        from scipy.sparse import csr_array

        self.reads += 1
        residual, kept, tally = self._trimmed(*self.factors(L), limit)
        # Not from a dense S: a zero residual beyond a negative zeta belongs to it.
        rows, cols = np.nonzero(self.observed & ~kept)
        return csr_array((residual[rows, cols].astype(self.dtype), (rows, cols)), shape=self.shape), tally.trim

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
