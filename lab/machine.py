"""What machine and what version of irpca numbers belong to."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"  # where data sets are that IRPCA_DATA does not name
PROVENANCE = ("cpu", "cores", "python", "numpy", "scipy", "numba", "commit", "date")


def describe_machine() -> dict[str, Any]:
    """Processor, versions, commit, load and date."""
    from threadpoolctl import threadpool_info

    return {
        "cpu": _cpu(),
        "cores": count_cores(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "blas": sorted({f"{pool['internal_api']} {pool['version']}" for pool in threadpool_info()}),
        "versions": {name: _version(name) for name in ("irpca", "numpy", "scipy", "numba")},
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted": bool(_git("status", "--porcelain", "--", "src")),
        "load": load(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def origin(on: dict[str, Any]) -> str:
    """One line about the machine and the commit, from what :func:`describe_machine` found."""
    commit = (on["commit"] or "no commit")[:12] + (" + uncommitted changes in src" if on["uncommitted"] else "")
    loads = f"load {on['load']}" + (f" to {on['load_at_end']}" if "load_at_end" in on else "")
    device = [on["gpu"]] if "gpu" in on else []
    device += [f"{name} {on['versions'][name]}" for name in ("torch", "triton") if on["versions"].get(name)]
    rest = f"{on['cpu']}, {on['cores']} cores, {loads}, Python {on['python']}, irpca at {commit}, {on['date'][:10]}"
    return ", ".join([*device, rest])


def provenance() -> dict[str, Any]:
    """The columns ``PROVENANCE`` of a row. IRPCA_COMMIT names the commit where there is a copy without its history."""
    on = describe_machine()
    commit = (on["commit"] or "")[:12] + ("+" if on["uncommitted"] else "")
    known = on | on["versions"] | {"commit": os.environ.get("IRPCA_COMMIT") or commit, "date": on["date"][:10]}
    return {name: known[name] for name in PROVENANCE}


def count_cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float | None:
    """Load of the last minute, this process included."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*words: str) -> str | None:
    """What git says, None outside a repository."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
