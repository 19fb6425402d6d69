"""Scattered entries of M, by which fits are judged, and what their values tell: rounding, steps, repeated values."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from .cached import cached_property
from .engines import MemoryEngine, observed
from .engines.base import Engine
from .lowrank import Array, LowRank

GOLDEN = 0.5 * (5**0.5 - 1)  # its multiples modulo 1 are spread more evenly than random numbers
SPARSE = 0.5  # with a smaller share of M observed, a dense array would be mostly holes


@dataclass(eq=False)
class Sample:
    """Scattered entries of M, on which a fit is judged without reading M again."""

    rows: Array
    cols: Array
    values: Array
    dtype: np.dtype = field(default=np.dtype(float))
    last: tuple[LowRank, Array] | None = field(default=None, repr=False)

    @classmethod
    def draw(cls, engine: Engine, size: int, rng: np.random.Generator) -> Sample:
        """``size`` observed entries at random, or all of them if there are no more."""
        rows, cols, values = engine.draw(size, rng)
        return cls(rows, cols, values.astype(float), values.dtype)

    @cached_property
    def distinct(self) -> tuple[Array, Array]:
        """The values in order, each once, and how often each occurs."""
        values, counts = np.unique(self.values, return_counts=True)
        return values, counts

    @cached_property
    def rare(self) -> Array:
        """Which values few others share: to meet those exactly is a feat."""
        return ~np.isin(self.values, atoms(*self.distinct))

    @cached_property
    def by_chance(self) -> float:
        """The share of the entries that a fit to few different values may meet exactly without being exact."""
        distinct, counts = self.distinct
        if len(distinct) > 0.5 * len(self.values):
            return 0.0
        return max(0.5, min(1.5 * float(counts.max() / counts.sum()), 0.95))

    def stored_precision(self, largest: float) -> float:
        """The size of rounding in numbers up to ``largest``, if values were once stored with fewer digits than now."""
        return 2 * self._stored * largest

    @cached_property
    def _stored(self) -> float:
        return stored_precision(*self.distinct)

    def at(self, L: LowRank) -> Array:
        """L at the sampled entries; those of the last one are remembered, since a judge has many questions."""
        if self.last is None or self.last[0] is not L:
            self.last = L, L.sampled(self.rows, self.cols)
        return self.last[1]

    def sizes(self, L: LowRank) -> Array:
        """``|M − L|`` at the sampled entries."""
        return np.abs(self.values - self.at(L))


def atoms(distinct: Array, counts: Array) -> Array:
    """Values that many entries share while the others are all different, such as the zeros of a dead sensor.

    To fit them exactly is no feat, so they must not count as evidence for a fit. Taken from the distinct values of
    a sample and how often each occurs, as ``np.unique`` tells them.
    """
    entries = int(counts.sum())
    often = counts > max(0.01 * entries, 3)
    others = entries - int(counts[often].sum())
    if others < 0.05 * entries or len(distinct) - often.sum() < 0.5 * others:
        return distinct[:0]
    return distinct[often]


def stored_precision(distinct: Array, counts: Array) -> float:
    """The relative precision that values were once stored with, if lower than they have now; else 0."""
    if len(distinct) < 0.5 * counts.sum():
        return 0.0  # few different values fit into any format
    for kind in (np.float16, np.float32):
        with np.errstate(over="ignore"):
            if np.array_equal(distinct, distinct.astype(kind)):
                return float(np.finfo(kind).eps)
    return 0.0


def resolution(distinct: Array, counts: Array, most: float = 0.5) -> float:
    """Half the step between values that come in steps, such as counts or rounded numbers; 0 if they do not.

    The step is that of the values that most entries hold: a few off the grid do not matter. If one value makes up more
    than the share ``most``, what differs from it may be exact, and there is no step.
    """
    entries = int(counts.sum())
    if len(distinct) < 2 or len(distinct) > 0.5 * entries or counts.max() > most * entries:
        return 0.0
    order = np.argsort(-counts, kind="stable")
    usual = order[: max(int(np.searchsorted(np.cumsum(counts[order]), 0.9 * entries)) + 1, 2)]
    gaps = np.diff(np.sort(distinct[usual]))
    gaps = gaps[gaps > 1e-12 * np.abs(distinct).max()]
    return 0.5 * float(np.quantile(gaps, 0.1)) if len(gaps) else 0.0


def in_memory(piece: Array) -> Engine:
    """An engine of its own for a block of M, in double precision."""
    piece = np.ascontiguousarray(piece, dtype=float)
    if np.isfinite(piece).mean() < SPARSE:
        return observed(piece)
    return MemoryEngine(piece)


def scattered(n: int, size: int) -> Array:
    """Return so many of n positions, in order: spread evenly, in step with no period, and the same at every call."""
    return np.sort(np.argpartition(GOLDEN * np.arange(n) % 1, size - 1)[:size])


def children(seed: np.random.SeedSequence, n: int) -> list[np.random.SeedSequence]:
    """Seeds for n purposes, the same at every call."""
    return np.random.SeedSequence(seed.entropy, spawn_key=seed.spawn_key).spawn(n)


def check_scale(largest: float, dtype: DTypeLike = np.float64) -> None:
    """Refuse an M whose entries cannot be squared, in double precision or in the one that products are asked in."""
    low, high = (1e-100, 1e100) if dtype == np.float64 else (1e-12, 1e12)
    if largest > 0 and not low < largest < high:
        kind = "double precision" if dtype == np.float64 else np.dtype(dtype).name
        raise ValueError(f"values of M reach {largest:.1g}, too large or too small to square in {kind}; rescale M")


def rounding_floor(dtype: np.dtype, largest: float) -> float:
    """The size below which a residual is rounding: S must not fill with it.

    ``largest`` is the largest entry of L. That of M would let one huge outlier hide all the others.
    """
    return 64 * float(np.finfo(dtype).eps) * largest
