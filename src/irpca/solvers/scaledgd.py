"""Robust PCA by scaled gradient descent (Tong, Ma, Chi 2021): the speed does not depend on the conditioning of L."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..arguments import number
from ..lowrank import Array
from ..problem import Problem
from ..result import State
from .gradient import checked_corruption, descend


def iterate(problem: Problem, *, corruption: float | None = None, step_size: float = 0.5) -> Iterator[State]:
    """ScaledGD for robust PCA; features are not used.

    It needs the rank and the corruption level, M in memory or on a GPU and a second matrix of its size there; three
    reads of M an iteration, and often hundreds of iterations: raise ``max_iter``. Guarantee: a share of any row or
    column corrupted of the order of 1 / (μ r^1.5 κ), κ the condition number of L.

    Parameters
    ----------
    corruption : float
        The largest share of corrupted entries in any row or column; after the start twice as much is taken.
    step_size : float
    """
    engine, rank, random_state = problem.engine, problem.needed_rank, problem.generator()
    share = checked_corruption("scaledgd", corruption)
    number(step_size, "step_size", above=0)

    def update(U: Array, V: Array, TV: Array, TtU: Array) -> tuple[Array, Array]:
        return U + step_size * _divided(TV, V), V + step_size * _divided(TtU, U)

    yield from descend(engine, rank, (share, min(2 * share, 1.0)), lambda _: update, random_state)


def _divided(product: Array, factor: Array) -> Array:
    """``product @ (factorᵀ factor)⁻¹``, the shortest such where the factor is rank-deficient."""
    return product @ np.linalg.pinv(factor.T @ factor, hermitian=True)
