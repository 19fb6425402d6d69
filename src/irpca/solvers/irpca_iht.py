"""Algorithm 1 of the paper: iterative hard thresholding in feature space."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..engines.base import Engine, Trim
from ..features import Features
from ..lowrank import Array, LowRank, singular_triplets
from ..result import Choice, State
from ..threshold import paper_schedule, paper_start

FULL = 0.5  # beyond this share of the entries, S is no longer a sparse matrix


def irpca_iht(
    engine: Engine,
    F1: Features,
    F2: Features,
    rank: int,
    *,
    variant: str = "whitened",
    c_W: float | None = None,
    nu: float = 0.0,
    decay: float = 5.0,
) -> Iterator[State]:
    """IRPCA-IHT (Niranjan, Rajkumar and Tulabandhula, UAI 2017).

    Parameters
    ----------
    variant : {"whitened", "paper"}
        ``"paper"`` is Algorithm 1 to the letter: it truncates W, in coordinates stretched by κ(F).
        ``"whitened"`` truncates C = R1 W R2ᵀ instead, where κ is gone.
    c_W : float or None
        Bound on ‖W*‖₂. None takes ‖F1⁺ M F2⁺ᵀ‖₂ (for ``"whitened"`` what is the same in its coordinates), which
        costs one more read.
    nu : float
        Noise parameter ν; the theory asks for (1 + 3 μ² d κ²) ‖N‖∞.
    decay : float
        Factor by which ζ − ν falls per iteration; the paper's is 5.
    """
    if variant not in ("paper", "whitened"):
        raise ValueError(f"variant={variant!r} is unknown; choose 'paper' or 'whitened'")
    if not (F1.given or F2.given):
        raise ValueError("solver='irpca_iht' needs features of the rows or of the columns; solver='irpca' does without")
    if not decay > 1:
        raise ValueError(f"decay must be larger than 1, got {decay!r}")
    if not nu >= 0:
        raise ValueError(f"nu must not be negative, got {nu!r}")

    # Step 3. L_0 = 0.
    C = np.zeros((F1.d, F2.d))
    L = LowRank.zero(engine.shape)
    choices: tuple[Choice, ...] = ()
    if c_W is None:
        projected, _ = _project(engine, L, np.inf, F1, F2)
        c_W = _norm_bound(projected, F1, F2, variant)
        choices = (Choice("c_W", c_W, "‖F1⁺ M F2⁺ᵀ‖₂, since no bound on ‖W‖₂ was given"),)

    trimmed = -1
    for zeta in paper_schedule(paper_start(F1, F2, c_W), nu, decay):
        # Steps 6 and 7. M − S_t = L_{t−1} + T, so the projection of T is all that is asked of M.
        G, trim = _project(engine, L, zeta, F1, F2)
        C_next = _truncate(C + G, rank, F1, F2, variant)
        # Step 8.
        L = LowRank.from_core(F1.Q, C_next, F2.Q, rank)
        step = float(np.linalg.norm(C_next - C) / max(np.linalg.norm(C_next), np.finfo(float).tiny))
        C = C_next
        full = 1 - trim.kept_share
        yield State(
            L,
            zeta,
            step,
            trim,
            # The residual ‖M − L − S‖ cannot tell: it falls with ζ whatever L is. The support can.
            settled=trim.trimmed == trimmed and 0 < full,
            failure=f"S fills up: {full:.0%} of the entries are beyond the threshold" if full > FULL else None,
            choices=choices,
        )
        trimmed = trim.trimmed


def _project(engine: Engine, L: LowRank, zeta: float, F1: Features, F2: Features) -> tuple[Array, Trim]:
    """Q1ᵀ T Q2, with the identity for a side without features."""
    if F1.Q is None:
        assert F2.Q is not None
        TX, _, trim = engine.times(L, zeta, F2.Q)
        return TX.astype(float), trim
    if F2.Q is None:
        TY, _, trim = engine.t_times(L, zeta, F1.Q)
        return TY.T.astype(float), trim
    return engine.core(L, zeta, F1.Q, F2.Q)


def _truncate(C: Array, rank: int, F1: Features, F2: Features, variant: str) -> Array:
    """P_r of W, or of C, in the coordinates of C."""
    if variant == "paper":
        W = F2.solve(F1.solve(C).T).T
        u, s, v = singular_triplets(W, rank)
        W = (u * s) @ v.T
        W = W if F1.R is None else F1.R @ W
        return W if F2.R is None else W @ F2.R.T
    u, s, v = singular_triplets(C, rank)
    return (u * s) @ v.T


def _norm_bound(C: Array, F1: Features, F2: Features, variant: str) -> float:
    if variant == "paper":
        return float(np.linalg.norm(F2.solve(F1.solve(C).T), 2))
    return float(np.linalg.norm(C, 2) / (F1.sigma_max * F2.sigma_max))
