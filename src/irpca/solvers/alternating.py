"""A side without features: L = U Vᵀ with U free, and V free or in the span of the column features.

Given V, every row of M is a regression of its own, and given U every column. A row that is fitted wrongly loses its
entries to a common threshold and never comes back, so rows are first fitted with thresholds of their own; only when the
factors hold do all rows share one threshold, and trimmed least squares on all of M finishes the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..engines.base import Engine, Transposed, Trim
from ..features import Features
from ..lowrank import Array, LowRank, relative_distance, singular_triplets
from ..regression import HARD_STARTS, ROW_STARTS, Starts, moment_columns, row_scores, row_steps, span_step
from ..result import Choice, State
from ..sampling import Sample, in_memory, strips
from ..selection import HOLLOW, Judge, choose_rank
from ..threshold import MAJORITY_STARTS, Level, consensus, has_valley, rounding_floor

MOST_FREE_DIRECTIONS = 20  # that rank="auto" looks at without any features
SWEEPS = 25
RESCUES = 2
BLOCK_STARTS = ((0.5, 8.0), (0.3, 8.0), (0.1, 15.0))
HELD_OUT = 0.05  # of a block; more of a small one
BLOCKS_BEFORE_MAJORITY = 2
DECAY = 5.0  # a common threshold that falls faster trims rows that lag behind, whole, and they never come back
STAGE_SWEEPS = 4


def alternating(
    engine: Engine, F2: Features, rank: int | None, judge: Judge, rng: np.random.Generator
) -> Iterator[State]:
    """Nothing is known about the rows; F2 may describe the columns."""
    # A. Factors from a block, extended to all rows and columns; larger blocks until one is convincing.
    fit = yield from _on_blocks(engine, F2, rank, judge, rng)
    if not fit.distinct:
        judge.majority = True
        fit = yield from _on_blocks(engine, F2, rank, judge, rng)

    # B. All of M. The threshold follows the noise; rows that the block could not place are fitted afresh, at first and
    # once more when all else is at rest.
    L, chosen = fit.L, fit.chosen
    unknowns = _unknowns(L, F2.Q)
    seen = now = judge.level(L, unknowns)
    threshold = _Falling(now.zeta)
    rescues, second_look = RESCUES, True
    starts = MAJORITY_STARTS if judge.majority else HARD_STARTS
    while True:
        previous = L
        L, trim, stray = _sweep(engine, L, F2.Q, threshold.zeta, starts if rescues > 0 else None)
        rescues -= 1
        step = relative_distance(L, previous)
        now, steady = judge.updated(now, L, unknowns)
        fallen = threshold.follow(now.zeta, stray)
        settled = steady and fallen and rescues < 0
        if settled and second_look and (len(stray[0]) or len(stray[1])):
            rescues, second_look, settled = RESCUES, False, False
        if settled and rank is None:
            L, changed = _fit_rank(engine, L, F2, now, threshold.zeta)
            chosen, settled, unknowns = (changed or chosen[0],), not changed, _unknowns(L, F2.Q)
        objection = fit.objection or judge.objection(L, now, engine.n_observed, unknowns, seen)
        state = judge.state(L, now, step, trim, chosen, objection, unknowns, _stray_doubts(*stray))
        yield state if settled else replace(state, settled=False)


def _fit_rank(engine: Engine, L: LowRank, F2: Features, now: Level, zeta: float) -> tuple[LowRank, Choice | None]:
    """L without the directions that do not stand out of the noise of all of M, or with one more that does."""
    shape = (engine.shape[0], F2.d)
    noise = max(now.sigma, now.floor)
    choice = choose_rank(L.singular_values, shape, noise, max(now.clean, 0.01))
    if choice.value < L.rank:
        return L.truncate(choice.value), choice
    if L.rank == min(MOST_FREE_DIRECTIONS, *shape):
        return L, None
    left = _strongest(engine, L, zeta, F2.Q, powers=3)
    right = engine.times(L, zeta, left)[0].astype(float)
    grown = LowRank.from_product(np.hstack([L.left @ L.core, right]), np.hstack([L.right, left]))
    choice = choose_rank(grown.singular_values, shape, 1.05 * noise, max(now.clean, 0.01))
    return (grown, choice) if choice.value > L.rank else (L, None)


class _Falling:
    """A threshold that falls towards a target, and steps back when that makes rows go astray."""

    def __init__(self, zeta: float) -> None:
        self.zeta = zeta
        self.stray = np.inf
        self.steps_back = 8

    def follow(self, target: float, stray: tuple[Array, Array]) -> bool:
        """Move towards the target; whether it was there already and nothing had gone astray."""
        n = len(stray[0]) + len(stray[1])
        there = self.zeta <= target and n <= self.stray
        if n > self.stray and self.steps_back:
            self.zeta *= DECAY
            self.steps_back -= 1
        else:
            self.zeta = max(target, self.zeta / DECAY)
        self.stray = n
        return there


@dataclass(frozen=True, eq=False)
class _Fit:
    """Factors found on a block and extended to all of M, and what the judge says of them."""

    L: LowRank
    score: float
    objection: str | None
    chosen: tuple[Choice, ...]
    distinct: bool


def _on_blocks(
    engine: Engine, F2: Features, rank: int | None, judge: Judge, rng: np.random.Generator
) -> Generator[State, None, _Fit]:
    """The best fit on blocks of growing size, up to the first convincing one."""
    fit: _Fit | None = None
    for tried, (rows, cols) in enumerate(strips(engine, F2, rank, rng), start=1):
        found = _fit(engine, rows, cols, F2, rank, judge)
        yield State(found.L, np.inf, 1.0, settled=False)
        fit = found if fit is None or (found.distinct, -found.score) > (fit.distinct, -fit.score) else fit
        if fit.distinct and fit.objection is None:
            break
        if not fit.distinct and tried == BLOCKS_BEFORE_MAJORITY:
            break
    assert fit is not None
    return fit


def _fit(engine: Engine, rows: Array, cols: Array, F2: Features, rank: int | None, judge: Judge) -> _Fit:
    n1, n2 = engine.shape
    piece = engine.block(rows, cols).astype(float)
    Q2 = None if F2.Q is None else np.linalg.qr(F2.Q[cols])[0]
    L, chosen, distinct = _factors(piece, rank, Q2, judge)
    unknowns = _unknowns(L, Q2)
    fitted = L.dense()
    seen = judge.judged(np.abs(piece - fitted).ravel(), float(np.abs(fitted).max()), unknowns / piece.size)
    if piece.shape != engine.shape:
        U, V = L.thin()
        if F2.Q is None:
            V_all = V if len(cols) == n2 else row_scores(engine.block(rows, np.arange(n2)).T, U)
        else:
            V_all = F2.Q @ np.linalg.lstsq(F2.Q[cols], V, rcond=None)[0]
        U_all = U if len(rows) == n1 else row_scores(engine.block(np.arange(n1), cols), V_all[cols])
        L = LowRank.from_product(U_all, V_all)
    found = judge.level(L, _unknowns(L, F2.Q))
    objection = judge.objection(L, found, piece.size, unknowns, seen)
    return _Fit(L, judge.score(L), objection, chosen, distinct)


def _unknowns(L: LowRank, Q2: Array | None) -> int:
    n1, n2 = L.shape
    return L.rank * (n1 + (n2 if Q2 is None else Q2.shape[1]) - L.rank)


def _factors(
    piece: Array, rank: int | None, Q2: Array | None, judge: Judge
) -> tuple[LowRank, tuple[Choice, ...], bool]:
    """The factors of a block in memory, and whether clean entries and gross errors are two crowds.

    They are not if noise has long tails; a threshold in the tail would then make such crowds by itself. So some entries
    are held out, disguised as gross errors, and looked at for the two crowds.
    """
    if judge.majority:
        return *_best_start(piece, rank, Q2, judge), True
    held = np.random.default_rng(0).random(piece.shape) < min(HELD_OUT * max(1.0, 20_000 / piece.size), 0.2)
    L, chosen = _best_start(np.where(held, 1e3 * np.abs(piece).max(), piece), rank, Q2, judge)
    fitted = L.dense()
    floor = rounding_floor(judge.engine.dtype, float(np.abs(fitted).max()))
    distinct = judge.noise is not None or has_valley(np.abs(piece - fitted)[held], floor)
    return L, chosen, distinct


def _best_start(piece: Array, rank: int | None, Q2: Array | None, judge: Judge) -> tuple[LowRank, tuple[Choice, ...]]:
    """The factors of a block from several starts; the best by mean log residual."""
    engine = in_memory(piece)
    dtype = judge.engine.dtype
    sample = Sample.draw(engine, 1 << 14, np.random.default_rng(0))
    best: tuple[LowRank, tuple[Choice, ...]] | None = None
    best_score = np.inf
    starts = MAJORITY_STARTS if judge.majority else ROW_STARTS
    for q, k in MAJORITY_STARTS if judge.majority else BLOCK_STARTS:
        if Q2 is None:
            V, chosen = _staged(engine, rank, q, k, sample, dtype)
        else:
            V, chosen = _from_features(piece, rank, Q2, q, k, judge)
        U = np.linalg.qr(row_scores(piece, V, starts=starts))[0]
        V = np.linalg.qr(_columns(piece, U, Q2, starts))[0]
        L = LowRank.from_product(row_scores(piece, V, starts=starts), V)
        L = _descend(engine, L, Q2, _quantile_rule(sample, q, k), sample, dtype)
        L = _descend(
            engine,
            L,
            Q2,
            _level_rule(sample, Q2, judge),
            sample,
            dtype,
            rescues=0 if judge.majority else RESCUES,
        )
        fitted = L.dense()
        sizes, largest = np.abs(piece - fitted).ravel(), float(np.abs(fitted).max())
        score = consensus(sizes, rounding_floor(dtype, largest))
        if score < best_score:
            best, best_score = (L, chosen), score
        if judge.judged(sizes, largest, 0.0).exact:
            break
    assert best is not None
    return best


def _staged(
    engine: Engine, rank: int | None, q: float, k: float, sample: Sample, dtype: np.dtype
) -> tuple[Array, tuple[Choice, ...]]:
    """V built one direction at a time, each the strongest in what the directions before it leave.

    Without a given rank, directions are added as long as they shorten the description: n·mean log residual plus
    ½ log n for every unknown.
    """
    n1, n2 = engine.shape
    most = rank or max(1, min(MOST_FREE_DIRECTIONS, min(n1, n2) // 4))
    L = LowRank.zero(engine.shape)
    path: list[LowRank] = []
    costs: list[float] = []
    floor = rounding_floor(dtype, float(np.median(np.abs(sample.values))))
    for _ in range(most):
        zeta = k * float(np.quantile(sample.sizes(L), q))
        U, V = L.thin()
        V = np.linalg.qr(np.column_stack([V, _strongest(engine, L, zeta)]))[0]
        U = np.column_stack([U, np.zeros(n1)])
        L = LowRank(U, np.eye(U.shape[1]), V)
        sweeps = SWEEPS if rank is None else STAGE_SWEEPS
        L = _descend(engine, L, None, _quantile_rule(sample, q, k), sample, dtype, rescues=rank is None, most=sweeps)
        path.append(L)
        # One floor for all, or a direction spent on a single large outlier would seem to sharpen all the rest.
        costs.append(n1 * n2 * consensus(sample.sizes(L), floor) + 0.5 * np.log(n1 * n2) * _unknowns(L, None))
        if rank is None and len(costs) > 2 and min(costs[-2:]) > min(costs):
            break
    if rank is not None:
        return L.right, ()
    best = int(np.argmin(costs))
    reason = f"the description of a {n1} × {n2} block of M is shortest with {best + 1} directions"
    if best + 1 == MOST_FREE_DIRECTIONS:
        reason += f"; no more than {MOST_FREE_DIRECTIONS} were tried"
    return path[best].right, (Choice("rank", best + 1, reason),)


def _strongest(engine: Engine, L: LowRank, zeta: float, Q2: Array | None = None, powers: int = 6) -> Array:
    """The leading right singular vector of T, within the span of the column features, by a few power steps."""
    v = np.ones((engine.shape[1], 1)) + np.random.default_rng(0).standard_normal((engine.shape[1], 1))
    for _ in range(powers):
        u = engine.times(L, zeta, v)[0].astype(float)
        v = engine.t_times(L, zeta, u)[0].astype(float)
        v = v if Q2 is None else Q2 @ (Q2.T @ v)
        v /= max(np.linalg.norm(v), np.finfo(float).tiny)
    return v


def _from_features(
    piece: Array, rank: int | None, Q2: Array, q: float, k: float, judge: Judge
) -> tuple[Array, tuple[Choice, ...]]:
    """V from a robust regression of every row on all column features, and the rank from its spectrum."""
    C = row_scores(piece, Q2, starts=MAJORITY_STARTS if judge.majority else ROW_STARTS)
    sizes = np.abs(piece - C @ Q2.T)
    kept = np.sum(sizes <= k * float(np.quantile(sizes, q)), axis=1)
    good = np.nonzero(kept >= 0.5 * np.median(kept))[0]
    chosen: tuple[Choice, ...] = ()
    if rank is None:
        share = min(Q2.shape[1] / len(Q2), 0.9)
        now = judge.judged(sizes[good].ravel(), float(np.abs(C @ Q2.T).max()), share)
        s = np.linalg.svd(C[good], compute_uv=False)
        shape = (len(good), Q2.shape[1])
        chosen = (choose_rank(s, shape, max(now.sigma, now.floor), max(now.clean, 0.05)),)
        rank = chosen[0].value
    return Q2 @ singular_triplets(C[good], rank)[2], chosen


def _columns(piece: Array, U: Array, Q2: Array | None, starts: Starts) -> Array:
    """V given U: a regression for each column, then, with column features, one of those on the features."""
    V = row_scores(piece.T, U, starts=starts)
    return V if Q2 is None else Q2 @ row_scores(V.T, Q2, starts=starts).T


Rule = Callable[[LowRank, float], float]


def _quantile_rule(sample: Sample, q: float, k: float) -> Rule:
    return lambda L, floor: max(k * float(np.quantile(sample.sizes(L), q)), floor)


def _level_rule(sample: Sample, Q2: Array | None, judge: Judge) -> Rule:
    """The threshold that the residuals of a block suggest, as long as they leave something to fit to."""

    def rule(L: LowRank, floor: float) -> float:
        largest = float(np.abs(L.entries(sample.rows, sample.cols)).max(initial=0.0))
        found = judge.judged(sample.sizes(L), largest, 0.0)
        n1, n2 = L.shape
        if found.clean * n1 * n2 < HOLLOW * _unknowns(L, Q2):
            return np.inf
        return found.zeta

    return rule


def _descend(
    engine: Engine,
    L: LowRank,
    Q2: Array | None,
    rule: Rule,
    sample: Sample,
    dtype: np.dtype,
    rescues: int = 0,
    most: int = SWEEPS,
) -> LowRank:
    """Sweeps with one threshold for all until L is at rest; stray rows are then fitted afresh, a few times."""
    threshold: _Falling | None = None
    stray: tuple[Array, Array] = (np.zeros(0), np.zeros(0))
    for _ in range(most):
        largest = float(np.abs(L.entries(sample.rows, sample.cols)).max(initial=0.0))
        floor = rounding_floor(dtype, largest)
        target = rule(L, floor)
        if np.isinf(target):
            break
        if threshold is None:
            threshold, there = _Falling(target), False
        else:
            before = threshold.zeta
            there = threshold.follow(target, stray) or abs(before - threshold.zeta) <= 0.02 * threshold.zeta
        previous = L
        L, _, stray = _sweep(engine, L, Q2, threshold.zeta)
        moved = relative_distance(L, previous)
        if there and moved <= (1e-3 if threshold.zeta > floor else 1e-12):
            if rescues <= 0 or not (len(stray[0]) or len(stray[1])):
                break
            rescues -= 1
            L, _, stray = _sweep(engine, L, Q2, threshold.zeta, HARD_STARTS)
    return L


def _sweep(
    engine: Engine, L: LowRank, Q2: Array | None, zeta: float, rescue: Starts | None = None
) -> tuple[LowRank, Trim, tuple[Array, Array]]:
    """Least squares on the kept entries for U, then for V: two reads of M. Also returns stray rows and columns."""
    rank = L.rank
    U, V = L.thin()
    V, R = np.linalg.qr(V)
    U = U @ R.T
    move, _, stray_rows = _row_move(engine, LowRank(U, np.eye(rank), V), V, U, zeta, rescue)
    U, R = np.linalg.qr(U + move)
    V = V @ R.T
    L = LowRank(U, np.eye(rank), V)
    stray_cols = np.zeros(0, int)
    if Q2 is None:
        move, trim, stray_cols = _row_move(Transposed(engine), L.T, U, V, zeta, rescue)
    else:
        products, sums, trim = engine.t_times(L, zeta, U, moment_columns(U))
        assert sums is not None
        move = Q2 @ span_step(Q2, sums, products)
    return LowRank.from_product(U, V + move), trim, (stray_rows, stray_cols)


def _row_move(
    engine: Engine, L: LowRank, V: Array, U: Array, zeta: float, rescue: Starts | None
) -> tuple[Array, Trim, Array]:
    """The least-squares step of every row given V, and the stray rows; ``rescue`` fits those afresh."""
    products, sums, trim = engine.times(L, zeta, V, moment_columns(V))
    assert sums is not None
    move = row_steps(sums, products)
    kept = sums[:, -1]
    stray = np.nonzero(kept < 0.5 * np.median(kept))[0]
    if rescue is not None and len(stray):
        move[stray] = row_scores(engine.block(stray, np.arange(len(V))), V, starts=rescue) - U[stray]
    return move, trim, stray


def _stray_doubts(rows: Array, cols: Array) -> tuple[str, ...]:
    """Say where L is not known, because most of a row or column disagrees with the rest of M."""
    return tuple(
        f"{len(stray)} {side} disagree with the rest of M in more than half of what others agree on "
        f"({', '.join(map(str, stray[:8]))}{', …' if len(stray) > 8 else ''}): L is not to be trusted there"
        for side, stray in (("rows", rows), ("columns", cols))
        if len(stray)
    )
