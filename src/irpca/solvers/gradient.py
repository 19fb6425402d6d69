"""What the two gradient methods share: a sparsifier that knows how much is corrupted, and balanced factors of L."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..engines.base import Engine
from ..lowrank import Array, LowRank, relative_distance
from ..result import State
from ..sampling import check_scale
from .endings import threshold_floor
from .subspace import SPARE, Cleaned, leading, random_block

Update = Callable[[Array, Array, Array, Array], tuple[Array, Array]]  # U, V, T V, Tᵀ U -> the next U, V


def checked_corruption(solver: str, corruption: float | None) -> float:
    """The share of corrupted entries, which these methods must be told."""
    if corruption is None:
        raise ValueError(
            f"solver={solver!r} needs to be told how much is corrupted: pass corruption=…, the largest share of "
            "corrupted entries in any row or column; solver='irpca' finds it by itself"
        )
    if isinstance(corruption, bool) or not 0 <= corruption < 1:
        raise ValueError(f"corruption must be a share of the entries, at least 0 and below 1, got {corruption!r}")
    return float(corruption)


def checked_step(step_size: float) -> None:
    if not step_size > 0:
        raise ValueError(f"step_size must be positive, got {step_size!r}")


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
    counts = [(int(part * n2), int(part * n1)) for part in share]
    nothing = LowRank.zero(engine.shape)
    start = Cleaned(engine, nothing, engine.cut(nothing, *counts[0]))
    left, s, right = leading(start, random_block(n2, rank + SPARE, rng), rank)
    U, V = (Q[:, :rank] * np.sqrt(s[:rank]) for Q in (left, right))
    assert start.trim is not None
    check_scale(start.trim.largest)
    update = updating(float(s[0]) or 1.0)  # solve() refuses an M that is all zero
    L = LowRank.from_product(U, V)
    while True:
        factors = LowRank(U, np.eye(rank), V)
        TV, TtU, trim = engine.sides(factors, engine.cut(factors, *counts[1]), V, U)
        U, V = update(U, V, TV.astype(float), TtU.astype(float))
        if not (np.isfinite(U).all() and np.isfinite(V).all()):
            yield State(L, np.inf, np.inf, trim)
            return
        new = LowRank.from_product(U, V)
        yield State(
            new,
            max(trim.largest, threshold_floor(new, engine.dtype)),  # the lowest that keeps all that was kept
            relative_distance(new, L),
            trim,
            tolerance=10 * float(np.finfo(engine.dtype).eps),
        )
        L = new
