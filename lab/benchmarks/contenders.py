"""Who is timed, and how an answer is judged: everything here takes a task and the number of the round."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import norm

import irpca
from irpca.engines import choose
from irpca.lowrank import relative_distance
from lab.machine import count_cores

from .problems import Task


@dataclass(frozen=True, eq=False)
class Answer:
    """L and S in whatever form they came, None for what was not asked."""

    L: Any = None
    S: Any = None
    rank: int | None = None
    reads: float | None = None
    status: str | None = None


def bare_read(task: Task, seed: int) -> Answer:
    """The sum of |M|, threaded: nobody who reads M can do less."""
    total = sum(_pool().map(_sum_of_sizes(), np.array_split(task.M, 8 * count_cores())))
    assert total > 0
    return Answer(reads=1.0)


def oracle_read(task: Task, seed: int) -> Answer:
    """W is known: M has only to be read, and S to be written. Nobody who returns S can do less."""
    S, _ = choose(task.M).corruption(task.L, task.zeta)
    return Answer(task.L, S, task.rank, 1.0)


def solve(task: Task, seed: int, rank: int | str | None = None, **options: Any) -> Answer:
    """``irpca.solve``, the rank given unless it is said otherwise. The seed differs in every round: no lucky draw."""
    rank = task.rank if rank is None else rank
    if "solver" not in options:
        options["extra_rank"] = 0  # L is exactly F1 W F2ᵀ
    result = irpca.solve(task.M, task.F1, task.F2, rank=rank, random_state=seed, **options)
    return Answer(result.L, result.S, result.rank, result.reads, result.status.name)


def told_noise(task: Task, seed: int) -> Answer:
    return solve(task, seed, noise=task.noise)


BARE, ORACLE, GIVEN = "bare read", "oracle read", "solve, rank given"
AUTO, BOTH, W_ONLY = 'solve, rank="auto"', "solve, rank and noise given", "W only, rank given"
CONTENDERS: dict[str, Callable[[Task, int], Answer]] = {
    BARE: bare_read,
    ORACLE: oracle_read,
    GIVEN: solve,
    AUTO: partial(solve, rank="auto"),
    BOTH: told_noise,
    W_ONLY: partial(solve, sparse=False),
}


def check(task: Task, answer: Answer) -> dict[str, Any]:
    """Errors of an answer, None where there is nothing to judge.

    ``false`` and ``missed`` entries are wrongly in S or wrongly not in it. S is M − L where it is not zero, so with
    noise even the right one has an error.
    """
    found: dict[str, Any] = {"rank": answer.rank, "reads": answer.reads, "status": answer.status, "S_bytes": 0}
    found |= dict.fromkeys(("error", "false", "missed", "S_error"))
    if isinstance(answer.L, irpca.LowRank):
        found["error"] = relative_distance(task.L, answer.L)
    elif answer.L is not None:
        true_L = task.L.dense()
        found["error"] = float(np.linalg.norm(answer.L - true_L) / np.linalg.norm(true_L))
    if answer.S is not None:
        parts = (answer.S.data, answer.S.indices, answer.S.indptr) if hasattr(answer.S, "indptr") else (answer.S,)
        found["S_bytes"] = sum(part.nbytes for part in parts)
    if answer.S is not None and task.S is not None:
        S = csr_array(answer.S)
        both = S.astype(bool).multiply(task.S.astype(bool)).nnz
        found |= {"false": S.nnz - both, "missed": task.S.nnz - both, "S_error": float(norm(S - task.S) / norm(task.S))}
    return found


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads that are there before the clock starts: to start them takes a good part of a read."""
    return ThreadPoolExecutor(count_cores())


@cache
def _sum_of_sizes() -> Any:
    """The sum of |A|, compiled where numba is installed: NumPy would write |A| first."""
    try:
        from numba import njit
    except ImportError:
        return lambda A: float(np.abs(A).sum())

    @njit(nogil=True, fastmath=True)
    def total(A: Any) -> float:
        s = 0.0
        for i in range(A.shape[0]):
            row = A[i]
            for j in range(A.shape[1]):
                s += abs(row[j])
        return s

    return total
