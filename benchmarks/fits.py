"""A fit of the default model by its public interface, and what it says about itself; any version of irpca."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import irpca

from .study import seconds_of

# Kinds of doubts that are no warning, and how they begin in version 0.1, which has no kinds.
HARMLESS = ("empty", "full-rank", "many-outliers", "S is empty", "the rank is", "S holds")

Fit = tuple[Any, np.ndarray, dict[str, Any]]


def fit(M: np.ndarray, F1: Any = None, F2: Any = None, **parameters: Any) -> Fit:
    """The fitted model, L as a matrix, and the columns ``status``, ``doubts``, ``rank``, ``flagged``, ``seconds``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = irpca.InductiveRobustPCA(**parameters)
        model, seconds = seconds_of(lambda: model.fit(M, row_features=F1, col_features=F2))
    said = {
        "status": model.status_.name,
        "doubts": doubts_of(model.result_.doubts),
        "rank": int(model.rank_),
        "flagged": float(model.corruption_),
        "seconds": seconds,
    }
    return model, model.low_rank_.dense(), said


def kind_of(doubt: Any) -> str:
    """The kind of a doubt; version 0.1 has its text alone."""
    return str(getattr(doubt, "kind", doubt))


def doubts_of(doubts: Any) -> str:
    return " | ".join(" ".join(kind_of(doubt).split()) for doubt in doubts)


def warned(converged: bool, doubts: Any, harmless: tuple[str, ...] = HARMLESS) -> bool:
    """Whether a careful reader would know that something is wrong."""
    return not converged or any(not kind_of(doubt).startswith(harmless) for doubt in doubts)


def verdict_of(error: float, oracle: float, alarm: bool, floor: float = 1e-6) -> str:
    """``right`` within twice the oracle's error; else ``told`` or ``silent``."""
    if error <= max(2 * oracle, floor):
        return "right"
    return "told" if alarm else "silent"
