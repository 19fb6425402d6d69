"""The loops that numba compiles: imported, with numba, when one is first asked for; see :mod:`.compiled`.

A kernel is compiled, or fetched from the cache on disk, when it is first called.
"""

from __future__ import annotations

from typing import Any

LANES = 64  # lines that are solved side by side: so many that LLVM makes vectors of a loop, and does not unroll it


def __getattr__(name: str) -> Any:
    from . import compiled, compiled_lines

    for module in (compiled, compiled_lines):
        if name in vars(module):
            return globals().setdefault(name, vars(module)[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
