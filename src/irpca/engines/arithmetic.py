"""The arithmetic of every question, for NumPy arrays and for tensors on any device.

What is trimmed, what an entry weighs under the noise model, and the posteriors of lines. Compiled loops do the same
faster for arrays in memory (:mod:`.compiled`, :mod:`.compiled_lines`) and for dense tensors on a GPU
(:mod:`.gpu.triton_kernels`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import log, pi
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, to_device

from ..lowrank import Array
from .base import CAUCHY, COMPONENTS, MEDIAN, MOST_SPREAD, Prior

# How many entries are kept, whether all that are observed are finite, ‖T‖², ‖T‖∞, and how many are not observed.
Counts = tuple[int, bool, float, float, int]
TINY = 1e-300  # added to a density, so that what is beyond all is a gross error and no division by zero
LOG_2PI = log(2 * pi)
NO_VARIANCE = 1e-200  # of a prior that ties lines to what is expected of them
JITTER = 1e-14  # of the trace: with next to no noise rounding may leave less than the prior's 1


def trim(M: Any, L: Any, limit: Any) -> tuple[Any, Any, Any, Any]:
    """``R = M − L``, T, which is R within the limit and 0 beyond it, which entries are kept, and what rides along.

    The limit is a number, or one for each entry. What rides along is the number of entries that are kept, missing and
    beyond the limit, ``‖T‖²`` and ``‖T‖∞``; what is none of the three is not finite.
    """
    xp = array_namespace(M)
    R = M - L
    size = xp.abs(R)
    kept = (size <= limit) & (size < xp.inf)
    T = xp.where(kept, R, xp.zeros_like(R))
    wide = xp.astype(T, xp.float64)
    beyond = (size > limit) & (size < xp.inf)
    along = xp.sum(kept), xp.sum(xp.isnan(M)), xp.sum(beyond), xp.sum(wide * wide), xp.max(xp.abs(wide))
    return R, T, kept, xp.stack([xp.astype(part, xp.float64) for part in along])


def counts_of(along: Any, entries: int) -> Counts:
    """What rode along on that many entries, as kernels say it."""
    kept, missing, beyond, energy, largest = along.tolist()
    return int(kept), kept + missing + beyond == entries, energy, largest, int(missing)


def weigh(R: Any, seen: Any, s2: Any, var: Any, parameters: Any) -> tuple[Any, Any, Any, Any]:
    """What entries with the residuals R weigh under a noise model, all 0 where they are not seen.

    Parameters
    ----------
    R, seen : residuals, 0 where an entry is not seen; and where it is
    s2, var : the squared scale of the noise, and the variance of L
    parameters : those of :class:`~irpca.engines.base.Noise`

    Returns
    -------
    omega, energy, trust : precisions ω, ω (R² + var L) and 1 − P, for each entry
    totals : the sums that :class:`~irpca.engines.base.Sums` has
    """
    xp = array_namespace(R)
    *shares, gross, broad, heavy = (float(x) for x in parameters)
    square, var = R * R, xp.minimum(var, MOST_SPREAD * s2)
    none, clean = xp.zeros_like(square), []
    for share, c in zip(shares, COMPONENTS, strict=True):
        total = c * c * s2 + var
        clean.append((1 - gross) * share * xp.exp(-0.5 * square / total) / xp.sqrt(total))
    inner = 1 / (1 + square / (MEDIAN * broad) ** 2)
    light = (1 - heavy) * gross * xp.exp(-0.5 * square / broad**2) / broad
    tails = heavy * gross * CAUCHY * inner / broad + TINY
    total = clean[0] + clean[1] + clean[2] + light + tails
    parts, P = [density / total for density in clean], (light + tails) / total
    w = parts[0] + parts[1] / COMPONENTS[1] ** 2 + parts[2] / COMPONENTS[2] ** 2
    energy = (light + tails * 2 / MEDIAN**2 * inner) * square / total
    totals = [*parts, P, energy, xp.log(total) - 0.5 * LOG_2PI, tails / total]
    omega = xp.where(seen, w / s2, none)
    sums = xp.stack([xp.sum(xp.where(seen, part, none)) for part in totals])
    return omega, omega * (square + var), xp.where(seen, 1 - P, none), sums


@dataclass(eq=False)
class Moments:
    """H (lower triangles), g, and Σ_j ω_ij κ_j of every line; κ is how uncertain the factors of the other side are."""

    H: Any
    g: Any
    kappa: Any


class Posteriors:
    """The regressions of some lines, from their moments: ``C = (Λ⁻¹ + H)⁻¹`` is the posterior covariance of a line.

    Everything is in double precision, whatever M is: H of an almost exact fit is too badly conditioned for less.

    Parameters
    ----------
    moments : Moments
    mean : array of shape (n, K)
        The factors of the lines so far, of the kind of the moments.
    prior : Prior
        Of these lines, in NumPy arrays.
    """

    def __init__(self, moments: Moments, mean: Any, prior: Prior) -> None:
        self.prior, self.like = prior, mean
        self.basis = None if prior.basis is None else self._there(prior.basis)
        self.variance = self._there(np.maximum(np.multiply.outer(prior.scale, prior.variance), NO_VARIANCE))
        self.H, self.C, self.b = self.solved(moments, mean)

    @property
    def xp(self) -> Any:
        return array_namespace(self.like)

    def solved(self, moments: Moments, mean: Any) -> tuple[Any, Any, Any]:
        """H with the uncertainty of the other side, C, and ``b = Σ ω m v``."""
        xp, (n, K) = self.xp, mean.shape
        p, q = lower(K)
        H = xp.zeros((n, K, K), dtype=xp.float64, device=device(self.like))
        H[:, p, q] = moments.H
        H[:, q, p] = moments.H
        b = self.each(H, mean) + moments.g
        H = H + moments.kappa[:, None, None] * self._there(self.prior.other_covariance)
        D, one = xp.sqrt(self.variance), self._there(np.eye(K))
        inner = D[:, :, None] * H * D[:, None, :] + one
        inner = inner + JITTER * xp.sum(inner * one, axis=(1, 2))[:, None, None] * one
        try:
            root = xp.linalg.cholesky(inner)
            failed = not bool(xp.all(xp.isfinite(root)))  # on a GPU NaN is no error
        except Exception as error:  # each namespace has its own
            if "LinAlgError" not in type(error).__name__:
                raise
            failed = True
        if failed:
            raise np.linalg.LinAlgError("the posterior covariance of a line is not positive definite")
        if hasattr(xp.linalg, "solve_triangular"):
            half = xp.linalg.solve_triangular(root, D[:, :, None] * one, upper=False)
        else:
            half = xp.linalg.solve(root, D[:, :, None] * one)
        return H, xp.matmul(xp.permute_dims(half, (0, 2, 1)), half), b

    def each(self, F: Any, X: Any) -> Any:
        """``F x`` of every line, F being H or C."""
        return self.xp.matmul(F, X[:, :, None])[:, :, 0]

    def total(self, F: Any) -> Array:
        """The sum over the lines, as a lower triangle."""
        return _here(self.xp.sum(F, axis=0))[lower(F.shape[1])]

    def spreads(self) -> tuple[Any, Any]:
        """The diagonals of C, and its traces with ``prior.weigh``."""
        xp, C = self.xp, self.C
        return xp.sum(C * self._there(np.eye(C.shape[1])), axis=2), xp.sum(
            C * self._there(self.prior.weigh), axis=(1, 2)
        )

    def prepare(self) -> tuple[Array, Array, Array]:
        """Σ H (lower triangle) and Σ of the prior variances, over the lines; and ``Qᵀ (b − H C b)``.

        With :meth:`through`, all that is asked for the coefficients.
        """
        variances = _here(self.xp.sum(self.variance, axis=0))
        return self.total(self.H), variances, self._reduced(self.b)

    def through(self, A: Array) -> Array:
        """``Qᵀ T Q A`` with T x = H x − H C H x of every line."""
        return self._reduced(self.each(self.H, self.basis @ self._there(A)))

    def posterior(self, coefficients: Array | None) -> tuple[Array, Array, Array, Array, Array]:
        """Posterior means, prior means, variances, spreads, and the sum of the posterior covariances."""
        if coefficients is None or self.basis is None:
            expected = self._there(self.prior.mean)
        else:
            expected = self.basis @ self._there(coefficients)
        mean = expected + self.each(self.C, self.b - self.each(self.H, expected))
        parts = (_here(part) for part in (mean, expected, *self.spreads()))
        return *parts, symmetric(self.total(self.C), mean.shape[1])  # type: ignore[return-value]

    def _reduced(self, X: Any) -> Array:
        """``Qᵀ (x − H C x)``, as ``Λ⁻¹ C x``: nothing cancels."""
        assert self.basis is not None
        return _here(self.basis.T @ (self.each(self.C, X) / self.variance))

    def _there(self, A: Any) -> Any:
        A = np.ascontiguousarray(A, dtype=float)
        return A if isinstance(self.like, np.ndarray) else self.xp.asarray(A, device=device(self.like))


@cache
def lower(K: int) -> tuple[Array, Array]:
    """Places of the lower triangle, diagonal included."""
    return np.tril_indices(K)


def symmetric(triangle: Array, K: int) -> Array:
    """The matrix whose lower triangle lies in a row."""
    whole, (p, q) = np.empty((K, K)), lower(K)
    whole[p, q] = whole[q, p] = triangle
    return whole


# What follows is for NumPy arrays, and as numba can compile it.


def precondition(H: Array, scale: Array, size: float, ridge: Array) -> tuple[Array, Array]:
    """The inverse of ``Qᵀ T Q + ridge`` if all lines were the average one, and how precisely each direction is known.

    Parameters
    ----------
    H, scale : the average H, and the root mean squares of the prior deviations
    size : of a column of the basis Q, squared
    ridge : precision of the prior of the coefficients
    """
    scaled = scale[:, None] * H
    average = np.linalg.solve(scaled * scale + np.eye(len(scale)), scaled) / scale[:, None]  # T of an average line
    average = 0.5 * size * (average + average.T)
    precision = np.maximum(np.diag(average), 0.0)
    highest = np.append(precision, 1e-300).max()
    return np.linalg.inv(average + np.diag(ridge + 1e-12 * highest)), precision


def conjugate_gradients(apply: Callable[[Any, Array], Array]) -> Callable[..., Array]:
    """What solves ``apply(lines, A) + ridge * A = right`` for A, preconditioned, in some steps from a given A.

    It ends early when what is left has so many ``digits`` less than at first.
    """

    def solve(lines: Any, right: Array, A: Array, ridge: Array, inverse: Array, steps: int, digits: float) -> Array:
        residual = right - (apply(lines, A) + ridge * A)
        z = residual @ inverse
        p, rz = z, np.sum(residual * z)
        target = max(digits * digits * rz, 1e-32 * np.sum(right * (right @ inverse)))
        for _ in range(steps):
            if rz <= target or rz <= 0:
                break
            Ap = apply(lines, p) + ridge * p
            curvature = np.sum(p * Ap)
            if curvature <= 0:
                break
            step = rz / curvature
            A, residual = A + step * p, residual - step * Ap
            z = residual @ inverse
            last, rz = rz, np.sum(residual * z)
            p = z + rz / last * p
        return A

    return solve


def _here(A: Any) -> Array:
    array: Array = A if isinstance(A, np.ndarray) else np.asarray(to_device(A, "cpu"))
    return array
