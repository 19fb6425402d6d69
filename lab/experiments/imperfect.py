"""Features that tell a part of L only: is the rest found beside them, and what does it cost where there is none?

L is half what the features span (rank 5 of d = 20, as the paper draws it) and half what they do not, in energy:

- ``outside``: three directions, all alike, orthogonal to the features;
- ``random``: three random directions, which the features span by a little;
- ``unequal``: three outside that hold 60, 30 and 10 % of that half;
- ``perfect``: none, and L is in the span;
- ``paper``: section 5.1 of the paper at 60 % corrupted, the features kept secret.

Gross errors are 1 to 10 times the root mean square of L, of either sign. The oracle knows which entries they are, both
ranks, and starts at the truth: it does nothing but least squares. Without noise it would be right, and is not asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

import irpca
from lab.machine import PROVENANCE
from lab.rows import Row, in_order, median, values, where, worst
from lab.tables import text_table

from .fits import SOLVED, solved
from .study import Case, Study, report_each_version

D, RANK, EXTRA = 20, 5, 3
SEEDS, SLOW_SEEDS = 5, 2  # the latter without features, where a run takes seconds
KINDS = ("outside", "random", "unequal", "perfect")
CORRUPTIONS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
NOISES = (0.0, 0.05, 0.3)  # of the root mean square of L
UNEQUAL = (0.6, 0.3, 0.1)
METHODS = {  # whether features are given, and what else the solver is told
    "auto": (True, {"extra_rank": "auto"}),
    "features only": (True, {"extra_rank": 0}),
    "no features": (False, {}),
}
SECRET = {"auto": {"extra_rank": "auto"}, "plain": {}, "plain, rank 5": {"rank": RANK}}
EXACT, EFFICIENT = 1e-6, 1.2  # the bars: error without noise, and error against the oracle's with
LOSS = 1.05  # against features only, where these are perfect
AT_REST, SWEEPS = 1e-6, 200  # of the oracle


@dataclass(frozen=True, eq=False)
class Instance:
    """M = L + gross errors + noise, of which ``C`` in the bases Q1 and Q2 and ``U @ V.T`` are the two parts of L."""

    M: np.ndarray
    F1: np.ndarray
    F2: np.ndarray
    L: np.ndarray
    corrupted: np.ndarray
    Q1: np.ndarray
    Q2: np.ndarray
    C: np.ndarray
    U: np.ndarray
    V: np.ndarray

    def error(self, L: np.ndarray) -> float:
        return float(np.linalg.norm(L - self.L) / np.linalg.norm(self.L))


def cases(quick: bool = False) -> list[Case]:
    n, seeds = (120, 1) if quick else (1000, SEEDS)
    kinds, levels = (("outside", "perfect"), (0.2,)) if quick else (KINDS, CORRUPTIONS)
    settings = list(product(kinds, levels, NOISES[:2] if quick else NOISES))
    secret = ("paper", 0.3 if quick else 0.6, 0.0)
    tried = [(*one, seed, name) for one in settings for seed in range(seeds) for name in (*METHODS, "oracle")]
    tried += [(*secret, seed, name) for seed in range(seeds) for name in SECRET]
    return [
        {"kind": kind, "n": n, "corruption": level, "noise": noise, "method": method, "seed": seed}
        for kind, level, noise, seed, method in tried
        if (method != "oracle" or noise) and (method != "no features" or seed < SLOW_SEEDS)
    ]


def measure(case: Case) -> Row:
    if case["kind"] == "paper":
        return _secret(case)
    instance = make(case["kind"], case["n"], case["corruption"], case["noise"], case["seed"])
    if case["method"] == "oracle":
        return {"status": "ORACLE", "error": instance.error(oracle(instance))}
    given, options = METHODS[case["method"]]
    features = (instance.F1, instance.F2) if given else ()
    result, row = solved(instance.M, *features, random_state=case["seed"], **options)
    if result is None:
        return row
    beside = result.rank - RANK if options.get("extra_rank") == "auto" else None  # features explain as many as RANK
    return row | {"extra_rank": beside, "error": instance.error(result.L.dense())}


def _secret(case: Case) -> Row:
    n = case["n"]
    problem = irpca.datasets.make_problem(n, n, D, D, RANK, case["corruption"], random_state=case["seed"])
    result, row = solved(problem.M, random_state=case["seed"], **SECRET[case["method"]])
    return row if result is None else row | {"error": problem.relative_error(result.L)}


@lru_cache(maxsize=1)  # all methods of a seed come one after the other
def make(kind: str, n: int, corruption: float, noise: float, seed: int) -> Instance:
    problem = irpca.datasets.make_problem(n, n, D, D, RANK, 0.0, random_state=seed)
    rng = np.random.default_rng((seed, 1))
    Q1, Q2 = np.linalg.qr(problem.F1)[0], np.linalg.qr(problem.F2)[0]
    U, V = (_directions(kind, Q, rng) for Q in (Q1, Q2))
    U = U * np.sqrt(UNEQUAL if kind == "unequal" else np.full(U.shape[1], 1 / EXTRA)) * np.linalg.norm(problem.L)
    L = problem.L + U @ V.T
    unit = float(np.sqrt(np.mean(L**2)))
    corrupted = rng.random(L.shape) < corruption
    S = unit * rng.uniform(1, 10, L.shape) * rng.choice((-1, 1), L.shape) * corrupted
    M = L + S + noise * unit * rng.standard_normal(L.shape)
    return Instance(M, problem.F1, problem.F2, L, corrupted, Q1, Q2, Q1.T @ problem.L @ Q2, U, V)


def _directions(kind: str, Q: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Orthonormal columns, none if the features are perfect."""
    B = rng.standard_normal((len(Q), 0 if kind == "perfect" else EXTRA))
    return np.linalg.qr(B if kind == "random" else B - Q @ (Q.T @ B))[0]


