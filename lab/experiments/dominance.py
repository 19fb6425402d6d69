"""Wherever any solver of the box recovers L, does the default?

    python -m lab.experiments.dominance --jobs 16 --seeds 1

Square problems M = L + S without noise: features of both sides, of columns, of rows or none; errors of five kinds, with
L scaled to a mean size of 1. Every solver is told what it asks for, see ``methods``. A *loss* is a problem
that some other solver recovers and the default does not: solvers that are told the rank are held against the default
that is told it, ``irpca``, those that find it against ``irpca-auto``. The CSV has a line per problem, with the relative
error of every solver: infinite where it refused or diverged, empty where it needs features and there are none.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import irpca
from irpca.lowrank import LowRank, relative_distance
from lab.tables import text_table

from .methods import ROBUST, Method
from .problems import Instance, make_instance
from .study import Case, Row, Study, attempt, text

RECOVERED = 1e-4  # ‖L − L*‖ / ‖L*‖: first-order methods, as they stop here, are off by 1e-5 to 1e-7
TOL = 1e-8  # of all but the default, which has its own: steps so small end slow methods well within RECOVERED
MAX_ITER = 2000  # of all but the default; not seconds, so that the answer is the same on every machine
SEEDS = 3
DEFAULT = {True: "irpca", False: "irpca-auto"}  # by whether the rank is told

CONTENDERS = {method.name: method for method in ROBUST}
OTHERS = [name for name in CONTENDERS if name not in DEFAULT.values()]
KINDS = {
    "away from 0": lambda rng, shape: rng.choice([-1, 1], shape) * rng.uniform(0.5, 3, shape),
    "uniform": lambda rng, shape: rng.uniform(-3, 3, shape),
    "Gaussian": lambda rng, shape: 2 * rng.standard_normal(shape),
    "one-sided": lambda rng, shape: rng.uniform(0.5, 5, shape),
    "big": lambda rng, shape: rng.choice([-50.0, 50.0], shape),
}
SIDES = ("both", "columns", "rows", "none")
MANY = (0.05, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97)
FEWER = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
# n, features, (d, rank) of each setting, shares of wrong cells
GRID = (
    (200, "both", ((10, 2), (20, 5), (50, 5), (50, 10), (100, 10)), MANY),
    (200, "columns", ((20, 2), (20, 5), (50, 10)), FEWER),
    (200, "rows", ((20, 5),), FEWER),
    (200, "none", ((0, 2), (0, 10), (0, 20)), FEWER),
    (500, "both", ((50, 5),), (0.8, 0.95, 0.97)),
    (500, "columns", ((50, 5),), (0.1, 0.3, 0.5)),
    (500, "none", ((0, 25),), (0.05, 0.1, 0.2, 0.3)),
    (500, "none", ((0, 50),), (0.05, 0.1)),
)
QUICK = (
    (60, "both", ((6, 2),), (0.2, 0.6)),
    (60, "columns", ((6, 2),), (0.1,)),
    (60, "none", ((0, 2),), (0.05,)),
)
SETTING = ("n", "features", "d", "rank", "kind", "share")


def cases(quick: bool = False) -> list[Case]:
    return [
        {"n": n, "features": side, "d": d, "rank": rank, "kind": kind, "share": share, "seed": seed}
        for n, side, sizes, shares in (QUICK if quick else GRID)
        for (d, rank), kind, share in product(sizes, ("uniform", "big") if quick else KINDS, shares)
        for seed in range(1 if quick else SEEDS)
    ]


def make(case: Case) -> Instance:
    """The problem; what belongs to a side without features is None."""
    n, side, d, rank, kind, share, seed = case.values()
    rng = np.random.default_rng([seed, n, SIDES.index(side), d, rank, list(KINDS).index(kind), round(1000 * share)])
    F1, F2 = (rng.standard_normal((n, d)) if side in ("both", own) else None for own in ("rows", "columns"))
    W1, W2 = (rng.standard_normal((n if F is None else d, rank)) for F in (F1, F2))
    U, V = (W if F is None else F @ W for F, W in ((F1, W1), (F2, W2)))
    size = np.abs(U @ V.T).mean()
    L = LowRank(U, np.eye(rank) / size, V)
    S = np.where(rng.random((n, n)) < share, KINDS[kind](rng, (n, n)), 0.0)
    exact = L.dense()
    return make_instance(
        exact + S, F1, F2, L, S, float(np.abs(exact).max()), float(np.linalg.norm(W1 @ W2.T, 2) / size)
    )


def measure(case: Case) -> Row:
    problem = make(case)
    able = [m for m in CONTENDERS.values() if case["features"] != "none" or m.solver == "irpca" or not m.features]
    found = {m.name: attempt(partial(run, m, problem), case) for m in able}
    refused = " | ".join(f"{name}: {row['status']}" for name, row in found.items() if "error" not in row)
    status = ", ".join(found[name]["status"].partition(" ")[0] for name in DEFAULT.values())
    return {name: row.get("error", np.inf) for name, row in found.items()} | {"status": status, "refused": refused}


def run(method: Method, problem: Instance, case: Case) -> Row:
    """One solver on one problem."""
    given: dict[str, Any] = {"rank": problem.rank} if method.rank else {}
    if method.solver != "irpca":
        given |= {"tol": TOL, "max_iter": MAX_ITER}
    features = (problem.F1, problem.F2) if method.features else ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = irpca.solve(
            problem.M, *features, solver=method.solver, random_state=case["seed"], **given, **method.options(problem)
        )
    error = relative_distance(problem.L, result.L)
    return {"error": error if np.isfinite(error) else np.inf, "status": result.status.name}


def recovered(row: Row, name: str) -> bool:
    return row[name] <= RECOVERED  # nor NaN


def losses(rows: Iterable[Row]) -> list[tuple[Row, str, list[str]]]:
    """Problem, the default that fails there, and who recovers L though told no more."""
    found = []
    for row, (told, default) in product(rows, DEFAULT.items()):
        others = [name for name in OTHERS if CONTENDERS[name].rank == told and recovered(row, name)]
        if others and not recovered(row, default):
            found.append((row, default, others))
    return found


def report(rows: list[Row]) -> str:
    told = []
    for version in dict.fromkeys(row["version"] for row in rows):
        some = [row for row in rows if row["version"] == version]
        told += [version, _settings(some), "", _totals(some), "", _lost(some)]
    return "\n".join(told)


def _settings(rows: list[Row]) -> str:
    """Who recovers L, a line per setting and share."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in SETTING), []).append(row)
    body = []
    for setting, some in groups.items():
        count = {name: sum(recovered(row, name) for row in some) for name in CONTENDERS}
        share = {name: f"{k}/{len(some)}" for name, k in count.items()}
        others = [name if count[name] == len(some) else f"{name} {share[name]}" for name in OTHERS if count[name]]
        body.append([*setting, *(share[name] for name in DEFAULT.values()), ", ".join(others)])
    return text_table((*SETTING, *DEFAULT.values(), "others"), body)


