"""Features that explain a part of L only: L = Q1 C Q2ᵀ + U Vᵀ, a core C and a free part beside it.

Features of the columns alone are the case Q1 = I. The features are fitted alone at first, what they leave out acting as
noise. What is left then shows the directions of the free part, if any; least squares on the kept entries, for U, for V
and for C in turn, does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from ..engines.base import Engine, Transposed, Trim
from ..features import Features
from ..judge import Judge, choose_rank, noise_edge
from ..lowrank import Array, LowRank, relative_distance, singular_triplets
from ..regression import HARD_STARTS, conjugate_gradients, moment_columns, natural_ridge, row_scores, row_steps
from ..result import Choice, Expected, State
from ..sampling import BLOCK_ENTRIES
from ..threshold import MAJORITY_STARTS, Level, consensus, quantile, stray_lines
from .block_factors import RESCUES
from .sweeps import Falling, stray_doubts

MOST_DIRECTIONS = 8  # looked for at a time
ENTRIES_PER_UNKNOWN = 5  # the least for a free part that nobody asked for
MANY = 0.25  # gross errors, of all entries: a part of L may be among them
AT_ONCE = 0.5  # of the strongest direction: others as strong are added with it
POWERS = 4  # steps of subspace iteration
STARTS = ((0.3, 8.0), (0.1, 15.0))  # (q, k): no single one serves every level of corruption
SWEEPS = 40
PATIENCE = 30  # sweeps until a free part that nobody asked for has to be at rest
DIGITS = 1e-2  # by which conjugate gradients shorten the gradient of C in one sweep
CG_STEPS = 20
AT_REST, NEARLY = 1e-9, 1e-4  # relative steps of L that end a descent: without noise, and with
TINY = float(np.finfo(float).tiny)
VANISHING = 1e-14  # of the largest singular value: rounding


@dataclass(frozen=True, eq=False)
class Parts:
    """L as what features span, ``Q1 @ C @ Q2.T``, and what they do not, ``U @ V.T``. Q1 None: the identity."""

    Q1: Array | None
    C: Array
    Q2: Array
    U: Array
    V: Array

    @classmethod
    def of(cls, L: LowRank, Q1: Array | None, Q2: Array) -> Parts:
        """L itself, if it is in the span."""
        n1, n2 = L.shape
        return cls(Q1, _inside(Q1, L.left) @ L.core @ _inside(Q2, L.right).T, Q2, np.zeros((n1, 0)), np.zeros((n2, 0)))

    @property
    def L(self) -> LowRank:
        u, s, v = singular_triplets(self.C)
        some = s > VANISHING * s[0]
        within = (u * s)[:, some]
        left = np.hstack([within if self.Q1 is None else self.Q1 @ within, self.U])
        return LowRank(left, np.eye(left.shape[1]), np.hstack([self.Q2 @ v[:, some], self.V]))

    @property
    def free(self) -> int:
        return self.U.shape[1]

    def keep(self, free: int) -> Parts:
        """The strongest directions of the free part only."""
        kept = LowRank.from_product(self.U, self.V, free)
        return replace(self, U=kept.left @ kept.core, V=kept.right)

    @property
    def spanned(self) -> Array:
        """Singular values of all of L that features span."""
        L = self.L
        return LowRank.from_product(_inside(self.Q1, L.left), _inside(self.Q2, L.right)).singular_values


def _inside(Q: Array | None, B: Array) -> Array:
    return B if Q is None else Q.T @ B


def sweep(
    engine: Engine, parts: Parts, zeta: float, rank: int | None, noise: float = 0.0, rescue: bool = False
) -> tuple[Parts, Trim, tuple[Array, Array]]:
    """Least squares on the kept entries for C, for U, then for V. Also returns stray rows and columns.

    With noise, rows and columns of the free part of which little is kept stay small. ``rescue`` fits the free part of
    stray ones afresh, each with thresholds of its own.
    """
    if parts.Q1 is None:
        parts, stray_rows, trim = _rows_on_their_own(engine, parts, zeta, rank, noise, rescue)
    else:
        normal = engine.normal(parts.L, zeta, parts.Q1, parts.Q2)
        C = parts.C + conjugate_gradients(normal.gradient, normal.times, DIGITS, CG_STEPS)
        parts, trim = replace(parts, C=_truncated(C, rank)), normal.trim
        if not parts.free:
            return parts, trim, (np.zeros(0), np.zeros(0))
        V, R = np.linalg.qr(parts.V)
        parts = replace(parts, U=parts.U @ R.T, V=V)
        move, stray_rows, trim = _move(engine, parts.L, V, parts.U, zeta, noise, rescue)
        parts = replace(parts, U=parts.U + move)
    U, R = np.linalg.qr(parts.U)
    parts = replace(parts, U=U, V=parts.V @ R.T)
    move, stray_cols, trim = _move(Transposed(engine), parts.L.T, U, parts.V, zeta, noise, rescue)
    return replace(parts, V=parts.V + move), trim, (stray_rows, stray_cols)


def _rows_on_their_own(
    engine: Engine, parts: Parts, zeta: float, rank: int | None, noise: float, rescue: bool
) -> tuple[Parts, Array, Trim]:
    """C and U together: each row is regressed on the column features and on V, which is moved out of their span."""
    d = parts.Q2.shape[1]
    within = parts.Q2.T @ parts.V
    V, R = np.linalg.qr(parts.V - parts.Q2 @ within)
    parts = replace(parts, C=parts.C + parts.U @ within.T, U=parts.U @ R.T, V=V)
    coefficients, directions = np.hstack([parts.C, parts.U]), np.hstack([parts.Q2, V])
    move, stray, trim = _move(engine, parts.L, directions, coefficients, zeta, noise, rescue)
    coefficients = coefficients + move
    # What of the free part was in the span is in C now, beside what was there.
    most = None if rank is None else min(rank + parts.free, d)
    return replace(parts, C=_truncated(coefficients[:, :d], most), U=coefficients[:, d:]), stray, trim


def _truncated(C: Array, rank: int | None) -> Array:
    if rank is None:
        return C
    u, s, v = singular_triplets(C, rank)
    return (u * s) @ v.T


def _move(
    engine: Engine, L: LowRank, V: Array, U: Array, zeta: float, noise: float, rescue: bool
) -> tuple[Array, Array, Trim]:
    """The least-squares step of every row of U given V, and the stray rows."""
    products, sums, trim = engine.times(L, zeta, V, moment_columns(V))
    assert sums is not None
    move = row_steps(sums, products, natural_ridge(U, noise), U)
    stray = stray_lines(sums[:, -1], engine.counts[0])
    if rescue and len(stray):
        some = stray[: max(1, BLOCK_ENTRIES // len(V))]  # no more than a block
        left = engine.block(some, np.arange(len(V))) - L.rows(some)
        move[some] = row_scores(left + U[some] @ V.T, V, starts=HARD_STARTS) - U[some]
    return move, stray, trim


def beside(
    engine: Engine,
    F1: Features,
    F2: Features,
    rank: int | None,
    extra: int | None,
    alone: State,
    judge: Judge,
    sides: tuple[str, str],
) -> Iterator[State]:
    """The free part beside what features say, after a fit of these ``alone``; ``extra`` is None to be chosen.

    Ends without a settled state if there is no free part to be found, or none that is to be believed.
    """
    assert F2.Q is not None
    L = alone.L
    if extra is None and not _something_left(engine, alone, judge):
        return
    start = Parts.of(L, F1.Q, F2.Q)
    best, best_score = start, np.inf
    for q, k in MAJORITY_STARTS if judge.majority else STARTS:
        parts = _high_breakdown(engine, start, rank, L.rank, extra, q, k, judge)
        found = parts.L
        level = judge.level(found)
        yield State(LowRank.from_product(*found.thin()), level.zeta, 1.0, settled=False)
        score = judge.score(found)
        if score < best_score:
            best, best_score = parts, score
        if not judge.objection(found, level, engine.n_observed, _unknowns(best, rank), level):
            break
    if best.free:
        yield from _efficient(engine, best, F1, F2, rank, extra, judge, sides)


def _something_left(engine: Engine, alone: State, judge: Judge) -> bool:
    """Whether a direction stands out of what the features leave, or of that and what they leave to S."""
    looks = [alone.zeta]
    if (alone.expected_corruption or 0.0) > MANY:
        q, k = MAJORITY_STARTS[0]
        looks.append(k * quantile(judge.sample.sizes(alone.L), q))
    return any(leading(engine, alone.L, zeta, MOST_DIRECTIONS)[0].shape[1] for zeta in looks)


def _high_breakdown(
    engine: Engine, parts: Parts, rank: int | None, alone: int, extra: int | None, q: float, k: float, judge: Judge
) -> Parts:
    """ζ = k · quantile_q(|R|); directions are added as long as some stand out of what is left, and are worth it.

    ``alone`` is the rank of the features' own fit.
    """
    floor = judge.floor(parts.L)
    while True:
        L = parts.L
        if extra is None and judge.level(L).exact:
            return parts
        zeta = max(k * quantile(judge.sample.sizes(L), q), judge.floor(L))
        U, V = leading(engine, L, zeta, extra or MOST_DIRECTIONS, every=extra is not None)
        if not U.shape[1]:
            return parts
        grown = replace(parts, U=np.hstack([parts.U, U]), V=np.hstack([parts.V, V]))
        if extra is None and engine.n_observed < ENTRIES_PER_UNKNOWN * _unknowns(grown, rank or alone):
            return parts
        grown = _descend(engine, grown, rank, q, k, zeta, judge)
        if extra is not None:
            return grown
        if _description(engine, grown, rank, judge, floor) > _description(engine, parts, rank, judge, floor):
            return parts
        parts = grown


def _description(engine: Engine, parts: Parts, rank: int | None, judge: Judge, floor: float) -> float:
    """The length of what it takes to tell M by these parts: every unknown must pay for itself."""
    n = engine.n_observed
    return n * consensus(judge.sample.sizes(parts.L), floor) + 0.5 * np.log(n) * _unknowns(parts, rank)


def _descend(engine: Engine, parts: Parts, rank: int | None, q: float, k: float, zeta: float, judge: Judge) -> Parts:
    threshold = Falling(zeta)
    stray: tuple[Array, Array] = (np.zeros(0), np.zeros(0))
    for _ in range(SWEEPS):
        before = parts.L
        parts, _, stray = sweep(engine, parts, threshold.zeta, rank, judge.level(before).sigma)
        L = parts.L
        moved = relative_distance(L, before)
        last, floor = threshold.zeta, judge.floor(L)
        there = threshold.follow(max(k * quantile(judge.sample.sizes(L), q), floor), stray)
        falling = threshold.zeta < last / 1.02
        if there and not falling and moved <= (NEARLY if threshold.zeta > floor else AT_REST):
            break
    return parts


def leading(engine: Engine, L: LowRank, zeta: float, most: int, every: bool = False) -> tuple[Array, Array]:
    """The leading directions ``U @ V.T`` of T, as many as stand out of noise, or every one of ``most``."""
    V = np.linalg.qr(np.random.default_rng(0).standard_normal((engine.shape[1], most)))[0]
    for _ in range(POWERS):
        U = np.linalg.qr(engine.times(L, zeta, V)[0].astype(float))[0]
        V, R = np.linalg.qr(engine.t_times(L, zeta, U)[0].astype(float))
    n1, n2 = engine.shape
    _, per_col, trim = engine.t_times(L, zeta, U[:, :1], np.ones((n1, 1)))
    _, per_row, _ = engine.times(L, zeta, V[:, :1], np.ones((n2, 1)))
    assert per_row is not None and per_col is not None
    u, s, v = singular_triplets(R.T)
    # As noise_edge, for a matrix that is zero wherever nothing is kept.
    edge = np.sqrt(trim.energy / max(trim.kept, 1)) * (np.sqrt(per_row.max()) + np.sqrt(per_col.max()) + 1)
    # A threshold bends what it cuts, and so makes weaker directions out of a strong one: those may wait.
    stand_out = np.ones(len(s), bool) if every else s > max(1.1 * edge, AT_ONCE * s[0])
    share = max(trim.kept, 1) / (n1 * n2)  # the others count as missing
    return (U @ (u * s))[:, stand_out] / share, (V @ v)[:, stand_out]


def _efficient(
    engine: Engine,
    parts: Parts,
    F1: Features,
    F2: Features,
    rank: int | None,
    extra: int | None,
    judge: Judge,
    sides: tuple[str, str],
) -> Iterator[State]:
    """The threshold follows the noise; ranks are chosen when all is at rest."""
    chosen: dict[str, Choice] = {}
    asked, unknowns = extra is not None, _unknowns(parts, rank)
    seen = now = judge.level(parts.L, unknowns)
    threshold = Falling(now.zeta)
    step, rescues = np.inf, RESCUES
    rescue = False
    for sweeps in count(1):
        before = parts.L
        parts, trim, stray = sweep(engine, parts, threshold.zeta, rank, now.sigma, rescue)
        rescue = False
        L = parts.L
        last, step = step, relative_distance(L, before)
        now, steady = judge.updated(now, L, unknowns)
        settled = threshold.follow(now.zeta, stray) and steady
        if settled and rescues and (len(stray[0]) or len(stray[1])):
            rescue, rescues, settled = True, rescues - 1, False
        if settled and step < 0.1 and (rank is None or extra is None):
            parts, picked = _picked(engine, parts, rank, extra, now, judge)
            chosen.update((choice.name, choice) for choice in picked)
            rank = chosen["rank"].value if rank is None else rank
            settled = False
            if not parts.free:
                return
            extra = parts.free
            unknowns = _unknowns(parts, rank)
        objection = judge.objection(L, now, engine.n_observed, unknowns, seen)
        if not asked and ((settled and objection) or (sweeps > PATIENCE and not settled and step > NEARLY)):
            return  # the features alone are the better answer
        rate = step / last if steady and last > 0 else 1.0
        L = _completed(L, F1, F2, engine.counts)
        doubts = stray_doubts(sides, stray)
        state = judge.state(L, now, step, trim, tuple(chosen.values()), objection, unknowns, doubts, rate)
        state = replace(state, **_told(L, F1, F2))
        if sweeps > PATIENCE and not now.exact:  # along directions that hardly matter, L goes on for long
            state = replace(state, tolerance=max(state.tolerance, NEARLY))
        yield state if settled else replace(state, settled=False)


def _picked(
    engine: Engine, parts: Parts, rank: int | None, extra: int | None, now: Level, judge: Judge
) -> tuple[Parts, list[Choice]]:
    """Parts of the ranks that suit them, and what was chosen."""
    noise, clean = max(now.sigma, now.floor), max(now.clean, 0.01) * judge.observed_share
    choices: list[Choice] = []
    if extra is None and now.exact:
        choices.append(Choice("extra_rank", parts.free, "as many directions had to be added until L was exact"))
    elif extra is None:
        free = LowRank.from_product(parts.U, parts.V)
        choices.append(_directions(free.singular_values, engine.shape, noise, clean))
        parts = parts.keep(choices[-1].value)
    if rank is None:
        choice = choose_rank(
            parts.spanned if now.exact else np.linalg.svd(parts.C, compute_uv=False), parts.C.shape, noise, clean
        )
        fewer = choice.value - parts.free  # if the free part reaches into the span of the features
        if now.exact and fewer > 0 and judge.level(_again(engine, parts, fewer, judge).L).exact:
            choice = replace(choice, value=fewer)
        parts = _again(engine, parts, choice.value, judge) if now.exact else parts
        choices.append(choice)
    return parts, choices


def _again(engine: Engine, parts: Parts, rank: int | None, judge: Judge) -> Parts:
    """Parts that were exact but for a change, fitted again."""
    q, k = MAJORITY_STARTS[0]
    return _descend(engine, parts, rank, q, k, k * quantile(judge.sample.sizes(parts.L), q), judge)


def _directions(s: Array, shape: tuple[int, int], noise: float, clean: float) -> Choice:
    """How many free directions stand out of the noise; there may be none."""
    choice = replace(choose_rank(s, shape, noise, clean), name="extra_rank")
    return choice if s[0] > noise_edge(shape, noise, clean) else replace(choice, value=0)


def _unknowns(parts: Parts, rank: int | None) -> int:
    (n1, k), n2, (d1, d2) = parts.U.shape, len(parts.V), parts.C.shape
    r = rank or min(d1, d2)
    return r * (d1 + d2 - r) + k * (n1 + n2 - k)


def _completed(L: LowRank, F1: Features, F2: Features, counts: tuple[Array, Array]) -> LowRank:
    """L with orthonormal factors, and what features say of it where a row or column has no observed entry."""
    left, right = L.thin()
    return LowRank.from_product(_as_expected(left, F1, counts[0] > 0), _as_expected(right, F2, counts[1] > 0))


def _as_expected(B: Array, F: Features, seen: Array) -> Array:
    if F.Q is None or seen.all():
        return B
    said = F.Q @ np.linalg.lstsq(F.Q[seen], B[seen], rcond=None)[0]
    return np.where(seen[:, None], B, said)


def _told(L: LowRank, F1: Features, F2: Features) -> dict[str, Any]:
    """What the features say of L, and of rows and columns that were never seen: its projection on their span."""
    left, right = _inside(F1.Q, L.left), _inside(F2.Q, L.right)
    inside = float((LowRank.from_product(left @ L.core, right).core ** 2).sum() / max((L.core**2).sum(), TINY))
    expected = tuple(
        Expected(np.zeros(B.shape[1]), F.solve(B)) if F.given else None for F, B in ((F1, left), (F2, right))
    )
    return {"expected": expected, "shares": {"features": inside, "free": 1 - inside}}
