"""What is to be read of the errors of ratings: means and standard errors over folds, losses, and bars."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import numpy as np

from lab.tables import text_table

from .ratings_found import FIGURES
from .ratings_peers import Row
from .ratings_scenarios import COLD, FLIPPED, NAMES

ROBUST, NOT_ROBUST = "irpca", "bayes-not-robust"
SCENARIOS = (*NAMES[: NAMES.index("attack") + 1], "disguised", *COLD)
SPOILT = (*FLIPPED, "attack", "disguised")
CLEAN_BAR, LOSS_BAR = 0.92, 1 / 3
NO_BAR = ("disguised",)


class Numbers:
    """A column of the rows, by method, scenario and fold."""

    def __init__(self, rows: Iterable[Row], column: str) -> None:
        rows = [row for row in rows if row[column]]
        self.folds = sorted({row["fold"] for row in rows})
        self.methods = list(dict.fromkeys(row["method"] for row in rows))
        self.values = {(row["method"], row["scenario"], row["fold"]): float(row[column]) for row in rows}

    def of(self, method: str, scenario: str) -> np.ndarray | None:
        """One for each fold; None unless all are there."""
        values = [self.values.get((method, scenario, fold)) for fold in self.folds]
        return None if None in values else np.array(values)

    def loss(self, method: str, scenario: str) -> np.ndarray | None:
        """What is more than on the clean folds."""
        clean, spoilt = self.of(method, "clean"), self.of(method, scenario)
        return None if clean is None or spoilt is None else spoilt - clean

    def best(self, methods: Iterable[str], scenario: str) -> str | None:
        """Who has the smallest mean."""
        means = {method: values.mean() for method in methods if (values := self.of(method, scenario)) is not None}
        return min(means, key=means.__getitem__, default=None)


def report(rows: list[Row], finds: list[Row], ours: Collection[str]) -> str:
    """``ours`` come first."""
    rows = sorted(rows, key=lambda row: row["method"] not in ours)
    rmse, stars = Numbers(rows, "rmse"), Numbers(rows, "target_stars")
    parts = (
        "RMSE, mean of the folds",
        _table(rmse.methods, SCENARIOS, lambda method, name: _mean(rmse.of(method, name))),
        "Loss: RMSE less that on the clean folds, ± standard error over folds",
        _table(rmse.methods, SPOILT, lambda method, name: _with_error(rmse.loss(method, name), 4)),
        "Stars predicted for the ten pushed films, mean of real users, ± standard error; and what attacks add to them",
        _table(stars.methods, ("clean", "attack", "disguised"), lambda method, name: _stars(stars, method, name)),
        "What is found, mean of the folds: how many are named, precision, recall; area under the ROC curve",
        _found(finds),
        "Bars",
        "\n".join([*_clean_bar(rmse), *_loss_bars(rmse), *_cold_bars(rmse, ours)]),
    )
    return "\n\n".join(parts)


def _clean_bar(rmse: Numbers) -> list[str]:
    clean = rmse.of(ROBUST, "clean")
    if clean is None:
        return []
    return [_verdict(f"clean: RMSE {_with_error(clean, 4)}, at most {CLEAN_BAR}", clean.mean() <= CLEAN_BAR)]


def _loss_bars(rmse: Numbers) -> list[str]:
    lines = []
    for name in SPOILT:
        robust, other = rmse.loss(ROBUST, name), rmse.loss(NOT_ROBUST, name)
        if robust is not None and other is not None:
            ratio = robust.mean() / other.mean()
            told = f"{name}: loss of {ROBUST} over that of {NOT_ROBUST} {ratio:.2f}{_jackknife(robust, other)}"
            bar = "" if name in NO_BAR else ", at most 1/3"
            lines.append(_verdict(told + bar, None if name in NO_BAR else robust.mean() <= LOSS_BAR * other.mean()))
    return lines


def _cold_bars(rmse: Numbers, ours: Collection[str]) -> list[str]:
    lines = []
    for name in COLD:
        values, best = rmse.of(ROBUST, name), rmse.best([each for each in rmse.methods if each not in ours], name)
        if values is not None and best is not None:
            difference = values - rmse.of(best, name)
            told = f"{name}: RMSE less that of {best}, the best other, {_with_error(difference, 4)}, at most 0"
            lines.append(_verdict(told, difference.mean() <= 0))
    return lines


def _verdict(told: str, met: bool | None) -> str:
    return f"{'no bar' if met is None else 'met' if met else 'MISSED':6}  {told}"


def _table(methods: Iterable[str], names: Iterable[str], cell: Callable[[str, str], str]) -> str:
    return text_table(["", *names], [[method, *(cell(method, name) for name in names)] for method in methods])


def _stars(stars: Numbers, method: str, name: str) -> str:
    return _with_error(stars.of(method, name) if name == "clean" else stars.loss(method, name), 2)


def _mean(values: np.ndarray | None) -> str:
    return "–" if values is None else f"{values.mean():.4f}"


def _with_error(values: np.ndarray | None, digits: int) -> str:
    if values is None:
        return "–"
    error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{error}"


def _jackknife(over: np.ndarray, under: np.ndarray) -> str:
    """The standard error of a ratio of means over folds: how it moves if one of them is left out."""
    if len(over) < 2:
        return ""
    ratios = (over.sum() - over) / (under.sum() - under)
    return f" ± {np.sqrt((len(over) - 1) * ratios.var()):.2f}"


def _found(finds: list[Row]) -> str:
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in finds:
        groups.setdefault((row["scenario"], row["way"], row["method"]), []).append(row)
    lines = [[*key, *(_figure(rows, name) for name in FIGURES)] for key, rows in groups.items()]
    return text_table(
        ["", "way", "method", *FIGURES], sorted(lines, key=lambda line: (SPOILT.index(line[0]), line[1][0]))
    )


def _figure(rows: list[Row], name: str) -> str:
    values = [float(row[name]) for row in rows if row[name]]
    return f"{np.mean(values):.{0 if name == 'named' else 3}f}" if values else "–"
