"""Algorithm 1 of the paper: iterative hard thresholding in feature space."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..arguments import number
from ..engines.base import Engine, Trim
from ..features import Features
from ..lowrank import Array, LowRank, singular_triplets
from ..problem import Problem
from ..result import Choice, State
from ..sample import check_scale
from .endings import GROSS, MAX_SHARE_IN_S


def iterate(
    problem: Problem, *, variant: str = "whitened", c_W: float | None = None, nu: float = 0.0, decay: float = 5.0
) -> Iterator[State]:
    """IRPCA-IHT (Niranjan, Rajkumar and Tulabandhula, UAI 2017).

    Parameters
    ----------
    variant : {"whitened", "paper"}
        ``"paper"`` is Algorithm 1 to the letter: it truncates W, which depends on the condition number κ of F.
        ``"whitened"`` truncates C = R1 W R2ᵀ instead, which does not.
    c_W : float or None
        Bound on ‖W*‖₂. None takes 2 ‖F1⁺ M F2⁺ᵀ‖₂ (for ``"whitened"`` what is the same in its coordinates),
        which costs one more read. Twice, because outliers may make M smaller than L.
    nu : float
        Noise parameter ν; the theory asks for (1 + 3 μ² d κ²) ‖N‖∞.
    decay : float
        Factor by which ζ − ν falls per iteration; the paper's is 5.
    """
    engine, F1, F2, rank = problem.engine, problem.F1, problem.F2, problem.needed_rank
    if variant not in ("paper", "whitened"):
        raise ValueError(f"variant={variant!r} is unknown; choose 'paper' or 'whitened'")
    if not (F1.given or F2.given):
        raise ValueError("solver='irpca_iht' needs features of rows or columns; solver='irpca' does without")
    number(decay, "decay", above=1)
    number(nu, "nu", least=0)
    if c_W is not None:
        number(c_W, "c_W", above=0)

    # Step 3. L_0 = 0.
    C = np.zeros((F1.d, F2.d))
    L = LowRank.zero(engine.shape)
    choices: tuple[Choice, ...] = ()
    if c_W is None:
        projected, _ = _project(engine, L, np.inf, F1, F2)
        c_W, reason = _norm_bound(projected, F1, F2, variant)
        choices = (Choice("c_W", c_W, reason),)

    eps = float(np.finfo(engine.dtype).eps)
    reach = float(np.sqrt(F1.leverage.max() * F2.leverage.max()))  # |Q1 C Q2ᵀ| <= reach · ‖C‖, entry by entry
    trimmed = -1
    # |L*| <= ζ_1 holds with equality where features are flat: rounding must not decide it.
    start = paper_start(F1, F2, c_W) * (1 + 100 * eps)
    for zeta in paper_schedule(start, nu, decay):
        # Steps 6 and 7. M − S_t = L_{t−1} + T, so the projection of T is all that is asked of M.
        G, trim = _project(engine, L, zeta, F1, F2)
        if L.rank == 0:
            check_scale(trim.largest)
        C_next = _truncate(C + G, rank, F1, F2, variant)
        # Step 8.
        L = LowRank.from_core(F1.Q, C_next, F2.Q, rank)
        size, moved = float(np.linalg.norm(C_next)), float(np.linalg.norm(C_next - C))
        # The residual ‖M − L − S‖ is no stopping rule: it decreases with ζ whatever L is. Stop when S finds nothing
        # new, and all residuals kept are noise or the remaining error of L.
        found = trim.trimmed == trimmed and trim.largest <= max(nu, reach * (10 * moved + GROSS * size))
        yield State(
            L,
            zeta,
            step=moved / max(size, np.finfo(float).tiny),
            trim=trim,
            settled=found,
            failure=_failure(1 - trim.kept_share, F1, F2, variant),
            choices=choices,
        )
        C, trimmed = C_next, trim.trimmed


def _project(engine: Engine, L: LowRank, zeta: float, F1: Features, F2: Features) -> tuple[Array, Trim]:
    """Q1ᵀ T Q2, with the identity for a side without features; one of the two must have some."""
    if F1.Q is None:
        assert F2.Q is not None
        TX, _, trim = engine.products(L, zeta, F2.Q)
        return TX.astype(float), trim
    if F2.Q is None:
        _, TY, trim = engine.products(L, zeta, Y=F1.Q)
        return TY.T.astype(float), trim
    return engine.core(L, zeta, F1.Q, F2.Q)


def _truncate(C: Array, rank: int, F1: Features, F2: Features, variant: str) -> Array:
    """P_r of W, or of C, in the coordinates of C."""
    if variant == "whitened":
        return _best(C, rank)
    W = _best(_latent(C, F1, F2), rank)
    W = W if F1.R is None else F1.R @ W
    return W if F2.R is None else W @ F2.R.T


def _best(A: Array, rank: int) -> Array:
    u, s, v = singular_triplets(A, rank)
    return (u * s) @ v.T


def _latent(C: Array, F1: Features, F2: Features) -> Array:
    """W = R1⁺ C R2⁺ᵀ."""
    return F2.solve(F1.solve(C).T).T


def _norm_bound(C: Array, F1: Features, F2: Features, variant: str) -> tuple[float, str]:
    """c_W from C = Q1ᵀ M Q2, and why."""
    if variant == "paper":
        bound, formula = np.linalg.norm(_latent(C, F1, F2), 2), "2 ‖F1⁺ M F2⁺ᵀ‖₂"
    else:
        bound = np.linalg.norm(C, 2) / (F1.sigma_max * F2.sigma_max)
        formula = "2 ‖Q1ᵀ M Q2‖₂ / (σ_max(F1) σ_max(F2))"
    return 2 * float(bound), f"{formula}, since no bound on ‖W‖₂ was given"


def _failure(full: float, F1: Features, F2: Features, variant: str) -> str | None:
    """The message for an S that holds the share ``full`` of the entries, if that is too much."""
    if full <= MAX_SHARE_IN_S:
        return None
    found = f"{full:.0%} of the cells are beyond the threshold and count as outliers (S), which is no answer. "
    found += "If the values are noisy, give nu, the size of the noise; if not, "
    if variant == "paper":
        kappa = max(F1.kappa, F2.kappa)
        return found + (
            f"the condition number of the features ({kappa:.3g}) is the likely cause: use variant='whitened', which "
            "does not depend on it, or solver='irpca', which also estimates the threshold"
        )
    return found + "lower decay, or use solver='irpca', which estimates the threshold"


def paper_start(F1: Features, F2: Features, c_W: float) -> float:
    """The paper's bound on ‖L*‖∞, ``mu1 mu2 sigma1 sigma2 sqrt(d1 d2 / (n1 n2)) c_W``: ζ_1 of Algorithm 1 for ν = 0."""
    spread = np.sqrt(F1.d * F2.d / (F1.n * F2.n))
    return float(F1.mu * F2.mu * F1.sigma_max * F2.sigma_max * spread * c_W)


def paper_schedule(start: float, nu: float, decay: float = 5.0) -> Iterator[float]:
    """ζ_t = start / 5^(t−1) + ν for t = 1, 2, … (step 5 of Algorithm 1)."""
    while True:
        yield start + nu
        start /= decay
