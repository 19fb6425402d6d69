"""The field on one problem, in one interleaved run: the time each solver needs to recover L, against the default.

Every method gets what it asks for: the rank, the features, the true share of corrupted entries. How many iterations it
takes until ‖L − L_true‖ is small enough is found outside the clock; what is timed is a run of so many iterations. A
method that never gets there is timed to its own end, and its row says so.

``field`` is everyone at n = 1000, S included. ``rivals`` is those that come closest, at n = 5000 and without S: the
others would take longer than the rest of the benchmark. ``transcriptions`` adds the same methods as one would type them
in NumPy (``tests/transcriptions.py``), with the same parameters and as many iterations as they need: how much of a win
is owed to the engine and not to the method.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import irpca
from irpca.lowrank import relative_distance
from irpca.solvers import SOLVERS

from . import problems
from .case import Bar, Case, Found, Report, at_least, shown
from .contenders import ORACLE, Answer, check, oracle_read
from .problems import Task
from .runner import from_tests, interleave, times, worst

PATIENCE = 3000  # iterations
DEFAULT = "irpca"
BARS = {"accaltproj": 100, "pcpf": 100, "ircur": 20}  # times as fast as these


def variants(task: Task) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every solver by name, with the options it needs on this problem."""
    assert task.S is not None
    most = max(np.diff(task.S.indptr).max() / task.M.shape[1], np.bincount(task.S.indices).max() / task.M.shape[0])
    mean = task.S.nnz / task.M.size
    c_W = float(np.linalg.norm(task.W, 2))
    # What the sparsifiers take must cover the fullest row and column, and the less beyond that the better.
    needs: dict[str, dict[str, Any]] = {
        DEFAULT: {"extra_rank": 0},
        "rpca_gd": {"corruption": max(mean, most / 1.5)},
        "scaledgd": {"corruption": max(mean, most / 2)},
    }
    for name, solver in SOLVERS.items():
        given: dict[str, Any] = {"solver": name, "max_iter": PATIENCE}
        if solver.rank != "found":
            given["rank"] = task.rank
        if name == "irpca_iht":
            yield "irpca_iht, as printed", {**given, "variant": "paper", "c_W": c_W}
            yield "irpca_iht, whitened", {**given, "variant": "whitened", "c_W": c_W}
        else:
            yield name, {**given, **needs.get(name, {})}
        if solver.rank == "chosen":
            yield f'{name}, rank="auto"', {**given, **needs.get(name, {}), "rank": "auto"}


def solve(task: Task, seed: int, iterations: Any = (), **options: Any) -> Answer:
    """A full run, or one of as many iterations as this seed needs."""
    if seed < len(iterations) and iterations[seed] is not None:
        options |= {"max_iter": iterations[seed], "tol": 0.0}
    features = (task.F1, task.F2) if SOLVERS[options["solver"]].features else ()
    result = irpca.solve(task.M, *features, random_state=seed, **options)
    return Answer(result.L, result.S, result.rank, result.reads, result.status.name)


def iterations_needed(task: Task, repeats: int, tolerance: float, options: dict[str, Any]) -> list[int | None]:
    """Iterations until L is recovered, or None if it never is, for every seed."""

    def needed(seed: int) -> int | None:
        errors: list[float] = []

        def watch(state: irpca.State, history: irpca.History) -> bool:
            errors.append(relative_distance(task.L, state.L))
            return errors[-1] <= tolerance

        solve(task, seed, **{**options, "sparse": False}, callbacks=watch)
        return len(errors) if errors[-1] <= tolerance else None

    draws = "random_state" in inspect.signature(SOLVERS[options["solver"]].run).parameters
    return [needed(seed) for seed in range(repeats)] if draws else repeats * [needed(0)]


