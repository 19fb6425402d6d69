"""Principal component pursuit with features (Chiang, Hsieh, Dhillon 2016)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..lowrank import Array, LowRank, singular_triplets
from ..problem import Problem
from ..result import State
from .convex import multipliers, shrunk
from .dense import DenseMatrix


def iterate(
    problem: Problem, *, program: str = "whitened", lam: float | None = None, growth: float = 1.5
) -> Iterator[State]:
    """PCPF: min ‖H‖_* + λ ‖S‖₁ with F1 H F2ᵀ + S = M, by the method of multipliers.

    The singular-value step is exact and d1×d2; one read of M an iteration. It needs features of rows or columns, M in
    memory or on a GPU and a second matrix of its size there; the rank is found. Guarantee: a fixed share of all entries
    corrupted at random places, r up to the order of n² / (d log n log d), features and L incoherent.

    Parameters
    ----------
    program : {"whitened", "raw"}
        ``"whitened"`` has orthonormal features in the place of F1, F2, as the authors assume: it is ‖L‖_* that is
        small, and the units of features do not matter. ``"raw"`` has F1, F2 as they are, a different program unless
        they are orthonormal; its singular-value step is linearised, and takes thousands of iterations if they are
        badly conditioned.
    lam : float or None
        λ; None: 1/√max(n1, n2).
    growth : float
        Factor by which the penalty follows the residuals.
    """
    engine, F1, F2, random_state = problem.engine, problem.F1, problem.F2, problem.generator()
    if program not in ("whitened", "raw"):
        raise ValueError(f"program={program!r} is unknown; choose 'whitened' or 'raw'")
    if not (F1.given or F2.given):
        raise ValueError("solver='pcpf' needs features of rows or columns; solver='pcp' is the same without")
    rule = multipliers(engine, lam, growth, None, random_state)
    raw = program == "raw"
    R1, R2 = (F1.R, F2.R) if raw else (None, None)
    # The quadratic term is bounded by tau times the identity in the coordinates of H; whitened, it is the identity.
    size = F1.sigma_max * F2.sigma_max
    if raw and not 1e-100 < size < 1e100:
        raise ValueError(f"features are of size {size:.1g}, whose squares leave double precision; rescale them")
    tau = 1.01 * size**2 if raw else 1.0

    M = DenseMatrix(engine)
    Y = M.zeros()
    H = np.zeros((F1.d if R1 is None else R1.shape[1], F2.d if R2 is None else R2.shape[1]))
    C = np.zeros((F1.d, F2.d))
    B = LowRank.zero(engine.shape)
    while True:
        # S ← soft(M − L + Y/p, λ/p); Y ← Y + p (M − L − S).
        trim = rule.ascend(M, Y, B)
        # H ← svt(H + F1ᵀ Y F2 / (p τ), 1 / (p τ)).
        scale = rule.penalty * tau
        G = _project(M, Y, F1.Q, F2.Q)
        G = G if R1 is None else R1.T @ G
        G = G if R2 is None else G @ R2
        u, s, v = singular_triplets(H + G / scale)
        s = shrunk(s, 1 / scale)
        H = (u[:, : len(s)] * s) @ v[:, : len(s)].T
        # L = F1 H F2ᵀ = Q1 C Q2ᵀ.
        before, C = C, H if R1 is None else R1 @ H
        C = C if R2 is None else C @ R2.T
        L = LowRank.from_core(F1.Q, C, F2.Q, len(s))
        moved = float(np.linalg.norm(C - before))
        rule.adapt(L, moved, trim)
        yield rule.state(L, trim, engine.dtype)
        B = LowRank.from_core(F1.Q, C + rule.previous / rule.penalty * (C - before), F2.Q)


def _project(M: DenseMatrix, Y: Any, Q1: Array | None, Q2: Array | None) -> Array:
    """Q1ᵀ Y Q2; None stands for the identity."""
    if Q1 is not None and (Q2 is None or Q1.shape[1] < Q2.shape[1]):
        G: Array = M.products(Y, Y=Q1)[1].T
        return G if Q2 is None else G @ Q2
    YQ: Array = M.products(Y, Q2)[0]
    return YQ if Q1 is None else Q1.T @ YQ
