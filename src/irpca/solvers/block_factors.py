"""The factors of a block of M in memory, when nothing is known about its rows.

Several starts, one direction after another or from the column features; rows and columns fitted on their own; then
sweeps with a common threshold. The start with the smallest mean log residual wins.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..engines.base import Engine
from ..judge import HOLLOW, Judge, choose_rank
from ..lowrank import Array, LowRank, relative_distance, singular_triplets
from ..regression import HARD_STARTS, ROW_STARTS, Starts, row_scores
from ..result import Choice
from ..sampling import Sample, in_memory
from ..threshold import MAJORITY_STARTS, consensus, has_valley, stray_lines
from .sweeps import Falling, strongest, sweep, unknowns_of

MOST_FREE_DIRECTIONS = 20  # that rank="auto" looks at without any features
BLOCK_STARTS = ((0.5, 8.0), (0.3, 8.0), (0.1, 15.0))
HELD_OUT = 0.05  # of a block; more of a small one
SWEEPS = 25
STAGE_SWEEPS = 4
RESCUES = 2


def block_factors(
    piece: Array, rank: int | None, Q2: Array | None, judge: Judge
) -> tuple[LowRank, tuple[Choice, ...], bool]:
    """The factors of a block in memory, and whether clean entries and gross errors are two crowds.

    They are not if noise has long tails; a threshold in the tail would then make such crowds by itself. So some entries
    are held out, disguised as gross errors, and looked at for the two crowds.
    """
    if judge.majority:
        return *_best_start(piece, rank, Q2, judge), True
    observed = ~np.isnan(piece)
    # Not numbers that someone may have made the holes with: then all that is held out would be holes.
    rng = np.random.default_rng(0 if observed.all() else [2017, 5])
    held = observed & (rng.random(piece.shape) < min(HELD_OUT * max(1.0, 20_000 / observed.sum()), 0.2))
    L, chosen = _best_start(np.where(held, 1e3 * np.nanmax(np.abs(piece)), piece), rank, Q2, judge)
    fitted = L.dense()
    floor = judge.floor_of(float(np.abs(fitted).max()))
    distinct = judge.noise is not None or has_valley(judge.residuals(piece[held], fitted[held]), floor)
    return L, chosen, distinct


def _best_start(piece: Array, rank: int | None, Q2: Array | None, judge: Judge) -> tuple[LowRank, tuple[Choice, ...]]:
    """The factors of a block from several starts; the best by mean log residual."""
    engine = in_memory(piece)
    sample = judge.telling(Sample.draw(engine, 1 << 14, np.random.default_rng(0)))
    best: tuple[LowRank, tuple[Choice, ...]] | None = None
    best_score = np.inf
    starts = MAJORITY_STARTS if judge.majority else ROW_STARTS
    for q, k in MAJORITY_STARTS if judge.majority else BLOCK_STARTS:
        if Q2 is None:
            L, chosen = _staged(engine, rank, q, k, sample, judge)
            V = L.right
        else:
            V, chosen = _from_features(piece, rank, Q2, q, k, judge)
        U = np.linalg.qr(row_scores(piece, V, starts=starts, floor=judge.resolution))[0]
        V = np.linalg.qr(_columns(piece, U, Q2, starts, judge.resolution))[0]
        L = LowRank.from_product(row_scores(piece, V, starts=starts, floor=judge.resolution), V)
        L = _descend(engine, L, Q2, _quantile_rule(sample, q, k), sample, judge)
        L = _descend(
            engine,
            L,
            Q2,
            _level_rule(engine.n_observed, sample, Q2, judge),
            sample,
            judge,
            rescues=0 if judge.majority else RESCUES,
        )
        fitted = L.dense()
        sizes, largest = judge.residuals(piece, fitted), float(np.abs(fitted).max())
        score = consensus(sizes, judge.floor_of(largest))
        if score < best_score:
            best, best_score = (L, chosen), score
        if judge.judged(sizes, largest, 0.0).exact:
            break
    assert best is not None
    return best


def scattered_factors(
    engine: Engine, rank: int | None, Q2: Array | None, judge: Judge
) -> tuple[LowRank, tuple[Choice, ...]]:
    """The factors of a matrix too large and too empty for a block of it to be of use: sweeps over all of it."""
    starts = MAJORITY_STARTS if judge.majority else BLOCK_STARTS[1:2]
    (q, k), sample = starts[0], judge.sample
    L, chosen = _staged(engine, rank, q, k, sample, judge, Q2)
    L = _descend(engine, L, Q2, _quantile_rule(sample, q, k), sample, judge)
    return _descend(engine, L, Q2, _level_rule(engine.n_observed, sample, Q2, judge), sample, judge), chosen


def _staged(
    engine: Engine, rank: int | None, q: float, k: float, sample: Sample, judge: Judge, Q2: Array | None = None
) -> tuple[LowRank, tuple[Choice, ...]]:
    """L built one direction at a time, each the strongest in what the directions before it leave.

    Without a given rank, directions are added as long as they shorten the description: n·mean log residual plus
    ½ log n for every unknown.
    """
    n1, n2 = engine.shape
    entries = engine.n_observed
    most = rank or max(1, min(MOST_FREE_DIRECTIONS, min(n1, n2) // 4))
    L = LowRank.zero(engine.shape)
    path: list[LowRank] = []
    costs: list[float] = []
    floor = judge.floor_of(float(np.median(np.abs(sample.values))))
    for _ in range(most):
        zeta = k * float(np.quantile(sample.sizes(L), q))
        U, V = L.thin()
        V = np.linalg.qr(np.column_stack([V, strongest(engine, L, zeta, Q2)]))[0]
        U = np.column_stack([U, np.zeros(n1)])
        L = LowRank(U, np.eye(U.shape[1]), V)
        sweeps = SWEEPS if rank is None else STAGE_SWEEPS
        L = _descend(
            engine,
            L,
            Q2,
            _quantile_rule(sample, q, k),
            sample,
            judge,
            rescues=rank is None,
            most=sweeps,
        )
        path.append(L)
        # One floor for all, or a direction spent on a single large outlier would seem to sharpen all the rest.
        fit = entries * consensus(sample.sizes(L), floor)
        costs.append(fit + 0.5 * np.log(entries) * unknowns_of(L, Q2))
        if rank is None and len(costs) > 2 and min(costs[-2:]) > min(costs):
            break
    if rank is not None:
        return L, ()
    best = int(np.argmin(costs))
    reason = f"the description of {entries} entries of M is shortest with {best + 1} directions"
    if best + 1 == MOST_FREE_DIRECTIONS:
        reason += f"; no more than {MOST_FREE_DIRECTIONS} were tried"
    return path[best], (Choice("rank", best + 1, reason),)


def _from_features(
    piece: Array, rank: int | None, Q2: Array, q: float, k: float, judge: Judge
) -> tuple[Array, tuple[Choice, ...]]:
    """V from a robust regression of every row on all column features, and the rank from its spectrum."""
    starts = MAJORITY_STARTS if judge.majority else ROW_STARTS
    C = row_scores(piece, Q2, starts=starts, floor=judge.resolution)
    sizes = np.abs(piece - C @ Q2.T)
    kept = np.sum(sizes <= k * float(np.nanquantile(sizes, q)), axis=1)
    observed = np.sum(~np.isnan(piece), axis=1)
    good = np.setdiff1d(np.nonzero(kept > 0)[0], stray_lines(kept, observed))
    chosen: tuple[Choice, ...] = ()
    if rank is None:
        share = min(Q2.shape[1] / len(Q2), 0.9)
        now = judge.judged(judge.residuals(piece[good], C[good] @ Q2.T), float(np.abs(C @ Q2.T).max()), share)
        s = np.linalg.svd(C[good], compute_uv=False)
        shape = (len(good), Q2.shape[1])
        seen = max(now.clean, 0.05) * observed[good].mean() / piece.shape[1]
        chosen = (choose_rank(s, shape, max(now.sigma, now.floor), seen),)
        rank = chosen[0].value
    return Q2 @ singular_triplets(C[good], rank)[2], chosen


def _columns(piece: Array, U: Array, Q2: Array | None, starts: Starts, floor: float) -> Array:
    """V given U: a regression for each column, then, with column features, one of those on the features."""
    V = row_scores(piece.T, U, starts=starts, floor=floor)
    return V if Q2 is None else Q2 @ row_scores(V.T, Q2, starts=starts).T


Rule = Callable[[LowRank, float], float]


def _quantile_rule(sample: Sample, q: float, k: float) -> Rule:
    return lambda L, floor: max(k * float(np.quantile(sample.sizes(L), q)), floor)


def _level_rule(n_observed: int, sample: Sample, Q2: Array | None, judge: Judge) -> Rule:
    """The threshold that the residuals of a block suggest, as long as they leave something to fit to."""

    def rule(L: LowRank, floor: float) -> float:
        largest = float(np.abs(sample.at(L)).max(initial=0.0))
        found = judge.judged(sample.sizes(L), largest, 0.0)
        if found.clean * n_observed < HOLLOW * unknowns_of(L, Q2):
            return np.inf
        return found.zeta

    return rule


def _descend(
    engine: Engine,
    L: LowRank,
    Q2: Array | None,
    rule: Rule,
    sample: Sample,
    judge: Judge,
    rescues: int = 0,
    most: int = SWEEPS,
) -> LowRank:
    """Sweeps with one threshold for all until L is at rest; stray rows are then fitted afresh, a few times."""
    threshold: Falling | None = None
    stray: tuple[Array, Array] = (np.zeros(0), np.zeros(0))
    for _ in range(most):
        largest = float(np.abs(sample.at(L)).max(initial=0.0))
        floor = judge.floor_of(largest)
        target = rule(L, floor)
        if np.isinf(target):
            break
        if threshold is None:
            threshold, there = Falling(target), False
        else:
            before = threshold.zeta
            there = threshold.follow(target, stray) or abs(before - threshold.zeta) <= 0.02 * threshold.zeta
        previous = L
        L, _, stray = sweep(engine, L, Q2, threshold.zeta)
        moved = relative_distance(L, previous)
        if there and moved <= (1e-3 if threshold.zeta > floor else 1e-12):
            if rescues <= 0 or not (len(stray[0]) or len(stray[1])):
                break
            rescues -= 1
            L, _, stray = sweep(engine, L, Q2, threshold.zeta, HARD_STARTS, judge.resolution)
    return L
