"""Ours, the default: trimmed least squares in whitened feature space, with thresholds from the data.

Three ideas carry it. Flagged entries are treated as missing, so that each step is least squares on the kept ones. The
threshold tunes itself in two phases, as MM-estimators do: a start that survives most entries being corrupted, then a
finish about as accurate as if the corruption were known. And W is found on a block of M, since every block of M has the
same W; all of M is read only to check, to refine under noise, and to write S.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..engines.base import Engine, Transposed
from ..features import Features
from ..lowrank import Array, LowRank, relative_change, singular_triplets
from ..regression import conjugate_gradients
from ..result import Choice, State
from ..sampling import Block, Sample, blocks
from ..selection import Judge, choose_rank
from ..threshold import MAJORITY_STARTS, STARTS, Level
from .alternating import alternating
from .sweeps import DECAY

CROWDED = 0.05  # unknowns per entry beyond which a fit of full rank is easily led astray
PHASE_1 = 40  # iterations of one start; those that succeed need 4 to 12


def irpca(
    engine: Engine,
    F1: Features,
    F2: Features,
    rank: int | None,
    *,
    noise: float | None = None,
    random_state: np.random.Generator,
) -> Iterator[State]:
    """Trimmed least squares in whitened feature space.

    Parameters
    ----------
    rank : int or None
        None: chosen from the spectrum against the noise.
    noise : float or None
        Standard deviation of the noise, if it is known.
    """
    if noise is not None and (isinstance(noise, bool) or not 0 <= noise < np.inf):
        raise ValueError(f"noise must be a standard deviation, not negative and finite, got {noise!r}")
    if F1.given and F2.given:
        yield from inductive(engine, F1, F2, rank, Judge(engine, noise, random_state, lagging=False), random_state)
    elif F1.given:  # the same problem from the other side
        turned = Transposed(engine)
        judge = Judge(turned, noise, random_state)
        for state in alternating(turned, F1, rank, judge, random_state, sides=("column", "row")):
            yield replace(state, L=state.L.T)
    else:
        yield from alternating(engine, F2, rank, Judge(engine, noise, random_state), random_state)


def inductive(
    engine: Engine, F1: Features, F2: Features, rank: int | None, judge: Judge, rng: np.random.Generator
) -> Iterator[State]:
    """Features on both sides: L = Q1 C Q2ᵀ with a small core C."""
    assert F1.Q is not None and F2.Q is not None
    most = min(F1.d, F2.d)

    fit = yield from _on_blocks(engine, F1, F2, rank or most, judge, rng)
    doubts: tuple[str, ...] = ()
    if not fit.level.exact and not judge.distinct(fit.L):
        judge.majority = True
        if rank is None and F1.d * F2.d > CROWDED * engine.n_observed:
            doubts = (
                f"to choose the rank, all {F1.d} × {F2.d} coefficients were fitted to {engine.n_observed} entries, and "
                "no gap between noise and gross errors was found: give the rank, which survives far more corruption",
            )
        fit = yield from _on_blocks(engine, F1, F2, rank or most, judge, rng)
    C, L, now = fit.C, fit.L, fit.level

    # All of M. If L is exact on every clean entry looked at, the last read is all that is left to do.
    chosen: tuple[Choice, ...] = ()
    if now.exact:
        if rank is None:
            # In the block's own coordinates: those of all of M stretch the block's rounding errors.
            chosen = (choose_rank(np.linalg.svd(fit.block_C, compute_uv=False), C.shape, now.floor, now.clean),)
            rank = chosen[0].value
            C, L = _truncated(C, rank), L.truncate(rank)
        yield judge.state(
            L, now, 0.0, None, chosen, judge.objection(L, now, engine.n_observed, _unknowns(L, F1, F2), now)
        )
    Q1, Q2 = engine.place(F1.Q), engine.place(F2.Q)
    for reads in itertools.count(1):
        # Flagged entries count as missing, hence the division by the kept share.
        G, trim = engine.core(L, now.zeta, Q1, Q2)
        C_next = C + G / max(trim.kept_share, 0.01)
        if rank is None and reads == 2:  # the block's own error is gone now; what is left is the noise of all of M
            chosen = (choose_rank(np.linalg.svd(C_next, compute_uv=False), C.shape, now.sigma, now.clean),)
            rank = chosen[0].value
        u, s, v = singular_triplets(C_next, rank)
        C_next = (u * s) @ v.T
        step = relative_change(C_next, C)
        C, L = C_next, LowRank(F1.Q @ u, np.diag(s), F2.Q @ v)
        now, steady = judge.updated(now, L)
        unknowns = _unknowns(L, F1, F2)
        objection = judge.objection(L, now, engine.n_observed, unknowns, now)
        state = judge.state(L, now, step, trim, chosen, objection, unknowns, doubts)
        yield state if steady and rank is not None else replace(state, settled=False)


@dataclass(frozen=True, eq=False)
class _Fit:
    """A core found on a block, and what the judge says of it."""

    block: Block
    block_C: Array
    C: Array
    L: LowRank
    level: Level
    score: float
    objection: str | None


def _on_blocks(
    engine: Engine, F1: Features, F2: Features, rank: int, judge: Judge, rng: np.random.Generator
) -> Generator[State, None, _Fit]:
    """The best fit on blocks of growing size, up to the first convincing one."""
    fit: _Fit | None = None
    for block in blocks(engine, F1, F2, rng):
        for q, k in MAJORITY_STARTS if judge.majority else STARTS:
            found = _start(block, F1, F2, rank, q, k, judge, rng)
            yield State(found.L, found.level.zeta, 1.0, settled=False)
            fit = found if fit is None or found.score < fit.score else fit
            if fit.objection is None:
                return _finish(fit, F1, F2, rank, judge)
    assert fit is not None
    return _finish(fit, F1, F2, rank, judge)


def _finish(fit: _Fit, F1: Features, F2: Features, rank: int, judge: Judge) -> _Fit:
    """Phase 2 on the block: the threshold that suits the noise, estimated anew until it stays."""
    block = fit.block
    for _ in range(PHASE_1):
        if fit.level.exact:
            break
        update = _least_squares(block.engine, block.Q1, fit.block_C, block.Q2, fit.level.zeta, rank)
        block_C = _truncated(fit.block_C + update, rank)
        moved = relative_change(block_C, fit.block_C)
        C = block.lift(block_C)
        L = LowRank.from_core(F1.Q, C, F2.Q, rank)
        before = fit.level
        fit = replace(fit, block_C=block_C, C=C, L=L, level=judge.level(L))
        if moved < 1e-3 and fit.level.sigma > 0.95 * before.sigma:
            break
    return fit


def _start(
    block: Block,
    F1: Features,
    F2: Features,
    rank: int,
    q: float,
    k: float,
    judge: Judge,
    rng: np.random.Generator,
) -> _Fit:
    """Phase 1 on a block, and the judge's view of it.

    Features such as indicators tie a coefficient to a few cells of M. A threshold that falls at once can trim those
    cells whole, and the coefficient never comes back; then the start is made again with one that falls slowly.
    """
    sample = judge.telling(Sample.draw(block.engine, 1 << 13, rng))
    block_C, zeta = _high_breakdown(block, sample, rank, q, k, judge)
    if _uncovered(block, block_C, rank, zeta):
        top = float(np.abs(sample.values).max())
        block_C, _ = _high_breakdown(block, sample, rank, q, k, judge, top, DECAY)
    on_block = LowRank.from_core(block.Q1, block_C, block.Q2, rank)
    largest = float(np.abs(sample.at(on_block)).max())
    seen = judge.judged(sample.sizes(on_block), largest, 0.0)
    C = block.lift(block_C)
    L = LowRank.from_core(F1.Q, C, F2.Q, rank)
    found = judge.level(L)
    objection = judge.objection(L, found, block.engine.n_observed, _unknowns(L, F1, F2), seen)
    return _Fit(block, block_C, C, L, found, judge.score(L), objection)


def _high_breakdown(
    block: Block,
    sample: Sample,
    rank: int,
    q: float,
    k: float,
    judge: Judge,
    top: float = 0.0,
    decay: float = np.inf,
) -> tuple[Array, float]:
    """ζ = k · quantile_q(|R|), least squares on what it keeps, truncation, repeat; returns the core and the last ζ."""
    C = np.zeros((block.Q1.shape[1], block.Q2.shape[1]))
    L, zeta, floor = LowRank.zero(block.engine.shape), np.inf, 0.0
    for _ in range(PHASE_1):
        lowest = top if np.isinf(zeta) else zeta / decay
        before, zeta = zeta, max(k * float(np.quantile(sample.sizes(L), q)), lowest, floor)
        update = _least_squares(block.engine, block.Q1, C, block.Q2, zeta, rank)
        previous, C = C, _truncated(C + update, rank)
        moved = relative_change(C, previous)
        L = LowRank.from_core(block.Q1, C, block.Q2, rank)
        floor = judge.floor_of(float(np.abs(sample.at(L)).max()))
        falling = zeta > 1.02 * floor and zeta < before / 1.02
        at_rest = moved <= 1e-12 and not (falling and np.isfinite(decay))
        if at_rest or (moved <= 0.01 and zeta > floor and not falling):
            break
    return C, zeta


def _uncovered(block: Block, C: Array, rank: int, zeta: float) -> bool:
    """Whether some coefficient of the core has lost nearly all entries it could be seen at."""
    L = LowRank.from_core(block.Q1, C, block.Q2, rank)
    _, kept, _ = block.engine.times(L, zeta, block.Q2[:, :1], block.Q2**2)
    assert kept is not None
    coverage = (block.Q1**2).T @ kept
    return bool(coverage.min() < 0.2 * coverage.max())


def _unknowns(L: LowRank, F1: Features, F2: Features) -> int:
    return L.rank * (F1.d + F2.d - L.rank)


def _truncated(C: Array, rank: int) -> Array:
    u, s, v = singular_triplets(C, rank)
    return (u * s) @ v.T


def _least_squares(
    engine: Engine, Q1: Array, C: Array, Q2: Array, zeta: float, rank: int, tol: float = 1e-3, most: int = 30
) -> Array:
    """The update X that minimises ``‖M − Q1 (C + X) Q2ᵀ‖`` over the entries that C, of rank ``rank``, keeps.

    By conjugate gradients; each step asks the engine once.
    """
    normal = engine.normal(LowRank.from_core(Q1, C, Q2, rank), zeta, Q1, Q2)
    return conjugate_gradients(normal.gradient, normal.times, tol, most)
