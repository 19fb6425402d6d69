"""Inductive robust PCA: what the features of rows and columns explain, and what is grossly wrong."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import callbacks, datasets
from .longtable import LongTable
from .loop import solve
from .lowrank import LowRank
from .result import Choice, Doubt, History, Result, State, Status

if TYPE_CHECKING:
    from . import completion, diagnostics, encode, engines, outliers, plots, report, selection
    from .estimator import InductiveRobustPCA
    from .persistence import load

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "Doubt",
    "History",
    "InductiveRobustPCA",
    "LongTable",
    "LowRank",
    "Result",
    "State",
    "Status",
    "callbacks",
    "completion",
    "datasets",
    "diagnostics",
    "encode",
    "engines",
    "load",
    "outliers",
    "plots",
    "report",
    "selection",
    "solve",
]


def __getattr__(name: str) -> Any:
    """Import the estimator (and with it scikit-learn) and what few need only when they are asked for."""
    if name == "InductiveRobustPCA":
        return import_module(".estimator", __name__).InductiveRobustPCA
    if name == "load":
        return import_module(".persistence", __name__).load
    if name in ("completion", "diagnostics", "encode", "engines", "outliers", "plots", "report", "selection"):
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
