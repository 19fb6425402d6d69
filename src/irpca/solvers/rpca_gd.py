"""Robust PCA by gradient descent on the factors (Yi, Park, Chen, Caramanis 2016)."""

from __future__ import annotations

from collections.abc import Iterator

from ..arguments import number
from ..lowrank import Array
from ..problem import Problem
from ..result import State
from .gradient import Update, checked_corruption, descend


def iterate(
    problem: Problem, *, corruption: float | None = None, inflation: float = 1.5, step_size: float = 0.5
) -> Iterator[State]:
    """RPCA-GD on the fully observed matrix; features are not used.

    It needs the rank and the corruption level, M in memory or on a GPU and a second matrix of its size there; three
    reads of M an iteration, hundreds of iterations or thousands, the more the worse L is conditioned: raise
    ``max_iter``. Guarantee: a share of any row or column corrupted of the order of 1 / (μ r^1.5).

    Parameters
    ----------
    corruption : float
        The largest share of corrupted entries in any row or column.
    inflation : float
        The sparsifier takes so many times as much; the authors' demonstration has 1.5.
    step_size : float
        In units of 1 / σ_1 of the start.
    """
    engine, rank, random_state = problem.engine, problem.needed_rank, problem.generator()
    share = checked_corruption("rpca_gd", corruption)
    number(step_size, "step_size", above=0)
    number(inflation, "inflation", least=1)

    def updating(sigma_1: float) -> Update:
        eta = step_size / sigma_1

        def update(U: Array, V: Array, TV: Array, TtU: Array) -> tuple[Array, Array]:
            tilt = U.T @ U - V.T @ V  # kept small, so that neither factor runs away
            return U + eta * (TV - U @ tilt / 16), V + eta * (TtU + V @ tilt / 16)

        return update

    taken = min(inflation * share, 1.0)
    yield from descend(engine, rank, (taken, taken), updating, random_state)
