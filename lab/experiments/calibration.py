"""Do the probabilities hold? Errors of known place in noise of many kinds, and what ``outliers(fdr=0.05)`` returns.

    python -m lab.experiments.calibration --jobs 16 --label new --against ../old/src

L has rank 3 and root mean square 1, with features of both sides (6 each) or none; the rank is not given. The unit of an
error is the scale parameter of the noise of its cell: the standard deviation of Gaussian noise, the scale of Laplace
and Student noise, a half of that of gamma noise. ``near`` errors have 6 to 15 of these, ``far`` ones 30 to 60. The
last four kinds are of values that are not measured on a scale with even noise: exponentials, Poisson counts of a mean
of ``exp(L + 2)``, five grades, and values piled up at their lower three tenths. Errors are added before that; an error
in a grade is any other one, and a cell is not wrong that has kept its value. Columns: ``false``, the share of the
returned cells that were not corrupted; ``found_10``, the share of errors beyond 10 units that were returned; ``found``,
of all errors; ``n0`` … ``true9``: of all flagged cells, by tenths of ``probability``, how many, their mean probability,
and the share that was corrupted. The last are empty where the table of outliers has no such column.
"""

from __future__ import annotations

from itertools import chain, product
from typing import Any

import numpy as np

from lab.tables import text_table

from .fits import fit
from .study import Case, Row, Study

SCALE = 0.1  # of the noise
FDR = 0.05
BINS = 10
NOISES = ("gaussian", "laplace", "student 5", "student 2", "unequal columns", "unequal rows", "gamma")
VALUES = ("log-normal", "counts", "grades", "censored")  # with Gaussian noise, or that of counts
GRADES = 5
SIZES = {"near": (6, 15), "far": (30, 60)}


def cases(quick: bool = False) -> list[Case]:
    if quick:
        levels = product(("none", "both"), ("200x60",), ("gaussian", "unequal columns"), (0.05,), ("far",), ("random",))
    else:
        features, shapes = ("both", "none"), ("200x60", "400x100")
        levels = chain(
            product(features, shapes, NOISES, (0.01, 0.05, 0.1, 0.3), SIZES, ("random", "one")),
            product(features, shapes, VALUES, (0.01, 0.1), SIZES, ("random",)),
        )
    names = ("features", "shape", "noise", "share", "size", "signs")
    return [dict(zip(names, level, strict=True)) | {"seed": s} for level in levels for s in range(1 if quick else 3)]


def make(case: Case) -> tuple[np.ndarray, Any, Any, np.ndarray, np.ndarray]:
    """M, the features, and for every cell the size of its error in units of its noise and whether there is one."""
    n1, n2 = map(int, case["shape"].split("x"))
    kind = case["noise"]
    rng = np.random.default_rng([case["seed"], n1, (*NOISES, *VALUES).index(kind)])
    F1, F2 = (rng.standard_normal((n1, 6)), rng.standard_normal((n2, 6))) if case["features"] == "both" else (None,) * 2
    U, V = (rng.standard_normal((n if F is None else 6, 3)) for n, F in ((n1, F1), (n2, F2)))
    L = (U if F1 is None else F1 @ U) @ (V if F2 is None else F2 @ V).T
    L /= np.sqrt(np.mean(L**2))
    scale = np.full(L.shape, SCALE)
    if kind == "unequal columns":
        scale = np.broadcast_to(10 ** rng.uniform(-2.5, -0.5, n2), L.shape)
    elif kind == "unequal rows":
        scale = np.broadcast_to(10 ** rng.uniform(-2.5, -0.5, (n1, 1)), L.shape)
    if kind == "laplace":
        noise = rng.laplace(size=L.shape)
    elif kind.startswith("student"):
        noise = rng.standard_t(int(kind.split()[1]), L.shape)
    elif kind == "gamma":
        noise = rng.gamma(2, 0.5, L.shape) - 1
    else:
        noise = rng.standard_normal(L.shape)
    corrupted = rng.random(L.shape) < case["share"]
    size = corrupted * rng.uniform(*SIZES[case["size"]], L.shape)
    sign = rng.choice([-1, 1], L.shape) if case["signs"] == "random" else 1
    if kind not in VALUES:
        return L + scale * (noise + sign * size), F1, F2, size, corrupted
    right, M = (held(kind, L + shift, noise, case["seed"]) for shift in (0.0, scale * sign * size))
    if kind == "grades":
        M = np.where(corrupted, (right + rng.integers(1, GRADES, L.shape)) % GRADES, right)
    wrong = corrupted & (right != M)
    return M, F1, F2, size * wrong, wrong


