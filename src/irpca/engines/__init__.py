"""Owners of M, chosen by the type of M."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..arguments import text
from ..arrays import is_tensor, matrix_of, on_gpu
from ..lowrank import Array
from ..threads import single_threaded_blas
from . import holes
from .base import Engine, Normal, Trim
from .memory import MemoryEngine
from .pieces import Listed
from .reference import ReferenceEngine

__all__ = [
    "Engine",
    "MemoryEngine",
    "Normal",
    "ReferenceEngine",
    "Trim",
    "as_matrix",
    "choose",
    "is_engine",
    "observed",
    "single_threaded_blas",
]

# Share of NaN from which on the observed entries are listed. With 60 to 95 % observed an array takes 0.2 to 0.8 of the
# time of a list for core, normal, corruption and regressions; they break even at 20 to 50 % (2 cores, n = 400 and
# 1500), and below that the list also takes less memory.
MOSTLY_MISSING = 0.5
_NAMES = ["auto", "memory", "gpu", "distributed", "reference"]


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


def observed(M: Any, name: str = "M") -> MemoryEngine:
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
    return MemoryEngine(holes.observed_entries(M, name))


def choose(M: Any, engine: str | Engine = "auto") -> Engine:
    """The engine that will own M, by where M lives.

    Parameters
    ----------
    M : array of shape (n1, n2), what :func:`observed` takes, M in chunks, or an Engine
        In chunks: a dask or zarr array, a dask DataFrame of row, column and value, or a path. An Engine is returned as
        it is.
    engine : {"auto", "memory", "gpu", "distributed", "reference"} or an Engine
        ``"auto"`` picks by the type of M: a tensor on a GPU stays there. ``"gpu"`` moves any other M in host memory to
        one, or streams it from there if it does not fit. An Engine is returned as it is.

    Notes
    -----
    Of an array in memory a few entries are looked at: if half of them are NaN, the others are listed.

    Examples
    --------
    >>> choose(np.array([[1.0, 2.0, np.nan]])).name
    'memory'
    """
    if hasattr(engine, "capabilities"):  # an Engine, or what passes its questions on to one
        return engine  # type: ignore[return-value]
    text(engine, "engine")
    if engine not in _NAMES:
        raise ValueError(f"engine={engine!r} is unknown; choose one of {', '.join(map(repr, _NAMES))}")
    if (owner := M if is_engine(M) else _chunked(M)) is not None:
        if engine not in ("auto", owner.name):
            what = f"owned by the {owner.name} engine" if owner.source is None else _article(owner.source.name)
            where = "in chunks" if engine == "distributed" else "in memory"
            raise ValueError(f"engine={engine!r} needs M {where}, and M is {what}; leave engine out")
        found: Engine = owner
        return found
    if engine == "distributed":
        raise ValueError(
            f"engine='distributed' reads M from a dask or zarr array, a path or a dask DataFrame, got "
            f"{type(M).__name__}; leave engine out, or pass dask.array.from_array(M)"
        )
    if engine == "reference":
        return _reference(M)
    if on_gpu(M) or (engine == "gpu" and is_tensor(M)):
        if engine not in ("auto", "gpu"):
            raise ValueError(f"engine={engine!r} needs M in host memory, and it is on {M.device}; pass M.cpu()")
        return _gpu_engine(matrix_of(M))
    owner = _gpu_engine if engine == "gpu" else MemoryEngine
    if holes.kind_of_holes(M) is None:
        M = holes.dense(M, "M")
        missing = holes.seem_there(M)
        if missing < MOSTLY_MISSING:
            return owner(M, holes=missing > 0)
    return owner(holes.observed_entries(M))


def _gpu_engine(M: Any, holes: bool = False) -> Any:
    """torch is imported only if it is needed."""
    try:
        from .gpu import GPUEngine
    except ImportError:
        raise ImportError(
            "engine='gpu' needs PyTorch: pip install \"irpca[gpu]\"; or leave engine out, and M stays in host memory"
        ) from None
    return GPUEngine(M, holes=holes)


def is_engine(M: Any) -> bool:
    """Whether M is an engine, which owns a matrix already; asked of the type, since a frame has any attribute."""
    return callable(getattr(type(M), "corruption", None))


def _chunked(M: Any) -> Any:
    """The engine for an M in chunks; None if M is in memory. dask is imported only if it is needed."""
    path, library = isinstance(M, (str, os.PathLike)), type(M).__module__.partition(".")[0]
    if library == "xarray" and getattr(M, "chunks", None) and hasattr(M, "data"):
        return _chunked(M.data)
    if not path and library not in ("dask", "zarr"):
        return None
    from .distributed import source_of

    source = source_of(M)
    if source is not None:
        from .distributed import DistributedEngine  # without dask, source_of has said so

        return DistributedEngine(source)
    if path and not os.path.exists(os.path.expanduser(M)):
        raise ValueError(f"M is a file name, {os.fspath(M)!r}, and there is no such file or folder")
    if path:
        raise ValueError(f"M is a file name, {os.fspath(M)!r}: read it first, such as with pd.read_csv")
    return None


def _article(name: str) -> str:
    return name if name.startswith(("a ", "an ")) else f"a {name}"


def _reference(M: Any) -> ReferenceEngine:
    if holes.kind_of_holes(M) is None:
        M = holes.dense(M, "M")
        if not np.isnan(M).any():
            return ReferenceEngine(M)
    return ReferenceEngine(Listed(holes.observed_entries(M)).whole())
