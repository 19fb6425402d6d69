"""An M larger than memory: on disk, in chunks, or on several machines. The only room that imports dask."""

from __future__ import annotations

from typing import Any

from .sources import Source, source_of

__all__ = ["DistributedEngine", "Source", "source_of"]


def __getattr__(name: str) -> Any:
    if name == "DistributedEngine":  # imports dask
        from .distributed_engine import DistributedEngine

        return DistributedEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
