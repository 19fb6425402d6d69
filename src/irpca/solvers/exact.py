"""The exact fit where features of both sides determine L: trimmed least squares for the core, on a block of M.

Trimmed entries count as missing, so each step is least squares on the kept ones; the threshold is a multiple of a low
quantile of the residuals, which has a high breakdown point. Every block of M has the same W, so a small one is enough;
all of M is read only to check the fit and to write S.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .. import constants
from ..engines.base import Engine, Normal, Trim
from ..features import Features
from ..lowrank import Array, LowRank, relative_change
from ..regression import conjugate_gradients
from ..sampling import Block, Sample, blocks, draw_lines
from ..threshold import quantile, rounding_floor


@dataclass(frozen=True, eq=False)
class Exactness:
    """Whether a fit is exact, judged by the residuals at sampled entries.

    Attributes
    ----------
    zeta : float or None
        A larger residual is a gross error; None: the fit is not exact.
    clean : float
        Share of the entries within it; if zeta is None, of those fitted to rounding.
    score : float
        Mean logarithm of the residuals: the lower, the better the fit.
    """

    zeta: float | None
    clean: float
    score: float


def exactness(sample: Sample, L: LowRank, entries: int, unknowns: int) -> Exactness:
    """Whether L fits more entries to rounding than chance explains.

    Values that occur often, such as zeros, are left out: a wrong L may fit them exactly too.
    """
    fitted = sample.at(L)
    sizes = np.abs(sample.values - fitted)
    floor = max(rounding_floor(sample.dtype, float(np.abs(fitted).max(initial=0.0))), sample.stored_precision(fitted))
    telling = sizes[sample.rare]
    close = telling[telling <= constants.ROUNDING_MARGIN * floor]
    score = float(np.log(np.maximum(sizes, max(floor, np.finfo(float).tiny))).mean())
    needed = max(constants.MIN_CLEAN_SHARE, constants.MIN_ENTRIES_PER_UNKNOWN * unknowns / entries, sample.by_chance)
    needed *= len(telling)
    # Else L may be no larger than rounding.
    distinguishable = floor <= constants.MAX_RELATIVE_ROUNDING * float(np.std(fitted))
    if not distinguishable or len(close) < max(needed, constants.MIN_ENTRIES) or np.median(close) > floor:
        # With noise, twice as many residuals are within twice the limit; those are subtracted.
        once, twice = (int(np.count_nonzero(telling <= k * constants.ROUNDING_SPREAD * floor)) for k in (1, 2))
        return Exactness(None, max(2 * once - twice, 0) / max(len(telling), 1), score)
    # Rounding grows where features are coherent; gross errors are far larger than the residuals of clean entries.
    zeta = max(floor, constants.ROUNDING_SPREAD * _largest_rounding(close, constants.ROUNDING_MARGIN * floor))
    return Exactness(zeta, float(np.mean(sizes <= zeta)), score)


def _largest_rounding(close: Array, limit: float) -> float:
    """A size that all but a thousandth of the rounding errors among residuals up to ``limit`` are within.

    The others are gross errors that happen to be small: evenly distributed, so that those in the upper half of the
    range tell how many are below any size.
    """
    sizes = np.sort(close)
    density = np.count_nonzero(sizes > 0.5 * limit) / (0.5 * limit) if limit > 0 else 0.0
    rounding = np.arange(1, len(sizes) + 1) - density * sizes  # how many there are up to each size
    enough = rounding >= 0.999 * (len(sizes) - density * limit)
    return float(sizes[int(np.argmax(enough))])


@dataclass(frozen=True, eq=False)
class Trimmed:
    """The best fit found on blocks, and whether sampled entries show it to be exact.

    Attributes
    ----------
    on_block, block : the fit, and the block that it was made on
    L : the same as a matrix of the size of M
    exact : Exactness
    """

    on_block: LowRank
    block: Block
    L: LowRank
    exact: Exactness

    @classmethod
    def of(cls, on_block: LowRank, block: Block, sample: Sample) -> Trimmed:
        L = block.lift(on_block)
        unknowns = L.rank * (block.F1.d + block.F2.d - L.rank)
        return cls(on_block, block, L, exactness(sample, L, block.engine.n_observed, unknowns))

    def truncated(self, rank: int, sample: Sample) -> Trimmed:
        """The same with as many components."""
        return Trimmed.of(self.on_block.truncate(rank), self.block, sample)


def trimmed_fits(
    engine: Engine,
    F1: Features,
    F2: Features,
    rank: int | None,
    sample: Sample,
    lines: np.random.Generator,
    rng: np.random.Generator,
) -> Iterator[Trimmed]:
    """Fits on blocks of growing size, each the best so far; the last is exact, or no exact fit was found.

    ``lines`` chooses the rows and columns of blocks, ``rng`` the entries by which thresholds are set.
    """
    best: Trimmed | None = None
    before: tuple[float, int] | None = None
    for block in blocks(engine, F1, F2, lines):
        starts = constants.TRIM_STARTS[:1] if block.small else constants.TRIM_STARTS
        seen: int | None = None
        for q, k, few in starts:
            most = rank or (seen if few and seen else min(F1.d, F2.d))
            found = Trimmed.of(_start(block, rank, most, q, k, rng), block, sample)
            seen = seen or _most(found.on_block)
            if best is None or best.block.small or found.exact.score < best.exact.score:
                best = found
            yield best
            if best.exact.zeta is not None:
                return
        assert best is not None
        left = quantile(sample.sizes(best.L), constants.LOW_QUANTILE), block.engine.n_observed
        if not block.small and best.exact.clean < constants.MIN_EXACT_SHARE and before and not _falls(before, left):
            return
        before = left


def _most(L: LowRank) -> int:
    """Upper bound of the rank, by the components of a fit of the whole core that stand out of its errors.

    Fits of few components are far less disturbed by gross errors. Where half of the components may be real, the errors
    do not show.
    """
    s = L.singular_values
    seen = int(np.count_nonzero(s > constants.MEDIAN_SINGULAR_VALUE_FACTOR * np.median(s)))
    return 2 * seen if 0 < 4 * seen <= len(s) else len(s)


def _falls(before: tuple[float, int], now: tuple[float, int]) -> bool:
    """Whether low residuals are smaller on a larger block, as errors of a fit are; noise is the same on every block.

    Each time a quantile of the residuals, and the number of entries that the fit was made from. Errors decrease with
    its square root; half of that decrease is enough.
    """
    expected = np.sqrt(before[1] / now[1])
    return bool(now[0] < 0.5 * (1 + expected) * before[0])


def _start(block: Block, rank: int | None, most: int, q: float, k: float, rng: np.random.Generator) -> LowRank:
    """A robust fit on a block, of this rank or, if that is None, with those of ``most`` that are larger than rounding.

    With features such as indicators, a coefficient may depend on few entries of M. A threshold that starts low can trim
    all of them, and the coefficient stays zero; then the fit is repeated with a threshold that decreases slowly.
    """
    sample = Sample.draw(block.engine, constants.BLOCK_SAMPLE, rng)
    L, zeta = _high_breakdown(block, sample, most, q, k)
    if _uncovered(block, L, zeta):
        top = float(np.abs(sample.values).max())
        L, _ = _high_breakdown(block, sample, most, q, k, top, constants.THRESHOLD_DECAY)
    if rank is not None:
        return L
    floor = rounding_floor(block.engine.dtype, float(np.abs(sample.at(L)).max())) / constants.ROUNDING_SPREAD
    return L.truncate(max(int(np.count_nonzero(L.singular_values > rounding_edge(floor, block.F1, block.F2))), 1))


def rounding_edge(size: float, F1: Features, F2: Features) -> float:
    """About the largest singular value of rounding errors of this size, in the coordinates of a block."""
    return float((np.sqrt(F1.d) + np.sqrt(F2.d) + 1) * size)


def _high_breakdown(
    block: Block, sample: Sample, rank: int, q: float, k: float, top: float = 0.0, decay: float = np.inf
) -> tuple[LowRank, float]:
    """ζ = k · quantile_q(|R|), least squares on residuals within it, truncation, repeat; returns L and the last ζ."""
    L, zeta, floor = LowRank.zero(block.engine.shape), np.inf, 0.0
    for _ in range(constants.MAX_TRIM_STEPS):
        lowest = top if np.isinf(zeta) else zeta / decay
        before, zeta = zeta, max(k * quantile(sample.sizes(L), q), lowest, floor)
        L, moved, _ = least_squares(block, L, zeta, rank)
        floor = rounding_floor(block.engine.dtype, float(np.abs(sample.at(L)).max()))
        falling = zeta > 1.02 * floor and zeta < before / 1.02
        at_rest = moved <= 1e-9 and not (falling and np.isfinite(decay))
        if at_rest or (moved <= 0.01 and zeta > floor and not falling):
            break
    return L, zeta


def _uncovered(block: Block, L: LowRank, zeta: float) -> bool:
    """Whether nearly all entries that determine some coefficient of the core were trimmed."""
    kept, _, _ = block.engine.products(L, zeta, block.Q2**2, kept=True)
    coverage = (block.Q1**2).T @ kept
    return bool(coverage.min() < 0.2 * coverage.max())


def missed_lines(
    engine: Engine, F1: Features, F2: Features, L: LowRank, exact: Exactness, rng: np.random.Generator
) -> bool:
    """Whether rows or columns of high leverage are badly fitted: too few of them to show in the sampled residuals."""
    assert exact.zeta is not None
    n = engine.shape
    for axis, F in enumerate((F1, F2)):
        if F.coherent:
            lines = draw_lines(F, min(256, F.n), rng)  # those of high leverage first
            across = rng.integers(n[1 - axis], size=(len(lines), 128))
            along = np.broadcast_to(lines[:, None], across.shape)
            rows, cols = (along.ravel(), across.ravel()) if axis == 0 else (across.ravel(), along.ravel())
            sizes = np.abs(engine.entries(rows, cols) - L.entries(rows, cols)).reshape(across.shape)
            seen = np.maximum((~np.isnan(sizes)).sum(axis=1), 1)
            if (((sizes <= exact.zeta).sum(axis=1) / seen) < 0.25 * exact.clean).any():
                return True
    return False


def least_squares(block: Block, L: LowRank, zeta: float, rank: int) -> tuple[LowRank, float, Trim]:
    """Least squares on the entries that L keeps, of rank ``rank``; by how much L moved, relative to its size.

    By conjugate gradients; each step asks the engine once. The closer L is, the more digits the next one is worth, as
    far as there are any. Far from the solution the whole core is fitted, then truncated; close to it, the fit is along
    the matrices of the same rank, which takes fewer flops and fewer entries.
    """
    normal = block.engine.normal(L, zeta, block.Q1, block.Q2)
    size = float(np.linalg.norm(L.core))
    n1, n2 = L.shape
    kept = normal.trim.kept / (n1 * n2) * size
    off = float(np.linalg.norm(normal.gradient)) / kept if kept > 0 else 1.0
    u, v = block.Q1.T @ L.left, block.Q2.T @ L.right
    # What is left of a step that is not truncated stays.
    coarsest = constants.COARSEST_STEP if rank < min(len(u), len(v)) else constants.COARSEST_STEP**2
    digits = float(np.clip(max(min(off, 1.0) ** 2, 1e-16 / max(off, 1e-16)), 1e-10, coarsest))
    if 0 < 4 * L.rank <= min(len(u), len(v)) and _longest(normal) < constants.FIXED_RANK_STEP * L.singular_values[-1]:
        return *_along_rank(block, L, u, v, normal, digits), normal.trim
    C = u @ L.core @ v.T
    step = conjugate_gradients(normal.gradient, normal.times, digits, constants.MAX_TRIM_STEPS)
    core = LowRank.from_core(None, C + step, None, rank)
    new = LowRank(block.Q1 @ core.left, core.core, block.Q2 @ core.right)
    return new, relative_change(core.dense(), C), normal.trim


def _longest(normal: Normal) -> float:
    """About the largest singular value of the step that the gradient asks for, by its fourth moment: hardly more."""
    G = normal.gradient
    return float(np.linalg.norm(G.T @ G)) ** 0.5 / max(normal.trim.kept_share, constants.MIN_CLEAN_SHARE)


def _along_rank(block: Block, L: LowRank, u: Array, v: Array, normal: Normal, digits: float) -> tuple[LowRank, float]:
    """The step u Bᵀ + A vᵀ, A orthogonal to u: all directions in which L = Q1 u s vᵀ Q2ᵀ can move at its rank."""
    d1 = len(u)

    def tangent(left: Array, right: Array) -> Array:
        return np.vstack([left - u @ (u.T @ left), right])

    def operator(P: Array) -> Array:
        A, B = P[:d1], P[d1:]
        step = LowRank(np.hstack([L.left, block.Q1 @ A]), np.eye(2 * L.rank), np.hstack([block.Q2 @ B, L.right]))
        KX, KY = normal.products(step, L.right, L.left)
        return tangent(block.Q1.T @ KX, block.Q2.T @ KY)

    right = tangent(normal.gradient @ v, normal.gradient.T @ u)
    step = conjugate_gradients(right, operator, digits, constants.MAX_TRIM_STEPS)
    A, B = step[:d1], step[d1:]
    core = LowRank.from_product(np.hstack([u, A]), np.hstack([v @ L.core.T + B, v]), L.rank)
    new = LowRank(block.Q1 @ core.left, core.core, block.Q2 @ core.right)
    return new, float(np.linalg.norm(step) / np.linalg.norm(new.core))
