"""Blocks of rows and columns of M to solve on, with the features that belong to them.

``M[I, J] = Q1[I] C Q2[J]ᵀ + S[I, J]`` has the same C as all of M, so the cost of finding it need not grow with M.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from .. import constants
from ..engines.base import Engine
from ..features import Features
from ..lowrank import Array, LowRank
from ..sample import SPARSE, in_memory

ROWS_PER_FEATURE = 4  # of the smallest block: with three, 20 % errors are the most that are survived (docs/design.md)
FEWEST_ROWS = 128
WORTH_IT = 0.25  # a block of more than this share of M saves nothing

Lines = tuple[Array, Array]
Sides = tuple[tuple[Array, Array], tuple[Array, Array]]  # Q and R of the rows, and of the columns


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows and columns of M with the features that belong to them, in orthonormal coordinates of their own.

    Attributes
    ----------
    engine : owner of the block
    Q1 : orthonormal features of its rows; None: they have none
    Q2 : those of its columns
    """

    engine: Engine
    Q1: Array | None
    Q2: Array

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

    @classmethod
    def of(cls, engine: Engine, sides: Sides, F1: Features, F2: Features) -> FeatureBlock:
        (Q1, R1), (Q2, R2) = sides
        return cls(engine, Q1, Q2, R1=R1, R2=R2, F1=F1, F2=F2)

    def lift(self, L: LowRank) -> LowRank:
        """The matrix of the size of M whose rows and columns in the block are those of L; outer factors orthonormal."""
        assert self.Q1 is not None
        left, right = np.linalg.solve(self.R1, self.Q1.T @ L.left), np.linalg.solve(self.R2, self.Q2.T @ L.right)
        return LowRank.from_spans(self.F1.spanned(left), L.core, self.F2.spanned(right))


def sparse(engine: Engine) -> bool:
    """Whether so little of M is observed that it is taken as a whole: that costs no more than is observed."""
    return engine.n_observed < SPARSE * math.prod(engine.shape)


def draw_blocks(engine: Engine, F1: Features, F2: Features, rng: np.random.Generator) -> Iterator[FeatureBlock]:
    """Blocks to try, each larger than the one before; the last is all of M where that is small enough."""
    for draft in (None,) if sparse(engine) else drafts(engine.shape, F1, F2, rng):
        if draft is None:
            yield whole(engine, F1, F2)
        else:
            lines, sides = draft
            yield FeatureBlock.of(in_memory(engine.block(*lines)), sides, F1, F2)


def drafts(
    shape: tuple[int, int], F1: Features, F2: Features, rng: np.random.Generator
) -> Iterator[tuple[Lines, Sides] | None]:
    """The lines of blocks to try, and their features in orthonormal coordinates; None: all of M."""
    n1, n2 = shape
    most, rows_per_feature = constants.BUDGET.memory, ROWS_PER_FEATURE
    while True:
        fewest = FEWEST_ROWS * rows_per_feature // ROWS_PER_FEATURE
        m1, m2 = min(n1, max(rows_per_feature * F1.d, fewest)), min(n2, max(rows_per_feature * F2.d, fewest))
        if m1 * m2 > min(most, WORTH_IT * n1 * n2):
            break
        if draft := _draft(F1, F2, m1, m2, rng):
            yield draft
        rows_per_feature *= 2
    if n1 * n2 <= most:
        yield None
        return
    m1 = min(n1, max(2 * F1.d, int(n1 * np.sqrt(most / (n1 * n2)))))  # all of M would be too much
    m2 = min(n2, max(2 * F2.d, most // m1))
    m1 = min(n1, max(2 * F1.d, most // m2))
    yield _draft(F1, F2, m1, m2, rng)  # None: all of M is slow, but better than nothing to go by


def _draft(F1: Features, F2: Features, m1: int, m2: int, rng: np.random.Generator) -> tuple[Lines, Sides] | None:
    lines = draw_lines(F1, m1, rng), draw_lines(F2, m2, rng)
    sides = F1.restrict(lines[0]), F2.restrict(lines[1])
    if max(np.linalg.cond(R) for _, R in sides) > 1e4:
        return None  # some direction of the features is all but absent from these lines
    return lines, sides


def whole(engine: Engine, F1: Features, F2: Features) -> FeatureBlock:
    """All of M as a block; as a copy in memory, if it is small."""
    n1, n2 = engine.shape
    sides = F1.restrict(), F2.restrict()
    if not sparse(engine) and n1 * n2 <= constants.BUDGET.memory:
        engine = in_memory(engine.block(np.arange(n1), np.arange(n2)))
    return FeatureBlock.of(engine, sides, F1, F2)


def draw_lines(F: Features, m: int, rng: np.random.Generator) -> Array:
    """``m`` of the n rows (or columns), no two alike; those of high leverage more often if features are coherent."""
    if m >= F.n:
        return np.arange(F.n)
    weights = None
    if F.given and F.coherent:
        weights = 0.5 / F.n + 0.5 * F.leverage / F.leverage.sum()
        weights /= weights.sum()
    return np.sort(rng.choice(F.n, size=m, replace=False, p=weights))
