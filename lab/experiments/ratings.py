"""How well our model predicts ratings in the scenarios of ``ratings_scenarios``: ``python -m lab.experiments.ratings``.

The model is ``InductiveRobustPCA()`` with what MovieLens 100K knows of users and films:

- ``irpca``: as it is;
- ``irpca-no-features``: given nothing of users and films;
- ``irpca-without-suspects``: users who are not as features say are left out, see :func:`without_suspects`.

Robustness is measured against ``bayes-not-robust``, a solver of version 0.1 with Gaussian noise, if its rows are there.

All predictions are clipped to 1 … 5 stars. Then: are the lies found, and the liars? The errors of others are read from
``ratings_peers.csv``. One scenario is added, since the fake users of ``attack`` are easily told by their low ratings:

- ``disguised``: the same fake users push the same films; but each has rated its 60 other films as some real user did.
  The others are measured here, too, if they are installed.

A row that is in the file already is not measured again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import irpca
from lab.datasets import MovieLens, load_movielens_100k
from lab.rows import append, read

from . import ratings_peers as peers
from .ratings_found import FIGURES, found, unlike
from .ratings_peers import Predict, Row
from .ratings_report import ROBUST, SCENARIOS, SPOILT, report
from .ratings_scenarios import COLD, FOLDS, Task, task
from .study import RESULTS

NO_FEATURES, NO_SUSPECTS = "irpca-no-features", "irpca-without-suspects"
OURS = (ROBUST, NO_FEATURES, NO_SUSPECTS)
QUICK = ("clean", "flip-10", "attack", "disguised", "cold-both")

Case = tuple[str, int, str]


def cases(quick: bool) -> list[Case]:
    """Ours in every scenario and fold; in disguise, all others that are installed."""
    others = [name for name, (_, module) in peers.METHODS.items() if find_spec(module) and not quick]
    return [
        (name, fold, method)
        for name in (QUICK if quick else SCENARIOS)
        for fold in (FOLDS[:1] if quick else FOLDS)
        for method in (*OURS, *(others if name == "disguised" else ()))
        if not (method == NO_SUSPECTS and name in COLD)  # newcomers have not done anything yet
    ]


def measured(data: MovieLens, name: str, fold: int, method: str) -> tuple[Row, list[Row]]:
    """Error and time; and what is found, by our models with features."""
    one, models = made(data, name, fold), []

    def fit(task: Task) -> Predict:
        models.append(fitted(task, features=method != NO_FEATURES))
        return without_suspects(models[0], task) if method == NO_SUSPECTS else models[0].low_rank_.entries

    case = {"scenario": name, "fold": str(fold), "method": method}
    row = case | peers.measured(fit if method in OURS else peers.METHODS[method][0], one)
    if name not in SPOILT or method != ROBUST:
        return row, []
    ways = found(models[0], one, task(data, "clean", fold))
    return row, [case | {"way": way} | {key: _text(told.get(key)) for key in FIGURES} for way, told in ways]


def made(data: MovieLens, name: str, fold: int) -> Task:
    return disguised(task(data, "attack", fold), fold) if name == "disguised" else task(data, name, fold)


def disguised(attacked: Task, fold: int) -> Task:
    """The attack with other camouflage: each fake rating is one that a real user gave to the film, drawn at random.

    Only about the films that are pushed fake users still lie.
    """
    rng = np.random.default_rng([fold, 1])  # other numbers than those of the attack
    fake = attacked.users >= attacked.n_real
    stars = attacked.stars.copy()
    for k in np.flatnonzero(fake & ~np.isin(attacked.items, attacked.targets)):
        stars[k] = rng.choice(attacked.stars[~fake & (attacked.items == attacked.items[k])])
    return replace(attacked, stars=stars)


def fitted(task: Task, *, features: bool = True) -> Any:
    ratings = irpca.LongTable(task.users, task.items, task.stars, task.shape)
    model = irpca.InductiveRobustPCA()
    return model.fit(ratings, row_features=task.F1, col_features=task.F2) if features else model.fit(ratings)


def without_suspects(model: Any, task: Task) -> Predict:
    """A second fit, without users whom the first finds to be not as features say.

    These are then predicted from their own ratings. So nobody else depends on them, and a real one loses little.
    """
    lines = unlike(model, task, axis=0)
    named = np.sort(lines["position"][lines["broken"]])
    suspect = np.isin(task.users, named)
    if not suspect.any():
        return model.low_rank_.entries
    users, items, stars = task.users[suspect], task.items[suspect], task.stars[suspect]
    rest = replace(task, users=task.users[~suspect], items=task.items[~suspect], stars=task.stars[~suspect])
    own = irpca.LongTable(np.searchsorted(named, users), items, stars, (len(named), task.shape[1]))
    second = fitted(rest)
    L = second.low_rank_.dense()
    L[named] = second.inverse_transform(second.transform(own, row_features=task.F1[named]))
    return lambda users, items: L[users, items]


def run(folder: Path, wanted: Iterable[Case]) -> None:
    """Measure what is not in the folder yet."""
    done = {(row["scenario"], int(row["fold"]), row["method"]) for row in read(folder / "ratings.csv")}
    missing = [case for case in wanted if case not in done]
    if not missing:
        return
    data = load_movielens_100k()
    if any(method in OURS for _, _, method in missing):
        _warm_up()
    for case in missing:
        row, finds = measured(data, *case)
        append(folder / "ratings.csv", row)
        for find in finds:
            append(folder / "ratings_found.csv", find)
        print(*row.values(), file=sys.stderr, flush=True)


def _warm_up() -> None:
    """Compiles what is needed, outside every clock."""
    rows, cols = np.nonzero(np.random.default_rng(0).random((40, 30)) < 0.5)
    irpca.solve(irpca.LongTable(rows, cols, 1.0 + (rows + cols) % 5), max_iter=2)


def joined(folder: Path) -> list[Row]:
    """Our rows, and those of others in the same scenarios and folds."""
    ours = read(folder / "ratings.csv")
    seen = {(row["scenario"], row["fold"]) for row in ours}
    return ours + [row for row in read(RESULTS / "ratings_peers.csv") if (row["scenario"], row["fold"]) in seen]


def _text(value: float | None) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.4g}"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.experiments.ratings", description=__doc__.split(":")[0])
    parser.add_argument("--quick", action="store_true", help="one fold, few scenarios, never into the kept results")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for the CSVs")
    parser.add_argument("--methods", nargs="+", choices=[*OURS, *peers.METHODS], metavar="NAME", help="%(choices)s")
    parser.add_argument("--table", action="store_true", help="run nothing, print what is in the CSVs")
    chosen = parser.parse_args(words)
    if chosen.quick and chosen.out and chosen.out.resolve().is_relative_to(RESULTS):
        parser.error("--quick does not write where the real results are: choose another --out")
    folder = chosen.out or (Path(tempfile.mkdtemp(prefix="ratings-")) if chosen.quick else RESULTS)
    if not chosen.table:
        folder.mkdir(parents=True, exist_ok=True)
        run(folder, [case for case in cases(chosen.quick) if chosen.methods is None or case[2] in chosen.methods])
    print(report(joined(folder), read(folder / "ratings_found.csv"), OURS))


if __name__ == "__main__":
    main()