def _totals(rows: list[Row]) -> str:
    refused = Counter(words for row in rows if isinstance(row["refused"], str) for words in row["refused"].split(" | "))
    body = [[name, sum(recovered(row, name) for row in rows)] for name in CONTENDERS]
    return "\n".join(
        [text_table(("solver", "recovers"), body), *(f"{k} times {words}" for words, k in refused.items())]
    )


def _lost(rows: list[Row]) -> str:
    told, lost = [], losses(rows)
    for default in DEFAULT.values():
        names = (*SETTING, "seed", default)
        body = [[*(row[name] for name in names), ", ".join(o)] for row, which, o in lost if which == default]
        told += [f"{default} loses {len(body)}", *([text_table((*names, "recovered by"), body), ""] if body else ())]
    worse = [_named(row) for row in rows if recovered(row, DEFAULT[False]) and not recovered(row, DEFAULT[True])]
    told += [f"recovered only if the rank is not told: {len(worse)}", *worse]
    return "\n".join([*told, f"{len(lost)} losses in {len(rows)} problems"])


def _named(row: Row) -> str:
    return ", ".join(f"{name} {text(row[name])}" for name in (*SETTING, "seed"))


MEASURED = (*CONTENDERS, "status", "refused")
STUDY = Study("dominance", cases, measure, MEASURED, report)

if __name__ == "__main__":
    STUDY.main()
