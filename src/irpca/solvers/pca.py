"""Ordinary PCA without centring: the non-robust baseline, which a single gross error can distort without bound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..engines.base import Trim
from ..lowrank import LowRank, relative_distance
from ..problem import Problem
from ..result import State
from .subspace import SPARE, Cleaned, first_look, leading

ROUNDS = 4  # of subspace iteration in one iteration: singular values that lie close together take many


def iterate(problem: Problem) -> Iterator[State]:
    """The best approximation of M of the given rank, by subspace iteration: eight reads of M an iteration.

    It needs the rank. S is empty: no entry is called an outlier.
    """
    engine, rank, random_state = problem.engine, problem.needed_rank, problem.generator()
    L = LowRank.zero(engine.shape)
    M = Cleaned(engine, L, np.inf)
    _, V, all_of_it = first_look(engine, 2 * rank + SPARE, random_state)
    while True:
        U, s, V = leading(M, V, rank, tol=0.0, most=ROUNDS)
        new = LowRank(U[:, :rank], np.diag(s[:rank]), V[:, :rank])
        # The energy of the residual of a projection, without a read.
        left = Trim(all_of_it.kept, 0, max(all_of_it.energy - float((s[:rank] ** 2).sum()), 0.0), np.nan)
        yield State(new, np.inf, relative_distance(new, L), left)
        L = new
