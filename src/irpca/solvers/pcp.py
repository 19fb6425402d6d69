"""Principal component pursuit (Candès, Li, Ma, Wright 2011), also with a bound on L (Hsu, Kakade, Zhang 2011)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..lowrank import LowRank, relative_distance
from ..problem import Problem
from ..result import State
from .convex import extrapolated, multipliers, shrunk
from .dense import DenseMatrix, Sum
from .subspace import SPARE, leading, random_block


def iterate(
    problem: Problem, *, lam: float | None = None, linf_bound: float | None = None, growth: float = 1.5
) -> Iterator[State]:
    """PCP: min ‖L‖_* + λ ‖S‖₁ with L + S = M, by the inexact method of multipliers; features are not used.

    Singular vectors are warm-started: two reads an iteration, and two more wherever the rank grows. It needs M in
    memory or on a GPU, and a second matrix of its size there; the rank is found. Guarantee: a fixed share of all
    entries corrupted at random places, r up to the order of n / (μ log² n).

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
    engine, random_state = problem.engine, problem.generator()
    rule = multipliers(engine, lam, growth, linf_bound, random_state)
    M = DenseMatrix(engine)
    Y = M.zeros()
    L = B = LowRank.zero(engine.shape)
    V = random_block(engine.shape[1], 1 + SPARE, random_state)
    while True:
        # S ← soft(M − L + Y/p, λ/p); Y ← Y + p (M − L − S).
        trim = rule.ascend(M, Y, B)
        # L ← svt(M − S + Y/p, 1/p).
        Z = Sum(M, L, Y, 1 / rule.penalty)  # M − S + Y/p
        U, s, V = leading(Z, V, 1, most=1)
        while s[-1] > 1 / rule.penalty and len(s) < min(engine.shape):  # there may be more to keep
            more = random_block(engine.shape[1], len(s), random_state)
            V = np.linalg.qr(np.hstack([V, more]))[0][:, : min(engine.shape)]
            U, s, V = leading(Z, V, 1, most=1)
        kept = shrunk(s, 1 / rule.penalty)
        k = len(kept)
        new = LowRank(U[:, :k], np.diag(kept), V[:, :k])
        V = V[:, : k + SPARE]
        moved = relative_distance(new, L) * float(np.linalg.norm(kept)) if k else float(np.linalg.norm(L.core))
        rule.adapt(new, moved, trim)
        yield rule.state(new, trim, engine.dtype)
        L, B = new, extrapolated(new, L, rule.previous / rule.penalty)
