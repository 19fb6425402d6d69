"""A low-rank matrix kept as three factors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .cached import cached_property
from .threads import available_cores, in_order

Array = NDArray[Any]
Span = tuple[Array, Array | None]
Answer = TypeVar("Answer")

SMALL = 1 << 13  # numbers, that stay in cache; for so few, Householder's way is as fast as any
MOST_CONDITION = 1e4  # its square leaves 8 digits to go by
ORTHOGONAL = 1.5  # the same of columns so close to orthogonal that one step leaves nothing but rounding
ROWS_IN_CACHE = 1 << 10  # of up to 64 numbers: half a megabyte
ROWS_IN_SHARE = 1 << 12  # at least, of a tall matrix: a product takes longer than to wake a thread
MOST_SHARES = 16  # in which all rows are worked on
MOST_THREADS = 4  # more wait for each other (a solve with 80,000 rows, 16 cores: 61 to 66 ms with 1 to 4, 82 with 16)
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

    By Cholesky, again unless the columns were close to orthogonal: as accurate as Householder's way where B is well
    conditioned, and several times as fast. Elsewhere Householder's way is taken.
    """
    Y, T, R = _nearly_qr(B)
    return (Y if T is None else times(Y, T, None if Y is B else Y)), R


def _nearly_qr(B: Array, A: Array | None = None) -> tuple[Array, Array | None, Array]:
    """``Y, T, R`` with ``B @ A = Y @ T @ R`` and orthonormal ``Y @ T``; None stands for the identity.

    Whoever wants this in other coordinates has one product less to make.
    """
    n, d = len(B), (B if A is None else A).shape[1]
    if n < 4 * d or n * d < SMALL:
        return _householder(B, A)
    Y = B if A is None else np.empty((n, d))
    G, R = _product(B, A, Y), np.eye(d)
    while True:
        size = np.sqrt(np.diag(G))
        if not (size.min() > LEAST and size.max() < 1 / LEAST):
            break
        try:
            step = np.linalg.cholesky(G / size / size[:, None]).T
        except np.linalg.LinAlgError:
            break
        back = np.linalg.inv(step)
        condition = np.linalg.norm(step) * np.linalg.norm(back) / d
        if condition > MOST_CONDITION:
            break
        T, R = back / size[:, None], (step * size) @ R
        if condition < ORTHOGONAL:
            return Y, T, R
        new = np.empty((n, d)) if Y is B else Y
        G, Y = _product(Y, T, new), new
    return _householder(B, A)


def _householder(B: Array, A: Array | None) -> tuple[Array, None, Array]:
    Q, R = np.linalg.qr(B if A is None else B @ A)
    return Q, None, R


def times(B: Array, A: Array, spare: Array | None = None) -> Array:
    """``B @ A`` for a tall B, by rows that stay in cache; where it fits, in the place of ``spare``, which may be B."""
    fits = spare is not None and spare.shape[1] == A.shape[1]
    if len(B) <= ROWS_IN_CACHE and not fits:
        return B @ A
    out = spare if spare is not None and fits else np.empty((len(B), A.shape[1]), np.result_type(B, A))

    def work(share: slice) -> None:
        for rows in in_cache(share):
            out[rows] = B[rows] @ A

    over_rows(work, len(B))
    return out


def _product(B: Array, A: Array | None, out: Array) -> Array:
    """The Gram matrix of ``B @ A``, which goes to ``out``; of B itself if A is None. ``out`` may be B."""

    def work(share: slice) -> Array:
        G = np.zeros((out.shape[1], out.shape[1]))
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in in_cache(share):
                part = B[rows]
                if A is not None:
                    part = out[rows] = part @ A
                G += part.T @ part
        return G

    return np.sum(over_rows(work, len(B)), axis=0)


def squared_lengths(B: Array, A: Array | None = None) -> Array:
    """Of the rows of ``B @ A``, or of B itself."""
    lengths = np.empty(len(B))

    def work(share: slice) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in in_cache(share):
                part = B[rows] if A is None else B[rows] @ A
                np.einsum("ij,ij->i", part, part, out=lengths[rows])

    over_rows(work, len(B))
    return lengths


