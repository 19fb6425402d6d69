"""Ours, the default: trimmed least squares in whitened feature space, with thresholds from the data.

Three ideas carry it. Flagged entries are treated as missing, so that each step is least squares on the kept ones. The
threshold tunes itself in two phases, as MM-estimators do: a start that survives most entries being corrupted, then a
finish about as accurate as if the corruption were known. And W is found on a block of M, since every block of M has the
same W; all of M is read only to check, to refine under noise, and to write S.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count, islice

import numpy as np

from ..engines.base import Engine, Normal, Transposed, Trim
from ..features import Features
from ..judge import GLANCE, LEFT_OUT, QUICK, STILL_LEFT_OUT, Judge, choose_rank
from ..lowrank import Array, LowRank, relative_change, relative_distance, singular_triplets
from ..regression import conjugate_gradients
from ..result import Choice, State
from ..sampling import Block, Sample, blocks, draw_lines, whole
from ..threshold import MAJORITY_STARTS, STARTS, Level, quantile
from .alternating import alternating
from .beside import beside
from .sweeps import DECAY

CROWDED = 0.05  # unknowns per entry beyond which a fit of full rank is easily led astray
AT_REST = 1e-9  # after a step this short, relative to L, the next would be below rounding
ROUNDING = 1e-16  # of L; no step need be more accurate
CLOSE = 0.1  # of the smallest singular value of L: a step this long keeps to the matrices of its rank
MOST_STEPS = 40  # of conjugate gradients
LOOKS = 2  # at larger blocks, while there are rows that were missed
LINES, PER_LINE = 256, 128  # to look at for that
PHASE_1 = 40  # iterations of one start; those that succeed need 4 to 12


def irpca(
    engine: Engine,
    F1: Features,
    F2: Features,
    rank: int | None,
    *,
    extra_rank: int | str = 0,
    noise: float | None = None,
    random_state: np.random.Generator,
) -> Iterator[State]:
    """Trimmed least squares in whitened feature space.

    Parameters
    ----------
    rank : int or None
        None: chosen from the spectrum against the noise.
    extra_rank : int or "auto"
        The rank of a free part of L beside what features span, if these may not tell all. Without features all of L is
        free, and this means nothing.
    noise : float or None
        Standard deviation of the noise, if it is known.
    """
    if noise is not None and (isinstance(noise, bool) or not 0 <= noise < np.inf):
        raise ValueError(f"noise must be a standard deviation, not negative and finite, got {noise!r}")
    extra = _free_directions(extra_rank, engine.shape)
    if F1.given and not F2.given:  # the same problem from the other side
        for state in _told_apart(Transposed(engine), F2, F1, rank, extra, noise, random_state, ("column", "row")):
            expected = state.expected and state.expected[::-1]
            yield replace(
                state, L=state.L.T, one_by_one=tuple(1 - axis for axis in state.one_by_one), expected=expected
            )
    else:
        yield from _told_apart(engine, F1, F2, rank, extra, noise, random_state)


def _told_apart(
    engine: Engine,
    F1: Features,
    F2: Features,
    rank: int | None,
    extra: int | None,
    noise: float | None,
    rng: np.random.Generator,
    sides: tuple[str, str] = ("row", "column"),
) -> Iterator[State]:
    """Features of both sides, of the columns, or none; ``sides`` is what the user calls the two."""
    free = F2.given and extra != 0
    if F1.given:
        judge = Judge(engine, noise, rng, lagging=False, entries=GLANCE)
        fits = inductive(engine, F1, F2, rank, judge, rng, patient=not free)
    else:
        judge = Judge(engine, noise, rng)
        fits = alternating(engine, F2, rank, judge, rng, sides)
    if free:
        fits = _imperfect(engine, F1, F2, rank, extra, fits, judge, rng, sides)
    yield from fits


def _free_directions(extra_rank: int | str, shape: tuple[int, int]) -> int | None:
    """The number asked for, or None for it to be chosen."""
    if isinstance(extra_rank, str) and extra_rank == "auto":
        return None
    if isinstance(extra_rank, bool) or not isinstance(extra_rank, (int, np.integer)):
        raise ValueError(f"extra_rank must be an integer or 'auto', got {extra_rank!r}")
    if not 0 <= extra_rank < min(shape):
        raise ValueError(f"extra_rank={extra_rank} is out of range for a {shape[0]} × {shape[1]} matrix")
    return int(extra_rank)


def _imperfect(
    engine: Engine,
    F1: Features,
    F2: Features,
    rank: int | None,
    extra: int | None,
    fits: Iterator[State],
    judge: Judge,
    rng: np.random.Generator,
    sides: tuple[str, str],
) -> Iterator[State]:
    """Features that may not tell all: what they leave out decides. ``fits`` are those of the features alone."""
    for state in islice(fits, PHASE_1):
        if state.settled and state.step <= max(AT_REST, state.tolerance):
            break
        yield replace(state, settled=False)
    if extra is not None or state.noise != 0 or state.failure:
        of_lines = Judge(engine, judge.noise, rng)
        of_lines.majority = judge.majority
        yield from beside(engine, F1, F2, rank, extra, state, of_lines, sides)  # ends only if there is nothing beside
    none = Choice("extra_rank", 0, "no direction outside the features is worth its unknowns")
    for following in chain([state], fits):
        doubts = tuple(STILL_LEFT_OUT if doubt == LEFT_OUT else doubt for doubt in following.doubts)
        yield replace(following, choices=(*following.choices, none), doubts=doubts)


def inductive(
    engine: Engine,
    F1: Features,
    F2: Features,
    rank: int | None,
    judge: Judge,
    rng: np.random.Generator,
    patient: bool = True,
) -> Iterator[State]:
    """Features on both sides: L = Q1 C Q2ᵀ with a small core C. Not patient: no larger block than the usual one."""
    most, share = min(F1.d, F2.d), judge.observed_share

    candidates = blocks(engine, F1, F2, rng) if patient else _first_blocks(engine, F1, F2, rng)
    fit = yield from _on_blocks(candidates, rank or most, judge, rng)
    doubts: tuple[str, ...] = ()
    if not fit.level.exact and not judge.distinct(fit.L):
        judge.majority = True
        if rank is None and F1.d * F2.d > CROWDED * engine.n_observed:
            doubts = (
                f"to choose the rank, all {F1.d} × {F2.d} coefficients were fitted to {engine.n_observed} entries, and "
                "no gap between noise and gross errors was found: give the rank, which survives far more corruption",
            )
        elif rank is not None and rank * (F1.d + F2.d - rank) > CROWDED * engine.n_observed:
            doubts = (
                f"no gap between noise and gross errors was found, and {engine.n_observed} entries are few for "
                f"{rank * (F1.d + F2.d - rank)} unknowns: what is noise and what is not is a guess",
            )
        candidates = blocks(engine, F1, F2, rng) if patient else _first_blocks(engine, F1, F2, rng)
        fit = yield from _on_blocks(candidates, rank or most, judge, rng)

    looks = LOOKS
    while missed := fit.level.exact and _missed_lines(engine, F1, F2, fit, rng):
        block = next(candidates, None) if looks else None
        if block is None:
            break
        looks -= 1
        fit = yield from _on_blocks(chain([block], candidates), rank or most, judge, rng)
    if missed:
        doubts += (
            "some rows or columns that nearly alone speak for a feature disagree with L almost everywhere: what L says "
            "of them is not to be trusted",
        )
    L, now = fit.L, fit.level

    # All of M. If L is exact on every clean entry looked at, the last read is all that is left to do.
    chosen: tuple[Choice, ...] = ()
    if now.exact:
        if rank is None:
            # In the block's own coordinates: those of all of M stretch the block's rounding errors.
            chosen = (choose_rank(fit.on_block.singular_values, (F1.d, F2.d), now.floor, now.clean * share),)
            rank = chosen[0].value
            L = fit.block.lift(fit.on_block.truncate(rank))
        objection = judge.objection(L, now, engine.n_observed, _unknowns(L, F1, F2), now)
        yield judge.state(L, now, 0.0, None, chosen, objection, doubts=doubts)
    del fit, candidates  # and what is as long as M with them
    assert F1.Q is not None and F2.Q is not None
    C = (F1.Q.T @ L.left) @ L.core @ (L.right.T @ F2.Q)
    all_of_M = whole(engine, F1, F2) if share < 1 else None
    Q1, Q2 = engine.place(F1.Q), engine.place(F2.Q)
    step, steady = np.inf, False
    for reads in count(1):
        if all_of_M is None:
            # Flagged entries count as missing, hence the division by the kept share.
            G, trim = engine.core(L, now.zeta, Q1, Q2)
            u, s, v = singular_triplets(C + G / max(trim.kept_share, 0.01), rank)
        else:  # holes may be anywhere, and many: only least squares gets over them
            L, _, trim = _least_squares(all_of_M, L, now.zeta, rank or most)
            u, s, v = singular_triplets((F1.Q.T @ L.left) @ L.core @ (L.right.T @ F2.Q), rank)
        last, step = step, relative_change((u * s) @ v.T, C)
        rate = step / last if steady and last > 0 else 1.0  # a new threshold would be another iteration
        if rank is None and reads == 2:  # the block's own error is gone now; what is left is the noise of all of M
            chosen = (choose_rank(s, C.shape, now.sigma, now.clean * share),)
            rank = chosen[0].value
            u, s, v = u[:, :rank], s[:rank], v[:, :rank]
        C = (u * s) @ v.T
        L = LowRank(F1.Q, C, F2.Q) if rank is None else LowRank(F1.Q @ u, np.diag(s), F2.Q @ v)
        now, steady = judge.updated(now, L)
        unknowns = _unknowns(L, F1, F2)
        objection = judge.objection(L, now, engine.n_observed, unknowns, now)
        state = judge.state(L, now, step, trim, chosen, objection, unknowns, doubts, rate)
        if not (steady and rank is not None):
            yield replace(state, settled=False)
        elif state.step <= state.tolerance and judge.leaves_structure(L, now.zeta):
            yield replace(state, doubts=(*doubts, LEFT_OUT))
        else:
            yield state


def _first_blocks(engine: Engine, F1: Features, F2: Features, rng: np.random.Generator) -> Iterator[Block]:
    for block in blocks(engine, F1, F2, rng):
        yield block
        if not block.small:
            break


@dataclass(frozen=True, eq=False)
class _Fit:
    """What was found on a block, the same for all of M, and what the judge says of it."""

    block: Block
    on_block: LowRank
    L: LowRank
    level: Level
    score: float
    objection: str | None

    @property
    def convincing(self) -> bool:
        return self.objection is None and (self.level.exact or not self.block.small)


def _on_blocks(
    candidates: Iterable[Block], rank: int, judge: Judge, rng: np.random.Generator
) -> Generator[State, None, _Fit]:
    """The best fit on blocks of growing size, up to the first convincing one."""
    fit: _Fit | None = None
    for block in candidates:
        judge.look(GLANCE if block.small else QUICK)
        starts = MAJORITY_STARTS if judge.majority else STARTS
        for q, k in starts[:1] if block.small else starts:
            found = _start(block, rank, q, k, judge, rng)
            yield State(found.L, found.level.zeta, 1.0, settled=False)
            fit = found if fit is None or fit.block.small or found.score < fit.score else fit
            if fit.convincing:
                return _finish(fit, rank, judge)
    assert fit is not None
    return _finish(fit, rank, judge)


def _finish(fit: _Fit, rank: int, judge: Judge) -> _Fit:
    """Phase 2 on the block: the threshold that suits the noise, estimated anew until it stays."""
    block = fit.block
    for _ in range(PHASE_1):
        if fit.level.exact:
            break
        on_block, moved, _ = _least_squares(block, fit.on_block, fit.level.zeta, rank)
        L = block.lift(on_block)
        before = fit.level
        fit = replace(fit, on_block=on_block, L=L, level=judge.level(L))
        if moved < 1e-3 and fit.level.sigma > 0.95 * before.sigma:
            break
    return fit


def _start(block: Block, rank: int, q: float, k: float, judge: Judge, rng: np.random.Generator) -> _Fit:
    """Phase 1 on a block, and the judge's view of it.

    Features such as indicators tie a coefficient to a few cells of M. A threshold that falls at once can trim those
    cells whole, and the coefficient never comes back; then the start is made again with one that falls slowly.
    """
    sample = judge.telling(Sample.draw(block.engine, 1 << 13, rng))
    on_block, zeta = _high_breakdown(block, sample, rank, q, k, judge)
    if _uncovered(block, on_block, zeta):
        top = float(np.abs(sample.values).max())
        on_block, _ = _high_breakdown(block, sample, rank, q, k, judge, top, DECAY)
    largest = float(np.abs(sample.at(on_block)).max())
    seen = judge.judged(sample.sizes(on_block), largest, 0.0)
    L = block.lift(on_block)
    found = judge.level(L)
    objection = judge.objection(L, found, block.engine.n_observed, _unknowns(L, block.F1, block.F2), seen)
    return _Fit(block, on_block, L, found, judge.score(L), objection)


def _high_breakdown(
    block: Block,
    sample: Sample,
    rank: int,
    q: float,
    k: float,
    judge: Judge,
    top: float = 0.0,
    decay: float = np.inf,
) -> tuple[LowRank, float]:
    """ζ = k · quantile_q(|R|), least squares on what it keeps, truncation, repeat; returns L and the last ζ."""
    L, zeta, floor = LowRank.zero(block.engine.shape), np.inf, 0.0
    for _ in range(PHASE_1):
        lowest = top if np.isinf(zeta) else zeta / decay
        before, zeta = zeta, max(k * quantile(sample.sizes(L), q), lowest, floor)
        L, moved, _ = _least_squares(block, L, zeta, rank)
        floor = judge.floor_of(float(np.abs(sample.at(L)).max()))
        falling = zeta > 1.02 * floor and zeta < before / 1.02
        at_rest = moved <= AT_REST and not (falling and np.isfinite(decay))
        if at_rest or (moved <= 0.01 and zeta > floor and not falling):
            break
    return L, zeta


def _missed_lines(engine: Engine, F1: Features, F2: Features, fit: _Fit, rng: np.random.Generator) -> bool:
    """Whether rows or columns are wrong that are too few to be missed: those that alone speak for a direction."""
    n = engine.shape
    for axis, F in enumerate((F1, F2)):
        if F.coherent:
            lines = draw_lines(F, min(LINES, F.n), rng)  # those of high leverage first
            across = rng.integers(n[1 - axis], size=(len(lines), PER_LINE))
            along = np.broadcast_to(lines[:, None], across.shape)
            rows, cols = (along.ravel(), across.ravel()) if axis == 0 else (across.ravel(), along.ravel())
            sizes = np.abs(engine.entries(rows, cols) - fit.L.entries(rows, cols)).reshape(across.shape)
            if ((sizes <= fit.level.zeta).mean(axis=1) < 0.25 * fit.level.clean).any():
                return True
    return False


def _uncovered(block: Block, L: LowRank, zeta: float) -> bool:
    """Whether some coefficient of the core has lost nearly all entries it could be seen at."""
    _, kept, _ = block.engine.times(L, zeta, block.Q2[:, :1], block.Q2**2)
    assert kept is not None
    coverage = (block.Q1**2).T @ kept
    return bool(coverage.min() < 0.2 * coverage.max())


def _unknowns(L: LowRank, F1: Features, F2: Features) -> int:
    return L.rank * (F1.d + F2.d - L.rank)


def _least_squares(block: Block, L: LowRank, zeta: float, rank: int) -> tuple[LowRank, float, Trim]:
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
    digits = float(np.clip(max(min(off, 1.0) ** 2, ROUNDING / max(off, ROUNDING)), 1e-10, 1e-2))
    u, v = block.Q1.T @ L.left, block.Q2.T @ L.right
    if 0 < 4 * L.rank <= min(len(u), len(v)) and off * size < CLOSE * L.singular_values[-1]:
        return *_along_rank(block, L, u, v, normal, digits), normal.trim
    C = u @ L.core @ v.T
    new = LowRank.from_core(
        block.Q1, C + conjugate_gradients(normal.gradient, normal.times, digits, MOST_STEPS), block.Q2, rank
    )
    return new, relative_distance(new, L), normal.trim


def _along_rank(block: Block, L: LowRank, u: Array, v: Array, normal: Normal, digits: float) -> tuple[LowRank, float]:
    """The step u Bᵀ + A vᵀ, A orthogonal to u: all directions in which L = Q1 u s vᵀ Q2ᵀ can move at its rank."""
    d1 = len(u)

    def tangent(left: Array, right: Array) -> Array:
        return np.vstack([left - u @ (u.T @ left), right])

    def operator(P: Array) -> Array:
        A, B = P[:d1], P[d1:]
        step = LowRank(np.hstack([L.left, block.Q1 @ A]), np.eye(2 * L.rank), np.hstack([block.Q2 @ B, L.right]))
        KX, KY = normal.sides(step, L.right, L.left)
        return tangent(block.Q1.T @ KX, block.Q2.T @ KY)

    step = conjugate_gradients(tangent(normal.gradient @ v, normal.gradient.T @ u), operator, digits, MOST_STEPS)
    A, B = step[:d1], step[d1:]
    core = LowRank.from_product(np.hstack([u, A]), np.hstack([v @ L.core.T + B, v]), L.rank)
    new = LowRank(block.Q1 @ core.left, core.core, block.Q2 @ core.right)
    return new, float(np.linalg.norm(step) / np.linalg.norm(new.core))
