"""Inductive robust PCA: what the features of rows and columns explain, and what is grossly wrong."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        callbacks,
        containers,
        datasets,
        diagnostics,
        engines,
        features,
        labels,
        outliers,
        plots,
        report,
        selection,
    )
    from .estimator import DoNotUseWarning, InductiveRobustPCA
    from .longtable import LongTable
    from .loop import solve
    from .lowrank import LowRank
    from .persistence import load
    from .result import Choice, Doubt, History, Result, State, Status

__version__ = "0.1.0"

# Nothing is imported before it is asked for: the command's help needs no NumPy, and solve() no scikit-learn.
_PLACES = {
    **dict.fromkeys(("DoNotUseWarning", "InductiveRobustPCA"), "estimator"),
    "LongTable": "longtable",
    "LowRank": "lowrank",
    "load": "persistence",
    "solve": "loop",
    **dict.fromkeys(("Choice", "Doubt", "History", "Result", "State", "Status"), "result"),
}

__all__ = [
    "Choice",
    "DoNotUseWarning",
    "Doubt",
    "History",
    "InductiveRobustPCA",
    "LongTable",
    "LowRank",
    "Result",
    "State",
    "Status",
    "callbacks",
    "containers",
    "datasets",
    "diagnostics",
    "engines",
    "features",
    "labels",
    "load",
    "outliers",
    "plots",
    "report",
    "selection",
    "solve",
]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f".{_PLACES[name]}", __name__), name)
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
