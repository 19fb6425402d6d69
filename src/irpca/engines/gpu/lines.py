"""The small systems of all rows, or columns, solved on the device: what :mod:`irpca.engines.lines` is in host memory.

In double precision, whatever M is: H of an almost exact fit is too badly conditioned for less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...lowrank import Array
from ..base import Prior
from ..lines import NO_VARIANCE

JITTER = 1e-14  # of the trace: with next to no noise rounding may leave less than the prior's 1


@dataclass(eq=False)
class DeviceMoments:
    """H (lower triangles), g, and Σ ω κ of every line."""

    H: Tensor
    g: Tensor
    kappa: Tensor


class DeviceBand:
    """All lines with their moments: what :class:`irpca.engines.lines.Band` is in host memory."""

    def __init__(self, moments: DeviceMoments, mean: Tensor, prior: Prior) -> None:
        self.device, self.prior = mean.device, prior
        K = mean.shape[1]
        self.places = torch.tril_indices(K, K, device=self.device)
        variance = np.maximum(np.multiply.outer(prior.scale, prior.variance), NO_VARIANCE)
        self.deviation = torch.as_tensor(np.sqrt(variance), device=self.device)
        H = mean.new_empty((len(mean), K, K))
        p, q = self.places
        H[:, p, q] = moments.H
        H[:, q, p] = moments.H
        self.b = _each(H, mean) + moments.g
        self.H = H.addcmul_(moments.kappa[:, None, None], self._there(prior.other_covariance))
        D = self.deviation
        inner = D[:, :, None] * self.H * D[:, None, :]
        inner.diagonal(dim1=1, dim2=2).add_(1.0)
        trace = inner.diagonal(dim1=1, dim2=2).sum(1)
        inner.diagonal(dim1=1, dim2=2).add_(JITTER * trace[:, None])
        self.factor, failed = torch.linalg.cholesky_ex(inner)
        self.failed = failed.any()
        self.basis = None if prior.basis is None else self._there(prior.basis)

    def prepare(self) -> tuple[Array, Array, Array]:
        """See :meth:`irpca.engines.lines.Band.prepare`."""
        self._refuse_failed()
        assert self.basis is not None
        p, q = self.places
        right = self.basis.T @ self._solved(self.b)
        return _here(self.H.sum(0)[p, q]), _here((self.deviation**2).sum(0)), _here(right)

    def through(self, A: Array) -> Array:
        """``Qᵀ T Q A`` with T x = H x − H C H x of every line."""
        assert self.basis is not None
        X = self.basis @ self._there(A)
        return _here(self.basis.T @ self._solved(_each(self.H, X)))

    def posterior(self, coefficients: Array | None) -> tuple[Array, Array, Array, Array, Array]:
        """Posterior means, prior means, variances, spreads, and the sum of the posterior covariances."""
        self._refuse_failed()
        D = self.deviation
        if coefficients is None or self.basis is None:
            assert self.prior.mean is not None
            expected = self._there(self.prior.mean)
        else:
            expected = self.basis @ self._there(coefficients)
        new = expected + D**2 * self._solved(self.b - _each(self.H, expected))
        half = torch.linalg.solve_triangular(self.factor, torch.diag_embed(D), upper=False)
        C = half.mT @ half
        spread = torch.einsum("iab,ab->i", C, self._there(self.prior.weigh))
        parts = new, expected, C.diagonal(dim1=1, dim2=2), spread, C.sum(0)
        return tuple(_here(part) for part in parts)  # type: ignore[return-value]

    def _solved(self, X: Tensor) -> Tensor:
        """``D⁻² C x = D⁻¹ (I + D H D)⁻¹ D x`` of every line, C being the posterior covariance: nothing cancels."""
        D = self.deviation
        if not X.shape[1]:
            return X
        return torch.cholesky_solve((D * X)[:, :, None], self.factor)[:, :, 0] / D

    def _refuse_failed(self) -> None:
        if bool(self.failed):
            raise np.linalg.LinAlgError("the posterior covariance of a line is not positive definite")

    def _there(self, A: Array) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(A, dtype=float), device=self.device)


def _each(H: Tensor, X: Tensor) -> Tensor:
    """``H x`` of every line."""
    return (H @ X[:, :, None])[:, :, 0]


def _here(A: Tensor) -> Array:
    array: Array = A.cpu().numpy()
    return array
