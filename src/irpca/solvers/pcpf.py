"""Principal component pursuit with features (Chiang, Hsieh, Dhillon 2016)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..engines.base import Ascent, Dual, Engine, Trim
from ..features import Features
from ..lowrank import Array, LowRank, singular_triplets
from ..result import State
from .convex import multipliers, shrunk


def pcpf(
    engine: Engine,
    F1: Features,
    F2: Features,
    rank: None,
    *,
    program: str = "whitened",
    lam: float | None = None,
    growth: float = 1.5,
    random_state: np.random.Generator,
) -> Iterator[State]:
    """PCPF: min ‖H‖_* + λ ‖S‖₁ with F1 H F2ᵀ + S = M, by the method of multipliers.

    The singular-value step is exact and d1×d2, the dual step one fused read of M. It needs features of rows or columns
    and a second matrix of the size of M in memory; the rank is found. Guarantee: a fixed share of all entries corrupted
    at random places, r up to the order of n² / (d log n log d), features and L incoherent.

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

    dual = engine.dual()
    H = np.zeros((F1.d if R1 is None else R1.shape[1], F2.d if R2 is None else R2.shape[1]))
    C = np.zeros((F1.d, F2.d))
    step = rule.step(LowRank.zero(engine.shape), None)
    while True:
        # Y moves on in one read, and S with it.
        G, trim = _project(dual, step, F1, F2)
        # H ← svt(H + F1ᵀ Y F2 / (penalty τ), 1 / (penalty τ)).
        scale = rule.penalty * tau
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
        ahead = C + rule.previous / rule.penalty * (C - before)
        step = Ascent(LowRank.from_core(F1.Q, ahead, F2.Q), rule.penalty, rule.lam)


def _project(dual: Dual, step: Ascent, F1: Features, F2: Features) -> tuple[Array, Trim]:
    """Q1ᵀ Y Q2 of the new Y, with the identity for a side without features."""
    if F1.Q is None:
        assert F2.Q is not None
        YQ, _, trim = dual.products(F2.Q, step=step)
        return YQ.astype(float), trim
    if F2.Q is None:
        _, YtQ, trim = dual.products(Y=F1.Q, step=step)
        return YtQ.T.astype(float), trim
    return dual.core(F1.Q, F2.Q, step)
