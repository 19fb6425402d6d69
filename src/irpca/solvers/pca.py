"""Ordinary PCA without centring: the non-robust floor, which gross errors pull wherever they like."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..engines.base import Engine, Trim
from ..features import Features
from ..lowrank import LowRank, relative_distance
from ..result import State
from .subspace import SPARE, Cleaned, first_look, leading


def pca(engine: Engine, F1: Features, F2: Features, rank: int, *, random_state: np.random.Generator) -> Iterator[State]:
    """The best approximation of M of the given rank, by subspace iteration: two reads of M an iteration.

    It needs the rank. S is empty: nothing is told from noise.
    """
    L = LowRank.zero(engine.shape)
    M = Cleaned(engine, L, np.inf)
    _, V, all_of_it = first_look(engine, rank + SPARE, random_state)
    eps = float(np.finfo(engine.dtype).eps)
    while True:
        U, s, V = leading(M, V, rank, most=1)
        new = LowRank(U[:, :rank], np.diag(s[:rank]), V[:, :rank])
        # What a projection leaves of M: no read is needed for that.
        left = Trim(all_of_it.kept, 0, max(all_of_it.energy - float((s[:rank] ** 2).sum()), 0.0), np.nan)
        yield State(new, np.inf, relative_distance(new, L), left, tolerance=10 * eps)
        L = new
