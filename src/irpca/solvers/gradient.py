"""The part common to the two gradient methods: a sparsifier for a given corruption level, and balanced factors of L."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..arguments import number
from ..engines.base import Engine, Trim
from ..lowrank import Array, LowRank, relative_distance
from ..result import State
from .dense import DenseMatrix, Sum
from .endings import GROSS, threshold_floor, typical
from .subspace import SPARE, leading_checked, random_block

DIVERGED_FACTOR = 1e6  # times as large as the factors of the start: they have diverged

Update = Callable[[Array, Array, Array, Array], tuple[Array, Array]]  # U, V, T V, Tᵀ U -> the next U, V


def checked_corruption(solver: str, corruption: float | None) -> float:
    """The share of corrupted entries, which these methods need."""
    if corruption is None:
        raise ValueError(
            f"solver={solver!r} needs the share of outliers: pass corruption=…, the largest share in any row or "
            "column, such as 0.1; solver='irpca' estimates it"
        )
    return float(number(corruption, "corruption", least=0, below=1))


def descend(
    engine: Engine,
    rank: int,
    share: tuple[float, float],
    updating: Callable[[float], Update],
    rng: np.random.Generator,
) -> Iterator[State]:
    """L = U Vᵀ, moved by ``updating(σ_1)`` from T = M − L − S.

    An entry goes to S if it is among the largest of its row and of its column: ``share`` of them at the start, and
    later. Three reads of M per iteration, two of which sort it.
    """
    M = DenseMatrix(engine)
    T = M.zeros()
    # S_0 = sparsified M; U_0 V_0ᵀ = P_r(M − S_0).
    zero = LowRank.zero(engine.shape)
    start = Sum(M, zero, T, trim=_trim(M, T, zero, share[0]))
    left, s, right = leading_checked(start, random_block(engine.shape[1], rank + SPARE, rng), rank, engine.dtype)
    U, V = (Q[:, :rank] * np.sqrt(s[:rank]) for Q in (left, right))
    farthest = DIVERGED_FACTOR * max(np.abs(U).max(), np.abs(V).max())
    update = updating(float(s[0]) or 1.0)  # solve() refuses an M that is all zero
    L = LowRank.from_product(U, V)
    while True:
        # S = sparsified M − U Vᵀ; then a step along the gradients of ‖U Vᵀ + S − M‖².
        trim = _trim(M, T, LowRank(U, np.eye(rank), V), share[1])
        U, V = update(U, V, *M.products(T, V, U))
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
        )
        L = new


def _trim(M: DenseMatrix, T: Any, L: LowRank, share: float) -> Trim:
    """T ← M − L where an entry is not among the largest of its row and of its column, else 0."""
    (U, Vt), xp = M.factors(L), M.xp
    in_row, in_col = (int(share * n + 1e-9) for n in (T.shape[1], T.shape[0]))  # 0.29 · 100 is 28.999…

    def along(rows: slice) -> Any:
        T[rows] = M.residual(rows, U, Vt)
        return _next_largest(xp, xp.abs(T[rows]), in_row, 1)

    def across(cols: slice) -> Any:
        return _next_largest(xp, xp.abs(T[:, cols]), in_col, 0)

    row_limits, col_limits = xp.concat(M.over_blocks(along)), xp.concat(M.over_blocks(across, axis=1))
    M.engine.reads += 2

    def cut(rows: slice) -> tuple[int, float, float]:
        outside = xp.abs(T[rows]) > xp.maximum(row_limits[rows, None], col_limits[None, :])
        T[rows] *= ~outside
        return M.counted(outside, T[rows])

    return M.trim(M.over_blocks(cut))


def _next_largest(xp: Any, sizes: Any, count: int, axis: int) -> Any:
    """The number next below the ``count`` largest along an axis, 0 where there is none; ``sizes`` are lost."""
    at = sizes.shape[axis] - 1 - count
    if at < 0:
        return xp.zeros_like(xp.max(sizes, axis=axis))
    if hasattr(sizes, "partition"):  # NumPy, which sorts thirty times as slowly
        sizes.partition(at, axis=axis)
    else:
        sizes = xp.sort(sizes, axis=axis)
    return xp.asarray(sizes[:, at] if axis else sizes[at, :], copy=True)  # a view would hold all of them
