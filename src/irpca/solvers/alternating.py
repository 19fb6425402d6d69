"""A side without features: L = U Vᵀ with U free, and V free or in the span of the column features.

Given V, every row of M is a regression of its own, and given U every column. A row that is fitted wrongly loses its
entries to a common threshold and never comes back, so rows are first fitted with thresholds of their own; only when the
factors hold do all rows share one threshold, and trimmed least squares on all of M finishes the fit.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..engines.base import Engine
from ..features import Features
from ..judge import LEFT_OUT, Judge, choose_rank
from ..lowrank import Array, LowRank, relative_distance
from ..regression import HARD_STARTS, row_scores
from ..result import Choice, State
from ..sampling import BLOCK_ENTRIES, sparse, strips
from ..threshold import MAJORITY_STARTS, Level
from .block_factors import MOST_FREE_DIRECTIONS, RESCUES, block_factors, scattered_factors
from .sweeps import Falling, stray_doubts, strongest, sweep, unknowns_of

BLOCKS_BEFORE_MAJORITY = 2
CROWDED = 0.1  # unknowns per entry beyond which a majority is easily mistaken


def alternating(
    engine: Engine,
    F2: Features,
    rank: int | None,
    judge: Judge,
    rng: np.random.Generator,
    sides: tuple[str, str] = ("row", "column"),
) -> Iterator[State]:
    """Nothing is known about the rows; F2 may describe the columns. ``sides`` is what the user calls the two."""
    # A. Factors from a block, extended to all rows and columns; larger blocks until one is convincing.
    fit = yield from _on_blocks(engine, F2, rank, judge, rng)
    if not fit.distinct:
        judge.majority = True
        fit = yield from _on_blocks(engine, F2, rank, judge, rng)

    # B. All of M. The threshold follows the noise; rows that the block could not place are fitted afresh, at first and
    # once more when all else is at rest.
    L, chosen = fit.L, fit.chosen
    unknowns = unknowns_of(L, F2.Q)
    seen = now = judge.level(L, unknowns)
    if now.exact and fit.distinct and fit.objection is None:
        # The last read may be all that is left to do; it tells whether rows or columns were missed.
        if rank is None:
            share = max(now.clean, 0.01) * judge.observed_share
            chosen = (choose_rank(L.singular_values, (engine.shape[0], F2.d), now.floor, share),)
            L = L.truncate(chosen[0].value)
            unknowns = unknowns_of(L, F2.Q)
        state = judge.state(L, now, 0.0, None, chosen)
        yield replace(state, one_by_one=(0,) if F2.given else (0, 1))
    threshold = Falling(now.zeta)
    rescues, second_look = RESCUES, True
    starts = MAJORITY_STARTS if judge.majority else HARD_STARTS
    while True:
        previous = L
        shrink = now.sigma if judge.observed_share < 1 else 0.0  # a row of few entries would fit their noise
        rescue = starts if rescues > 0 else None
        L, trim, stray = sweep(engine, L, F2.Q, threshold.zeta, rescue, judge.resolution, shrink)
        rescues -= 1
        step = relative_distance(L, previous)
        now, steady = judge.updated(now, L, unknowns)
        fallen = threshold.follow(now.zeta, stray)
        settled = steady and fallen and rescues < 0
        if settled and second_look and (len(stray[0]) or len(stray[1])):
            rescues, second_look, settled = RESCUES, False, False
        if settled and rank is None:
            L, changed = _fit_rank(engine, L, F2, now, threshold.zeta, judge.observed_share)
            chosen, settled, unknowns = (changed or chosen[0],), not changed, unknowns_of(L, F2.Q)
        objection = fit.objection or judge.objection(L, now, engine.n_observed, unknowns, seen)
        doubts = stray_doubts(sides, stray)
        if rank is None and not F2.given and L.rank == MOST_FREE_DIRECTIONS:
            doubts += (f"no more than {MOST_FREE_DIRECTIONS} directions were looked for: give the rank to allow more",)
        if judge.majority and unknowns > CROWDED * engine.n_observed:
            doubts += (
                f"there is no gap between noise and gross errors, and {engine.n_observed} entries are few for "
                f"{unknowns} unknowns: what is noise and what is not is a guess. A lower rank, or noise=…, would help",
            )
        state = judge.state(L, now, step, trim, chosen, objection, unknowns, doubts)
        if settled and F2.given and step <= state.tolerance and judge.leaves_structure(L, now.zeta):
            state = replace(state, doubts=(*doubts, LEFT_OUT))
        yield state if settled else replace(state, settled=False)


def _fit_rank(
    engine: Engine, L: LowRank, F2: Features, now: Level, zeta: float, observed: float
) -> tuple[LowRank, Choice | None]:
    """L without the directions that do not stand out of the noise of all of M, or with one more that does."""
    shape = (engine.shape[0], F2.d)
    noise, share = max(now.sigma, now.floor), max(now.clean, 0.01) * observed
    choice = choose_rank(L.singular_values, shape, noise, share)
    if choice.value < L.rank:
        return L.truncate(choice.value), choice
    if L.rank == min(MOST_FREE_DIRECTIONS, *shape):
        return L, None
    left = strongest(engine, L, zeta, F2.Q, powers=3)
    right = engine.times(L, zeta, left)[0].astype(float)
    grown = LowRank.from_product(np.hstack([L.left @ L.core, right]), np.hstack([L.right, left]))
    choice = choose_rank(grown.singular_values, shape, 1.05 * noise, share)
    return (grown, choice) if choice.value > L.rank else (L, None)


@dataclass(frozen=True, eq=False)
class _Fit:
    """Factors found on a block and extended to all of M, and what the judge says of them."""

    L: LowRank
    level: Level
    score: float
    objection: str | None
    chosen: tuple[Choice, ...]
    distinct: bool


def _on_blocks(
    engine: Engine, F2: Features, rank: int | None, judge: Judge, rng: np.random.Generator
) -> Generator[State, None, _Fit]:
    """The best fit on blocks of growing size, up to the first convincing one."""
    fit: _Fit | None = None
    if sparse(engine):  # sweeps are cheap then, and all there is if M is large
        fit = _judged(engine, *scattered_factors(engine, rank, F2.Q, judge), F2, judge)
        yield State(fit.L, fit.level.zeta, 1.0, settled=False)
        if math.prod(engine.shape) > BLOCK_ENTRIES or (fit.distinct and fit.objection is None):
            return fit
    for tried, (rows, cols) in enumerate(strips(engine, F2, rank, rng), start=1):
        found = _fit(engine, rows, cols, F2, rank, judge)
        yield State(found.L, found.level.zeta, 1.0, settled=False)
        fit = found if fit is None or (found.distinct, -found.score) > (fit.distinct, -fit.score) else fit
        if fit.distinct and fit.objection is None:
            break
        if not fit.distinct and tried == BLOCKS_BEFORE_MAJORITY:
            break
    assert fit is not None
    return fit


def _judged(engine: Engine, L: LowRank, chosen: tuple[Choice, ...], F2: Features, judge: Judge) -> _Fit:
    """A fit made from all that is observed."""
    unknowns = unknowns_of(L, F2.Q)
    found = judge.level(L, unknowns)
    objection = judge.objection(L, found, engine.n_observed, unknowns, found)
    return _Fit(L, found, judge.score(L), objection, chosen, judge.majority or judge.distinct(L))


def _fit(engine: Engine, rows: Array, cols: Array, F2: Features, rank: int | None, judge: Judge) -> _Fit:
    n1, n2 = engine.shape
    piece = engine.block(rows, cols).astype(float)
    Q2 = None if F2.Q is None else np.linalg.qr(F2.Q[cols])[0]
    L, chosen, distinct = block_factors(piece, rank, Q2, judge)
    unknowns = unknowns_of(L, Q2)
    fitted = L.dense()
    entries = int(np.count_nonzero(~np.isnan(piece)))
    seen = judge.judged(judge.residuals(piece, fitted), float(np.abs(fitted).max()), unknowns / entries)
    if piece.shape != engine.shape:
        U, V = L.thin()
        if F2.Q is None:
            V_all = V if len(cols) == n2 else row_scores(engine.block(rows, np.arange(n2)).T, U, floor=judge.resolution)
        else:
            V_all = F2.Q @ np.linalg.lstsq(F2.Q[cols], V, rcond=None)[0]
        U_all = (
            U if len(rows) == n1 else row_scores(engine.block(np.arange(n1), cols), V_all[cols], floor=judge.resolution)
        )
        L = LowRank.from_product(U_all, V_all)
    found = judge.level(L, unknowns_of(L, F2.Q))
    objection = judge.objection(L, found, entries, unknowns, seen)
    return _Fit(L, found, judge.score(L), objection, chosen, distinct)
