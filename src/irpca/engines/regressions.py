"""The regressions of all rows, or of all columns, of M on the factors of the other side: solved where M is.

``m_ij ≈ u_i · v_j``, each entry with the precision ω_ij that the noise model gives it. For every row the moments
``H = Σ_j ω v vᵀ`` and ``g = Σ_j ω (m − u·v) v`` are summed over its entries; the posterior of ``u = p + δ`` under the
prior ``δ ~ N(0, Λ)`` follows from them, and so do the coefficients A of the prior mean ``p = Q A``. Nothing that has
K² numbers for every row leaves this module.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np

from ..lowrank import Array
from ..threads import in_order
from . import kernels
from .arithmetic import NO_VARIANCE, Moments, Posteriors, conjugate_gradients, lower, precondition, symmetric
from .base import Lines, Prior, Sums
from .kernels import LANES
from .walks import read_only

Answer = TypeVar("Answer")

LINES_AT_ONCE = 1 << 12  # lines that are solved together, so that no more than their K² numbers are in memory
PARALLEL_FLOPS = 1 << 22  # below which a second thread costs more than it brings: about half a millisecond
IN_LOOPS = 1 << 17  # multiplications of a basis with coefficients that take loops no longer than a call of BLAS
LARGEST_KEPT = 1 << 22  # numbers of an array that is kept for the next question: 32 MB
CG_STEPS = 12  # of conjugate gradients for the coefficients; preconditioned and from the last ones, a few are enough
CG_DIGITS = 1e-3  # of what is left at first


class Buffers(threading.local):
    """Large arrays of a thread, used again: the system takes longer to hand out new memory than lines to be solved."""

    def __init__(self) -> None:
        self.kept: dict[str, Array] = {}

    def get(self, name: str, shape: tuple[int, ...]) -> Array:
        """An array that holds anything, until the next one of the same name is asked for."""
        size = math.prod(shape)
        if size > LARGEST_KEPT:
            return np.empty(shape)
        if name not in self.kept or len(self.kept[name]) < size:
            self.kept[name] = np.empty(size)
        return self.kept[name][:size].reshape(shape)


buffers = Buffers()


class Band(Posteriors):
    """Some lines in memory with all of their moments, LANES of them side by side, to be solved by compiled loops.

    Parameters
    ----------
    moments, mean, prior : as those of :class:`.Posteriors`
    keep : bool
        Whether other bands are made before this one is asked, so that memory cannot be shared with them.
    """

    xp = np

    def __init__(self, moments: Moments, mean: Array, prior: Prior, keep: bool = False) -> None:
        self.keep, self.tied = keep, not prior.variance.any()  # then C is next to nothing, and is not made
        super().__init__(moments, mean, prior)

    def solved(self, moments: Moments, mean: Array) -> tuple[Array, Array, Array]:
        n, K = mean.shape
        shape = -(-n // LANES), K * (K + 1) // 2, LANES
        H, C = (np.empty(shape) if self.keep else buffers.get(name, shape) for name in "HC")
        C, b, D = C[:0] if self.tied else C, np.empty((n, K)), np.sqrt(self.variance)
        kernels.covariances(moments.H, moments.g, moments.kappa, mean, self.prior.other_covariance, D, H, C, b)
        return H, C, b

    def each(self, F: Array, X: Array) -> Array:
        if not len(F):
            return NO_VARIANCE * X
        out = np.empty_like(X)
        kernels.multiply(F, X, out)
        return out

    def total(self, F: Array) -> Array:
        return np.einsum("bpl->p", F) if len(F) else len(self.b) * NO_VARIANCE * _diagonal(self.b.shape[1])

    def spreads(self) -> tuple[Array, Array]:
        n, K = self.b.shape
        if self.tied:
            return np.full((n, K), NO_VARIANCE), np.full(n, NO_VARIANCE * np.trace(self.prior.weigh))
        (p, q), diagonal = lower(K), _diagonal(K)
        variances = self.C[:, diagonal > 0].transpose(0, 2, 1).reshape(len(self.C) * LANES, K)
        return variances[:n], (self.prior.weigh[p, q] * (2.0 - diagonal) @ self.C).ravel()[:n]

    def coefficients(self) -> tuple[Array | None, Array]:
        """As :func:`_coefficients`, of all lines, which are few."""
        prior, K = self.prior, self.b.shape[1]
        if self.basis is None:
            return None, np.zeros(K)
        A = np.zeros((self.basis.shape[1], K))
        if prior.coefficients is not None:
            A[:] = prior.coefficients
        basis = read_only(self.basis)
        return kernels.coefficients(
            self.H, self.C, self.variance, self.b, basis, prior.ridge, A, CG_STEPS, CG_DIGITS
        )  # fmt: skip


@cache
def _diagonal(K: int) -> Array:
    """Ones on the diagonal of a lower triangle, zeros elsewhere."""
    p, q = lower(K)
    return 1.0 * (p == q)


def solve_here(moments: Moments, mean: Array, prior: Prior, sums: Sums, threads: int) -> Lines:
    """Posteriors of all lines, from moments in memory."""
    n, K = mean.shape
    if 0 < n * K**3 < PARALLEL_FLOPS and (prior.basis is None or prior.basis.size * K <= IN_LOOPS):
        band = Band(moments, mean, prior)  # there is less to do than several calls of each kernel take
        A, precision = band.coefficients()
        return _lines([band.posterior(A)], A, precision, sums)
    step = min(-(-n // (threads if n * K**3 > PARALLEL_FLOPS else 1)), LINES_AT_ONCE)
    step = -(-step // LANES) * LANES or 1
    runs = [slice(first, min(first + step, n)) for first in range(0, n, step)]

    def band_of(run: slice) -> Band:
        some = Moments(moments.H[run], moments.g[run], moments.kappa[run])
        return Band(some, mean[run], prior.part(run), prior.basis is not None)

    def each(work: Callable[[Any], Answer], bands: Sequence[Any], flops: int) -> list[Answer]:
        return list(in_order(work, bands, threads if flops > PARALLEL_FLOPS else 1, ahead=len(bands)))

    if prior.basis is None:  # no band is asked again
        return solve_bands(
            lambda _, *args: each(lambda run: band_of(run).posterior(*args), runs, n * K**3), prior, sums
        )
    bands = each(band_of, runs, n * K**3)
    return solve_bands(
        lambda name, *args: each(lambda band: getattr(band, name)(*args), bands, 4 * n * K**2), prior, sums
    )


Ask = Callable[..., list[Any]]  # a question about every band: the name of a method, and its arguments


def asked_of(band: Posteriors) -> Ask:
    """What asks the only band."""
    return lambda name, *args: [getattr(band, name)(*args)]


def solve_bands(ask: Ask, prior: Prior, sums: Sums) -> Lines:
    """Posteriors of all lines, from bands of them."""
    A, precision = (None, np.zeros(len(prior.variance))) if prior.basis is None else _coefficients(ask, prior)
    return _lines(ask("posterior", A), A, precision, sums)


def _lines(posteriors: list[Any], coefficients: Array | None, precision: Array, sums: Sums) -> Lines:
    """Of all bands, which follow each other."""
    *parts, covariances = zip(*posteriors, strict=True)
    new, expected, variance, spread = (part[0] if len(part) == 1 else np.concatenate(part) for part in parts)
    return Lines(new, expected, variance, spread, _total(covariances) / len(new), coefficients, precision, sums)


def _total(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)


def _coefficients(ask: Ask, prior: Prior) -> tuple[Array, Array]:
    """A of the prior mean Q A, δ integrated out, by conjugate gradients; and how precisely each direction is known.

    The precision of what a line says of ``Q A`` is ``T = H − H C H`` with C the posterior covariance of δ.
    """
    Q, ridge, n = prior.basis, prior.ridge, len(prior.scale)
    assert Q is not None and ridge is not None
    H, variance, right = (_total(parts) for parts in zip(*ask("prepare"), strict=True))
    size = float(np.vdot(Q, Q) / Q.shape[1])
    inverse, precision = precondition(symmetric(H / n, len(variance)), np.sqrt(variance / n), size, ridge)
    A = prior.coefficients if prior.coefficients is not None else np.zeros((Q.shape[1], len(variance)))

    solve = conjugate_gradients(lambda _, A: _total(ask("through", A)))
    return solve(None, right, A, ridge, inverse, CG_STEPS, CG_DIGITS), precision
