"""Blocks of rows and columns of M to solve on, with the features that belong to them.

``M[I, J] = Q1[I] C Q2[J]ᵀ + S[I, J]`` has the same C as all of M, so the cost of finding it need not grow with M.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..engines.base import Engine
from ..features import Features
from ..lowrank import Array, LowRank
from ..sample import SPARSE, in_memory

ROWS_PER_FEATURE = 8
AT_LEAST = 4  # rows per feature, where eight would be most of M: fits made from fewer are believed too easily
FEWEST_ROWS = 128
BLOCK_ENTRIES = 1 << 24  # no block is larger
ONE_LINE = 0.5  # leverage of a line that a direction of a small block all but hangs on
WORTH_IT = 0.25  # a block of more than this share of M saves nothing


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


def draw_blocks(engine: Engine, F1: Features, F2: Features, rng: np.random.Generator) -> Iterator[FeatureBlock]:
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


def _stretch(R: Array) -> float:
    s = np.linalg.svd(R, compute_uv=False)
    return float(s[0] / s[-1]) if s[-1] > 0 else np.inf
