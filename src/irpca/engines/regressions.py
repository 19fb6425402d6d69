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
from typing import Any, TypeVar

import numpy as np

from ..lowrank import Array
from ..threads import in_order
from . import kernels
from .arithmetic import NO_VARIANCE, Moments, Posteriors, conjugate_gradients, precondition
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


class Band:
    """Some lines with all of their moments, to be solved together by compiled loops; see :class:`.Posteriors`.

    Parameters
    ----------
    moments : Moments
    mean : array of shape (n, K)
        Their factors so far.
    prior : Prior
        Of these lines.
    threads : int
    keep : bool
        Whether other bands are asked before this one is asked again, so that memory cannot be shared with them.
    """

    def __init__(self, moments: Moments, mean: Array, prior: Prior, threads: int = 1, keep: bool = False) -> None:
        self.moments, self.mean, self.prior, self.threads, self.keep = moments, mean, prior, threads, keep
        self.deviation = np.sqrt(np.maximum(np.multiply.outer(prior.scale, prior.variance), NO_VARIANCE))
        self.tied = not prior.variance.any()  # then posteriors are the prior means, and H C H is nothing
        self.ready: tuple[Array, Array, Array] | None = None

    def prepare(self) -> tuple[Array, Array, Array]:
        """Σ H (lower triangle) and Σ of the prior variances, over the lines; and ``Qᵀ (b − H C b)``.

        With :meth:`through`, all that is asked for the coefficients.
        """
        H, factor, b = self._prepare(slice(0, len(self.mean)), self.threads)
        if self.keep:
            H, factor, self.moments = H.copy(), factor.copy(), Moments(*np.empty((3, 0)))
        self.ready = H, factor, b
        reduced = b
        if not self.tied:
            reduced = np.empty_like(b)
            kernels.reduce(H, factor, self.deviation, b, reduced, False)
        assert self.prior.basis is not None
        variances = np.einsum("ik,ik->k", self.deviation, self.deviation)
        return np.einsum("bpl->p", H), variances, self.prior.basis.T @ reduced

    def through(self, A: Array) -> Array:
        """``Qᵀ T Q A`` with T x = H x − H C H x of every line."""
        assert self.ready is not None and self.prior.basis is not None
        H, factor, b = self.ready
        X, reduced = self.prior.basis @ A, np.empty_like(b)
        n, K = b.shape

        def work(at: slice) -> None:
            blocks = _blocks(at)
            kernels.reduce(H[blocks], factor[blocks], self.deviation[at], X[at], reduced[at], True)

        _map(work, n, 2 * n * K**2, self.threads)
        product: Array = self.prior.basis.T @ reduced
        return product

    def posterior(self, coefficients: Array | None) -> tuple[Array, Array, Array, Array, Array]:
        """Posterior means, prior means, variances, spreads, and the sum of the posterior covariances."""
        (n, K), prior, ready = self.mean.shape, self.prior, self.ready
        expected = prior.mean if coefficients is None or prior.basis is None else prior.basis @ coefficients
        assert expected is not None
        if self.tied:
            spread = np.full(n, NO_VARIANCE * float(np.trace(prior.weigh)))
            return expected, expected, np.full((n, K), NO_VARIANCE), spread, n * NO_VARIANCE * np.eye(K)
        new, variance, spread = np.empty((n, K)), np.empty((n, K)), np.empty(n)

        def work(lines: slice) -> Array:
            if ready is None:
                prepared = self._prepare(lines, 1)
            else:
                blocks = _blocks(lines)
                prepared = ready[0][blocks], ready[1][blocks], ready[2][lines]
            total = np.zeros((K, K))
            kernels.posterior(
                *prepared, self.deviation[lines], expected[lines], prior.weigh,
                new[lines], variance[lines], spread[lines], total,
            )  # fmt: skip
            return total

        if self.small:
            return new, expected, variance, spread, work(slice(0, n))
        covariance = np.sum(_map(work, n, n * K**3, self.threads, LINES_AT_ONCE), axis=0)
        return new, expected, variance, spread, covariance

    @property
    def small(self) -> bool:
        """Whether lines are solved in one call of each kernel: there is less to do than several calls take."""
        (n, K), basis = self.mean.shape, self.prior.basis
        return 0 < n * K**3 < PARALLEL_FLOPS and (basis is None or basis.size * K <= IN_LOOPS)

    def solve(self, sums: Sums) -> Lines:
        """The posteriors of all lines, which are few."""
        (n, K), prior = self.mean.shape, self.prior
        A, precision, self.ready = None, np.zeros(K), self._prepare(slice(0, n), 1)
        if prior.basis is not None:
            basis, H, factor, b = read_only(np.ascontiguousarray(prior.basis)), *self.ready
            A = np.zeros((basis.shape[1], K)) if prior.coefficients is None else np.array(prior.coefficients, order="C")
            A, precision = kernels.coefficients(
                H, factor, self.deviation, b, basis, prior.ridge, A, CG_STEPS, CG_DIGITS
            )
        new, expected, variance, spread, covariance = self.posterior(A)
        return Lines(new, expected, variance, spread, covariance / n, A, precision, sums)

    def _prepare(self, lines: slice, threads: int) -> tuple[Array, Array, Array]:
        """H of some lines and the Cholesky factors of I + D H D, LANES of them side by side, and b = Σ ω m v.

        Without the factors of lines that are tied to what is expected of them.
        """
        n, K = lines.stop - lines.start, self.mean.shape[1]
        shape = -(-n // LANES), K * (K + 1) // 2, LANES
        H, b = buffers.get("H", shape), np.empty((n, K))
        factor = np.empty((0, *shape[1:])) if self.tied else buffers.get("factor", shape)
        moments, covariance = self.moments, self.prior.other_covariance

        def work(at: slice) -> None:
            of, blocks = slice(lines.start + at.start, lines.start + at.stop), _blocks(at)
            kernels.prepare(
                moments.H[of], moments.g[of], moments.kappa[of], self.mean[of], covariance, self.deviation[of],
                H[blocks], factor[blocks], b[at],
            )  # fmt: skip

        if threads == 1:
            work(slice(0, n))
        else:
            _map(work, n, n * K**3, threads)
        return H, factor, b


def band_of(moments: Moments, mean: Array, prior: Prior, threads: int = 1, keep: bool = False) -> Band | Posteriors:
    """Some lines to be solved: by compiled loops, where there are any."""
    if kernels.prepare is None:
        return Posteriors(moments, mean, prior)
    return Band(moments, mean, prior, threads, keep)


Ask = Callable[..., list[Any]]  # a question about every band: the name of a method, and its arguments


def solve_bands(ask: Ask, prior: Prior, sums: Sums) -> Lines:
    """Posteriors of all lines, from bands of them."""
    K, n = len(prior.variance), len(prior.scale)
    coefficients, precision = None, np.zeros(K)
    if prior.basis is not None:
        coefficients, precision = _coefficients(ask, prior, n)
    *parts, covariances = zip(*ask("posterior", coefficients), strict=True)
    new, expected, variance, spread = (_joined(part) for part in parts)
    covariance = _total(covariances) / n
    return Lines(new, expected, variance, spread, covariance, coefficients, precision, sums)


def _total(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)


def _joined(parts: tuple[Array, ...]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _map(work: Callable[[slice], Answer], n: int, flops: int, threads: int, most: int | None = None) -> list[Answer]:
    """``work`` on runs of lines, ``most`` at a time; in threads, if there is enough to do."""
    parts = threads if flops > PARALLEL_FLOPS else 1
    step = min(-(-n // parts), most or n)
    step = -(-step // LANES) * LANES  # whole blocks
    shares = [slice(first, min(first + step, n)) for first in range(0, n, step)]
    if parts == 1:
        return [work(share) for share in shares]
    return list(in_order(work, shares, threads, ahead=len(shares)))


def _blocks(lines: slice) -> slice:
    return slice(lines.start // LANES, -(-lines.stop // LANES))


def _coefficients(ask: Ask, prior: Prior, n: int) -> tuple[Array, Array]:
    """A of the prior mean Q A, δ integrated out, by conjugate gradients; and how precisely each direction is known.

    The precision of what a line says of ``Q A`` is ``T = H − H C H`` with C the posterior covariance of δ.
    """
    Q, ridge = prior.basis, prior.ridge
    assert Q is not None and ridge is not None
    H, variance, right = (_total(parts) for parts in zip(*ask("prepare"), strict=True))
    size = float(np.vdot(Q, Q) / Q.shape[1])
    inverse, precision = precondition(kernels.symmetric(H / n, len(variance)), np.sqrt(variance / n), size, ridge)
    A = prior.coefficients if prior.coefficients is not None else np.zeros((Q.shape[1], len(variance)))

    solve = conjugate_gradients(lambda _, A: _total(ask("through", A)))
    return solve(None, right, A, ridge, inverse, CG_STEPS, CG_DIGITS), precision
