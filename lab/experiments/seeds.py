"""Does the answer depend on ``random_state``? Five fits of every table.

    python -m lab.experiments.seeds --jobs 16 --label new --against ../old/src

``apart`` is the largest distance between two fits, ``reference`` the statistical error that it is held against. For the
tables of ``random_tables``: ‖L − L'‖ / ‖L*‖, and the error of the oracle (at least 1e-6). For real tables
with 20 % of the cells spoilt: the mean of |L − L'| on these cells, in standard deviations, and the mean absolute error
there of the fit that was told them. ``ratio`` above 1 is more than the data explain.
"""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np

import irpca
from lab.tables import text_table

from . import random_tables, real_tables
from .fits import fit
from .study import Case, Row, Study

STATES = range(5)
RANDOM = 60
SHARE = 0.2


def cases(quick: bool = False) -> list[Case]:
    found = [{"kind": "random", "table": str(seed)} for seed in range(3 if quick else RANDOM)]
    for name in ("life",) if quick else real_tables.TABLES:
        kinds, _ = real_tables.WITHOUT if name in real_tables.PLAIN else real_tables.WITH_FEATURES
        found += [{"kind": kind, "table": name} for kind in (kinds[:1] if quick else kinds)]
    return found


def measure(case: Case) -> Row:
    return of_random(int(case["table"])) if case["kind"] == "random" else of_real(case["table"], case["kind"])


def of_random(seed: int) -> Row:
    M, F1, F2, L, corrupted, Q1, Q2, rank, asked = random_tables.table(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [irpca.solve(M, F1, F2, rank=asked, extra_rank=0, random_state=state) for state in STATES]
    known = random_tables.oracle(M, L, corrupted, Q1, Q2, rank)
    reference, *errors = (np.linalg.norm(A - L) / np.linalg.norm(L) for A in (known, *(r.L.dense() for r in results)))
    distances = [np.linalg.norm(A.L.dense() - B.L.dense()) / np.linalg.norm(L) for A, B in combinations(results, 2)]
    said = [(result.rank, result.status.name) for result in results]
    return compared(said, distances, errors, max(reference, 1e-6))


def of_real(name: str, kind: str) -> Row:
    M, F1, F2 = real_tables.table(name)
    X, cells = real_tables.spoil(M, SHARE, kind)
    unit = real_tables.unit(name)[cells]
    fits = [fit(X, F1, F2, random_state=state) for state in STATES]
    told = fit(np.where(cells, np.nan, M), F1, F2)[1]
    reference, *errors = (np.mean(np.abs(L - M)[cells] / unit) for L in (told, *(L for _, L, _ in fits)))
    distances = [np.mean(np.abs(A - B)[cells] / unit) for (_, A, _), (_, B, _) in combinations(fits, 2)]
    return compared([(row["rank"], row["status"]) for *_, row in fits], distances, errors, reference)


def compared(said: list[tuple[int, str]], distances: list[float], errors: list[float], reference: float) -> Row:
    ranks, statuses = zip(*said, strict=True)
    return {
        "same_rank": int(len(set(ranks)) == 1),
        "same_status": int(len(set(statuses)) == 1),
        "apart": float(max(distances)),
        "reference": float(reference),
        "ratio": float(max(distances) / reference),
        "least_error": float(min(errors)),
        "largest_error": float(max(errors)),
        "ranks": " ".join(map(str, ranks)),
        "status": " ".join(statuses),
    }


def report(rows: list[Row]) -> str:
    told = []
    for version in dict.fromkeys(row["version"] for row in rows):
        for kind in ("random", "real"):
            some = [
                row for row in rows if row["version"] == version and (row["kind"] == "random") == (kind == "random")
            ]
            ranks, statuses = (sum(row[name] == 1 for row in some) for name in ("same_rank", "same_status"))
            told.append(
                f"{version}, {kind} tables: of {len(some)} the same rank in {ranks}, the same status in {statuses}, "
                f"L within statistical error in {sum(row['ratio'] <= 1 for row in some)}"
            )
    names = ("version", "kind", "table", *SIZES, "ranks", "status")
    odd = [row for row in rows if not (row["same_rank"] == row["same_status"] == 1 and row["ratio"] <= 1)]
    return "\n".join(
        [*told, text_table(names, [[row[name] for name in names] for row in odd]) if odd else "no table differs"]
    )


SIZES = ("apart", "reference", "ratio", "least_error", "largest_error")
MEASURED = ("same_rank", "same_status", *SIZES, "ranks", "status")
STUDY = Study("seeds", cases, measure, MEASURED, report)

if __name__ == "__main__":
    STUDY.main()