def oracle(instance: Instance) -> np.ndarray:
    """Least squares on the clean entries over all L of these ranks, each factor in turn; in plain NumPy.

    C is ``A @ B.T`` of rank 5, and all its moments with the mask are made once; rows of U and of V are regressed one by
    one.
    """
    Q1, Q2, U, V = instance.Q1, instance.Q2, instance.U, instance.V
    kept = (~instance.corrupted).astype(float)
    normal = _moments(Q1, kept, Q2)
    u, s, vt = np.linalg.svd(instance.C)
    A, B = u[:, :RANK] * s[:RANK], vt[:RANK].T
    L = instance.L
    for _ in range(SWEEPS):
        wanted = Q1.T @ (kept * (instance.M - U @ V.T)) @ Q2
        A = _factor(normal, wanted, B)
        B = _factor(normal.transpose(1, 0, 3, 2), wanted.T, A)
        inside = Q1 @ A @ (Q2 @ B).T
        if U.shape[1]:
            U = _rows(kept, instance.M - inside, V)
            V = _rows(kept.T, (instance.M - inside).T, U)
        before, L = L, inside + U @ V.T
        if np.linalg.norm(L - before) <= AT_REST * np.linalg.norm(L):
            break
    return L


def _moments(Q1: np.ndarray, kept: np.ndarray, Q2: np.ndarray) -> np.ndarray:
    """Entry (a, b, c, d) is the sum of ``Q1[i, a] Q2[j, b] Q1[i, c] Q2[j, d]`` over the kept (i, j)."""
    pairs1, pairs2 = (np.einsum("ia,ic->iac", Q, Q).reshape(len(Q), -1) for Q in (Q1, Q2))
    d1, d2 = Q1.shape[1], Q2.shape[1]
    return (pairs1.T @ (kept @ pairs2)).reshape(d1, d1, d2, d2).transpose(0, 2, 1, 3)


def _factor(normal: np.ndarray, wanted: np.ndarray, B: np.ndarray) -> np.ndarray:
    """The best A, if C is ``A @ B.T``."""
    size = normal.shape[0] * B.shape[1]
    moments = np.einsum("abcd,bs,dt->asct", normal, B, B, optimize=True).reshape(size, size)
    return np.linalg.solve(moments, (wanted @ B).ravel()).reshape(-1, B.shape[1])


