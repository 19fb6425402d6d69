"""The questions of the protocol over pieces of M, wherever these are.

An engine says how one question is asked of all its pieces, and how their answers are put together (``ask``); all
else is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from ..lowrank import Array, LowRank
from . import passes
from .base import Lines, Noise, Prior, Sink, Standardised, Sums, Trim, not_whole, refuse_wrong_length
from .lines import solved
from .passes import Answer, Arrays, Numbers
from .tiles import Tally

Question = Callable[..., Answer]

WRITTEN_AT_ONCE = 1 << 26  # entries of M whose outliers are written to a file of their own


class PiecedEngine(ABC):
    """What engines have in common; see :class:`~irpca.engines.base.Engine` for the questions."""

    name: str
    capabilities: frozenset[str] = frozenset()
    dear = False
    asynchronous = False
    watch: Callable[[int, int], None] | None = None
    reads: float

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]: ...

    @property
    @abstractmethod
    def dtype(self) -> np.dtype: ...

    @property
    @abstractmethod
    def n_observed(self) -> int: ...

    @abstractmethod
    def ask(self, question: Question, rows: Arrays, cols: Arrays, common: Numbers) -> Answer:
        """One of :mod:`~irpca.engines.passes`, asked of every piece; the answers are summed."""

    @abstractmethod
    def ask_lines(
        self, axis: int, rows: Arrays, cols: Arrays, common: Numbers, mean: Array, prior: Prior
    ) -> tuple[Callable[..., list[Any]], Sums]:
        """The moments of all rows (0) or columns: how to ask every band of them, and the sums that rode along."""

    def place(self, B: Array) -> Array:
        return np.ascontiguousarray(B, dtype=self.dtype)

    def core(self, L: LowRank, zeta: float, Q1: Array, Q2: Array) -> tuple[Array, Trim]:
        rows, cols, common = self.trimmed(L, zeta)
        answer = self._read(passes.core, rows | {"Q": self.placed(Q1, 0)}, cols | {"Q": self.placed(Q2, 1)}, common)
        return answer.whole[0], answer.tally.trim

    def products(
        self, L: LowRank, zeta: float, X: Array | None = None, Y: Array | None = None, kept: bool = False
    ) -> tuple[Any, Any, Trim]:
        rows, cols, common = self.trimmed(L, zeta)
        return self.asked_products(rows, cols, common | {"kept": kept}, X, Y)

    def whole(self) -> Any:
        raise not_whole(self.name)

    def normal(self, L: LowRank, zeta: float, Q1: Array | None, Q2: Array) -> FrozenNormal:
        return FrozenNormal(self, L, zeta, Q1, Q2)

    def solve_rows(self, U: Array, V: Array, noise: Noise, prior: Prior) -> Lines:
        return self._lines(0, U, V, noise, prior)

    def solve_cols(self, U: Array, V: Array, noise: Noise, prior: Prior) -> Lines:
        return self._lines(1, U, V, noise, prior)

    def _lines(self, axis: int, U: Array, V: Array, noise: Noise, prior: Prior) -> Lines:
        for B, n in ((U, self.shape[0]), (V, self.shape[1])):
            refuse_wrong_length(B, n)
        self.reads += 1
        rows, cols, common = of_noise(noise)
        if noise.units is not None:
            cols["unit"] = noise.units
        (cols if axis == 0 else rows)["other"] = prior.other_spread
        return self.solve_lines(axis, {"L": U} | rows, {"L": V} | cols, common, U if axis == 0 else V, prior)

    def solve_lines(self, axis: int, rows: Arrays, cols: Arrays, common: Numbers, mean: Array, prior: Prior) -> Lines:
        """The posteriors of all rows (0) or columns, from what is known of both."""
        ask, sums = self.ask_lines(axis, rows, cols, common, mean, prior)
        return solved(ask, prior, sums)

    # What the questions are made of

    def trimmed(self, L: LowRank, zeta: float) -> tuple[Arrays, Arrays, Numbers]:
        """The question for T."""
        rows, cols = self.factors(L)
        return rows, cols, {"zeta": zeta}

    def beyond(self, L: LowRank, limit: float | Standardised) -> tuple[Arrays, Arrays, Numbers]:
        """The question for S."""
        rows, cols = self.factors(L)
        if not isinstance(limit, Standardised):
            return rows, cols, {"zeta": limit}
        return rows | {"scale": limit.rows}, cols | {"scale": limit.cols}, {"zeta": limit.limit}

    def factors(self, L: LowRank) -> tuple[Arrays, Arrays]:
        U, V = L.short()  # less to compute, less to move
        return {"L": self.placed(U, 0)}, {"L": self.placed(V, 1)}

    def placed(self, B: Array, axis: int) -> Array:
        refuse_wrong_length(B, self.shape[axis])
        return self.place(B)

    def asked_products(
        self, rows: Arrays, cols: Arrays, common: Numbers, X: Array | None, Y: Array | None
    ) -> tuple[Any, Any, Trim]:
        if Y is not None:
            rows = rows | {"B": self.placed(Y, 0)}
        if X is not None:
            cols = cols | {"B": self.placed(X, 1)}
        answer = self._read(passes.products, rows, cols, common)
        return answer.rows[0] if answer.rows else None, answer.cols[0] if answer.cols else None, answer.tally.trim

    def _read(self, question: Question, rows: Arrays, cols: Arrays, common: Numbers) -> Answer:
        self.reads += 1
        answer = self.ask(question, rows, cols, common)
        refuse_nothing(answer.tally)
        return answer

    def write_rows(
        self, piece_of: Callable[[slice], Any], L: LowRank, limit: float | Standardised, sink: Sink, threads: int
    ) -> tuple[tuple[Array, Array], Tally]:
        """S given to a sink, some rows of M at a time, by the pieces that these make; and what rode along."""
        self.reads += 1
        rows, cols, common = self.beyond(L, limit)
        (n1, n2), total = self.shape, Tally()
        counts = np.zeros(n1, np.int64), np.zeros(n2, np.int64)
        step = max(1, WRITTEN_AT_ONCE // n2)
        for k, first in enumerate(range(0, n1, step)):
            some = slice(first, min(first + step, n1))
            part = {name: values[some] for name, values in rows.items()}
            here = common | {"sink": sink, "first": (first, 0), "place": (k, 0)}
            answer = passes.written(piece_of(some), part, cols, here, threads)
            counts[0][some] = answer.rows[0]
            counts[1][:] += answer.cols[0]
            total.include(answer.tally)
        return counts, total

    # What an engine remembers of its pieces between questions, if it can

    def remembered(self) -> Numbers:
        """Where the kept entries of a question will be found again. Nothing: they are decided again each time."""
        return {}


class FrozenNormal:
    """Normal equations on the entries that some L keeps."""

    def __init__(self, engine: PiecedEngine, L: LowRank, zeta: float, Q1: Array | None, Q2: Array) -> None:
        self.engine, self.Q2 = engine, engine.placed(Q2, 1)
        self.Q1 = None if Q1 is None else engine.placed(Q1, 0)
        room = engine.remembered()
        rows, cols, common = engine.trimmed(L, zeta)
        self.gradient, self.trim = self._core(rows, cols, common | room)
        # Where an engine remembers what was kept, that is enough; elsewhere it is decided again, by the same L.
        self.rows, self.cols, self.common = ({}, {}, {"K": room["remember"]}) if room else _frozen(rows, cols, common)

    def times(self, P: Array) -> Array:
        L = LowRank(P, np.eye(P.shape[1]), self.Q2) if self.Q1 is None else LowRank(self.Q1, P, self.Q2)
        return self._core(*self._masked(L), self.common)[0]

    def _core(self, rows: Arrays, cols: Arrays, common: Numbers) -> tuple[Array, Trim]:
        if self.Q1 is None:
            TX, _, trim = self.engine.asked_products(rows, cols, common, self.Q2, None)
            return TX.astype(np.float64, copy=False), trim
        answer = self.engine._read(passes.core, rows | {"Q": self.Q1}, cols | {"Q": self.Q2}, common)
        return answer.whole[0], answer.tally.trim

    def products(self, L: LowRank, X: Array, Y: Array) -> tuple[Array, Array]:
        KX, KY, _ = self.engine.asked_products(*self._masked(L), self.common, X, Y)
        return KX, KY

    def _masked(self, L: LowRank) -> tuple[Arrays, Arrays]:
        rows, cols = self.engine.factors(L)
        return rows | self.rows, cols | self.cols


class WholeNormal(FrozenNormal):
    """The same for a small array, in one product: to cut it into tiles takes longer."""

    def __init__(
        self, engine: PiecedEngine, L: LowRank, zeta: float, Q1: Array | None, Q2: Array, turned: bool
    ) -> None:
        super().__init__(engine, L, zeta, Q1, Q2)
        K: Array = self.common["K"]
        self.kept = (K.T if turned else K).astype(engine.dtype)

    def times(self, P: Array) -> Array:
        found: Array = self._kept(P if self.Q1 is None else self.Q1 @ P, self.Q2) @ self.Q2
        found = found if self.Q1 is None else self.Q1.T @ found
        return found.astype(np.float64, copy=False)

    def products(self, L: LowRank, X: Array, Y: Array) -> tuple[Array, Array]:
        masked, place = self._kept(*L.short()), self.engine.place
        return masked @ place(X), masked.T @ place(Y)

    def _kept(self, U: Array, V: Array) -> Array:
        """``U @ V.T`` where an entry is kept."""
        self.engine.reads += 1
        masked: Array = self.engine.place(U) @ self.engine.place(V).T
        masked *= self.kept
        return masked


def _frozen(rows: Arrays, cols: Arrays, common: Numbers) -> tuple[Arrays, Arrays, Numbers]:
    return {"frozen": rows["L"]}, {"frozen": cols["L"]}, common


def of_noise(noise: Noise) -> tuple[Arrays, Arrays, Numbers]:
    """A noise model as what it says of rows, of columns, and of all."""
    rows = {"scale": noise.rows, "spread": noise.row_spread}
    return rows, {"scale": noise.cols, "spread": noise.col_spread}, {"noise": noise.of_all}


def refuse_nothing(tally: Tally) -> None:
    if tally.missing and not tally.size:
        raise ValueError("every cell of M is missing")
