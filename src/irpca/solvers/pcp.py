"""Principal component pursuit (Candès, Li, Ma, Wright 2011), also with a bound on L (Hsu, Kakade, Zhang 2011)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..engines.base import Ascent, Dual, Engine, Trim
from ..features import Features
from ..lowrank import Array, LowRank, relative_distance
from ..result import State
from .convex import multipliers, shrunk
from .subspace import SPARE, leading, random_block


def pcp(
    engine: Engine,
    F1: Features,
    F2: Features,
    rank: None,
    *,
    lam: float | None = None,
    linf_bound: float | None = None,
    growth: float = 1.5,
    random_state: np.random.Generator,
) -> Iterator[State]:
    """PCP: min ‖L‖_* + λ ‖S‖₁ with L + S = M, by the inexact method of multipliers; features are not used.

    Singular vectors are warm-started: two reads an iteration, and two more wherever the rank grows. It needs a second
    matrix of the size of M in memory; the rank is found. Guarantee: a fixed share of all entries corrupted at random
    places, r up to the order of n / (μ log² n).

    Parameters
    ----------
    lam : float or None
        λ; None: 1/√max(n1, n2).
    linf_bound : float or None
        Bound on the entries of M − S, and so of L: the program of Hsu et al., which needs no random places. Thousands
        of iterations may be needed where it is smaller than the largest entry of L.
    growth : float
        Factor by which the penalty follows the residuals.
    """
    rule = multipliers(engine, lam, growth, linf_bound, random_state)
    dual = engine.dual()
    L = LowRank.zero(engine.shape)
    step = rule.step(L, None)
    V = random_block(engine.shape[1], 1 + SPARE, random_state)
    while True:
        # Y moves on with the first product, and S with it.
        Z = _Shifted(dual, L, rule.penalty, step)
        U, s, V = leading(Z, V, 1, most=1)
        while s[-1] > 1 / rule.penalty and len(s) < min(engine.shape):  # there may be more to keep
            more = random_block(engine.shape[1], len(s), random_state)
            V = np.linalg.qr(np.hstack([V, more]))[0][:, : min(engine.shape)]
            U, s, V = leading(Z, V, 1, most=1)
        assert Z.trim is not None
        kept = shrunk(s, 1 / rule.penalty)
        k = len(kept)
        new = LowRank(U[:, :k], np.diag(kept), V[:, :k])
        V = V[:, : k + SPARE]
        moved = relative_distance(new, L) * float(np.linalg.norm(kept)) if k else float(np.linalg.norm(L.core))
        rule.adapt(new, moved, Z.trim)
        yield rule.state(new, Z.trim, engine.dtype)
        step, L = rule.step(new, L), new


class _Shifted:
    """L + Y / penalty, of a dual variable that makes its step with the first product."""

    def __init__(self, dual: Dual, L: LowRank, penalty: float, step: Ascent) -> None:
        self.dual, self.penalty = dual, penalty
        self.U, self.V = L.thin()
        self.step: Ascent | None = step
        self.trim: Trim | None = None

    def times(self, X: Array) -> Array:
        YX, _, trim = self.dual.products(X, step=self.step)
        if self.step is not None:
            self.trim, self.step = trim, None
        return self.U @ (self.V.T @ X) + YX / self.penalty

    def t_times(self, X: Array) -> Array:
        _, YX, _ = self.dual.products(Y=X)
        return self.V @ (self.U.T @ X) + YX / self.penalty
