"""Leading singular triplets of matrices that are given by products."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from ..engines.base import Engine, Trim
from ..lowrank import Array, LowRank
from ..sample import check_scale

SPARE = 5  # columns in addition to those asked for: they speed up convergence, and estimate the next values


class Operator(Protocol):
    """A matrix made of M, and what rode along on the read that made it."""

    trim: Trim | None

    def times(self, X: Array) -> Array: ...

    def t_times(self, X: Array) -> Array: ...


class Cleaned:
    """M − S = L + T, for the S that belongs to L and zeta. Each product is one read of M."""

    def __init__(self, engine: Engine, L: LowRank, zeta: float) -> None:
        self.engine, self.L, self.zeta = engine, L, zeta
        self.U, self.V = L.thin()
        self.trim: Trim | None = None

    def times(self, X: Array) -> Array:
        TX, _, self.trim = self.engine.products(self.L, self.zeta, X)
        return self.U @ (self.V.T @ X) + TX

    def t_times(self, X: Array) -> Array:
        _, TX, self.trim = self.engine.products(self.L, self.zeta, Y=X)
        return self.V @ (self.U.T @ X) + TX


def leading(
    matrix: Operator, V: Array, wanted: int, *, guess: Array | None = None, tol: float = 1e-2, most: int = 12
) -> tuple[Array, Array, Array]:
    """Leading triplets ``U, s, V``, as many as V has columns, by subspace iteration from V: two products a round.

    It ends when none of the ``wanted`` leading values moves by more than ``tol`` of itself; ``guess``: what they were
    for a matrix close to this one.
    """
    before = np.zeros(wanted) if guess is None else guess[:wanted]
    for _ in range(most):
        U = np.linalg.qr(matrix.times(V))[0]
        V, s, Wt = np.linalg.svd(matrix.t_times(U), full_matrices=False)
        U = U @ Wt.T
        if (np.abs(s[:wanted] - before) <= tol * s[:wanted]).all():
            break
        before = s[:wanted]
    return U, s, V


def leading_checked(M: Operator, V: Array, wanted: int, dtype: DTypeLike = np.float64) -> tuple[Array, Array, Array]:
    """The same of an M whose scale is not known yet: numbers that cannot be squared are refused by name."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            found = leading(M, V, wanted)
    except np.linalg.LinAlgError:  # products of the largest numbers are infinite
        assert M.trim is not None
        check_scale(M.trim.largest, dtype)
        raise
    assert M.trim is not None
    check_scale(M.trim.largest, dtype)
    return found


def first_look(engine: Engine, columns: int, rng: np.random.Generator) -> tuple[float, Array, Trim]:
    """σ_1 of M to a per cent, a block of right vectors to start from, and the norms computed on the way."""
    M = Cleaned(engine, LowRank.zero(engine.shape), np.inf)
    _, s, V = leading_checked(M, random_block(engine.shape[1], columns, rng), 1)
    assert M.trim is not None
    return float(s[0]), V, M.trim


def random_block(n: int, columns: int, rng: np.random.Generator) -> Array:
    return rng.standard_normal((n, min(n, columns)))
