"""One sweep over a matrix with a free side: least squares on the kept entries for U, then for V."""

from __future__ import annotations

import numpy as np

from ..engines.base import Engine, Transposed, Trim
from ..lowrank import Array, LowRank
from ..regression import Starts, moment_columns, natural_ridge, row_scores, row_steps, span_step
from ..sampling import BLOCK_ENTRIES
from ..threshold import stray_lines

DECAY = 5.0  # a common threshold that falls faster trims rows that lag behind, whole, and they never come back


def sweep(
    engine: Engine,
    L: LowRank,
    Q2: Array | None,
    zeta: float,
    rescue: Starts | None = None,
    floor: float = 0.0,
    noise: float = 0.0,
) -> tuple[LowRank, Trim, tuple[Array, Array]]:
    """Least squares on the kept entries for U, then for V: two reads of M. Also returns stray rows and columns.

    With noise, rows and columns of which little is kept stay small.
    """
    rank = L.rank
    U, V = L.thin()
    V, R = np.linalg.qr(V)
    U = U @ R.T
    move, _, stray_rows = _row_move(engine, LowRank(U, np.eye(rank), V), V, U, zeta, rescue, floor, noise)
    U, R = np.linalg.qr(U + move)
    V = V @ R.T
    L = LowRank(U, np.eye(rank), V)
    stray_cols = np.zeros(0, int)
    if Q2 is None:
        move, trim, stray_cols = _row_move(Transposed(engine), L.T, U, V, zeta, rescue, floor, noise)
    else:
        products, sums, trim = engine.t_times(L, zeta, U, moment_columns(U))
        assert sums is not None
        move = Q2 @ span_step(Q2, sums, products)
    return LowRank.from_product(U, V + move), trim, (stray_rows, stray_cols)


def _row_move(
    engine: Engine, L: LowRank, V: Array, U: Array, zeta: float, rescue: Starts | None, floor: float, noise: float
) -> tuple[Array, Trim, Array]:
    """The least-squares step of every row given V, and the stray rows; ``rescue`` fits those afresh."""
    products, sums, trim = engine.times(L, zeta, V, moment_columns(V))
    assert sums is not None
    move = row_steps(sums, products, natural_ridge(U, noise), U)
    stray = stray_lines(sums[:, -1], engine.counts[0])
    if rescue is not None and len(stray):
        some = stray[: max(1, BLOCK_ENTRIES // len(V))]  # no more than a block
        move[some] = row_scores(engine.block(some, np.arange(len(V))), V, starts=rescue, floor=floor) - U[some]
    return move, trim, stray


class Falling:
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


def strongest(engine: Engine, L: LowRank, zeta: float, Q2: Array | None = None, powers: int = 6) -> Array:
    """The leading right singular vector of T, within the span of the column features, by a few power steps."""
    v = np.ones((engine.shape[1], 1)) + np.random.default_rng(0).standard_normal((engine.shape[1], 1))
    for _ in range(powers):
        u = engine.times(L, zeta, v)[0].astype(float)
        v = engine.t_times(L, zeta, u)[0].astype(float)
        v = v if Q2 is None else Q2 @ (Q2.T @ v)
        v /= max(np.linalg.norm(v), np.finfo(float).tiny)
    return v


def unknowns_of(L: LowRank, Q2: Array | None) -> int:
    n1, n2 = L.shape
    return L.rank * (n1 + (n2 if Q2 is None else Q2.shape[1]) - L.rank)


def stray_doubts(sides: tuple[str, str], stray: tuple[Array, Array]) -> tuple[str, ...]:
    """Say where L is not known, because most of a row or column disagrees with the rest of M."""
    return tuple(
        f"{len(lines)} {side}{'s disagree' if len(lines) > 1 else ' disagrees'} with the rest of M in more than half "
        f"of what others agree on ({', '.join(map(str, lines[:8]))}{', …' if len(lines) > 8 else ''}): "
        "L is not to be trusted there"
        for side, lines in zip(sides, stray, strict=True)
        if len(lines)
    )