def _rows(kept: np.ndarray, M: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Every row of M regressed on V, on its kept entries."""
    k = V.shape[1]
    moments = (kept @ np.einsum("js,jt->jst", V, V).reshape(len(V), -1)).reshape(-1, k, k)
    return np.linalg.solve(moments, ((kept * M) @ V)[:, :, None])[:, :, 0]


def report(rows: list[Row]) -> str:
    paper = where(rows, kind="paper")
    rest = [row for row in rows if row["kind"] != "paper"]
    kinds = in_order(rest, "kind")
    parts = [_exact(where(rest, noise=0.0)), _noisy([row for row in rest if row["noise"]])]
    if "perfect" in kinds:
        parts.append(_loss(where(rest, kind="perfect")))
    return "\n\n".join([*parts, _plain(paper)])


def _exact(rows: list[Row]) -> str:
    """Worst error over the seeds."""
    lines = []
    for kind, level in product(in_order(rows, "kind"), in_order(rows, "corruption")):
        some = where(rows, kind=kind, corruption=level)
        errors = [f"{worst(where(some, method=method), 'error'):.1e}" for method in METHODS]
        auto = where(some, method="auto")
        lines.append([kind, f"{level:.0%}", *errors, _counted(auto), f"{median(auto, 'seconds'):.2f}"])
    told = f"no noise: worst errors; the bar is {EXACT:.0e} for auto\n"
    return told + text_table(["kind", "corrupted", *METHODS, "extra_rank", "seconds"], lines)


def _noisy(rows: list[Row]) -> str:
    """Each error over that of the oracle on the same M."""
    lines = []
    for kind, noise, level in product(*(in_order(rows, name) for name in ("kind", "noise", "corruption"))):
        some = where(rows, kind=kind, noise=noise, corruption=level)
        ratios = [f"{max(_ratios(some, method, 'oracle', 'error')):.3f}" for method in METHODS]
        auto = where(some, method="auto")
        lines.append([kind, f"{noise:.0%}", f"{level:.0%}", *ratios, _counted(auto), f"{median(auto, 'seconds'):.2f}"])
    told = f"noise: worst error over the oracle's; the bar is {EFFICIENT} for auto\n"
    return told + text_table(["kind", "noise", "corrupted", *METHODS, "extra_rank", "seconds"], lines)


def _loss(rows: list[Row]) -> str:
    """Where features are perfect: what looking for more costs."""
    lines = []
    for noise in in_order(rows, "noise"):
        some = where(rows, noise=noise)
        figures = []
        for name in ("error", "seconds", "reads"):
            ratios = _ratios(some, "auto", "features only", name)
            figures.append(f"{np.median(ratios):.2f} ({max(ratios):.2f})")
        lines.append([f"{noise:.0%}", *figures])
    told = "perfect features: auto over features only, median (worst)\n"
    return told + text_table(["noise", "error", "seconds", "reads"], lines)


def _plain(rows: list[Row]) -> str:
    lines = []
    for method in in_order(rows, "method"):
        some = where(rows, method=method)
        lines.append([method, f"{worst(some, 'error'):.1e}", f"{median(some, 'seconds'):.1f}"])
    share = f"{rows[0]['corruption']:.0%}" if rows else ""
    return f"no features, rank 5, {share} corrupted\n" + text_table(["method", "worst error", "seconds"], lines)


def _ratios(rows: list[Row], method: str, other: str, name: str) -> list[float]:
    """Of two methods on the same M."""
    ones, others = (
        dict(zip(map(_instance, some), values(some, name), strict=True))
        for some in (where(rows, method=method), where(rows, method=other))
    )
    return [ones[key] / others[key] for key in ones if key in others] or [np.nan]


def _instance(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("kind", "n", "corruption", "noise", "seed"))


def _counted(rows: list[Row]) -> str:
    """``3: 4, 2: 1`` if three directions were found four times, and two once."""
    found: dict[Any, int] = {}
    for row in rows:
        beside = row["extra_rank"] if row["extra_rank"] == row["extra_rank"] else None  # NaN: nobody said
        found[beside] = found.get(beside, 0) + 1
    told = sorted(found.items(), key=lambda one: -one[1])
    return ", ".join(f"{'–' if value is None else int(value)}: {count}" for value, count in told)


MEASURED = (*SOLVED, "error", *PROVENANCE)
STUDY = Study("imperfect", cases, measure, MEASURED, report_each_version(report), warm_up=True)

if __name__ == "__main__":
    STUDY.main()
