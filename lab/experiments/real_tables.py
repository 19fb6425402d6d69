"""Real tables with cells spoilt on purpose: how wrong is L there, and which cells are flagged?

    python -m lab.experiments.real_tables --jobs 16 --label new --against ../old/src

Every spoilt cell was observed, so the truth is known. ``error`` is the mean absolute error of L on the spoilt cells, in
standard deviations of the table (of its columns where there are no features); ``told`` is that of the same version
given the spoilt cells as holes, which are the same for all kinds of error of one share: this is fitted once, in the row
of kind "holes". ``ratio`` is the first over the second, ``bar`` what it may be. ``false`` is the share of flagged
cells that were not spoilt, ``missed`` the share of spoilt cells that were not flagged. ``covered``, of the row of kind
"holes", is the share of the cells taken out that lie within 1.96 standard deviations (``expected(return_std=True)``) of
what is expected: 0.95 is right. Real tables have errors of their
own: ``flagged`` of the row of kind "clean" is what is flagged before anything is spoilt.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import irpca
from lab.datasets import load_i94_traffic
from lab.tables import text_table

from .fits import fit
from .study import Case, Row, Study

Table = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]


def i94() -> Table:
    data = load_i94_traffic()
    return data.volume, data.row_features(), data.col_features()


def life() -> Table:
    data = irpca.datasets.load_life_expectancy()
    return data.M, None, data.col_features()


def pines() -> Table:
    """Every fourth pixel each way of a hyperspectral image; polynomials of the place, cosines of the band."""
    file = Path(os.environ["IRPCA_DATA"]) / "indian-pines" / "indian_pines.npz"
    image = np.load(file)["image"][::4, ::4].astype(float)
    height, width, bands = image.shape
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    place = np.column_stack([(x**i * y**j).ravel() for i in range(4) for j in range(4 - i)])
    waves = np.cos(np.pi * np.outer(np.linspace(0, 1, bands), np.arange(16)))
    return image.reshape(-1, bands), place, waves


def digits() -> Table:
    from sklearn.datasets import load_digits

    M = load_digits().data
    return M[:, M.std(axis=0) > 0.5], None, None


def cancer() -> Table:
    from sklearn.datasets import load_breast_cancer

    return load_breast_cancer().data, None, None


TABLES = {"i94": i94, "life": life, "pines": pines, "digits": digits, "cancer": cancer}
PLAIN = ("digits", "cancer")  # without features
WITH_FEATURES = (("swap", "stuck", "mixed up"), (0.05, 0.2, 0.4))
WITHOUT = (("added",), (0.01, 0.1, 0.3))


@lru_cache(maxsize=2)
def table(name: str) -> Table:
    return TABLES[name]()


def unit(name: str) -> np.ndarray:
    """What errors are measured in, per cell."""
    M, F1, F2 = table(name)
    spread = np.nanstd(M, axis=0) if F1 is None and F2 is None else np.nanstd(M)
    return np.broadcast_to(spread, M.shape)


def spoil(M: np.ndarray, share: float, kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The table with a share of its cells replaced, and which they are: the same cells whatever the kind.

    ``swap``: uniform over three times the range; ``stuck``: one value far above; ``mixed up``: values of other spoilt
    cells; ``added``: ± 3 to 5 standard deviations of the column; ``holes``: missing; ``clean``: as it is.
    """
    rng = np.random.default_rng([seed, 77])
    cells = np.isfinite(M) & (rng.random(M.shape) < share)
    low, high, count = np.nanmin(M), np.nanmax(M), np.count_nonzero(cells)
    X = M.copy()
    if kind == "swap":
        X[cells] = rng.uniform(2 * low - high, 2 * high - low, count)
    elif kind == "stuck":
        X[cells] = 2 * high - low
    elif kind == "mixed up":
        X[cells] = rng.permutation(M[cells])
    elif kind == "added":
        X[cells] += (rng.choice([-1, 1], M.shape) * rng.uniform(3, 5, M.shape) * np.nanstd(M, axis=0))[cells]
    elif kind == "holes":
        X[cells] = np.nan
    elif kind != "clean":
        raise ValueError(f"no kind {kind!r}")
    return X, cells


