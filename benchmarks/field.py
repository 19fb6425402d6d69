"""All solvers on one problem, in one interleaved run: the time each needs to recover L, against the default.

``python -m benchmarks.field``. Every method gets what it asks for: the rank, the features, the true share of corrupted
entries. How many iterations it takes until ‖L − L_true‖ ≤ 1e-6 ‖L_true‖ is found outside the clock; what is timed is a
run of so many iterations, S included. A method that never gets there is timed to its own end, and its row says so.

``--transcriptions`` adds the same methods as one would type them in NumPy (``tests/transcriptions.py``), with the same
parameters and as many iterations as they need: how much of a win is owed to the engine and not to the method.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import irpca
from irpca.datasets import Problem, make_problem
from irpca.solvers import SOLVERS

from .against_oracle import Answer, check, from_tests, oracle_read, task_of
from .runner import interleave, load, machine, table, times

RECOVERED = 1e-6
PATIENCE = 3000  # iterations
DEFAULT, ORACLE = "irpca", "oracle read"


def variants(problem: Problem) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every solver by name, with the options it needs on this problem."""
    rank = int(np.linalg.matrix_rank(problem.W))
    most = max(problem.corrupted.mean(axis=axis).max() for axis in (0, 1))
    mean = problem.corrupted.mean()
    c_W = float(np.linalg.norm(problem.W, 2))
    # What the sparsifiers take must cover the fullest row and column, and the less beyond that the better.
    needs = {"rpca_gd": {"corruption": max(mean, most / 1.5)}, "scaledgd": {"corruption": max(mean, most / 2)}}
    for name, solver in SOLVERS.items():
        given: dict[str, Any] = {"solver": name, "max_iter": PATIENCE}
        if solver.rank != "found":
            given["rank"] = rank
        if name == "irpca_iht":
            yield "irpca_iht, as printed", {**given, "variant": "paper", "c_W": c_W}
            yield "irpca_iht, whitened", {**given, "variant": "whitened", "c_W": c_W}
        else:
            yield name, {**given, **needs.get(name, {})}
        if solver.rank == "chosen":
            yield f'{name}, rank="auto"', {**given, "rank": "auto"}


def solve(problem: Problem, seed: int, iterations: Any = (), **options: Any) -> Answer:
    """A full run, or one of as many iterations as this seed needs."""
    if seed < len(iterations) and iterations[seed] is not None:
        options |= {"max_iter": iterations[seed], "tol": 0.0}
    features = (problem.F1, problem.F2) if SOLVERS[options["solver"]].features else ()
    result = irpca.solve(problem.M, *features, random_state=seed, **options)
    return Answer(result.L, result.S, result.rank, result.reads, result.status.name)


def iterations_needed(problem: Problem, seed: int, options: dict[str, Any]) -> int | None:
    """Iterations until L is recovered, or None if it never is."""
    errors: list[float] = []

    def watch(state: irpca.State, history: irpca.History) -> bool:
        errors.append(problem.relative_error(state.L))
        return errors[-1] <= RECOVERED

    solve(problem, seed, **options, sparse=False, callbacks=watch)
    return len(errors) if errors[-1] <= RECOVERED else None


def transcribed(problem: Problem) -> dict[str, Any]:
    """What the transcriptions take as they are: the two convex programs, and AltProj in all its stages."""
    plain = from_tests("transcriptions")
    Q1, Q2 = (np.linalg.qr(F)[0] for F in (problem.F1, problem.F2))
    rank = int(np.linalg.matrix_rank(problem.W))
    M = problem.M

    def pcpf(_: int) -> Answer:
        H, S = plain.pcpf(M, Q1, Q2)
        return Answer(Q1 @ H @ Q2.T, S)

    def pcp(_: int) -> Answer:
        return Answer(*plain.pcp(M))

    def altproj(_: int) -> Answer:
        L, S, _ = plain.altproj(M, rank, (M.shape[0] * M.shape[1]) ** -0.25 / 2, T=20)[-1]
        return Answer(L, S)

    return {f"{run.__name__}, transcribed": run for run in (pcpf, pcp, altproj)}


def measure(problem: Problem, repeats: int, transcriptions: bool = False) -> dict[str, dict[str, Any]]:
    """Times, ratios and errors of every method."""
    runs: dict[str, Any] = {ORACLE: partial(oracle_read, task_of(problem))}
    needed = {}
    for name, options in variants(problem):
        needed[name] = [iterations_needed(problem, seed, options) for seed in range(repeats)]
        runs[name] = partial(solve, problem, iterations=needed[name], **options)
    if transcriptions:
        runs |= transcribed(problem)
    records = interleave(runs, repeats, lambda _, answer: check(problem, answer))
    return {
        name: {**times(rounds, records[DEFAULT]), "iterations": needed.get(name, [None]), "rounds": rounds}
        for name, rounds in records.items()
    }


def report(rows: dict[str, dict[str, Any]]) -> str:
    header = (
        "to ‖L − L_true‖ ≤ 1e-6",
        "s",
        "min",
        "max",
        "/irpca",
        "iterations",
        "reads",
        "error of L",
        "S: false",
        "missed",
    )
    lines = []
    for name, row in sorted(rows.items(), key=lambda item: item[1]["seconds"]):
        rounds = row["rounds"]
        error = max(record["error"] for record in rounds)
        reads = rounds[0]["reads"]
        lines.append(
            (
                name,
                *(f"{row[key]:.3f}" for key in ("seconds", "fastest", "slowest")),
                f"{row['ratio']:.1f}",
                "–" if None in row["iterations"] else str(max(row["iterations"])),
                "–" if reads is None else f"{reads:.1f}",
                f"{error:.1e}" + ("" if error <= RECOVERED else ", not recovered"),
                *(str(max(record[key] for record in rounds)) for key in ("false", "missed")),
            )
        )
    return table(header, lines)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.field", description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1000, help="rows and columns of M (1000)")
    parser.add_argument("--d", type=int, default=20, help="features per row and per column (20)")
    parser.add_argument("--rank", type=int, default=5)
    parser.add_argument("--corruption", type=float, default=0.1, help="share of corrupted entries (0.1)")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds (5)")
    parser.add_argument("--transcriptions", action="store_true", help="the same methods typed in NumPy, too")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every number there, too")
    chosen = parser.parse_args(words)
    started, on = time.perf_counter(), machine()
    commit = (on["commit"] or "no commit")[:12] + (" + uncommitted changes in src" if on["uncommitted"] else "")
    print(f"{on['cpu']}, {on['cores']} cores, load {on['load']}, Python {on['python']}, irpca at {commit}", flush=True)
    problem = make_problem(chosen.n, chosen.n, chosen.d, chosen.d, chosen.rank, chosen.corruption)
    print(f"\n{problem}, κ(F) = {np.linalg.cond(problem.F1):.3g}", flush=True)
    rows = measure(problem, chosen.repeats, chosen.transcriptions)
    print(report(rows))
    print(f"\n{time.perf_counter() - started:.0f} s in all, load at the end {load()}")
    if chosen.json:
        settings = {name: getattr(chosen, name) for name in ("n", "d", "rank", "corruption", "repeats")}
        chosen.json.write_text(json.dumps({"machine": on, "settings": settings, "solvers": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
