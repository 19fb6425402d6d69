"""A look at part of M first: scattered entries to judge by, blocks of rows and columns to solve on.

``M[I, J] = Q1[I] C Q2[J]ᵀ + S[I, J]`` has the same C as all of M, so the cost of finding it need not grow with M.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from .cached import cached_property
from .engines import MemoryEngine, observed
from .engines.base import Engine
from .features import Features
from .lowrank import Array, LowRank

ROWS_PER_FEATURE = 8
AT_LEAST = 4  # rows per feature, where eight would be most of M: fits made from fewer are believed too easily
FEWEST_ROWS = 128
BLOCK_ENTRIES = 1 << 24  # no block is larger
ONE_LINE = 0.5  # leverage of a line that a direction of a small block all but hangs on
WORTH_IT = 0.25  # a block of more than this share of M saves nothing
SPARSE = 0.5  # with a smaller share of M observed, a block would be mostly holes


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


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows and columns of M with the features that belong to them, in orthonormal coordinates of their own.

    Attributes
    ----------
    engine : owner of the block
    Q1 : orthonormal features of its rows; None: they have none
    Q2 : those of its columns
    small : whether a larger block would have been affordable, so that only an exact fit is to be believed
    """

    engine: Engine
    Q1: Array | None
    Q2: Array
    small: bool = False

    @property
    def unknowns(self) -> tuple[int, int]:
        """The shape of the core C in ``Q1 @ C @ Q2.T``."""
        return self.engine.shape[0] if self.Q1 is None else self.Q1.shape[1], self.Q2.shape[1]


@dataclass(frozen=True, eq=False)
class FeatureBlock(Block):
    """A block with features of both sides: what is found on it holds for all of M.

    Attributes
    ----------
    R1 : ``basis[rows] = Q1 @ R1`` of the row features
    R2 : the same of the columns
    F1, F2 : features of all of M
    """

    R1: Array = field(kw_only=True)
    R2: Array = field(kw_only=True)
    F1: Features = field(kw_only=True)
    F2: Features = field(kw_only=True)

    def lift(self, L: LowRank) -> LowRank:
        """The matrix of the size of M whose rows and columns in the block are those of L; outer factors orthonormal."""
        assert self.Q1 is not None
        left, right = np.linalg.solve(self.R1, self.Q1.T @ L.left), np.linalg.solve(self.R2, self.Q2.T @ L.right)
        return LowRank.from_spans(self.F1.spanned(left), L.core, self.F2.spanned(right))


def in_memory(piece: Array) -> Engine:
    """An engine of its own for a block of M, in double precision."""
    piece = np.ascontiguousarray(piece, dtype=float)
    if np.isfinite(piece).mean() < SPARSE:
        return observed(piece)
    return MemoryEngine(piece)


def sparse(engine: Engine) -> bool:
    """Whether so little of M is observed that it is taken as a whole: that costs no more than is observed."""
    return engine.n_observed < SPARSE * math.prod(engine.shape)


@dataclass(frozen=True, eq=False)
class Draft:
    """A block that M has not been asked for yet: its lines, and their features in orthonormal coordinates."""

    lines: tuple[Array, Array]
    Q1: Array
    R1: Array
    Q2: Array
    R2: Array
    small: bool


def blocks(engine: Engine, F1: Features, F2: Features, rng: np.random.Generator) -> Iterator[FeatureBlock]:
    """Blocks to try, each larger than the one before; the last is all of M where that is small enough."""
    if sparse(engine):
        yield whole(engine, F1, F2)
        return
    for draft in drafts(engine.shape, F1, F2, rng):
        if draft is None:
            yield whole(engine, F1, F2)
        else:
            piece = in_memory(engine.block(*draft.lines))
            yield FeatureBlock(piece, draft.Q1, draft.Q2, draft.small, R1=draft.R1, R2=draft.R2, F1=F1, F2=F2)


