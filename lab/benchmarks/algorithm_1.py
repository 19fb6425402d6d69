"""The paper's Algorithm 1 against the default, and against the oracle read.

Algorithm 1, literal
    ``tests/oracle.py``, plain NumPy, imported from there: a second copy would drift.
Algorithm 1, engine
    ``solver="irpca_iht", variant="paper"``: the same iterates to rounding. Both get the true ‖W‖₂ as c_W and as many
    iterations as the literal one needs to bring ‖M − L − S‖ to 1e-3 ‖M‖, the paper's criterion; that number is found
    outside the clock. At this κ(F) they do not recover L, so there is also
Algorithm 1, whitened
    which does, and stops by its own rule.

An iteration costs at least one read of M and 2·n²·(r + d) flops; the literal one goes through some ten arrays like M,
4·n²·d flops and two pseudo-inverses.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import problems
from .case import Case, Found, Report, shown
from .contenders import CONTENDERS, GIVEN, ORACLE, Answer, check, solve
from .problems import Task
from .runner import from_tests, interleave, times, worst

RESIDUAL = 1e-3  # the paper's stopping criterion
FIRST_GUESS, MOST_ITERATIONS = 8, 32  # the literal one keeps two matrices of the size of M per iteration
ENGINE, WHITENED, LITERAL = (f"Algorithm 1, {kind}" for kind in ("engine", "whitened", "literal"))


def on_engine(task: Task, seed: int, variant: str) -> Answer:
    c_W = float(np.linalg.norm(task.W, 2))
    options: dict[str, Any] = {"max_iter": task.iterations, "tol": 0.0} if variant == "paper" else {}
    return solve(task, seed, solver="irpca_iht", variant=variant, c_W=c_W, **options)


def literal(task: Task, seed: int) -> Answer:
    _, S, L, _ = _iterates(task, task.iterations)[-1]
    return Answer(L, S, task.rank)


def measure(n: int, repeats: int, **size: Any) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        task = problems.make(Path(folder), n, n, **size)
    task = replace(task, iterations=_iterations(task))
    contenders: dict[str, Callable[[Task, int], Answer]] = {
        ORACLE: CONTENDERS[ORACLE],
        GIVEN: CONTENDERS[GIVEN],
        ENGINE: partial(on_engine, variant="paper"),
        WHITENED: partial(on_engine, variant="whitened"),
        LITERAL: literal,
    }

    def checked(_: str, answer: Answer) -> dict[str, Any]:
        L = answer.L if isinstance(answer.L, np.ndarray) else answer.L.dense()
        residual = np.linalg.norm(task.M - L - answer.S) / np.linalg.norm(task.M)
        return {**check(task, answer), "residual": float(residual)}

    records = interleave({name: partial(run, task) for name, run in contenders.items()}, repeats, checked)
    return {
        "kappa": float(np.linalg.cond(task.F1)),
        "iterations": task.iterations,
        "contenders": {name: {**times(rounds, records[ORACLE]), "rounds": rounds} for name, rounds in records.items()},
    }


def report(found: Found) -> Report:
    header = ("", "s", "min", "max", "cpu s", "/oracle", "reads", "error of L", "S: false", "missed", "residual")
    rows = [
        (
            name,
            *(f"{row[key]:.3f}" for key in ("seconds", "fastest", "slowest", "cpu_seconds")),
            f"{row['ratio']:.2f}",
            shown(worst(row["rounds"], "reads"), ".2f"),
            shown(worst(row["rounds"], "error"), ".1e"),
            *(shown(worst(row["rounds"], key), ",d") for key in ("false", "missed")),
            shown(worst(row["rounds"], "residual"), ".1e"),
        )
        for name, row in found["contenders"].items()
    ]
    size = found["sizes"]
    title = (
        f"n = {size['n']:,}, d = {size['d']}, r = {size['rank']}, {size['corruption']:.0%} corrupted, float64, "
        f"κ(F) = {found['kappa']:.3g}"
    )
    told = f"{found['iterations']} iterations, to the residual {RESIDUAL:g}; whitened: its own rule"
    return Report(title, header, rows, [told])


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


CASES = (
    Case(
        "algorithm-1",
        measure,
        {"n": 4000, "d": 40, "rank": 5, "corruption": 0.1, "repeats": 3},
        {"n": 200, "d": 10, "rank": 3, "corruption": 0.1, "repeats": 1},
        report,
    ),
)
