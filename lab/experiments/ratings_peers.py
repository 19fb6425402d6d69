"""How well others predict ratings, in ``ratings_scenarios``: ``python -m lab.experiments.ratings_peers``.

The root mean square error on the tested ratings, all predictions clipped to 1 … 5 stars, by

- ``mean``: the mean of all ratings;
- ``biases``: that, and a ridge on a bias of every user and every film;
- ``features``: a ridge on all products of a user's and a film's features;
- ``biases+features``: both in one ridge;
- ``cmfrec``: collective matrix factorisation with side information on both sides (package cmfrec);
- ``cmfrec-content``: its model of features alone, factorised, which its reference advises for newcomers;
- ``svd``, ``svd++``: matrix factorisation by stochastic gradient (package scikit-surprise).

Nothing was tuned on a test set. The penalties of the ridges were chosen once, on a fifth of the ratings to train on of
u1. cmfrec has the settings of its own vignette on these very data, and for newcomers the one more that its reference
asks for; its model of features alone and Surprise have their defaults.

Any Python will do that has NumPy and SciPy, and the peers that are to be measured: they want versions of their own, so
give them an environment of their own, with ``PYTHONPATH=src`` from the root of the repository. A peer that is not
installed is left out. A row that is in the file already is not measured again.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import lsqr

from lab.datasets import load_movielens_100k
from lab.rows import append, read
from lab.tables import text_table

from .ratings_scenarios import HIGHEST, LOWEST, NAMES, Task, scenarios, task

OF_BIASES, OF_FEATURES = 4.0, 30.0  # penalties of the ridges

Predict = Callable[[np.ndarray, np.ndarray], np.ndarray]
Row = dict[str, str]


# Ours, in a few lines each.


def mean(task: Task) -> Predict:
    level = task.stars.mean()
    return lambda users, items: np.full(len(users), level)


def biases(task: Task) -> Predict:
    return _ridge(task, lambda users, items: _indicators(task, users, items) / np.sqrt(OF_BIASES))


def features(task: Task) -> Predict:
    return _ridge(task, lambda users, items: _products(task, users, items) / np.sqrt(OF_FEATURES))


def biases_and_features(task: Task) -> Predict:
    def design(users: np.ndarray, items: np.ndarray) -> sparse.csr_array:
        parts = [
            _indicators(task, users, items) / np.sqrt(OF_BIASES),
            _products(task, users, items) / np.sqrt(OF_FEATURES),
        ]
        return sparse.hstack(parts, format="csr")

    return _ridge(task, design)


def _ridge(task: Task, design: Callable[[np.ndarray, np.ndarray], sparse.csr_array]) -> Predict:
    """Least squares around the mean; columns are scaled so that every coefficient has penalty 1."""
    level = task.stars.mean()
    coefficients = lsqr(design(task.users, task.items), task.stars - level, damp=1.0, atol=1e-8, btol=1e-8)[0]
    return lambda users, items: level + design(users, items) @ coefficients


def _indicators(task: Task, users: np.ndarray, items: np.ndarray) -> sparse.csr_array:
    """A one in the column of the user and another in that of the film."""
    columns = np.stack([users, items + task.shape[0]], axis=1).ravel()
    starts = np.arange(0, columns.size + 1, 2)
    return sparse.csr_array((np.ones(columns.size), columns, starts), shape=(len(users), sum(task.shape)))


def _products(task: Task, users: np.ndarray, items: np.ndarray) -> sparse.csr_array:
    """All products of a feature of the user with one of the film; sparse, since most features are indicators."""
    F1, F2 = sparse.csc_array(task.F1[users]), sparse.csr_array(task.F2[items])
    return sparse.hstack([F2.multiply(F1[:, [j]].toarray()) for j in range(F1.shape[1])], format="csr")


# Packages.


def cmfrec(task: Task) -> Predict:
    from cmfrec import CMF

    model = CMF(
        k=25,
        lambda_=0.1,
        scale_lam=True,
        scale_lam_sideinfo=task.cold,  # asked for by its reference; it changed nothing
        niter=30,
        use_cg=False,
        w_main=0.75,
        w_user=0.5,
        w_item=0.5,
        nthreads=1,
    )
    X = sparse.coo_matrix((task.stars, (task.users, task.items)), shape=task.shape)
    model.fit(X, U=task.F1, I=task.F2[:, 1:])  # without the constant: it centres
    return model.predict


def cmfrec_content(task: Task) -> Predict:
    from cmfrec import ContentBased

    X = sparse.coo_matrix((task.stars, (task.users, task.items)), shape=task.shape)
    return ContentBased(nthreads=1).fit(X, U=task.F1, I=task.F2[:, 1:]).predict


def svd(task: Task) -> Predict:
    from surprise import SVD

    return _surprise(SVD(random_state=0), task)


def svdpp(task: Task) -> Predict:
    from surprise import SVDpp

    return _surprise(SVDpp(random_state=0, cache_ratings=True), task)


def _surprise(model: Any, task: Task) -> Predict:
    import pandas as pd
    from surprise import Dataset, Reader

    frame = pd.DataFrame({"user": task.users, "item": task.items, "stars": task.stars})
    model.fit(Dataset.load_from_df(frame, Reader(rating_scale=(LOWEST, HIGHEST))).build_full_trainset())
    return lambda users, items: np.array([model.predict(*pair).est for pair in zip(users, items, strict=True)])


METHODS: dict[str, tuple[Callable[[Task], Predict], str]] = {  # and the module that each needs
    "mean": (mean, "numpy"),
    "biases": (biases, "scipy"),
    "features": (features, "scipy"),
    "biases+features": (biases_and_features, "scipy"),
    "cmfrec": (cmfrec, "cmfrec"),
    "cmfrec-content": (cmfrec_content, "cmfrec"),
    "svd": (svd, "surprise"),
    "svd++": (svdpp, "surprise"),
}


# Measuring.


def measured(fit: Callable[[Task], Predict], task: Task) -> Row:
    """Error and time of one method on one task; of films that are pushed, also the stars predicted for real users."""
    start = time.perf_counter()
    predict = fit(task)
    predicted = np.clip(predict(task.test_users, task.test_items), LOWEST, HIGHEST)
    seconds = time.perf_counter() - start
    rmse = np.sqrt(np.mean((predicted - task.test_stars) ** 2))
    pushed = ""
    if task.targets.size:
        users = np.repeat(np.arange(task.n_real), task.targets.size)
        pushed = f"{np.clip(predict(users, np.tile(task.targets, task.n_real)), LOWEST, HIGHEST).mean():.4f}"
    return {"rmse": f"{rmse:.5f}", "seconds": f"{seconds:.2f}", "target_stars": pushed}


def table(rows: Iterable[Row]) -> str:
    """Mean error over the folds, a line per method, a column per scenario; in brackets how many folds, if not five."""
    errors = defaultdict(list)
    for row in rows:
        errors[row["method"], row["scenario"]].append(float(row["rmse"]))
    measured = {method for method, _ in errors}
    lines = [[method, *(_cell(errors[method, name]) for name in NAMES)] for method in METHODS if method in measured]
    return text_table(["", *NAMES], lines)


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{np.mean(values):.4f}" + (f" ({len(values)})" if len(values) != 5 else "")


def _installed(names: Iterable[str]) -> list[str]:
    for name in names:
        if find_spec(METHODS[name][1]) is None:
            print(f"{name} is left out: {METHODS[name][1]} is not installed here.")
    return [name for name in names if find_spec(METHODS[name][1]) is not None]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.experiments.ratings_peers", description=__doc__.split(":")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME")
    parser.add_argument("--scenarios", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    parser.add_argument("--folds", nargs="+", type=int, choices=range(1, 6), default=list(range(1, 6)), metavar="K")
    chosen = parser.parse_args(words)
    data, rows = load_movielens_100k(), read(chosen.out)
    done = {(row["scenario"], row["fold"], row["method"]) for row in rows}
    for method in _installed(chosen.methods):
        for name, fold in scenarios():
            wanted = name in chosen.scenarios and fold in chosen.folds
            if wanted and (name, str(fold), method) not in done:
                row = {"scenario": name, "fold": str(fold), "method": method}
                row |= measured(METHODS[method][0], task(data, name, fold))
                append(chosen.out, row)
                rows.append(row)
                print(*row.values(), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
