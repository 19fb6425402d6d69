"""Owners of M, chosen by the type of M."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..lowrank import Array
from . import holes
from .base import Ascent, Cut, Dual, Engine, Normal, Trim
from .cpu import CpuEngine
from .observed import ObservedEngine
from .reference import ReferenceEngine
from .threads import both_sides, single_threaded_blas

__all__ = [
    "Ascent",
    "CpuEngine",
    "Cut",
    "Dual",
    "Engine",
    "Normal",
    "ObservedEngine",
    "ReferenceEngine",
    "Trim",
    "as_matrix",
    "both_sides",
    "choose",
    "observed",
    "single_threaded_blas",
]

# Share of NaN from which on the observed entries are listed. With 60 to 95 % observed the dense engine takes 0.2 to 0.8
# of the time of the other for core, normal, corruption and solve_rows; they break even at 20 to 50 % (2 cores, n = 400
# and 1500), and below that the list also takes less memory.
MOSTLY_MISSING = 0.5
_NAMES = ["auto", "cpu", "observed", "reference"]


def as_matrix(M: Any, name: str = "M") -> Array:
    """M as a two-dimensional float array, without a copy if it is one already; for where every entry is needed.

    float32 and float64 stay as they are (memmap too); integers and booleans become float64.
    """
    if hasattr(M, "tocsr"):
        raise ValueError(
            f"{name} is a sparse matrix: only its stored entries are observed, and here all are needed; "
            f"pass {name}.toarray() if the others are zero"
        )
    if kind := holes.kind_of_holes(M):
        raise ValueError(f"{name} is {kind}: some entries are missing, and here all are needed; fill them first")
    return holes.dense(M, name)


def observed(M: Any, name: str = "M") -> ObservedEngine:
    """The engine that owns the observed entries of M, and no others.

    Parameters
    ----------
    M : array, masked array, data frame, sparse array or anything with ``__irpca_observed__``
        NaN and what is masked is not observed; of a sparse array, of any format, what is stored is, zeros too.
        ``__irpca_observed__()`` returns rows, columns, values and the shape.
    name : str
        What messages call M.

    Examples
    --------
    >>> observed(np.array([[1.0, np.nan], [0.0, 2.0]])).n_observed
    3
    """
    return ObservedEngine(holes.observed_entries(M, name))


def choose(M: Any, engine: str | Engine = "auto") -> Engine:
    """The engine that will own M.

    Parameters
    ----------
    M : array of shape (n1, n2), or what :func:`observed` takes
    engine : {"auto", "cpu", "observed", "reference"} or an Engine
        ``"auto"`` picks by the type of M; an Engine is returned as it is.

    Notes
    -----
    Of a dense matrix a few entries are looked at: if half of them are NaN, the others are listed, else M stays dense.

    Examples
    --------
    >>> choose(np.array([[1.0, 2.0, np.nan]])).name, choose(np.array([[1.0, np.nan, np.nan]])).name
    ('cpu', 'observed')
    """
    if not isinstance(engine, str):
        return engine
    if engine not in _NAMES:
        raise ValueError(f"engine={engine!r} is unknown; choose one of {', '.join(map(repr, _NAMES))}")
    if engine == "observed":
        return observed(M)
    if engine == "reference":
        return _reference(M)
    kind = holes.kind_of_holes(M)
    if kind is None:
        M = holes.dense(M, "M")
        missing = holes.seem_there(M)
        if engine == "cpu" or missing < MOSTLY_MISSING:
            return CpuEngine(M, holes=missing > 0)
    elif engine == "cpu":
        raise ValueError(f"engine='cpu' reads every entry, and M is {kind}; take engine='observed', or 'auto'")
    return observed(M)


def _reference(M: Any) -> ReferenceEngine:
    if holes.kind_of_holes(M) is None:
        M = holes.dense(M, "M")
        if not np.isnan(M).any():
            return ReferenceEngine(M)
    entries = holes.observed_entries(M)
    values, there = np.zeros(entries.shape, entries.dtype), np.zeros(entries.shape, bool)
    at = np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr)), entries.indices
    values[at], there[at] = entries.data, True
    return ReferenceEngine(values, there)
