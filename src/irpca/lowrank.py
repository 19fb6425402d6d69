"""A low-rank matrix kept as three factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]

SMALL = 1 << 13  # numbers, that stay in cache; for so few, Householder's way is as fast as any
MOST_CONDITION = 1e4  # its square leaves 8 digits to go by
LEAST = 1e-140  # the length of a column whose square keeps all digits


def singular_triplets(C: Array, rank: int | None = None) -> tuple[Array, Array, Array]:
    """The leading singular triplets ``u, s, v`` of a small matrix, ``C ≈ u @ diag(s) @ v.T``, signs fixed.

    The largest entry of every right vector is made positive, so that equal problems give equal factors.
    """
    u, s, vt = np.linalg.svd(C, full_matrices=False)
    r = len(s) if rank is None else min(rank, len(s))
    u, s, v = u[:, :r], s[:r], vt[:r].T
    if r:
        sign = np.sign(v[np.abs(v).argmax(axis=0), np.arange(r)])
        u, v = u * sign, v * sign
    return u, s, v


def tall_qr(B: Array) -> tuple[Array, Array]:
    """``B = Q @ R`` with orthonormal Q, for many more rows than columns.

    By Cholesky, again until Q hardly changes: as accurate as Householder's way where B is well conditioned, and several
    times as fast. Elsewhere Householder's way is taken.
    """
    n, d = B.shape
    if n < 4 * d or n * d < SMALL:
        return _householder(B)
    Q, R = B, np.eye(d)
    while True:
        with np.errstate(over="ignore", invalid="ignore"):
            G = Q.T @ Q
        size = np.sqrt(np.diag(G))
        if not (size.min() > LEAST and size.max() < 1 / LEAST):
            return _householder(B)
        try:
            step = np.linalg.cholesky(G / size / size[:, None]).T
        except np.linalg.LinAlgError:
            return _householder(B)
        back = np.linalg.inv(step)
        condition = np.linalg.norm(step) * np.linalg.norm(back) / d
        if condition > MOST_CONDITION:
            return _householder(B)
        Q, R = Q @ (back / size[:, None]), (step * size) @ R
        if condition < 1.1:
            return Q, R


def _householder(B: Array) -> tuple[Array, Array]:
    Q, R = np.linalg.qr(B)
    return Q, R


def relative_change(new: Array, old: Array) -> float:
    """``‖new − old‖_F / ‖new‖_F``, and 0 for two zero matrices."""
    size = np.linalg.norm(new)
    moved = np.linalg.norm(new - old)
    return float(moved / size) if size > 0 else float(moved > 0)


@dataclass(frozen=True, eq=False)
class LowRank:
    """The matrix ``left @ core @ right.T``, of which only the factors are stored.

    Parameters
    ----------
    left : array of shape (n1, k1)
    core : array of shape (k1, k2)
    right : array of shape (n2, k2)

    Examples
    --------
    >>> import numpy as np
    >>> L = LowRank(np.ones((4, 1)), np.array([[2.0]]), np.ones((3, 1)))
    >>> L.shape, L.rank, float(L.dense()[0, 0])
    ((4, 3), 1, 2.0)
    """

    left: Array
    core: Array
    right: Array

    @classmethod
    def zero(cls, shape: tuple[int, int]) -> LowRank:
        """The zero matrix, of rank 0."""
        return cls(np.zeros((shape[0], 0)), np.zeros((0, 0)), np.zeros((shape[1], 0)))

    @classmethod
    def from_core(cls, Q1: Array | None, C: Array, Q2: Array | None, rank: int | None = None) -> LowRank:
        """``Q1 @ P_r(C) @ Q2.T``: for orthonormal Q1, Q2 the best rank-r approximation of ``Q1 @ C @ Q2.T``.

        None stands for the identity.
        """
        u, s, v = singular_triplets(C, rank)
        return cls(u if Q1 is None else Q1 @ u, np.diag(s), v if Q2 is None else Q2 @ v)

    @classmethod
    def from_product(cls, U: Array, V: Array, rank: int | None = None) -> LowRank:
        """``U @ V.T`` with orthonormal outer factors, truncated to ``rank``."""
        Q1, R1 = tall_qr(U)
        Q2, R2 = tall_qr(V)
        return cls.from_core(Q1, R1 @ R2.T, Q2, rank)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.left), len(self.right)

    @property
    def rank(self) -> int:
        return min(self.core.shape)

    @property
    def T(self) -> LowRank:
        return LowRank(self.right, self.core.T, self.left)

    @property
    def singular_values(self) -> Array:
        """Singular values of the core: those of the matrix, when the outer factors are orthonormal."""
        return np.linalg.svd(self.core, compute_uv=False)

    def thin(self) -> tuple[Array, Array]:
        """``U, V`` with ``U @ V.T`` equal to this matrix and as few columns as the core allows."""
        if self.core.shape[0] < self.core.shape[1]:
            return self.left, self.right @ self.core.T
        return self.left @ self.core, self.right

    def rows(self, index: ArrayLike) -> Array:
        """The dense rows ``index``."""
        U, V = self.thin()
        picked: Array = U[np.asarray(index)] @ V.T
        return picked

    def entries(self, rows: ArrayLike, cols: ArrayLike) -> Array:
        """The scattered entries ``(rows[k], cols[k])``."""
        U, V = self.thin()
        rows, cols = np.broadcast_arrays(rows, cols)
        found = np.empty(rows.shape, np.result_type(U, V))
        at, out = (rows.ravel(), cols.ravel()), found.ravel()
        step = max(1, SMALL // max(1, U.shape[1]))  # what is gathered stays in cache
        for first in range(0, len(out), step):
            some = slice(first, first + step)
            left, right = np.take(U, at[0][some], axis=0), np.take(V, at[1][some], axis=0)
            np.einsum("kr,kr->k", left, right, out=out[some])
        return found

    def dense(self) -> Array:
        """The full matrix, n1 × n2."""
        U, V = self.thin()
        full: Array = U @ V.T
        return full

    def truncate(self, rank: int) -> LowRank:
        """P_r, the best approximation of rank ``rank``; needs orthonormal outer factors."""
        return LowRank.from_core(self.left, self.core, self.right, rank)

    def __repr__(self) -> str:
        return f"LowRank(shape={self.shape}, rank={self.rank})"


def relative_distance(new: LowRank, old: LowRank) -> float:
    """``‖new − old‖_F / ‖new‖_F`` from the factors alone, without cancellation."""
    (U, V), (X, Y) = new.thin(), old.thin()
    moved, size = _norm(np.hstack([U, X]), np.hstack([V, -Y])), _norm(U, V)
    return moved / size if size > 0 else float(moved > 0)


def _norm(U: Array, V: Array) -> float:
    """``‖U @ V.T‖_F`` from two small triangles."""
    R1, R2 = (np.asarray(np.linalg.qr(B, mode="r")) for B in (U, V))
    return float(np.linalg.norm(R1 @ R2.T))
