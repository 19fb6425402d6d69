"""How much memory a fit takes beside M and its answer, each in a process of its own.

Peak resident memory as Linux counts it, as :mod:`lab.benchmarks.memory` measures it: everything is in it. The bound of
every fit is once more M, beside M and S; that of exact and of noisy tables with features of both sides a tenth of M.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.benchmarks.memory import STATUS, resident

from .tally import Tally

MEGABYTES = 200


@dataclass(frozen=True)
class Fit:
    """What is fitted, and what it may take beside M and S, as a share of M."""

    dtype: str
    noise: float
    holes: float
    sides: int  # 0: no features, 2: of both sides
    bound: float
    dask: bool = False


FITS = {
    "exact, float64": Fit("float64", 0.0, 0.0, 2, 0.1),
    "exact, float32": Fit("float32", 0.0, 0.0, 2, 0.1),
    "noise, float64": Fit("float64", 0.1, 0.0, 2, 0.1),
    "noise, float32": Fit("float32", 0.1, 0.0, 2, 0.1),
    "holes, float64": Fit("float64", 0.0, 0.1, 2, 1.0),
    "holes and noise, float64": Fit("float64", 0.1, 0.1, 2, 1.0),
    "no features, float32": Fit("float32", 0.1, 0.0, 0, 1.0),
    "no features, float64": Fit("float64", 0.1, 0.0, 0, 1.0),
}


def made(fit: Fit, megabytes: float) -> tuple[Any, Any, Any]:
    """M in place, so that nothing else of its size was ever there."""
    n = int(np.sqrt(megabytes * 1e6 / np.dtype(fit.dtype).itemsize))
    rng = np.random.default_rng(2)
    F1, F2 = rng.standard_normal((n, 20)), rng.standard_normal((n, 20))
    W = rng.standard_normal((20, 5)) @ rng.standard_normal((5, 20))
    M = np.empty((n, n), fit.dtype)
    for first in range(0, n, 256):
        rows = slice(first, min(first + 256, n))
        part = F1[rows] @ W @ F2.T
        part += fit.noise * rng.standard_normal(part.shape)
        part[rng.random(part.shape) < 0.02] += 200
        if fit.holes:
            part[rng.random(part.shape) < fit.holes] = np.nan
        M[rows] = part
    return M, F1, F2


def measured(name: str, megabytes: float) -> dict[str, Any]:
    """Of one fit, in this process; as shares of M."""
    import irpca

    fit = FITS[name]
    irpca.solve(*given(fit, 1.0), rank=5, extra_rank=0)  # all is compiled and imported
    M, F1, F2 = given(fit, megabytes)
    before = resident("VmRSS")
    result = irpca.solve(M, F1, F2, rank=5, extra_rank=0)
    peak = resident("VmHWM") - before
    S = sum(part.nbytes for part in (result.S.data, result.S.indices, result.S.indptr))
    return {"beside": (peak - S) / M.nbytes, "S": S / M.nbytes, "status": result.status.name}


def given(fit: Fit, megabytes: float) -> tuple[Any, Any, Any]:
    M, F1, F2 = made(fit, megabytes)
    return (M, F1, F2) if fit.sides else (M, None, None)


def asked(name: str, megabytes: float, seconds: float = 900) -> dict[str, Any]:
    words = [sys.executable, "-m", "lab.soak.memory", name, str(megabytes)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"wrong": f"no answer within {seconds:.0f} s"}
    if done.returncode:
        return {"wrong": " ".join(done.stderr.split())[-300:]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run(tally: Tally, megabytes: float = MEGABYTES) -> None:
    if not STATUS.exists():
        tally.notes.append("not measured: only Linux says how much memory a process has had")
        return
    for name in list(FITS)[: tally.count]:
        if tally.over():
            break
        found = asked(name, megabytes)
        tally.outcomes["measured" if "beside" in found else "broken"] += 1
        command = f"python -m lab.soak.memory {name!r} {megabytes}"
        if "beside" not in found:
            tally.fail(f"{name}: {found['wrong']}", command)
            continue
        share, bound = found["beside"], FITS[name].bound
        tally.notes.append(f"{name}: {share:.1%} of M beside M and S ({found['S']:.1%})")
        if share > bound:
            tally.fail(f"{name}: {share:.1%} of M beside M and S, more than {bound:.0%}", command)


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], float(sys.argv[2]))))
