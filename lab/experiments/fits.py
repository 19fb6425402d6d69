"""A fit of the default model by its public interface, and what it says about itself; any version of irpca."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

import irpca
from irpca.result import Result
from lab.rows import Row

# Kinds of doubts that are no warning, also of earlier versions, and how they begin in version 0.1, which has no kinds.
NOTES = ("hardly-predicted", "unknown-lines", "unseen-lines", "code", "copied-row", "other-unit", "stuck", "swapped")
HARMLESS = (*NOTES, "empty", "full-rank", "many-outliers", "S is empty", "the rank is", "S holds")

SOLVED = ("status", "rank_found", "extra_rank", "iterations", "reads", "seconds")

Fit = tuple[Any, np.ndarray, dict[str, Any]]


def fit(M: np.ndarray, F1: Any = None, F2: Any = None, **parameters: Any) -> Fit:
    """The fitted model, L as a matrix, and the columns ``status``, ``doubts``, ``rank``, ``flagged``, ``seconds``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = irpca.InductiveRobustPCA(**parameters)
        started = time.perf_counter()
        model.fit(M, row_features=F1, col_features=F2)
        seconds = time.perf_counter() - started
    said = {
        "status": model.status_.name,
        "doubts": doubts_of(model.result_.doubts),
        "rank": int(model.rank_),
        "flagged": float(model.corruption_),
        "seconds": seconds,
    }
    return model, model.low_rank_.dense(), said


def solved(M: Any, *features: Any, **options: Any) -> tuple[Result | None, Row]:
    """A result and what it cost; None and the words of a refusal if there is none."""
    started = time.perf_counter()
    try:
        result = irpca.solve(M, *features, **options)
    except ValueError as error:
        return None, {"status": f"REFUSED: {' '.join(str(error).split())[:120]}"}
    return result, {
        "status": result.status.name,
        "rank_found": result.rank,
        "extra_rank": next((choice.value for choice in result.choices if choice.name == "extra_rank"), None),
        "iterations": len(result.history),
        "reads": float(result.reads),
        "seconds": time.perf_counter() - started,
    }


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
