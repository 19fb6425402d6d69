"""How often the default is right, and how often it is wrong without saying so, on random small tables.

    python -m lab.experiments.random_tables [tables] [--first SEED] [--jobs N] [--against ../old/src]

Every seed draws a table of 30 to 300 rows and columns: features on both sides, one or none (Gaussian, polynomial,
Fourier, indicators, or indicators with numbers beside them), rank 1 to 4, noise or none, 5 to 40 % of the entries
corrupted in one of five ways, the rank given or not. *Right* is an error of L of at most twice that of an oracle who
knows the support and the rank (1e-6 without noise); *told* is wrong with another status than CONVERGED or with a doubt
that touches the verdict; *silent* is the rest. *Alarm* is such a status or doubt,
and one on a right answer is false. The CSV (``results/random_tables.csv``) has a row per seed; the other options are
those of ``study.py``. ``--first 10000`` gives a second set of tables.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import irpca
from irpca.features import FeatureWarning

from .fits import HARMLESS, doubts_of, verdict_of, warned
from .study import Row, Study, options


def features(rng, n, d):
    kind = rng.choice(["gaussian", "polynomial", "fourier", "indicators", "mixed"])
    t = np.linspace(-1, 1, n)
    groups = np.eye(d)[np.r_[np.arange(d), rng.integers(0, d, n - d)]]
    return {
        "gaussian": rng.standard_normal((n, d)),
        "polynomial": np.vander(t, d),
        "fourier": np.column_stack([np.cos(np.pi * (t * (k // 2) + k % 2 / 2)) for k in range(1, d + 1)]),
        "indicators": groups,
        "mixed": np.column_stack([groups[:, :-2], rng.standard_normal((n, 2))]),
    }[kind]


def table(seed):
    rng = np.random.default_rng(seed)
    n1, n2 = rng.integers(30, 301, 2)
    d, rank, side = int(rng.integers(3, 13)), int(rng.integers(1, 5)), rng.choice(["both", "rows", "columns", "none"])
    F1 = features(rng, n1, d) if side in ("both", "rows") else None
    F2 = features(rng, n2, d) if side in ("both", "columns") else None
    Q1, Q2 = (np.eye(n) if F is None else np.linalg.qr(F)[0] for n, F in ((n1, F1), (n2, F2)))
    rank = min(rank, Q1.shape[1], Q2.shape[1])
    decay = rng.choice([1.0, 3.0]) ** -np.arange(rank)
    L = Q1 @ (rng.standard_normal((Q1.shape[1], rank)) * decay) @ rng.standard_normal((rank, Q2.shape[1])) @ Q2.T
    L /= np.sqrt(np.mean(L**2))
    noise = rng.choice([0, 0, 1e-3, 1e-2, 1e-1])
    corrupted = rng.random(L.shape) < rng.choice([0.05, 0.1, 0.2, 0.3, 0.4])
    u = rng.random(L.shape)
    size = {
        "gap": 2 + 3 * u,
        "uniform": 3 * np.abs(L).max() * u,
        "constant": np.full(L.shape, 3.0),
        "cauchy": np.abs(rng.standard_cauchy(L.shape)),
        "small": (8 + 8 * u) * max(noise, 0.01),
    }[rng.choice(["gap", "uniform", "constant", "cauchy", "small"])]
    sign = rng.choice([-1, 1], L.shape) if rng.random() < 0.5 else 1
    M = L + corrupted * size * sign + noise * rng.standard_normal(L.shape)
    return M, F1, F2, L, corrupted, Q1, Q2, rank, "auto" if rng.random() < 0.5 else rank


def oracle(M, L, corrupted, Q1, Q2, rank):
    fit = L
    for _ in range(60):
        u, s, vt = np.linalg.svd(Q1.T @ np.where(corrupted, fit, M) @ Q2, full_matrices=False)
        fit = Q1 @ (u[:, :rank] * s[:rank]) @ vt[:rank] @ Q2.T
    return fit


def verdict(seed):
    return judged(seed)["verdict"]


def judged(seed: int, **parameters: Any) -> dict[str, Any]:
    """The verdict on one table, and what it rests on."""
    M, F1, F2, L, corrupted, Q1, Q2, rank, asked = table(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeatureWarning)
        result = irpca.solve(M, F1, F2, rank=asked, extra_rank=0, **parameters)
    known = oracle(M, L, corrupted, Q1, Q2, rank)
    error, best = (float(np.linalg.norm(A - L) / np.linalg.norm(L)) for A in (result.L.dense(), known))
    alarm = warned(result.converged, result.doubts, HARMLESS)
    return {
        "side": {(0, 0): "both", (0, 1): "rows", (1, 0): "columns", (1, 1): "none"}[F1 is None, F2 is None],
        "verdict": verdict_of(error, best, alarm),
        "alarm": int(alarm),
        "error": error,
        "oracle": best,
        "rank": int(result.rank),
        "rank_true": rank,
        "status": result.status.name,
        "doubts": doubts_of(result.doubts),
    }


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return judged(case["seed"])


def report(rows: list[dict[str, Any]]) -> str:
    return "\n".join(_summary(version, rows) for version in dict.fromkeys(row["version"] for row in rows))


def _summary(version: str, rows: list[dict[str, Any]]) -> str:
    rows = [row for row in rows if row["version"] == version]
    counts = Counter(row["verdict"] for row in rows)
    seeds = {word: [int(row["seed"]) for row in rows if row["verdict"] == word] for word in counts if word != "right"}
    right = [row for row in rows if row["verdict"] == "right"]
    false = sum(row["alarm"] for row in right)
    sides = {
        side: dict(Counter(row["verdict"] for row in rows if row["side"] == side))
        for side in ("both", "rows", "columns", "none")
    }
    ratios = [row["error"] / row["oracle"] for row in right if row["oracle"] > 1e-6]
    return (
        f"{version}: {dict(counts)} of {len(rows)}; {false:.0f} of {len(right)} right ones with a false alarm "
        f"({false / max(len(right), 1):.1%}); median error under noise {np.median(ratios or [np.nan]):.2f} × oracle"
        f"\n  by side: {sides}\n  seeds: {seeds}"
    )


MEASURED = ("side", "verdict", "alarm", "error", "oracle", "rank", "rank_true", "status", "doubts")

MORE = (
    ("tables", {"nargs": "?", "type": int, "default": 400}),
    ("--first", {"type": int, "default": 0, "metavar": "SEED"}),
)


def main(words: Sequence[str] | None = None) -> list[Row]:
    chosen = options("random_tables", words, MORE)
    seeds = range(chosen.first, chosen.first + (6 if chosen.quick else chosen.tables))
    study = Study("random_tables", lambda quick: [{"seed": seed} for seed in seeds], measure, MEASURED, report)
    return study.run(chosen)


if __name__ == "__main__":
    main()
