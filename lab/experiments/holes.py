"""Matrices with holes: how little of M is enough, in whatever form it comes, wherever the holes are.

Four questions, each with synthetic answers (``irpca.datasets.make_problem``, as the paper draws them) of rank 5:

- ``forms``: 2 % observed, 30 % of that corrupted: is L right everywhere, and the same from NaN, a mask, a sparse array
  and a long table?
- ``sweep``: where does it stop, as less is observed and more is corrupted?
- ``pattern``: does it matter who rated what? Of MovieLens 100K only the places of the ratings are used.
- ``sides``: the same without features, or with those of one side.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from scipy.sparse import coo_array

import irpca
from irpca.datasets import Problem
from irpca.lowrank import relative_distance
from lab.datasets import load_movielens_100k
from lab.machine import PROVENANCE
from lab.rows import Row, in_order, median, values, where, worst
from lab.tables import text_table

from .fits import SOLVED, solved
from .study import Case, Study, report_each_version

RANK, D = 5, 20
SEEDS = 5
RECOVERED = 1e-10  # ‖L − L*‖ / ‖L*‖ over all entries, seen or not
CLOSE = 1e-8  # the same where L comes by sweeps, which stop when it moves by less than 1e-10
SHARES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2, 1.0)
CORRUPTIONS = (0.1, 0.3, 0.5)
FORMS = ("NaN", "mask", "sparse", "long table")
SIDES = ("none", "rows", "columns")
USERS, FILMS, RATINGS = 943, 1682, 100_000  # of MovieLens

Places = tuple[np.ndarray, np.ndarray]


def cases(quick: bool = False) -> list[Case]:
    if quick:
        return [case | {"seed": 0} for case in _few(200)]
    n, ranks = 1000, (RANK, "auto")
    parts = [_case("forms", n, 0.02, 0.3, RANK, form=form) for form in FORMS]
    parts += [_case("sweep", n, *level) for level in product(SHARES, CORRUPTIONS, ranks)]
    share = RATINGS / (USERS * FILMS)
    for level, rank, places in product(CORRUPTIONS, ranks, ("uniform", "movielens")):
        parts.append(_case("pattern", USERS, share, level, rank, places=places, n2=FILMS))
    for share, side, rank in product((0.05, 0.1, 0.2), SIDES, ranks):
        parts.append(_case("sides", n, share, 0.2, rank, features=side))
    return [case | {"seed": seed} for case in parts for seed in range(SEEDS)]


def _few(n: int) -> list[Case]:
    return [
        *(_case("forms", n, 0.2, 0.3, RANK, form=form) for form in FORMS),
        *(_case("sweep", n, 0.2, 0.3, rank) for rank in (RANK, "auto")),
        *(_case("pattern", n, 0.2, 0.3, RANK, places=places) for places in ("uniform", "skewed")),
        *(_case("sides", n, 0.5, 0.2, RANK, features=side) for side in SIDES),
    ]


def _case(
    part: str,
    n: int,
    share: float,
    corruption: float,
    rank: int | str,
    *,
    n2: int | None = None,
    features: str = "both",
    places: str = "uniform",
    form: str = "NaN",
) -> Case:
    sizes = {"part": part, "n1": n, "n2": n2 or n, "share": share}
    return sizes | {"places": places, "corruption": corruption, "features": features, "form": form, "rank": rank}


def measure(case: Case) -> Row:
    problem, (rows, cols) = _problem(case["n1"], case["n2"], case["corruption"], case["seed"]), _places(case)
    features = [F if case["features"] in ("both", side) else None for side, F in _sides(problem)]
    M = _in_form(case["form"], problem.M, rows, cols)
    options = {"rank": case["rank"], "extra_rank": 0, "random_state": case["seed"]}
    result, row = solved(M, *features, **options)
    row["observed"] = len(rows)
    if result is None:
        return row
    row["error"] = problem.relative_error(result.L)
    if case["part"] == "forms":
        plain = irpca.solve(_in_form("NaN", problem.M, rows, cols), *features, **options)
        row["difference"] = relative_distance(result.L, plain.L)
    return row


@lru_cache(maxsize=1)
def _problem(n1: int, n2: int, corruption: float, seed: int) -> Problem:
    return irpca.datasets.make_problem(n1, n2, D, D, RANK, corruption, random_state=seed)


def _sides(problem: Problem) -> tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]:
    return ("rows", problem.F1), ("columns", problem.F2)


def _places(case: Case) -> Places:
    """Which entries are observed, each once."""
    n1, n2, rng = case["n1"], case["n2"], np.random.default_rng((case["seed"], 1))
    if case["places"] == "movielens":
        data = load_movielens_100k()
        return data.users, data.items
    count = round(case["share"] * n1 * n2)
    weights = None
    if case["places"] == "skewed":  # in the place of MovieLens: some rate much, some films are rated by many
        heavy = np.outer(rng.lognormal(size=n1), rng.lognormal(size=n2)).ravel()
        weights = heavy / heavy.sum()
    chosen = np.sort(rng.choice(n1 * n2, count, replace=False, p=weights))
    return chosen // n2, chosen % n2


def _in_form(form: str, M: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> Any:
    """The entries at these places as users have them."""
    if form == "sparse":
        return coo_array((M[rows, cols], (rows, cols)), shape=M.shape).tocsr()
    if form == "long table":
        return irpca.LongTable(rows, cols, M[rows, cols], M.shape)
    hidden = np.ones(M.shape, bool)
    hidden[rows, cols] = False
    return np.ma.masked_array(M, hidden) if form == "mask" else np.where(hidden, np.nan, M)


def report(rows: list[Row]) -> str:
    parts = (_forms, _sweep, _pattern, _one_by_one)
    names = ("forms", "sweep", "pattern", "sides")
    return "\n\n".join(part(where(rows, part=name)) for name, part in zip(names, parts, strict=True))


def _forms(rows: list[Row]) -> str:
    lines = []
    for form in in_order(rows, "form"):
        some = where(rows, form=form)
        costs = [f"{median(some, 'seconds'):.3f}", f"{median(some, 'reads'):.0f}"]
        lines.append([form, f"{worst(some, 'error'):.1e}", f"{worst(some, 'difference'):.1e}", *costs])
    share = in_order(rows, "share")[0] if rows else np.nan
    told = f"{share:.0%} observed, 30 % of that corrupted; the bar is an error of {RECOVERED:.0e} over all entries\n"
    return told + text_table(["M as", "worst error", "difference", "seconds", "reads"], lines)


def _sweep(rows: list[Row]) -> str:
    columns = [(rank, level) for rank in in_order(rows, "rank") for level in in_order(rows, "corruption")]
    lines = []
    for share in in_order(rows, "share"):
        some = where(rows, share=share)
        counts = [_recovered(where(some, rank=rank, corruption=level)) for rank, level in columns]
        lines.append([f"{share:.2%}", *counts])
    header = ["observed", *(f"rank {_named(rank)}, {level:.0%}" for rank, level in columns)]
    return "recovered, of how many; ! for each that is wrong and says CONVERGED\n" + text_table(header, lines)


def _recovered(rows: list[Row], bar: float = RECOVERED) -> str:
    right = [error <= bar for error in values(rows, "error")]
    silent = sum(row["status"] == "CONVERGED" and not ok for row, ok in zip(rows, right, strict=True))
    return f"{sum(right)}/{len(right)}" + "!" * silent


def _pattern(rows: list[Row]) -> str:
    lines = []
    for level, rank, places in product(*(in_order(rows, name) for name in ("corruption", "rank", "places"))):
        some = where(rows, corruption=level, rank=rank, places=places)
        figures = [f"{worst(some, 'error'):.1e}", f"{median(some, 'reads'):.0f}", f"{median(some, 'seconds'):.2f}"]
        lines.append([places, f"{level:.0%}", _named(rank), *figures])
    return "where the entries are\n" + text_table(
        ["places", "corrupted", "rank", "worst error", "reads", "seconds"], lines
    )


def _one_by_one(rows: list[Row]) -> str:
    lines = []
    for side, share, rank in product(*(in_order(rows, name) for name in ("features", "share", "rank"))):
        some = where(rows, features=side, share=share, rank=rank)
        figures = [_recovered(some, CLOSE), f"{worst(some, 'error'):.1e}", f"{median(some, 'seconds'):.1f}"]
        lines.append([side, f"{share:.0%}", _named(rank), *figures])
    header = ["features of", "observed", "rank", "recovered", "worst error", "seconds"]
    return f"features of one side or none, 20 % corrupted; recovered to {CLOSE:.0e}\n" + text_table(header, lines)


def _named(rank: Any) -> str:
    return rank if isinstance(rank, str) else str(int(rank))


MEASURED = ("observed", *SOLVED, "error", "difference", *PROVENANCE)
STUDY = Study("holes", cases, measure, MEASURED, report_each_version(report), warm_up=True)

if __name__ == "__main__":
    STUDY.main()
