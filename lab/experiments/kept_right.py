"""Kinds of error that version 0.1 copes with, sixteen tables each: does another version keep them right?

    python -m lab.experiments.kept_right --jobs 16 --label new --against ../old/src

Tables have 100 to 200 rows and 60 to 120 columns, L has rank 3 and root mean square 1, noise a standard deviation of
0.05; features of both sides, of columns or none (a constant and five Gaussian ones). *Right*: the relative Frobenius
error of L is at most twice that of alternating least squares that knows the bad cells, the rank and the features (or
1e-6). Rows and columns of which nothing can be known, such as a row that is bad as a whole and has no features, do not
count. *Told*: wrong, and the status or a doubt says so; *silent*: wrong, and nothing does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lab.tables import text_table

from .fits import fit, verdict_of, warned
from .random_tables import oracle
from .study import Case, Row, Study

NOISE = 0.05
SEEDS = 16
SIDES = ("both", "columns", "none")


@dataclass(frozen=True)
class Problem:
    """A table with a known answer.

    Attributes
    ----------
    M, F1, F2 : what the method is given
    L : the truth
    bad : cells that say nothing about L: wrong, or missing
    judged : cells that count
    ranks : of L; several if L has no clear rank: the oracle's best counts
    spanned : whether L lies in the span of the features
    """

    M: np.ndarray
    F1: np.ndarray | None
    F2: np.ndarray | None
    L: np.ndarray
    bad: np.ndarray
    judged: np.ndarray
    ranks: tuple[int, ...] = (3,)
    spanned: bool = True


def clean(rng: np.random.Generator, side: str, decay: np.ndarray | None = None) -> Problem:
    """A table of low rank and noise. ``decay``: the sizes of its directions, where these are not all alike."""
    n1, n2 = int(rng.integers(100, 201)), int(rng.integers(60, 121))
    F1 = _features(rng, n1) if side == "both" else None
    F2 = _features(rng, n2) if side in ("both", "columns") else None
    Q1, Q2 = (np.eye(n) if F is None else np.linalg.qr(F)[0] for n, F in ((n1, F1), (n2, F2)))
    decay = np.ones(3) if decay is None else decay[: min(Q1.shape[1], Q2.shape[1])]
    rank = len(decay)
    U, V = (Q @ np.linalg.qr(rng.standard_normal((Q.shape[1], rank)))[0] for Q in (Q1, Q2))
    L = (U * decay) @ V.T
    L /= np.sqrt(np.mean(L**2))
    M = L + NOISE * rng.standard_normal(L.shape)
    return Problem(M, F1, F2, L, np.zeros(L.shape, bool), np.ones(L.shape, bool), (rank,))


def _features(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.column_stack([np.ones(n), rng.standard_normal((n, 5))])


def _some(rng: np.random.Generator, n: int, share: float) -> np.ndarray:
    return rng.choice(n, max(2, round(share * n)), replace=False)


def _sized(rng: np.random.Generator, shape: Any) -> np.ndarray:
    """Gross errors: 3 to 6 standard deviations of L, either sign."""
    return rng.choice([-1, 1], shape) * rng.uniform(3, 6, shape)


def _lines(problem: Problem, M: np.ndarray, rows: Any = (), columns: Any = (), judged: bool = False) -> Problem:
    """Whole rows or columns are bad, and count only if their features tell what they should be."""
    bad = np.zeros(M.shape, bool)
    bad[np.asarray(rows, int)] = True
    bad[:, np.asarray(columns, int)] = True
    return replace(problem, M=M, bad=bad, judged=np.ones(M.shape, bool) if judged else ~bad)


def whole_rows(rng, side):
    problem = clean(rng, side)
    rows, M = _some(rng, len(problem.M), 0.05), problem.M.copy()
    M[rows] += _sized(rng, M[rows].shape)
    return _lines(problem, M, rows=rows, judged=problem.F1 is not None)


def whole_columns(rng, side):
    problem = clean(rng, side)
    columns, M = _some(rng, problem.M.shape[1], 0.05), problem.M.copy()
    M[:, columns] += _sized(rng, M[:, columns].shape)
    return _lines(problem, M, columns=columns, judged=problem.F2 is not None)


def rows_swapped(rng, side):
    problem = clean(rng, side)
    rows, M = _some(rng, len(problem.M), 0.05), problem.M.copy()
    rows = rows[: len(rows) // 2 * 2]
    M[rows] = M[rows.reshape(-1, 2)[:, ::-1].ravel()]
    return _lines(problem, M, rows=rows, judged=True)


def rows_shifted(rng, side):
    problem = clean(rng, side)
    rows, M = _some(rng, len(problem.M), 0.05), problem.M.copy()
    M[rows] += _sized(rng, (len(rows), 1))
    return _lines(problem, M, rows=rows, judged=problem.F1 is not None)


def wrong_features(rng, side):
    """Of rows, or of columns where only these have features; the lines themselves do not count."""
    problem = clean(rng, side)
    name, axis = ("F1", 0) if problem.F1 is not None else ("F2", 1)
    F = getattr(problem, name).copy()
    hit = _some(rng, len(F), 0.05)
    F[hit, 1:] = rng.standard_normal((len(hit), F.shape[1] - 1))
    return _lines(replace(problem, **{name: F}), problem.M, **{("rows", "columns")[axis]: hit})


def bursts(rng, side):
    """A fifth of the cells of a fifth of the rows, side by side and off by the same."""
    problem = clean(rng, side)
    n1, n2 = problem.M.shape
    bad, length = np.zeros((n1, n2), bool), n2 // 5
    for row in _some(rng, n1, 0.2):
        start = rng.integers(0, n2 - length + 1)
        bad[row, start : start + length] = True
    return replace(problem, M=problem.M + bad * _sized(rng, (n1, 1)), bad=bad)


def block(rng, side):
    problem = clean(rng, side)
    bad = _block(rng, problem.M.shape)
    return replace(problem, M=problem.M + bad * _sized(rng, bad.shape), bad=bad)


def low_rank_block(rng, side):
    problem = clean(rng, side)
    bad = _block(rng, problem.M.shape)
    n1, n2 = bad.shape
    return replace(problem, M=problem.M + bad * _sized(rng, (n1, 1)) * rng.uniform(0.5, 1.5, n2), bad=bad)


def _block(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    bad = np.zeros(shape, bool)
    bad[np.ix_(*(_some(rng, n, 1 / 3) for n in shape))] = True
    return bad


def scattered(share: float, wrong: Callable[[np.random.Generator, np.ndarray], np.ndarray], decay: Any = None):
    """Cells at random, replaced by what ``wrong`` makes of the table."""

    def make(rng, side):
        problem = clean(rng, side, decay)
        bad = rng.random(problem.M.shape) < share
        return replace(problem, M=np.where(bad, wrong(rng, problem.M), problem.M), bad=bad)

    return make


def _anywhere(rng: np.random.Generator, M: np.ndarray) -> np.ndarray:
    """Uniform over three times the range of the table."""
    low, high = M.min(), M.max()
    return rng.uniform(2 * low - high, 2 * high - low, M.shape)


def power_law(rng, side):
    problem = scattered(0.05, lambda rng, M: M + _sized(rng, M.shape), np.arange(1, 21) ** -2.0)(rng, side)
    return replace(problem, ranks=tuple(range(1, problem.ranks[0] + 1)))


def counts(rng, side):
    """Poisson, with means that no feature spans and no rank exhausts; the oracle takes the rank that is best."""
    problem = clean(rng, side)
    mean = np.exp(2 + 0.4 * problem.L)
    M = rng.poisson(mean).astype(float)
    bad = rng.random(M.shape) < 0.05
    return replace(
        problem, M=np.where(bad, 10 * M, M), L=mean, bad=bad & (M > 0), ranks=tuple(range(1, 9)), spanned=False
    )


def ratings(rng, side):
    problem = clean(rng, side)
    L = 3 + 0.8 * problem.L
    M = np.clip(np.round(L + NOISE * rng.standard_normal(L.shape)), 1, 5)
    bad = rng.random(M.shape) < 0.05
    M = np.where(bad, rng.integers(1, 6, M.shape), M)
    missing = rng.random(M.shape) >= 0.3
    M[missing] = np.nan
    return replace(problem, M=M, L=L, bad=bad | missing, ranks=(1, 2, 3, 4))


KINDS: dict[str, Callable[[np.random.Generator, str], Problem]] = {
    "whole rows": whole_rows,
    "whole columns": whole_columns,
    "rows swapped": rows_swapped,
    "rows shifted": rows_shifted,
    "wrong features": wrong_features,
    "bursts": bursts,
    "block": block,
    "low-rank block": low_rank_block,
    "signs": scattered(0.1, lambda rng, M: -M),
    "times 10": scattered(0.05, lambda rng, M: 10 * M),
    "times 1000": scattered(0.05, lambda rng, M: 1000 * M),
    "power law": power_law,
    "counts": counts,
    "ratings": ratings,
    "55 % corrupted": scattered(0.55, _anywhere),
    "70 % corrupted": scattered(0.7, _anywhere),
}
NEEDS = {"rows swapped": ("both",), "wrong features": ("both", "columns")}


def cases(quick: bool = False) -> list[Case]:
    settings = [(kind, side) for kind in KINDS for side in NEEDS.get(kind, SIDES)]
    settings = settings[::5] if quick else settings
    return [{"kind": kind, "side": side, "seed": s} for kind, side in settings for s in range(1 if quick else SEEDS)]


def make(case: Case) -> Problem:
    rng = np.random.default_rng([case["seed"], list(KINDS).index(case["kind"]), SIDES.index(case["side"])])
    return KINDS[case["kind"]](rng, case["side"])


def known(problem: Problem) -> float:
    """The error of one who knows the bad cells, the rank and the spans."""
    Q1, Q2 = (
        np.eye(n) if F is None or not problem.spanned else np.linalg.qr(F)[0]
        for n, F in zip(problem.M.shape, (problem.F1, problem.F2), strict=True)
    )
    fits = (oracle(problem.M, problem.L, problem.bad, Q1, Q2, rank) for rank in problem.ranks)
    return min(error_of(problem, L) for L in fits)


def error_of(problem: Problem, L: np.ndarray) -> float:
    cells = problem.judged
    return float(np.linalg.norm((L - problem.L)[cells]) / np.linalg.norm(problem.L[cells]))


def measure(case: Case) -> Row:
    problem = make(case)
    model, L, row = fit(problem.M, problem.F1, problem.F2)
    error, best = error_of(problem, L), known(problem)
    alarm = warned(model.converged_, model.result_.doubts)
    return row | {"verdict": verdict_of(error, best, alarm), "alarm": int(alarm), "error": error, "oracle": best}


def report(rows: list[Row]) -> str:
    versions = list(dict.fromkeys(row["version"] for row in rows))
    body = []
    for kind, side in dict.fromkeys((row["kind"], row["side"]) for row in rows):
        line: list[Any] = [kind, side]
        for version in versions:
            wanted = {"kind": kind, "side": side, "version": version}
            some = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
            count = Counter(row["verdict"] for row in some)
            words = "/".join(str(count[word]) for word in ("right", "told", "silent"))
            words += f", {count['error']} refused" if count["error"] else ""
            ratios = [row["error"] / row["oracle"] for row in some if row["verdict"] != "error"]
            alarms = sum(row["verdict"] == "right" and row["alarm"] == 1 for row in some)
            line += [words, f"{np.median(ratios):.2f}" if ratios else "–", alarms]
        body.append(line)
    header = ["kind", "features"]
    for version in versions:
        header += [f"{version}: right/told/silent", "median / oracle", "right with alarm"]
    totals = [f"{v}: {dict(Counter(row['verdict'] for row in rows if row['version'] == v))}" for v in versions]
    return "\n".join([text_table(header, body), *totals, _lost(rows, versions)])


def _lost(rows: list[Row], versions: list[str]) -> str:
    """What the second version gets right and the first does not: with ``--against`` the second is the old one."""
    if len(versions) != 2:
        return ""
    right = [{(r["kind"], r["side"], int(r["seed"])) for r in rows if r["version"] == v and r["verdict"] == "right"}
             for v in versions]  # fmt: skip
    return f"right in {versions[1]} and not in {versions[0]}: {sorted(right[1] - right[0])}"


MEASURED = ("verdict", "alarm", "error", "oracle", "flagged", "rank", "seconds", "status", "doubts")
STUDY = Study("kept_right", cases, measure, MEASURED, report)

if __name__ == "__main__":
    STUDY.main()