def drafts(shape: tuple[int, int], F1: Features, F2: Features, rng: np.random.Generator) -> Iterator[Draft | None]:
    """The lines of blocks to try; None: all of M."""
    n1, n2 = shape

    def sides(factor: int) -> tuple[int, int]:
        fewest = FEWEST_ROWS * max(factor // ROWS_PER_FEATURE, 1)
        return min(n1, max(factor * F1.d, fewest)), min(n2, max(factor * F2.d, fewest))

    affordable = min(BLOCK_ENTRIES, WORTH_IT * n1 * n2)
    usual = math.prod(sides(ROWS_PER_FEATURE))
    factor = AT_LEAST
    # A direction that few rows speak for is easily lost in a small block, and its rows are too few to be missed.
    if usual <= affordable and (F1.coherent or F2.coherent or usual == math.prod(sides(AT_LEAST))):
        factor = ROWS_PER_FEATURE
    while math.prod(sides(factor)) <= affordable:
        small = math.prod(sides(factor)) < usual <= affordable
        if draft := _draft(F1, F2, *sides(factor), rng, small):
            yield draft
        factor *= 2
    if n1 * n2 <= BLOCK_ENTRIES:
        yield None
    else:
        m1, m2 = _largest(n1, n2, 2 * F1.d, 2 * F2.d, int(n1 * np.sqrt(BLOCK_ENTRIES / (n1 * n2))))
        yield _draft(F1, F2, m1, m2, rng)  # all of M is slow, but better than nothing to go by


def whole(engine: Engine, F1: Features, F2: Features) -> FeatureBlock:
    """All of M as a block; as a copy in memory, if it is small."""
    n1, n2 = engine.shape
    if not sparse(engine) and n1 * n2 <= BLOCK_ENTRIES:
        engine = in_memory(engine.block(np.arange(n1), np.arange(n2)))
    (Q1, R1), (Q2, R2) = F1.restrict(), F2.restrict()
    return FeatureBlock(engine, Q1, Q2, R1=R1, R2=R2, F1=F1, F2=F2)


def _largest(n1: int, n2: int, least1: int, least2: int, m1: int) -> tuple[int, int]:
    """The sides of a block as large as blocks may be, with about ``m1`` rows."""
    m1 = min(n1, max(least1, m1))
    m2 = min(n2, max(least2, BLOCK_ENTRIES // m1))
    return min(n1, max(least1, BLOCK_ENTRIES // m2)), m2


def _draft(F1: Features, F2: Features, m1: int, m2: int, rng: np.random.Generator, small: bool = False) -> Draft | None:
    rows, cols = draw_lines(F1, m1, rng), draw_lines(F2, m2, rng)
    (Q1, R1), (Q2, R2) = F1.restrict(rows), F2.restrict(cols)
    if max(_stretch(R1), _stretch(R2)) > 1e4:
        return None  # some direction of the features is all but absent from these lines
    if small and max(np.einsum("ij,ij->i", Q, Q).max() for Q in (Q1, Q2)) > ONE_LINE:
        return None
    return Draft((rows, cols), Q1, R1, Q2, R2, small)


def draw_lines(F: Features, m: int, rng: np.random.Generator) -> Array:
    """``m`` of the n rows (or columns), no two alike; those of high leverage more often if features are coherent."""
    if m >= F.n:
        return np.arange(F.n)
    weights = None
    if F.given and F.coherent:
        weights = 0.5 / F.n + 0.5 * F.leverage / F.leverage.sum()
        weights /= weights.sum()
    return np.sort(rng.choice(F.n, size=m, replace=False, p=weights))


def children(seed: np.random.SeedSequence, n: int) -> list[np.random.SeedSequence]:
    """Seeds for n purposes, the same at every call."""
    return np.random.SeedSequence(seed.entropy, spawn_key=seed.spawn_key).spawn(n)


def _stretch(R: Array) -> float:
    s = np.linalg.svd(R, compute_uv=False)
    return float(s[0] / s[-1]) if s[-1] > 0 else np.inf


def check_scale(largest: float, dtype: DTypeLike = np.float64) -> None:
    """Refuse an M whose entries cannot be squared, in double precision or in the one that products are asked in."""
    low, high = (1e-100, 1e100) if dtype == np.float64 else (1e-12, 1e12)
    if largest > 0 and not low < largest < high:
        kind = "double precision" if dtype == np.float64 else np.dtype(dtype).name
        raise ValueError(f"values of M reach {largest:.1g}, too large or too small to square in {kind}; rescale M")
