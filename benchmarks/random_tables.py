"""How often the default is right, and how often it is wrong without saying so, on random small tables.

    python -m benchmarks.random_tables [tables]

Every seed draws a table of 30 to 300 rows and columns: features on both sides, one or none (Gaussian, polynomial,
Fourier, indicators, or indicators with numbers beside them), rank 1 to 4, noise or none, 5 to 40 % of the entries
corrupted in one of five ways, the rank given or not. *Right* is an error of L of at most twice that of an oracle who
knows the support and the rank (1e-6 without noise); *told* is wrong with another status than CONVERGED or with a doubt
beyond "S is empty" and "the rank is as high as it can be"; *silent* is the rest.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter

import numpy as np

import irpca
from irpca.features import FeatureWarning

HARMLESS = ("S is empty", "the rank is")


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
    M, F1, F2, L, corrupted, Q1, Q2, rank, asked = table(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeatureWarning)
        result = irpca.solve(M, F1, F2, rank=asked)
    known = oracle(M, L, corrupted, Q1, Q2, rank)
    error, best = (np.linalg.norm(A - L) / np.linalg.norm(L) for A in (result.L.dense(), known))
    if error <= max(2 * best, 1e-6):
        return "right"
    told = not result.converged or any(not doubt.startswith(HARMLESS) for doubt in result.doubts)
    return "told" if told else "silent"


if __name__ == "__main__":
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
    verdicts = {seed: verdict(seed) for seed in seeds}
    print(dict(Counter(verdicts.values())), "silent seeds:", [s for s, v in verdicts.items() if v == "silent"])
