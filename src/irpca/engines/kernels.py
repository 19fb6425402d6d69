"""The loops that numba compiles: imported, with numba, when one is first asked for; see :mod:`.compiled`.

A kernel is compiled, or fetched from the cache on disk, when it is first called. What they are worth to a whole fit is
how many times as long it takes with NumPy's arithmetic (:mod:`.arithmetic`) in the place of one (CPU time, 2 cores):

=====================================  ==============  ================  =================================
in place of                            300 × 60 noisy  1000 × 500 noisy  2000 × 2000 exact, with features
=====================================  ==============  ================  =================================
``trim``                               1.07            1.08              1.7
``weigh_tile``                         1.7             1.6               1.0
``covariances`` and ``multiply``       1.9             1.7               1.0
``coefficients``                       1.2             1.05              1.0
=====================================  ==============  ================  =================================

The others do for lists of entries what these, or products of matrices, do for arrays.
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
