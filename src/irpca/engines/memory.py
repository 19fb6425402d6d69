"""The engine for an M in memory, or memory-mapped: one piece, several threads, single-threaded BLAS."""

from __future__ import annotations

import os
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from ..lowrank import Array, LowRank
from ..threads import available_cores
from .base import (
    Lines,
    Noise,
    Prior,
    Sink,
    Standardised,
    Trim,
    drawn,
    drawn_anywhere,
    refuse_beyond_memory,
    refuse_large_block,
    spread_places,
)
from .body import PiecedEngine, refuse_nothing
from .pieces import Dense, Listed, piece_of
from .questions import Answer, Question
from .regressions import solve_here

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from ..model.maps import ColumnMaps


class MemoryEngine(PiecedEngine):
    """M as a NumPy array or memmap, or the list of its observed entries; never copied and never upcast.

    Parameters
    ----------
    M : float32 or float64 array in any order, NaN being not observed; or csr_array of the observed entries
        Of the latter in canonical format: columns sorted in each row, none twice. A stored zero is an observation.
    threads : int or None
        None: one per available core.
    holes : bool
        Whether some entries of an array are known to be NaN. If not, it is taken as complete until the first is met.

    Examples
    --------
    >>> engine = MemoryEngine(np.array([[1.0, np.nan], [0.0, 2.0]]), holes=True)
    >>> engine.n_observed, engine.counts[1]
    (3, array([2, 1]))
    """

    name = "memory"
    capabilities = frozenset({"whole"})

    def __init__(self, M: Array | csr_array, threads: int | None = None, holes: bool = False) -> None:
        self.piece = piece_of(M, holes)
        if isinstance(self.piece, Listed) and not self.piece.n_observed:
            raise ValueError("every cell of M is missing")
        self.threads = threads or available_cores()
        self.reads = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        return self.piece.shape

    @property
    def dtype(self) -> np.dtype:
        return self.piece.dtype

    @property
    def n_observed(self) -> int:
        if not (n := self.piece.n_observed):
            raise ValueError("every cell of M is missing")
        return n

    @property
    def counts(self) -> tuple[Array, Array]:
        rows, cols = self.piece.counts
        if not rows.any():
            raise ValueError("every cell of M is missing")
        return rows, cols

    @property
    def holes(self) -> bool:
        """Whether some entries of an array are known to be NaN."""
        return isinstance(self.piece, Dense) and self.piece.holes

    @holes.setter
    def holes(self, holes: bool) -> None:
        if isinstance(self.piece, Dense):
            self.piece.holes = holes

    def mapped(self, maps: ColumnMaps) -> MemoryEngine:
        new = copy(self)
        new.piece = self.piece.mapped(maps)
        return new

    def glance(self, size: int) -> Array:
        return self.piece.entries(*spread_places(self.shape, size))

    def ask(self, question: Question) -> Answer:
        return question.answer(self.piece, self.threads)

    def solve_lines(self, axis: int, U: Array, V: Array, noise: Noise, prior: Prior) -> Lines:
        moments, sums = self.piece.moments(self.regression(axis, U, V, noise, prior), self.threads)
        return solve_here(moments, (U, V)[axis], prior, sums, self.threads)

    def whole(self) -> Array:
        size = self.shape[0] * self.shape[1] * self.dtype.itemsize
        refuse_beyond_memory(size * (1 + isinstance(self.piece, Listed)), machine_memory(), "this machine")
        self.reads += 1
        return self.piece.whole()

    def corruption(self, L: LowRank, limit: float | Standardised) -> tuple[csr_array, Trim]:
        self.reads += 1
        S, tally = self.listing(L, limit).answer(self.piece, self.threads)
        refuse_nothing(tally)
        return S, tally.trim

    def write(self, L: LowRank, limit: float | Standardised, sink: Sink) -> tuple[tuple[Array, Array], Trim]:
        counts, tally = self.write_rows(self.piece.rows, L, limit, sink, self.threads)
        self.piece.seen(tally)
        refuse_nothing(tally)
        return counts, tally.trim

    def block(self, rows: Array, cols: Array) -> Array:
        refuse_large_block(rows, cols)
        return self._seen(self.piece.block(rows, cols))

    def entries(self, rows: Array, cols: Array) -> Array:
        return self._seen(self.piece.entries(rows, cols))

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        if not isinstance(self.piece, Listed):
            return drawn_anywhere(self, size, rng)
        rows, cols, values = self.piece.at(drawn(self.n_observed, size, rng))
        return rows, cols, self._seen(values)

    def _seen(self, values: Array) -> Array:
        self.reads += float(np.count_nonzero(~np.isnan(values))) / self.n_observed
        return values


def machine_memory() -> float:
    """Bytes of memory of this machine, as far as it tells."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # not on Windows
        return np.inf
