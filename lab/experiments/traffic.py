"""Traffic on Interstate 94, some of its cells replaced by 0 or 15,000: does the fit notice, and is it right there?

Every cell that is spoilt was observed, so the truth is known. On these cells, the root mean square error of

- ``robust``: the fit to the spoilt table, which does not know them;
- ``clean``: the same model fitted to the table before it was spoilt: it has seen the truth of these cells;
- ``told``: the same model fitted without them, as if they were missing: it has seen nothing, and is not misled;
- ``least_squares``: ordinary least squares on all products of features, of the spoilt table.

Three models: ``features``, what these span and nothing else; ``default``, that of ``InductiveRobustPCA``, with a free
part beside it if one is found; ``two free``, with two free directions whether they are found or not. A free part fits
every day for itself, so that ``clean`` is no fair yardstick for the last two, and ``told`` is.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

import irpca
from irpca.diagnostics import support_scores
from irpca.result import Result
from lab.datasets import I94Traffic, load_i94_traffic
from lab.machine import PROVENANCE
from lab.rows import Row, in_order, values, where
from lab.tables import text_table

from .fits import SOLVED, solved
from .study import Case, Study, report_each_version

SEEDS = 5
SHARES = (0.05, 0.1, 0.2, 0.3)
WRONG = (0.0, 15_000.0)
MODELS = {"features": {"extra_rank": 0}, "default": {"extra_rank": "auto"}, "two free": {"extra_rank": 2}}
BAR = 1.03  # robust over clean
ERRORS = ("robust", "clean", "told", "least_squares")
FOUND = ("flagged", "precision", "precision_new", "recall", "recall_large", "zeta")


def cases(quick: bool = False) -> list[Case]:
    levels = product(MODELS, (0.1,) if quick else SHARES, range(1 if quick else SEEDS))
    return [{"model": model, "share": share, "seed": seed} for model, share, seed in levels]


def measure(case: Case) -> Row:
    data, options = _data(), MODELS[case["model"]]
    F1, F2 = data.row_features(), data.col_features()
    spoilt, cells = spoil(data.volume, case["share"], case["seed"])
    result, row = solved(spoilt, F1, F2, **options)
    if result is None:
        return row
    clean = _clean(case["model"])
    told = irpca.solve(np.where(cells, np.nan, data.volume), F1, F2, **options)
    fits = (*(fit.L.dense() for fit in (result, clean, told)), least_squares(spoilt, F1, F2))
    row |= {name: _rmse(fit, data.volume, cells) for name, fit in zip(ERRORS, fits, strict=True)}
    row |= {"extra_rank_clean": _extra(clean), "extra_rank_told": _extra(told)}
    return row | _found(result, clean, spoilt, cells, data.volume)


def spoil(volume: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The table with this share of its observed cells replaced, and which they are."""
    rng = np.random.default_rng(seed)
    cells = ~np.isnan(volume) & (rng.random(volume.shape) < share)
    spoilt = volume.copy()
    spoilt[cells] = rng.choice(WRONG, np.count_nonzero(cells))
    return spoilt, cells


def least_squares(M: np.ndarray, F1: np.ndarray, F2: np.ndarray) -> np.ndarray:
    """What all products of a row feature and a column feature explain of the observed entries."""
    rows, cols = np.nonzero(~np.isnan(M))
    products = np.einsum("ia,ib->iab", F1[rows], F2[cols]).reshape(len(rows), -1)
    W = np.linalg.lstsq(products, M[rows, cols], rcond=None)[0].reshape(F1.shape[1], F2.shape[1])
    return F1 @ W @ F2.T


def _found(result: Result, clean: Result, spoilt: np.ndarray, cells: np.ndarray, volume: np.ndarray) -> Row:
    """Which cells were flagged. ``precision_new`` forgives those that are in the clean table, too; ``recall_large``
    forgives those that were changed by less than ζ."""
    flagged, before = result.S.toarray() != 0, clean.S.toarray() != 0
    large = cells & (np.abs(spoilt - volume) > result.zeta)
    return {
        "flagged": np.count_nonzero(flagged) / result.n_observed,
        "precision": support_scores(flagged, cells).precision,
        "precision_new": support_scores(flagged & (cells | ~before), cells).precision,
        "recall": support_scores(flagged, cells).recall,
        "recall_large": support_scores(flagged, large).recall,
        "zeta": result.zeta,
    }


@lru_cache(maxsize=1)
def _data() -> I94Traffic:
    return load_i94_traffic()


@lru_cache(maxsize=len(MODELS))
def _clean(model: str) -> Result:
    data = _data()
    return irpca.solve(data.volume, data.row_features(), data.col_features(), **MODELS[model])


def _extra(result: Result) -> int | None:
    return next((choice.value for choice in result.choices if choice.name == "extra_rank"), None)


def _rmse(L: np.ndarray, M: np.ndarray, cells: np.ndarray) -> float:
    return float(np.sqrt(np.mean((L - M)[cells] ** 2)))


def report(rows: list[Row]) -> str:
    return f"{_errors(rows)}\n\n{_flags(rows)}"


def _errors(rows: list[Row]) -> str:
    lines = []
    for some in _groups(rows):
        means = [f"{np.mean(values(some, name)):.0f}" for name in ERRORS]
        ratios = [f"{max(row['robust'] / row[name] for row in some):.3f}" for name in ("clean", "told")]
        extra = [_listed(some, name) for name in ("extra_rank", "extra_rank_clean", "extra_rank_told")]
        lines.append([*_named(some), *means, *ratios, *extra])
    header = ["model", "spoilt", *ERRORS, "robust/clean", "robust/told", "extra_rank", "clean", "told"]
    told = f"cars on the spoilt cells, mean of the seeds; worst ratios, the bar is {BAR} to clean; free directions\n"
    return told + text_table(header, lines)


def _flags(rows: list[Row]) -> str:
    lines = []
    for some in _groups(rows):
        shares = [f"{np.mean(values(some, name)):.3f}" for name in FOUND[:-1]]
        lines.append([*_named(some), *shares, f"{np.mean(values(some, 'zeta')):.0f}"])
    return "what was flagged, mean of the seeds\n" + text_table(["model", "spoilt", *FOUND], lines)


def _groups(rows: list[Row]) -> list[list[Row]]:
    levels = product(in_order(rows, "model"), in_order(rows, "share"))
    return [where(rows, model=model, share=share) for model, share in levels]


def _named(rows: list[Row]) -> list[str]:
    return [rows[0]["model"], f"{rows[0]['share']:.0%}"]


def _listed(rows: list[Row], name: str) -> str:
    return " ".join("–" if row[name] != row[name] else str(int(row[name])) for row in rows)


MEASURED = (*SOLVED, "extra_rank_clean", "extra_rank_told", *ERRORS, *FOUND, *PROVENANCE)
STUDY = Study("traffic", cases, measure, MEASURED, report_each_version(report), warm_up=True)

if __name__ == "__main__":
    STUDY.main()