def held(kind: str, L: np.ndarray, noise: np.ndarray, seed: int) -> np.ndarray:
    """What cells hold that are expected to be L, on the scale of what is expected."""
    if kind == "counts":
        return np.random.default_rng(seed).poisson(np.exp(np.minimum(L + 2, 12.0))).astype(float)
    if kind == "grades":
        return np.digitize(L + 3 * SCALE * noise, np.linspace(-1.2, 1.2, GRADES - 1)).astype(float)
    return np.exp(L + SCALE * noise) if kind == "log-normal" else np.maximum(L + SCALE * noise, -0.5)


def measure(case: Case) -> Row:
    M, F1, F2, size, corrupted = make(case)
    model, _, row = fit(M, F1, F2)
    listed = cells(model.outliers(fdr=FDR), M.shape)
    large = size > 10
    row["returned"] = int(np.count_nonzero(listed))
    row["false"] = np.count_nonzero(listed & ~corrupted) / max(row["returned"], 1)
    row["found_10"] = np.count_nonzero(listed & large) / max(np.count_nonzero(large), 1)
    row["found"] = np.count_nonzero(listed & corrupted) / np.count_nonzero(corrupted)
    return row | reliability(model.outliers(), corrupted)


def cells(table: Any, shape: tuple[int, int]) -> np.ndarray:
    """Which cells are in a table of outliers."""
    found = np.zeros(shape, bool)
    found[np.asarray(table["row"], int), np.asarray(table["column"], int)] = True
    return found


def reliability(table: Any, corrupted: np.ndarray) -> Row:
    """By tenths of the probability: how many cells, what was said on average, what is true."""
    names = table.columns if hasattr(table, "columns") else table.dtype.names
    if "probability" not in names:
        return {}
    said = np.asarray(table["probability"], float)
    true = corrupted[np.asarray(table["row"], int), np.asarray(table["column"], int)]
    place = np.clip((said * BINS).astype(int), 0, BINS - 1)
    row: Row = {}
    for k in range(BINS):
        some = place == k
        row[f"n{k}"] = int(np.count_nonzero(some))
        row[f"said{k}"], row[f"true{k}"] = (float(x[some].mean()) if some.any() else np.nan for x in (said, true))
    return row


def report(rows: list[Row]) -> str:
    versions = list(dict.fromkeys(row["version"] for row in rows))
    body = []
    for features, noise, size, share in product(
        ("both", "none"), (*NOISES, *VALUES), SIZES, sorted({row["share"] for row in rows})
    ):
        for version in versions:
            wanted = {"features": features, "noise": noise, "size": size, "share": share, "version": version}
            some = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
            if some:
                means = [_mean(some, name) for name in ("false", "found_10", "found")]
                alarms = f"{sum(row['status'] != 'CONVERGED' for row in some)}/{len(some)}"
                body.append([features, noise, size, f"{share:.0%}", version, *means, alarms])
    header = ("features", "noise", "errors", "share", "version", "false", "found >10", "found", "not converged")
    return "\n".join([text_table(header, body), *(f"\n{_reliabilities(rows, version)}" for version in versions)])


def _mean(rows: list[Row], name: str) -> float:
    known = [row[name] for row in rows if row[name] == row[name]]
    return float(np.mean(known)) if known else float("nan")


def _reliabilities(rows: list[Row], version: str) -> str:
    """What was said and what is true, all tables of a noise together."""
    body = []
    for noise in (*NOISES, *VALUES):
        some = [row for row in rows if row["version"] == version and row["noise"] == noise and row["n0"] == row["n0"]]
        for k in range(BINS) if some else ():
            counts = np.array([row[f"n{k}"] for row in some])
            if counts.sum():
                said, true = (
                    float(np.nansum([row[f"{what}{k}"] * row[f"n{k}"] for row in some]) / counts.sum())
                    for what in ("said", "true")
                )
                body.append([noise, f"{k / BINS:.1f}–{(k + 1) / BINS:.1f}", int(counts.sum()), said, true])
    if not body:
        return f"{version}: the table of outliers has no probability"
    return f"probability, {version}\n" + text_table(("noise", "tenth", "cells", "said", "true"), body)


TENTHS = tuple(f"{what}{k}" for k in range(BINS) for what in ("n", "said", "true"))
MEASURED = ("false", "found_10", "found", "returned", "flagged", "rank", "seconds", "status", "doubts", *TENTHS)
STUDY = Study("calibration", cases, measure, MEASURED, report)

if __name__ == "__main__":
    STUDY.main()
