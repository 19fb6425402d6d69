"""The part common to the two gradient methods: a sparsifier for a given corruption level, and balanced factors of L."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..engines.base import Engine
from ..lowrank import Array, LowRank, relative_distance
from ..result import State
from .endings import GROSS, threshold_floor, typical
from .options import number
from .subspace import SPARE, Cleaned, leading_checked, random_block

DIVERGED_FACTOR = 1e6  # times as large as the factors of the start: they have diverged

Update = Callable[[Array, Array, Array, Array], tuple[Array, Array]]  # U, V, T V, Tᵀ U -> the next U, V


def checked_corruption(solver: str, corruption: float | None) -> float:
    """The share of corrupted entries, which these methods need."""
    if corruption is None:
        raise ValueError(
            f"solver={solver!r} needs the share of outliers: pass corruption=…, the largest share in any row or "
            "column, such as 0.1; solver='irpca' estimates it"
        )
    return number("corruption", corruption, 0, 1, closed=True)


def descend(
    engine: Engine,
    rank: int,
    share: tuple[float, float],
    updating: Callable[[float], Update],
    rng: np.random.Generator,
) -> Iterator[State]:
    """L = U Vᵀ, moved by ``updating(σ_1)`` from the trimmed residual.

    An entry goes to S if it is among the largest of its row and of its column: ``share`` of them at the start, and
    later. Three reads of M per iteration, two of which sort it.
    """
    n1, n2 = engine.shape
    counts = [(int(part * n2 + 1e-9), int(part * n1 + 1e-9)) for part in share]  # 0.29 · 100 is 28.999…
    nothing = LowRank.zero(engine.shape)
    start = Cleaned(engine, nothing, engine.cut(nothing, *counts[0]))
    left, s, right = leading_checked(start, random_block(n2, rank + SPARE, rng), rank, engine.dtype)
    U, V = (Q[:, :rank] * np.sqrt(s[:rank]) for Q in (left, right))
    farthest = DIVERGED_FACTOR * max(np.abs(U).max(), np.abs(V).max())
    update = updating(float(s[0]) or 1.0)  # solve() refuses an M that is all zero
    L = LowRank.from_product(U, V)
    while True:
        factors = LowRank(U, np.eye(rank), V)
        TV, TtU, trim = engine.products(factors, engine.cut(factors, *counts[1]), V, U)
        U, V = update(U, V, TV.astype(float), TtU.astype(float))
        if not (np.abs(U).max() <= farthest and np.abs(V).max() <= farthest):  # nor NaN
            yield State(L, np.inf, np.inf, trim)
            return
        new = LowRank.from_product(U, V)
        yield State(
            new,
            # About the lowest that keeps all entries kept; the sparsifier also takes clean entries.
            max(trim.largest, GROSS * typical(new), threshold_floor(new, engine.dtype)),
            relative_distance(new, L),
            trim,
            tolerance=10 * float(np.finfo(engine.dtype).eps),
        )
        L = new
