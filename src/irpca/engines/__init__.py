"""Owners of M, chosen by the type of M."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..lowrank import Array
from .base import Ascent, Cut, Dual, Engine, Normal, Trim
from .cpu import CpuEngine
from .reference import ReferenceEngine
from .threads import both_sides, single_threaded_blas

__all__ = [
    "Ascent",
    "CpuEngine",
    "Cut",
    "Dual",
    "Engine",
    "Normal",
    "ReferenceEngine",
    "Trim",
    "as_matrix",
    "both_sides",
    "choose",
    "single_threaded_blas",
]

_ENGINES = {"cpu": CpuEngine, "reference": ReferenceEngine}


def as_matrix(M: Any, name: str = "M") -> Array:
    """M as a two-dimensional float array, without a copy if it is one already.

    float32 and float64 stay as they are (memmap too); integers and booleans become float64.
    """
    if hasattr(M, "tocsr"):
        raise ValueError(f"{name} is a sparse matrix, which is not supported yet; pass {name}.toarray()")
    if isinstance(M, np.ma.MaskedArray):
        raise ValueError(f"{name} is a masked array: missing entries are not supported yet; fill them first")
    M = np.asarray(M)
    if M.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, got shape {M.shape}")
    if M.size == 0:
        raise ValueError(f"{name} is empty: its shape is {M.shape}")
    if M.dtype.kind == "c":
        raise ValueError(f"{name} is complex; only real matrices can be decomposed")
    if M.dtype not in (np.float32, np.float64):
        try:
            M = M.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{name} has dtype {M.dtype} and does not convert to numbers") from None
    return M


def choose(M: Any, engine: str | Engine = "auto") -> Engine:
    """The engine that will own M.

    Parameters
    ----------
    M : array of shape (n1, n2)
    engine : {"auto", "cpu", "reference"} or an Engine
        ``"auto"`` picks by the type of M; an Engine is returned as it is.

    Examples
    --------
    >>> choose(np.ones((3, 2))).name
    'cpu'
    """
    if not isinstance(engine, str):
        return engine
    if engine == "auto":
        engine = "cpu"
    if engine not in _ENGINES:
        known = ", ".join(map(repr, ["auto", *_ENGINES]))
        raise ValueError(f"engine={engine!r} is unknown; choose one of {known}")
    return _ENGINES[engine](as_matrix(M))