def transcribed(task: Task) -> dict[str, Any]:
    """What the transcriptions take as they are: the two convex programs, and AltProj in all its stages."""
    plain = from_tests("transcriptions")
    assert task.F2 is not None
    Q1, Q2 = (np.linalg.qr(F)[0] for F in (task.F1, task.F2))
    M = task.M

    def pcpf(_: int) -> Answer:
        H, S = plain.pcpf(M, Q1, Q2)
        return Answer(Q1 @ H @ Q2.T, S)

    def pcp(_: int) -> Answer:
        return Answer(*plain.pcp(M))

    def altproj(_: int) -> Answer:
        L, S, _ = plain.altproj(M, task.rank, M.size**-0.25 / 2, T=20)[-1]
        return Answer(L, S)

    return {f"{run.__name__}, transcribed": run for run in (pcpf, pcp, altproj)}


def measure(
    n: int,
    tolerance: float,
    repeats: int,
    solvers: tuple[str, ...] = tuple(SOLVERS),
    sparse: bool = True,
    transcriptions: bool = False,
    **size: Any,
) -> Found:
    """Times, ratios and errors of every method."""
    with tempfile.TemporaryDirectory() as folder:
        task = problems.make(Path(folder), n, n, **size)
    runs: dict[str, Any] = {ORACLE: partial(oracle_read, task)} if sparse else {}
    needed = {}
    for name, options in variants(task):
        if name.partition(",")[0] in solvers:
            needed[name] = iterations_needed(task, repeats, tolerance, options)
            runs[name] = partial(solve, task, iterations=needed[name], sparse=sparse, **options)
    if transcriptions:
        runs |= transcribed(task)
    records = interleave(runs, repeats, lambda _, answer: check(task, answer))
    return {
        "kappa": float(np.linalg.cond(task.F1)),
        "sparse": sparse,
        "contenders": {
            name: {**times(rounds, records[DEFAULT]), "iterations": needed.get(name), "rounds": rounds}
            for name, rounds in records.items()
        },
    }


def report(found: Found) -> Report:
    size, tolerance = found["sizes"], found["sizes"]["tolerance"]
    header = ("", "s", "min", "max", "/irpca", "iterations", "reads", "error of L", "S: false", "missed")
    lines = []
    for name, row in sorted(found["contenders"].items(), key=lambda item: item[1]["seconds"]):
        rounds, iterations = row["rounds"], row["iterations"]
        error = worst(rounds, "error")
        lines.append(
            (
                name,
                *(f"{row[key]:.3f}" for key in ("seconds", "fastest", "slowest")),
                f"{row['ratio']:.1f}",
                "–" if iterations is None or None in iterations else str(max(iterations)),
                shown(worst(rounds, "reads"), ".3g"),
                f"{error:.1e}" + ("" if error <= tolerance else ", not recovered"),
                *(shown(worst(rounds, key), ",d") for key in ("false", "missed")),
            )
        )
    written = "written" if found["sparse"] else "left out"
    title = (
        f"n = {size['n']:,}, d = {size['d']}, r = {size['rank']}, {size['corruption']:.0%} corrupted, float64, "
        f"κ(F) = {found['kappa']:.3g}; to ‖L − L_true‖ ≤ {tolerance:g} ‖L_true‖, S {written}"
    )
    return Report(title, header, lines)


def bars(found: Found) -> list[Bar]:
    rows = found["contenders"]
    lines = []
    for name, limit in BARS.items():
        error = worst(rows[name]["rounds"], "error")
        told = f"L {worst(rows[DEFAULT]['rounds'], 'error'):.1e}, {name} {error:.1e}"
        lines.append(Bar(f"{name}, against irpca", *at_least(limit, rows[name]["ratio"]), told))
    return lines


FIELD = {"n": 1000, "d": 20, "rank": 5, "corruption": 0.1, "tolerance": 1e-6, "repeats": 3}
SMALL = {"n": 150, "d": 8, "rank": 2, "corruption": 0.1, "tolerance": 1e-6, "repeats": 1}
CASES = (
    Case("field", measure, FIELD, SMALL, report),
    Case(
        "rivals",
        partial(measure, solvers=(DEFAULT, *BARS), sparse=False),
        {"n": 5000, "d": 40, "rank": 5, "corruption": 0.3, "tolerance": 1e-7, "repeats": 5},
        {**SMALL, "n": 300, "tolerance": 1e-7},
        report,
        bars,
    ),
    Case("transcriptions", partial(measure, transcriptions=True), FIELD, SMALL, report, asked=True),
)