def over_rows(work: Callable[[slice], Answer], n: int) -> list[Answer]:
    """``work`` on all of n rows, in shares that do not depend on how many threads there are: nor do sums over them."""
    step = max(ROWS_IN_SHARE, -(-n // MOST_SHARES))
    shares = [slice(first, min(first + step, n)) for first in range(0, n, step)]
    if len(shares) <= 1:
        return [work(share) for share in shares]
    return list(in_order(work, shares, min(available_cores(), len(shares), MOST_THREADS), ahead=len(shares)))


def in_cache(rows: slice) -> Iterator[slice]:
    """Runs of so few rows that a product of them stays in cache."""
    for first in range(rows.start, rows.stop, ROWS_IN_CACHE):
        yield slice(first, min(first + ROWS_IN_CACHE, rows.stop))


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
        return cls(u if Q1 is None else times(Q1, u), np.diag(s), v if Q2 is None else times(Q2, v))

    @classmethod
    def from_product(cls, U: Array, V: Array, rank: int | None = None) -> LowRank:
        """``U @ V.T`` with orthonormal outer factors, truncated to ``rank``."""
        return cls.from_spans((U, None), None, (V, None), rank)

    @classmethod
    def from_spans(cls, left: Span, core: Array | None, right: Span, rank: int | None = None) -> LowRank:
        """``(B1 @ A1) @ core @ (B2 @ A2).T`` with orthonormal outer factors, truncated to ``rank``.

        Each side is a pair (B, A) of a tall and a small matrix; None stands for the identity.
        """
        (Y1, T1, R1), (Y2, T2, R2) = _nearly_qr(*left), _nearly_qr(*right)
        u, s, v = singular_triplets(R1 @ R2.T if core is None else R1 @ core @ R2.T, rank)
        u, v = u if T1 is None else T1 @ u, v if T2 is None else T2 @ v
        spare = [None if Y is given else Y for Y, given in ((Y1, left[0]), (Y2, right[0]))]
        return cls(times(Y1, u, spare[0]), np.diag(s), times(Y2, v, spare[1]))

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

    def short(self) -> tuple[Array, Array]:
        """As :meth:`thin`, with the core in the factor of the shorter side where both would do: fewer flops."""
        k1, k2 = self.core.shape
        if k1 == k2 and len(self.left) > len(self.right):
            return self.left, self.right @ self.core.T
        return self.thin()

    def part(self, rows: ArrayLike, cols: ArrayLike) -> LowRank:
        """Some rows and columns of this matrix."""
        return LowRank(self.left[np.asarray(rows)], self.core, self.right[np.asarray(cols)])

    def rows(self, index: ArrayLike) -> Array:
        """The dense rows ``index``."""
        picked: Array = (self.left[np.asarray(index)] @ self.core) @ self.right.T
        return picked

    def entries(self, rows: ArrayLike, cols: ArrayLike) -> Array:
        """The scattered entries ``(rows[k], cols[k])``; each the same to the bit, however many are asked for."""
        at, across = np.broadcast_arrays(rows, cols)
        return self._gathered(at, across, few=False)

    def sampled(self, rows: Array, cols: Array) -> Array:
        """As :meth:`entries`, to rounding and by the shortest way for so many."""
        if 4 * rows.size >= len(self.left) * len(self.right):
            return self.dense()[rows, cols]  # a product is faster than to gather factors
        return self._gathered(rows, cols, few=rows.size < min(self.shape))

    def _gathered(self, rows: Array, cols: Array, few: bool) -> Array:
        """Of a few the core is multiplied with what is gathered, not with all of a factor."""
        U, V = (self.left, self.right) if few else self.short()
        found = np.empty(rows.shape, np.result_type(U, self.core, V))
        at, out = (rows.ravel(), cols.ravel()), found.ravel()
        step = max(1, SMALL // max(1, U.shape[1]))  # what is gathered stays in cache
        for first in range(0, len(out), step):
            some = slice(first, first + step)
            left, right = np.take(U, at[0][some], axis=0), np.take(V, at[1][some], axis=0)
            np.einsum("kr,kr->k", left @ self.core if few else left, right, out=out[some])
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


class Deferred(LowRank):
    """A low-rank matrix whose factors are made when somebody asks for them.

    Parameters
    ----------
    make : callable that returns it

    Examples
    --------
    >>> L = Deferred(lambda: LowRank.zero((4, 3)))
    >>> L.shape
    (4, 3)
    """

    def __init__(self, make: Callable[[], LowRank]) -> None:
        object.__setattr__(self, "make", make)

    @cached_property
    def made(self) -> LowRank:
        make: Callable[[], LowRank] = self.__dict__.pop("make")  # with all that it holds
        return make()

    @property
    def left(self) -> Array:
        return self.made.left

    @property
    def core(self) -> Array:
        return self.made.core

    @property
    def right(self) -> Array:
        return self.made.right


def core_of(U: Array, V: Array) -> Array:
    """A small matrix with the singular values of ``U @ V.T``."""
    core: Array = _nearly_qr(U)[2] @ _nearly_qr(V)[2].T
    return core


def relative_distance(new: LowRank, old: LowRank) -> float:
    """``‖new − old‖_F / ‖new‖_F`` from the factors alone, without cancellation."""
    (U, V), (X, Y) = new.thin(), old.thin()
    moved, size = _norm(np.hstack([U, X]), np.hstack([V, -Y])), _norm(U, V)
    return moved / size if size > 0 else float(moved > 0)


def _norm(U: Array, V: Array) -> float:
    """``‖U @ V.T‖_F``."""
    return float(np.linalg.norm(core_of(U, V)))
