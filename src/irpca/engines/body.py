"""The questions of the protocol over pieces of M, wherever these are.

An engine says how one question is asked of all its pieces, and how their answers are put together (``ask``); all
else is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..lowrank import Array, LowRank
from .base import Engine, Lines, Noise, Prior, Sink, Standardised, Sums, Trim, refuse_wrong_length
from .questions import Answer, Core, Listing, Masked, Products, Question, Regression, Tally, Trimmed, Writing
from .regressions import solve_bands

WRITTEN_AT_ONCE = 1 << 26  # entries of M whose outliers are written to a file of their own


class PiecedEngine(Engine, ABC):
    """What engines have in common."""

    @abstractmethod
    def ask(self, question: Question) -> Answer:
        """The answers of all pieces, summed."""

    def ask_lines(self, question: Regression, mean: Array, prior: Prior) -> tuple[Callable[..., list[Any]], Sums]:
        """The moments of all rows or columns: how to ask every band of them, and the sums that rode along.

        For engines that leave ``solve_lines`` as it is.
        """
        raise NotImplementedError

    def core(self, L: LowRank, zeta: float, Q1: Array, Q2: Array) -> tuple[Array, Trim]:
        answer = self.read(Core(self.trimmed(L, zeta), self.placed(Q1, 0), self.placed(Q2, 1)))
        return answer.whole[0], answer.tally.trim

    def products(
        self, L: LowRank, zeta: float, X: Array | None = None, Y: Array | None = None, kept: bool = False
    ) -> tuple[Any, Any, Trim]:
        return self.products_of(replace(self.trimmed(L, zeta), ones=kept), X, Y)

    def normal(self, L: LowRank, zeta: float, Q1: Array | None, Q2: Array) -> FrozenNormal:
        return FrozenNormal(self, L, zeta, Q1, Q2)

    def solve_lines(self, axis: int, U: Array, V: Array, noise: Noise, prior: Prior) -> Lines:
        question = self.regression(axis, U, V, noise, prior)
        ask, sums = self.ask_lines(question, (U, V)[axis], prior)
        return solve_bands(ask, prior, sums)

    # What the questions are made of

    def regression(self, axis: int, U: Array, V: Array, noise: Noise, prior: Prior) -> Regression:
        """The question about the lines of a side; it is about to be asked, and counts as a read."""
        for B, n in zip((U, V), self.shape, strict=True):
            refuse_wrong_length(B, n)
        self.reads += 1
        of_rows, of_cols = (None, prior.other_spread) if axis == 0 else (prior.other_spread, None)
        units, noise = noise.units, noise if noise.units is None else replace(noise, units=None)
        return Regression(axis, U, V, noise, of_rows, of_cols, None, units)

    def trimmed(self, L: LowRank, zeta: float) -> Trimmed:
        return Trimmed(*self.factors(L), zeta)

    def listing(self, L: LowRank, limit: float | Standardised) -> Listing:
        return Listing(*self.factors(L), limit)

    def factors(self, L: LowRank) -> tuple[Array, Array]:
        U, V = L.short()  # less to compute, less to move
        return self.placed(U, 0), self.placed(V, 1)

    def placed(self, B: Array, axis: int) -> Array:
        refuse_wrong_length(B, self.shape[axis])
        return self.place(B)

    def products_of(self, of: Trimmed | Masked, X: Array | None, Y: Array | None) -> tuple[Any, Any, Trim]:
        Y, X = (None if B is None else self.placed(B, axis) for axis, B in enumerate((Y, X)))
        answer = self.read(Products(of, Y, X))
        return answer.rows[0] if answer.rows else None, answer.cols[0] if answer.cols else None, answer.tally.trim

    def read(self, question: Question) -> Answer:
        self.reads += 1
        answer = self.ask(question)
        refuse_nothing(answer.tally)
        return answer

    def write_rows(
        self, piece_of: Callable[[slice], Any], L: LowRank, limit: float | Standardised, sink: Sink, threads: int
    ) -> tuple[tuple[Array, Array], Tally]:
        """S given to a sink, some rows of M at a time, by the pieces that these make; and what rode along."""
        self.reads += 1
        listing, (n1, n2), total = self.listing(L, limit), self.shape, Tally()
        counts = np.zeros(n1, np.int64), np.zeros(n2, np.int64)
        step = max(1, WRITTEN_AT_ONCE // n2)
        for k, first in enumerate(range(0, n1, step)):
            some = slice(first, min(first + step, n1))
            question = Writing(listing.cut(some, slice(None)), sink, (first, 0), (k, 0))
            answer = question.answer(piece_of(some), threads)
            counts[0][some] = answer.rows[0]
            counts[1][:] += answer.cols[0]
            total.include(answer.tally)
        return counts, total


class FrozenNormal:
    """Normal equations on the entries that some L keeps."""

    def __init__(self, engine: PiecedEngine, L: LowRank, zeta: float, Q1: Array | None, Q2: Array) -> None:
        self.engine, self.Q2 = engine, engine.placed(Q2, 1)
        self.Q1 = None if Q1 is None else engine.placed(Q1, 0)
        self.kept = engine.trimmed(L, zeta)  # decided again by each question: to remember it for all of M takes longer
        self.gradient, self.trim = self._core(self.kept)

    def times(self, P: Array) -> Array:
        L = LowRank(P, np.eye(P.shape[1]), self.Q2) if self.Q1 is None else LowRank(self.Q1, P, self.Q2)
        return self._core(self._masked(L))[0]

    def _core(self, of: Trimmed | Masked) -> tuple[Array, Trim]:
        if self.Q1 is None:
            TX, _, trim = self.engine.products_of(of, self.Q2, None)
            return TX.astype(np.float64, copy=False), trim
        answer = self.engine.read(Core(of, self.Q1, self.Q2))
        return answer.whole[0], answer.tally.trim

    def products(self, L: LowRank, X: Array, Y: Array) -> tuple[Array, Array]:
        KX, KY, _ = self.engine.products_of(self._masked(L), X, Y)
        return KX, KY

    def _masked(self, L: LowRank) -> Masked:
        return Masked(*self.engine.factors(L), self.kept)


def refuse_nothing(tally: Tally) -> None:
    if tally.missing and not tally.size:
        raise ValueError("every cell of M is missing")
