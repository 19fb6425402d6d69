"""Are lies told from honest ratings, fake users from real ones, and pushed films from the others, and by what?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.stats import rankdata

import irpca

from .ratings_scenarios import Task

FIGURES = ("named", "precision", "recall", "auc")

Found = dict[str, float]


def found(model: Any, task: Task, clean: Task) -> Iterator[tuple[str, Found]]:
    """Ways to find what was done to the ratings, each with how many it names, its precision, recall, and ranking."""
    if len(clean.stars) == len(task.stars):
        yield "ratings in S", _of_ratings(model, task, task.stars != clean.stars)
        return
    fake = np.arange(task.shape[0]) >= task.n_real
    pushed = np.isin(np.arange(task.shape[1]), task.targets)
    yield "users: outlier_rows", _of_lines(model.outlier_rows(), fake)
    yield "users: not as features say", _of_lines(unlike(model, task, 0), fake)
    yield "users: mean rating", {"auc": auc(oddness(task), fake)}
    yield "films: outlier_columns", _of_lines(model.outlier_columns(), pushed)
    yield "films: not as features say", _of_lines(unlike(model, task, 1), pushed)


def unlike(model: Any, task: Task, axis: int) -> np.ndarray:
    """Users (0) or films (1) as :func:`irpca.outliers.score_lines` ranks them, if L were what features say of them.

    The fitted L knows every user, and so explains one who always lies.
    """
    expected = model.predict(row_features=task.F1) if axis == 0 else model.predict(col_features=task.F2)
    difference = task.stars - expected[task.users, task.items]
    far = np.abs(difference) > model.zeta_
    S = csr_array(
        (difference[far] / (model.noise_ or model.zeta_), (task.users[far], task.items[far])), shape=task.shape
    )
    counts = np.bincount((task.users, task.items)[axis], minlength=task.shape[axis])
    return irpca.outliers.score_lines(S, axis, counts)


def oddness(task: Task) -> np.ndarray:
    """How far the mean rating of each user is from that of all: what one may know without any model."""
    counts = np.bincount(task.users, minlength=task.shape[0])
    sums = np.bincount(task.users, task.stars - task.stars.mean(), minlength=task.shape[0])
    return np.abs(sums / np.maximum(counts, 1))


def auc(scores: np.ndarray, wanted: np.ndarray) -> float:
    """Area under the ROC curve: how often one of those wanted has a higher score than another; ties count half."""
    n = np.count_nonzero(wanted)
    return float((rankdata(scores)[wanted].mean() - (n + 1) / 2) / (len(scores) - n))


def _of_ratings(model: Any, task: Task, lie: np.ndarray) -> Found:
    sizes = np.abs(task.stars - model.low_rank_.entries(task.users, task.items))
    flagged = model.sparse_[task.users, task.items] != 0
    return _hits(flagged, lie) | {"auc": auc(sizes, lie)}


def _of_lines(lines: np.ndarray, wanted: np.ndarray) -> Found:
    """Of ``outlier_rows`` and its like; lines without ratings do not count."""
    lines = lines[lines["observed"] > 0]
    wanted = wanted[lines[lines.dtype.names[0]]]
    return _hits(lines["broken"], wanted) | {"auc": auc(lines["score"], wanted)}


def _hits(named: np.ndarray, wanted: np.ndarray) -> Found:
    count, both = np.count_nonzero(named), np.count_nonzero(named & wanted)
    return {"named": count, "precision": both / count if count else np.nan, "recall": both / np.count_nonzero(wanted)}
