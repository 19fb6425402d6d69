"""Accelerated alternating projections (Cai, Cai, Wei 2019): the singular vectors from the tangent space alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from ..arguments import number
from ..lowrank import LowRank, relative_distance
from ..problem import Problem
from ..result import Choice, State
from .endings import nothing_left, saturation, threshold_floor
from .subspace import SPARE, Cleaned, first_look, leading


def iterate(
    problem: Problem, *, beta: float | None = None, beta_init: float | None = None, decay: float = 0.7
) -> Iterator[State]:
    """AccAltProj; features are not used.

    ``ζ = β (σ_{r+1} + γᵗ σ_1)``, with the singular values of M − S projected onto the tangent space of L: one read
    of M per iteration. It needs the rank, and memory for factors alone. Guarantee: a share of any row or column
    corrupted of the order of 1 / (μ r² κ²), κ the condition number of L.

    Parameters
    ----------
    beta, beta_init : float or None
        Threshold per unit of singular value, later and at the start. None: (n1 n2)^(-1/4) / 2, as in the authors'
        code, and twice that. They start with four times as much, which lost 20 of 20 problems with outliers a thousand
        times as large; as much lost 13 of 40 with those of the paper, where both others lost 6 (n = 200, r = 3).
    decay : float
        γ: the closer to 1, the more corruption is tolerated, in more iterations.
    """
    engine, rank, random_state = problem.engine, problem.needed_rank, problem.generator()
    number(decay, "decay", above=0, below=1)
    n1, n2 = engine.shape
    later = (n1 * n2) ** -0.25 / 2 if beta is None else number(beta, "beta", above=0)
    start = 2 * later if beta_init is None else number(beta_init, "beta_init", above=0)
    choices = (Choice("beta", later, "(n1 n2)^(-1/4) / 2, since none was given"),) if beta is None else ()

    L = LowRank.zero(engine.shape)
    sigma_1, V, _ = first_look(engine, rank + SPARE, random_state)
    M_S = Cleaned(engine, L, start * sigma_1)
    U, s, V = leading(M_S, V, rank)
    U, s, V = U[:, :rank], s[:rank], V[:, :rank]
    L = LowRank(U, np.diag(s), V)
    zeta = later * s[0]
    yield State(L, zeta, 1.0, M_S.trim, settled=False, choices=choices)
    for t in count(1):
        # Z = M − S = L + T, projected onto the tangent space of L: its part outside both spans is what is new.
        TV, TtU, trim = engine.products(L, zeta, V, U)
        ZV, ZtU = U * s + TV, V * s + TtU
        inner = U.T @ ZV
        Q1, R1 = np.linalg.qr(ZtU - V @ inner.T)
        Q2, R2 = np.linalg.qr(ZV - U @ inner)
        small = np.block([[inner, R1.T], [R2, np.zeros((rank, rank))]])
        u, values, vt = np.linalg.svd(small)
        U = np.hstack([U, Q2]) @ u[:, :rank]
        V = np.hstack([V, Q1]) @ vt[:rank].T
        s = values[:rank]
        new = LowRank(U, np.diag(s), V)
        lowest = max(later * values[rank], threshold_floor(new, engine.dtype))
        zeta = max(later * (values[rank] + decay**t * s[0]), lowest)
        yield State(
            new,
            zeta,
            relative_distance(new, L),
            trim,
            settled=zeta <= 1.1 * lowest or nothing_left(new, trim),
            failure=saturation(1 - trim.kept_share),
            choices=choices,
        )
        L = new