def cases(quick: bool = False) -> list[Case]:
    found = []
    for name in ("life", "cancer") if quick else TABLES:
        kinds, shares = WITHOUT if name in PLAIN else WITH_FEATURES
        for seed in range(1 if quick else 3):
            settings = [(share, kind) for share in shares for kind in ("holes", *kinds)]
            settings = settings[4:6] if quick and name == "life" else settings[:2] if quick else settings
            found += [{"table": name, "share": s, "kind": k, "seed": seed} for s, k in [(0.0, "clean"), *settings]]
    return found


def measure(case: Case) -> Row:
    M, F1, F2 = table(case["table"])
    X, cells = spoil(M, case["share"], case["kind"], case["seed"])
    model, L, row = fit(X, F1, F2)
    if case["kind"] == "clean":
        return row
    row["error"] = float(np.mean((np.abs(L - M) / unit(case["table"]))[cells]))
    if case["kind"] == "holes":
        if hasattr(model, "expected"):  # version 0.1 has no such answer
            expected, std = model.expected(return_std=True)
            row["covered"] = float(np.mean((np.abs(M - expected) <= 1.96 * std)[cells]))
        return row
    flagged = model.sparse_.toarray() != 0
    row["false"] = np.count_nonzero(flagged & ~cells) / max(np.count_nonzero(flagged), 1)
    row["missed"] = np.count_nonzero(cells & ~flagged) / np.count_nonzero(cells)
    return row


def bar(share: float) -> float:
    """What the ratio to the fit that was told the spoilt cells may be."""
    return 1.1 if share <= 0.2 else 1.25


def finish(rows: list[Row]) -> None:
    told = {(row["table"], row["share"], row["seed"]): row["error"] for row in rows if row["kind"] == "holes"}
    for row in rows:
        if row["kind"] not in ("clean", "holes"):
            row["told"] = told.get((row["table"], row["share"], row["seed"]), np.nan)
            row["ratio"], row["bar"] = row["error"] / row["told"], bar(row["share"])


def report(rows: list[Row]) -> str:
    spoilt = [row for row in rows if row["kind"] not in ("clean", "holes")]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in spoilt:
        groups.setdefault((row["table"], row["kind"], f"{row['share']:.0%}", row["version"]), []).append(row)
    best: dict[tuple[Any, ...], float] = {}  # what some version attains when told: a poor one is poor at both
    for row in spoilt:
        place = (row["table"], row["share"], row["seed"])
        best[place] = min(row["told"], best.get(place, np.inf))
    header = ("table", "spoilt", "share", "version", "error", "told", "ratio", "met", "over best told")
    header += ("false", "missed", "s", "status")
    body = []
    for group, some in groups.items():
        means = [float(np.mean([row[name] for row in some])) for name in ("error", "told", "ratio")]
        met = f"{sum(row['ratio'] <= row['bar'] for row in some)}/{len(some)}"
        over = float(np.mean([row["error"] / best[row["table"], row["share"], row["seed"]] for row in some]))
        rest = [float(np.mean([row[name] for row in some])) for name in ("false", "missed", "seconds")]
        body.append([*group, *means, met, over, *rest, "; ".join(sorted({row["status"] for row in some}))])
    told = []
    for version in dict.fromkeys(row["version"] for row in spoilt):
        some = [row for row in spoilt if row["version"] == version]
        over = [row for row in some if not row["ratio"] <= row["bar"]]
        silent = sum(row["status"] == "CONVERGED" and not row["doubts"] for row in over)
        holes = [row for row in rows if row["version"] == version and np.isfinite(row.get("covered") or np.nan)]
        if holes:
            covered = {name: [row["covered"] for row in holes if row["table"] == name] for name in TABLES}
            shares = (f"{name} {min(some):.2f} to {max(some):.2f}" for name, some in covered.items() if some)
            told.append(f"{version}: within 1.96 standard deviations: {', '.join(shares)}")
        told.append(f"{version}: bar missed in {len(over)} of {len(some)}, {silent} of them with no doubt at all")
    return "\n".join([text_table(header, body), *told])


MEASURED = (
    "error",
    "told",
    "ratio",
    "bar",
    "false",
    "missed",
    "covered",
    "flagged",
    "rank",
    "seconds",
    "status",
    "doubts",
)
STUDY = Study("real_tables", cases, measure, MEASURED, report, finish)

if __name__ == "__main__":
    STUDY.main()
