"""Problems of any size whose answer is known, written to a folder a few rows at a time.

The distribution is that of ``irpca.datasets.make_problem``, the paper's section 5.1. That one makes L, S and N as dense
arrays in double precision; here nothing of the size of M is made but M, in its own precision, and one 32-bit draw per
entry says whether it is corrupted, by how much and in which direction. 50,000 × 50,000 takes seconds, not memory.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from irpca import LowRank
from irpca.datasets.synthetic import _draw_features
from irpca.lowrank import singular_triplets
from irpca.sample import rounding_floor
from lab.machine import count_cores

OUTLIER_TO_NOISE = 8  # the smallest outlier, in standard deviations of the noise
ORACLE_CUT = 4.75  # standard deviations; fewest mistakes about S at 10 % corruption and outliers of 8 to 16 of them
PIECE = 1 << 19  # entries that are made at a time: they stay in cache


@dataclass(frozen=True, eq=False)
class Task:
    """What contenders get, M and its features, and what only oracles know.

    ``F2`` is None where the features of the columns are kept from everyone. ``S`` is what was added to L, and None if
    that was not asked for. ``zeta`` is where an oracle cuts.
    """

    M: np.ndarray
    F1: np.ndarray
    F2: np.ndarray | None
    W: np.ndarray
    L: LowRank
    noise: float
    zeta: float
    S: csr_array | None = None
    iterations: int = 0

    @property
    def rank(self) -> int:
        return self.L.rank

    @classmethod
    def load(cls, folder: Path, mapped: bool = False) -> Task:
        """The task in that folder, with M in memory or mapped, and without S."""
        with np.load(folder / "known.npz") as known:
            arrays = {name: known[name] for name in known.files}
        L = LowRank(*(arrays.pop(name) for name in ("left", "core", "right")))
        M = np.load(folder / "M.npy", mmap_mode="r" if mapped else None)  # last: see memory.py
        noise, zeta = float(arrays["noise"]), float(arrays["zeta"])
        return cls(M, arrays["F1"], arrays.get("F2"), arrays["W"], L, noise, zeta)


def make(
    folder: Path,
    n1: int,
    n2: int,
    d: int,
    rank: int,
    corruption: float,
    dtype: str = "float64",
    noisy: bool = False,
    one_sided: bool = False,
    mapped: bool = False,
    keep_S: bool = True,
    seed: int = 0,
) -> Task:
    """Write a problem into the folder, made if need be, and load it from there."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    F1 = _draw_features(rng, n1, d, 1.0, "literal").astype(dtype)
    F2 = F1 if n1 == n2 else _draw_features(rng, n2, d, 1.0, "literal").astype(dtype)
    u, s, v = singular_triplets(rng.uniform(size=(d, d)), rank)
    L = LowRank(F1 @ u, np.diag(s), F2 @ v)
    smallest = 5 * rank / np.sqrt(n1 * n2)
    noise = smallest / OUTLIER_TO_NOISE if noisy else 0.0

    M = np.lib.format.open_memmap(folder / "M.npy", mode="w+", dtype=np.dtype(dtype), shape=(n1, n2))
    S, largest = _fill(M, L, corruption, smallest, noise, keep_S, seed)
    del M
    zeta = ORACLE_CUT * noise if noise else rounding_floor(np.dtype(dtype), largest)
    known: dict[str, Any] = {"F1": F1, "W": (u * s) @ v.T, **vars(L), "noise": noise, "zeta": zeta}
    if not one_sided:
        known["F2"] = F2
    np.savez(folder / "known.npz", **known)
    return replace(Task.load(folder, mapped), S=S)


def _fill(
    M: np.ndarray, L: LowRank, corruption: float, smallest: float, noise: float, keep_S: bool, seed: int
) -> tuple[csr_array | None, float]:
    """Write L + S + N into M; returns S and the largest entry of L."""
    left, right = (factor.astype(M.dtype) for factor in L.thin())
    step = max(1, PIECE // M.shape[1])
    starts = range(0, len(M), step)
    limit = corruption * 2**31

    def piece(first: int, source: np.random.SeedSequence) -> tuple[float, Any]:
        draw = np.random.Generator(np.random.SFC64(source))
        clean = left[first : first + step] @ right.T
        S = draw.integers(-(2**31), 2**31, size=clean.shape, dtype=np.int32).astype(M.dtype)
        corrupted = np.abs(S) < limit
        S *= smallest / limit  # from 0 to the smallest outlier, either way; with that added, to twice it
        S += np.copysign(smallest, S)
        S *= corrupted
        M[first : first + step] = clean + S
        if noise:
            M[first : first + step] += noise * draw.standard_normal(clean.shape, dtype=M.dtype)
        return float(np.abs(clean).max()), csr_array(S) if keep_S else None

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(count_cores()) as pool:
        largest, parts = zip(*pool.map(piece, starts, np.random.SeedSequence(seed).spawn(len(starts))), strict=True)
    return _stacked(parts, M.shape) if keep_S else None, max(largest)


def _stacked(parts: tuple[csr_array, ...], shape: tuple[int, int]) -> csr_array:
    """One below the other. SciPy's vstack would go through int64 and hold all of it twice."""
    counts = np.concatenate([[0], *(np.diff(part.indptr) for part in parts)])
    indptr = np.cumsum(counts, dtype=np.int64 if sum(part.nnz for part in parts) >= 2**31 else np.int32)
    data, indices = (np.concatenate([getattr(part, name) for part in parts]) for name in ("data", "indices"))
    return csr_array((data, indices, indptr), shape=shape)


def with_known_support(task: Task, rounds: int = 3) -> LowRank:
    """Least squares of rank r on the entries that are not corrupted: what noise alone costs.

    The missing entries are filled in from the fit, over and over. From the truth that takes few rounds: each leaves
    less than the corrupted share of what was wrong.
    """
    assert task.S is not None and task.F2 is not None
    Q1, Q2 = (np.linalg.qr(F.astype(float))[0] for F in (task.F1, task.F2))
    thin = Q2.astype(task.M.dtype)
    clean = 1 - task.S.nnz / task.M.size
    step = max(1, (1 << 22) // task.M.shape[1])
    L = task.L
    for _ in range(rounds):
        U, V = (factor.astype(task.M.dtype) for factor in L.thin())
        C = (Q1.T @ L.left) @ L.core @ (L.right.T @ Q2)
        for first in range(0, len(U), step):
            rows = slice(first, first + step)
            T = task.M[rows] - U[rows] @ V.T
            T[task.S[rows].nonzero()] = 0
            C += Q1[rows].T @ (T @ thin) / clean
        L = LowRank.from_core(Q1, C, Q2, task.rank)
    return L
