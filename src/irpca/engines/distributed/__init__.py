"""An M larger than memory: on disk, in chunks, or on several machines. The only room that imports dask."""

from __future__ import annotations

from .engine import DistributedEngine
from .sources import Source, source_of

__all__ = ["DistributedEngine", "Source", "source_of"]
