"""The part common to the convex programs: min ‖L‖_* + λ ‖S‖₁ with L + S = M, by the method of multipliers.

The inexact method (Lin, Chen, Ma 2010) makes, with Y the multiplier and p the penalty, the steps

    S ← soft(M − L + Y/p, λ/p),    L' ← svt(M − S + Y/p, 1/p),    Y' ← Y + p (M − L' − S).

With Ŷ = clip(Y + p (M − L), ±λ) one has M − S + Y/p = L + Ŷ/p and Y' = Ŷ + p (L − L'): S is never stored, and Y only as
Ŷ, which the next step moves on by p' (M − B) with B = L' − (p/p') (L − L') of low rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arguments import number
from ..engines.base import Engine, Trim
from ..lowrank import Array, LowRank
from ..result import Doubt, State
from .dense import DenseMatrix
from .endings import GROSS, saturation, threshold_floor, typical
from .subspace import SPARE, first_look

NOISE = "This program has no noise term, so that noise and rounding count as outliers: raise lam to have fewer"
BALANCE = 3.0, 30.0  # where the dual residual may lie, in units of the primal one, before the penalty follows
CLOSE = 1e-8  # relative to L and to the multiplier: smaller residuals are zero in effect


@dataclass
class Multipliers:
    """λ, and a penalty that keeps primal and dual residuals in proportion.

    A penalty that only grows, as in the authors' code, freezes L short of the optimum on hard problems.
    """

    lam: float
    penalty: float
    first: float
    growth: float
    box: float
    size: float
    dual_size: float
    rounding: float
    previous: float = 0.0
    turn: int = 0
    unrest: float = np.inf

    @property
    def tolerance(self) -> float:
        return max(CLOSE, self.rounding)

    def ascend(self, M: DenseMatrix, Y: Any, B: LowRank) -> Trim:
        """``Ŷ ← p (A − S)``, in place, with ``A = M − B + Ŷ/p``; what is returned is of T = M − B − S.

        S is A shrunk towards zero by λ/p, then brought to within the box of M, if there is one.
        """
        penalty, (U, Vt) = self.penalty if self.previous else self.first, M.factors(B)

        def work(rows: slice) -> tuple[int, float, float]:
            A, old = M.residual(rows, U, Vt), Y[rows]
            A *= penalty
            A += old  # p A
            new = A.clip(-self.lam, self.lam)  # the method: xp.clip of array_api_compat takes three times as long
            A -= new  # p S
            if self.box < np.inf:
                low, high = penalty * (M.M[rows] - self.box), penalty * (M.M[rows] + self.box)
                inside = M.observed(rows, A.clip(low, high))
                new += A - inside
                A = inside
            old -= new
            old /= -penalty  # T
            counted = M.counted(A != 0, old)
            old[...] = new
            return counted

        return M.trim(M.over_blocks(work))

    def adapt(self, L: LowRank, moved: float, trim: Trim) -> None:
        """Choose the next penalty from ‖M − B − S‖ and from how far L moved."""
        # Relative to L, not M: large outliers would make any residual small.
        size = float(np.linalg.norm(L.core)) or self.size
        primal = float(np.sqrt(trim.energy)) / size
        dual = self.penalty * moved / self.dual_size
        still = moved <= self.rounding * size  # then the dual residual is rounding, however large the penalty
        self.unrest = max(primal, 0.0 if still else dual, moved / size)
        self.previous = self.penalty
        low, high = BALANCE
        turn = int(dual < low * primal) - int(dual > high * primal)
        if turn * self.turn < 0:  # back and forth: the method converges only if the penalty comes to rest
            self.growth = self.growth**0.5
        self.turn = turn or self.turn
        self.penalty *= self.growth**turn

    def state(self, L: LowRank, trim: Trim, dtype: np.dtype) -> State:
        finished = self.unrest <= self.tolerance
        full = saturation(1 - trim.kept_share, NOISE)
        L = _significant(L, 10 * self.tolerance)
        # Where S is zero, M − L is T, plus the last step of L, plus the singular values cut from L.
        zeta = max(2 * trim.largest, GROSS * typical(L), threshold_floor(L, dtype))
        return State(
            L,
            zeta,
            self.unrest,  # L may stand still while the constraint is not met
            trim,
            tolerance=self.tolerance,
            failure=full if finished else None,
            doubts=(Doubt("filling-up", full),) if full and not finished else (),
        )


def multipliers(
    engine: Engine, lam: float | None, growth: float, box: float | None, rng: np.random.Generator
) -> Multipliers:
    """The authors' parameters: λ = 1/√max(n1, n2), p_0 = 1.25/‖M‖₂, Y_0 = M / max(‖M‖₂, ‖M‖∞/λ)."""
    number(growth, "growth", least=1)
    weight = max(engine.shape) ** -0.5 if lam is None else number(lam, "lam", above=0)
    sigma_1, _, trim = first_look(engine, 1 + SPARE, rng)
    norm = sigma_1 or 1.0  # solve() refuses an M that is all zero
    penalty = 1.25 / norm
    return Multipliers(
        weight,
        penalty,
        # Y_0 is a multiple of M, so the first step is one from zero with a larger penalty (with a box not quite: it
        # only moves the start).
        first=penalty + 1 / max(norm, trim.largest / weight),
        growth=growth,
        box=np.inf if box in (None, np.inf) else number(box, "linf_bound", above=0),
        size=float(np.sqrt(trim.energy)) or 1.0,
        dual_size=weight * float(np.sqrt(engine.n_observed)),
        rounding=10 * float(np.finfo(engine.dtype).eps),
    )


def extrapolated(L: LowRank, before: LowRank, by: float) -> LowRank:
    """``L + by · (L − before)``."""
    (U, V), (X, Y) = L.thin(), before.thin()
    return LowRank(np.hstack([U, X]), np.diag([1 + by] * U.shape[1] + [-by] * X.shape[1]), np.hstack([V, Y]))


def _significant(L: LowRank, share: float) -> LowRank:
    """L without singular values that are negligible beside the largest: remains of the unfinished iteration."""
    s = np.diag(L.core)
    k = int((s > share * s[:1]).sum())
    return LowRank(L.left[:, :k], L.core[:k, :k], L.right[:, :k])


def shrunk(s: Array, by: float) -> Array:
    """Singular values that survive shrinkage, shrunk."""
    return s[s > by] - by
