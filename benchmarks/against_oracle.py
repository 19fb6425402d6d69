"""How far a full solve is from an oracle that knows W and has only to read M and write S.

Contenders, on the paper's generator (section 5.1) in float64:

oracle read
    ``engine.corruption`` with the true L. The yardstick: nobody who returns S can do less.
solve
    ``irpca.solve`` with S, the rank given or ``"auto"``.
Algorithm 1, literal
    ``tests/oracle.py``, plain NumPy, imported from there: a second copy would drift. It keeps all its iterates, and its
    memory shows that.
Algorithm 1, engine
    ``solver="irpca_iht", variant="paper"``: the same iterates to rounding. Both get the true ‖W‖₂ as c_W and as many
    iterations as the literal one needs to bring ‖M − L − S‖ to 1e-3 ‖M‖, the paper's criterion; that number is found
    outside the clock. At this κ(F), 114, they do not recover L, so there is also
Algorithm 1, whitened
    which does, and stops by its own rule. None of the three is run under noise, where that residual is out of reach.
bare read
    The sum of |M|, threaded: the floor below the yardstick.

The fewest bytes and flops, for n = 4000, d = 40, r = 5, 10 % corrupted, and m = 8d = 320 lines of a block:

===================  ==============================================  ================================================
bare read            M once, 128 MB                                  n² additions, 16 M
oracle read          and S written once, 12 bytes an entry, 19 MB    residual 2·n²·r = 160 M, n² comparisons
solve                and F, Q of both sides, 5 MB, and a block of    and QR of both sides 8·n·d² = 51 M; per question
                     0.8 MB, which stays in cache                    to the block 2·m²·(r + d) = 9 M
solve under noise    and M once per refinement                       and 2·n²·(r + d) = 1.44 G per refinement
Algorithm 1, engine  M once per iteration, and once for S            2·n²·(r + d) = 1.44 G per iteration
the same, literal    some ten arrays like M per iteration            4·n²·d = 2.56 G, two pseudo-inverses, likewise
===================  ==============================================  ================================================

How far from that we were, on two cores that other jobs shared (load 4; two runs, at 8b7d5d8 and 9963b98, both with
uncommitted changes): the bare read took 6 to 10 ms, the oracle read 4 to 10 times the floor of reading M and writing S
at that speed, solve 1.8 to 2.2 times the oracle read without noise and 5 to 7 times with it, when it read M four times.
Of the time of solve without noise, a profile gave two fifths to the last read, two fifths to the block, and the rest to
QR and to drawing samples. Threaded BLAS suffers most from other jobs: the literal Algorithm 1 took from 2.5 to 23 s.

Errors stand beside every time: ‖L − L_true‖ / ‖L_true‖, and how many of the n² entries are wrongly in S or wrongly not
in it, the worst of all rounds. The number of the round is the ``random_state``, so that no lucky draw is shown.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse

import irpca
from irpca.datasets import make_problem
from irpca.engines import choose
from irpca.threshold import rounding_floor

from .memory import peak_extra
from .runner import ROOT, interleave, table, times

RESIDUAL = 1e-3  # the paper's stopping criterion
OUTLIER_TO_NOISE = 8  # the smallest outlier, in standard deviations of the noise
ORACLE_CUT = 4.75  # standard deviations; fewest mistakes about S at 10 % corruption and outliers of 8 to 16 of them
BUDGET = 0.25  # of M, for extra memory, and S comes on top
FIRST_GUESS, MOST_ITERATIONS = 8, 32  # the literal Algorithm 1 keeps two matrices of the size of M per iteration


@dataclass(frozen=True, eq=False)
class Task:
    """What contenders get: M and its features, and what only oracles know."""

    M: np.ndarray
    F1: np.ndarray
    F2: np.ndarray
    W: np.ndarray
    rank: int
    zeta: float
    noise: float
    iterations: int = 0

    @property
    def true_L(self) -> irpca.LowRank:
        u, s, vt = np.linalg.svd(self.W)
        return irpca.LowRank(self.F1 @ u[:, : self.rank], np.diag(s[: self.rank]), self.F2 @ vt[: self.rank].T)

    def save(self, folder: Path) -> None:
        numbers = {}
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                np.save(folder / f"{name}.npy", value)
            else:
                numbers[name] = value
        (folder / "numbers.json").write_text(json.dumps(numbers))

    @classmethod
    def load(cls, folder: Path) -> Task:
        arrays = {name: np.load(folder / f"{name}.npy") for name in ("F1", "F2", "W", "M")}  # M last: see memory.py
        return cls(**arrays, **json.loads((folder / "numbers.json").read_text()))


@dataclass(frozen=True, eq=False)
class Answer:
    """L and S in whatever form they came, None for what was not asked."""

    L: Any = None
    S: Any = None
    rank: int | None = None
    reads: float | None = None
    status: str | None = None


def make_task(
    n: int, d: int, rank: int, corruption: float, noisy: bool, random_state: int = 0
) -> tuple[irpca.datasets.Problem, Task]:
    noise = 5 * rank / n / OUTLIER_TO_NOISE if noisy else 0.0  # the generator's outliers start at 5 r / n
    problem = make_problem(n, n, d, d, rank, corruption, noise, random_state=random_state)
    return problem, task_of(problem, noise)


def task_of(problem: irpca.datasets.Problem, noise: float = 0.0) -> Task:
    zeta = ORACLE_CUT * noise if noise else rounding_floor(problem.M.dtype, float(np.abs(problem.L).max()))
    rank = int(np.linalg.matrix_rank(problem.W))
    return Task(problem.M, problem.F1, problem.F2, problem.W, rank, zeta, noise)


def small_task() -> Task:
    """Enough to compile every kernel and to start the threads."""
    return replace(make_task(400, 10, 3, 0.1, noisy=True)[1], iterations=2)


def oracle_read(task: Task, seed: int) -> Answer:
    L = task.true_L
    S, _ = choose(task.M).corruption(L, task.zeta)
    return Answer(L, S, task.rank, 1.0)


def solve(task: Task, seed: int, rank: int | str | None = None, **options: Any) -> Answer:
    rank = task.rank if rank is None else rank
    result = irpca.solve(task.M, task.F1, task.F2, rank=rank, random_state=seed, **options)
    return Answer(result.L, result.S, result.rank, result.reads, result.status.name)


def algorithm_1(task: Task, seed: int, variant: str) -> Answer:
    c_W = float(np.linalg.norm(task.W, 2))
    options: dict[str, Any] = {"max_iter": task.iterations, "tol": 0.0} if variant == "paper" else {}
    return solve(task, seed, solver="irpca_iht", variant=variant, c_W=c_W, **options)


def literal(task: Task, seed: int) -> Answer:
    _, S, L, _ = _iterates(task, task.iterations)[-1]
    return Answer(L, S, task.rank)


def bare_read(task: Task, seed: int) -> Answer:
    engine = choose(task.M)
    pieces = np.array_split(task.M, 8 * engine.threads)
    with ThreadPoolExecutor(engine.threads) as pool:
        total = sum(pool.map(_sum_of_sizes(), pieces))
    assert total > 0
    return Answer(reads=1.0)


ORACLE, SOLVE, BARE = "oracle read", "solve, rank given", "bare read"
CONTENDERS = {
    ORACLE: oracle_read,
    SOLVE: solve,
    'solve, rank="auto"': partial(solve, rank="auto"),
    "Algorithm 1, engine": partial(algorithm_1, variant="paper"),
    "Algorithm 1, whitened": partial(algorithm_1, variant="whitened"),
    "Algorithm 1, literal": literal,
    BARE: bare_read,
}


def measure(n: int, d: int, rank: int, corruption: float, noisy: bool, repeats: int) -> dict[str, Any]:
    """Time, memory and errors of every contender on one problem."""
    problem, task = make_task(n, d, rank, corruption, noisy)
    if noisy:
        contenders = {name: run for name, run in CONTENDERS.items() if not name.startswith("Algorithm 1")}
        known = problem.relative_error(_with_known_support(problem, rank))
    else:
        contenders, known = CONTENDERS, None
        task = replace(task, iterations=_iterations(task))
    runs = {name: partial(run, task) for name, run in contenders.items()}
    records = interleave(runs, repeats, lambda _, answer: check(problem, answer))
    with tempfile.TemporaryDirectory() as folder:
        task.save(Path(folder))
        extra = {name: peak_extra(__name__, Path(folder), name) for name in contenders}
    rows = {}
    for name, rounds in records.items():
        limit = BUDGET * task.M.nbytes + max(record["S_bytes"] for record in rounds)
        rows[name] = {
            **times(rounds, records[ORACLE]),
            "ratio_to_bare": times(rounds, records[BARE])["ratio"],
            "extra_bytes": extra[name],
            "extra_limit": limit,
            "rounds": rounds,
        }
    return {
        "noisy": noisy,
        "noise": task.noise,
        "kappa": float(np.linalg.cond(problem.F1)),
        "M_bytes": task.M.nbytes,
        "iterations": task.iterations,
        "error_with_known_support": known,
        "contenders": rows,
    }


def report(case: dict[str, Any]) -> str:
    """The table of one case."""
    header = ("", "s", "min", "max", "cpu s", "/oracle", "/bare", "reads", "extra MB", "limit", "rank")
    header += ("error of L", "S: false", "missed", "residual")
    rows = case["contenders"]
    title = "no noise"
    if case["noisy"]:
        title = f"noise {case['noise']:.3g}, outliers at least {OUTLIER_TO_NOISE} times that"
    lines = [f"{title}; M is {case['M_bytes'] / 1e6:.4g} MB, κ(F) = {case['kappa']:.3g}"]
    lines.append(table(header, [_row(name, row) for name, row in rows.items()]))
    written = max(record["S_bytes"] for record in rows[ORACLE]["rounds"]) / case["M_bytes"]
    floor = rows[BARE]["seconds"] * (1 + written)
    lines.append(
        f"M read and S written at the speed of the bare read would take {floor:.3f} s: "
        f"the oracle read takes {rows[ORACLE]['seconds'] / floor:.1f} times that, "
        f"solve {rows[SOLVE]['seconds'] / floor:.1f} times"
    )
    if case["noisy"]:
        known = case["error_with_known_support"]
        lines.append(f"error of L for one who knows which entries are corrupted, by least squares: {known:.3g}")
    else:
        lines.append(f"Algorithm 1: {case['iterations']} iterations, to the residual {RESIDUAL:g}; whitened: own rule")
    return "\n".join(lines)


def _row(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    rounds = row["rounds"]
    ranks = sorted({record["rank"] for record in rounds if record["rank"] is not None})
    return (
        name,
        *(f"{row[key]:.3f}" for key in ("seconds", "fastest", "slowest", "cpu_seconds")),
        *(f"{row[key]:.2f}" for key in ("ratio", "ratio_to_bare")),
        _worst(rounds, "reads", ".2f"),
        "–" if row["extra_bytes"] is None else f"{row['extra_bytes'] / 1e6:.0f}",
        f"{row['extra_limit'] / 1e6:.0f}",
        ", ".join(map(str, ranks)) or "–",
        _worst(rounds, "error", ".1e"),
        _worst(rounds, "false", "d"),
        _worst(rounds, "missed", "d"),
        _worst(rounds, "residual", ".1e"),
    )


def _worst(rounds: list[dict[str, Any]], key: str, form: str) -> str:
    values = [record[key] for record in rounds if record[key] is not None]
    return f"{max(values):{form}}" if values else "–"


def check(problem: irpca.datasets.Problem, answer: Answer) -> dict[str, Any]:
    """Errors of an answer, all None where there is none to judge."""
    found = {"rank": answer.rank, "reads": answer.reads, "status": answer.status, "S_bytes": 0}
    if answer.L is None:
        return found | dict.fromkeys(("error", "false", "missed", "residual"))
    left = problem.M - _dense(answer.L)
    if issparse(answer.S):
        S = answer.S.tocoo()
        left[S.coords] -= S.data
        flagged = np.zeros(left.shape, bool)
        flagged[S.coords] = True
        found["S_bytes"] = sum(part.nbytes for part in (answer.S.data, answer.S.indices, answer.S.indptr))
    else:
        left -= answer.S
        flagged = answer.S != 0
        found["S_bytes"] = answer.S.nbytes
    corrupted = problem.corrupted
    return found | {
        "error": problem.relative_error(answer.L),
        "false": int(np.count_nonzero(flagged & ~corrupted)),
        "missed": int(np.count_nonzero(corrupted & ~flagged)),
        "residual": float(np.linalg.norm(left) / np.linalg.norm(problem.M)),
    }


def _dense(L: Any) -> np.ndarray:
    return L.dense() if isinstance(L, irpca.LowRank) else L


def _with_known_support(problem: irpca.datasets.Problem, rank: int, rounds: int = 10) -> irpca.LowRank:
    """Least squares of rank r on the entries that are not corrupted, in plain NumPy: what noise alone costs."""
    Q1, Q2 = (np.linalg.qr(F)[0] for F in (problem.F1, problem.F2))
    clean = ~problem.corrupted
    L = irpca.LowRank.zero(problem.M.shape)
    C = np.zeros((Q1.shape[1], Q2.shape[1]))
    for _ in range(rounds):
        T = np.where(clean, problem.M - L.dense(), 0.0)
        L = irpca.LowRank.from_core(Q1, C + Q1.T @ T @ Q2 / clean.mean(), Q2, rank)
        C = Q1.T @ L.left @ L.core @ L.right.T @ Q2
    return L


@cache
def from_tests(name: str) -> Any:
    """A module of tests/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _iterates(task: Task, T: int) -> list[Any]:
    return from_tests("oracle").algorithm_1(task.M, task.F1, task.F2, task.rank, 0.0, np.linalg.norm(task.W, 2), T)


def _iterations(task: Task) -> int:
    """Iterations of the literal Algorithm 1 up to the paper's residual, or the most that are tried."""
    size = np.linalg.norm(task.M)
    T = FIRST_GUESS
    while True:
        for t, (_, S, L, _) in enumerate(_iterates(task, T), 1):
            if np.linalg.norm(task.M - L - S) <= RESIDUAL * size:
                return t
        if T >= MOST_ITERATIONS:
            return T
        T *= 2


@cache
def _sum_of_sizes() -> Any:
    """The sum of |A|, compiled where numba is installed: NumPy would write |A| first."""
    try:
        from numba import njit
    except ImportError:
        return lambda A: float(np.abs(A).sum())

    @njit(nogil=True, fastmath=True)
    def total(A):
        s = 0.0
        for i in range(A.shape[0]):
            row = A[i]
            for j in range(A.shape[1]):
                s += abs(row[j])
        return s

    return total
