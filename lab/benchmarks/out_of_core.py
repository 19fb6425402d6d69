"""A store larger than memory: how the solve compares with merely reading and summing it, and what memory it needs.

    python -m lab.benchmarks out-of-core --store /data/out_of_core.zarr --json lab/benchmarks/results/out_of_core.json
    python -m lab.benchmarks out-of-core --gigabytes 2

The store, 100,000 × 100,000 float32 numbers or as many gigabytes as asked, is made by ``stores.py`` where it
is not there yet, and kept. Timed are, in this order and in one process, a sum (a dask task per chunk, in threads), the
solve with S, and the sum again; before each the store is dropped from the page cache, as far as the system complies
(*from disk* tells how much came from there). *Share* is what the solve is of the speed of reading: its reads times the
mean of the two sums, over its time.

``small-workers`` is the same with 2 GB and a ``LocalCluster`` of two processes of one thread and 500 MB each; memory is
then the highest that one of them ever had, all of it.

A store that fits into memory is in the page cache when it is read for the second time, so that only the first read of
the solve comes from the disk. That makes the share of a small store look better than that of a large one.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import irpca
from irpca.lowrank import relative_distance

from . import stores
from .case import Bar, Case, Found, Report, at_least, at_most, shown
from .cluster import processes
from .memory import STATUS, resident

WORKER_MEMORY = 500_000_000
LOOKED_AT = 16  # chunks of which the support is checked
IO = Path("/proc/self/io")
SUM, SOLVE, AGAIN = "sum of the store", "solve, rank given", "sum of the store, again"


def measure(
    gigabytes: float,
    chunk: int,
    d: int,
    rank: int,
    corruption: float,
    store: str | None,
    workers: int,
    keep: bool,
) -> Found:
    recipe = stores.square(gigabytes, chunk, d, rank, corruption)
    path = Path(store or Path(tempfile.gettempdir()) / f"out_of_core_{gigabytes:g}GB_{chunk}.zarr")
    with tempfile.TemporaryDirectory() as folder, cluster(workers) as client:
        path = path if keep else Path(folder) / path.name
        refuse_full_disk(path, recipe)
        started = time.perf_counter()
        M = stores.make(path, recipe)
        made = time.perf_counter() - started
        warm_up(Path(folder) / "small.zarr", rank)
        F1, F2, _ = recipe.known
        answer: list[irpca.Result] = []
        work: dict[str, Callable[[], Any]] = {
            SUM: lambda: total(M, recipe),
            SOLVE: lambda: answer.append(irpca.solve(M, F1, F2, rank=rank, extra_rank=0)),
            AGAIN: lambda: total(M, recipe),
        }
        parts = {name: clocked(run, path, client) for name, run in work.items()}
        stored = stores.stored_bytes(path)
    bases = 8 * (recipe.n1 * recipe.d1 + recipe.n2 * recipe.d2)
    return {
        "recipe": asdict(recipe),
        "M_bytes": recipe.nbytes,
        "stored_bytes": stored,
        "bases_bytes": bases,
        "seconds_to_make": made,
        "parts": parts,
        **judged(answer[0], recipe),
    }


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """Small workers, which dask uses while this is open; none at all if there are to be 0."""
    if not workers:
        yield None
        return
    with processes(workers, WORKER_MEMORY) as client, client.as_current():
        yield client


def refuse_full_disk(path: Path, recipe: stores.Recipe) -> None:
    """Before an hour is spent, not after it."""
    if not path.exists() and shutil.disk_usage(path.parent).free < 1.1 * recipe.nbytes:
        raise OSError(
            f"the disk of {path.parent} has not the {1.1 * recipe.nbytes / 1e9:.3g} GB that the store may need"
        )


def warm_up(path: Path, rank: int) -> None:
    """Imports and compiled code, which belong to no store."""
    small = stores.square(0.0001, 100, 2 * rank, rank, 0.02)
    M = stores.make(path, small)
    irpca.solve(M, *small.known[:2], rank=rank, extra_rank=0)
    total(M, small)


def total(M: Any, recipe: stores.Recipe) -> float:
    """The sum of M, a task per chunk, with the scheduler that is active. Nobody who reads the store can do less."""
    import dask

    task = dask.delayed(partial(chunk_sum, M), pure=False)
    return sum(dask.compute(*(task(*recipe.slices(place)) for place in recipe.places())))


def chunk_sum(M: Any, rows: slice, cols: slice) -> float:
    return float(M[rows, cols].sum(dtype=np.float64))


def clocked(run: Callable[[], Any], path: Path, client: Any) -> dict[str, Any]:
    """Time, and the highest memory above what was there before; of a cluster, that of its largest worker, all of it."""
    stores.forget(path)
    gc.collect()
    before = lowered_peak()
    disk, cpu, wall = from_disk(), time.process_time(), time.perf_counter()
    run()
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    disk = None if disk is None else from_disk() - disk
    found = {"seconds": seconds, "cpu_seconds": cpu_seconds, "from_disk": disk}
    found["peak_bytes"] = None if before is None else resident("VmHWM") - before
    found["worker_bytes"] = max(client.run(resident, "VmHWM").values()) if client and STATUS.exists() else None
    return found


def lowered_peak() -> int | None:
    """Resident memory, with VmHWM set down to it; None where the system does not count, or does not let us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return resident("VmRSS")


def from_disk() -> int | None:
    """Bytes that this process had to fetch from the disk so far."""
    if not IO.exists():
        return None
    return int(next(line for line in IO.read_text().splitlines() if line.startswith("read_bytes")).split()[1])


def judged(result: irpca.Result, recipe: stores.Recipe) -> Found:
    """The error of L from its factors, and of the support from some chunks."""
    assert result.S is not None
    places = recipe.places()
    looked = np.random.default_rng(0).choice(len(places), min(LOOKED_AT, len(places)), replace=False)
    right = found = known = 0
    for place in sorted(places[k] for k in looked):
        rows, cols = recipe.slices(place)
        piece = result.S[rows][:, cols].tocoo()
        listed = np.sort(piece.row.astype(np.int64) * piece.shape[1] + piece.col)
        support = recipe.support(place)
        right += len(np.intersect1d(listed, support, assume_unique=True))
        found, known = found + len(listed), known + len(support)
    return {
        "reads": result.reads,
        "status": result.status.name,
        "rank": result.rank,
        "error": relative_distance(recipe.known[2], result.L),
        "precision": right / max(found, 1),
        "recall": right / max(known, 1),
        "chunks_looked_at": len(looked),
        "S_entries": int(result.S.nnz),
        "S_bytes": sum(part.nbytes for part in (result.S.data, result.S.indices, result.S.indptr)),
    }


def share(found: Found) -> float:
    parts = found["parts"]
    reading = (parts[SUM]["seconds"] + parts[AGAIN]["seconds"]) / 2
    return found["reads"] * reading / parts[SOLVE]["seconds"]


def report(found: Found) -> Report:
    recipe, sizes = found["recipe"], found["sizes"]
    rows = [
        (
            name,
            f"{part['seconds']:.1f}",
            f"{part['cpu_seconds']:.1f}",
            f"{found['M_bytes'] / 1e9 / part['seconds'] * (found['reads'] if name == SOLVE else 1):.2f}",
            shown(part["from_disk"] and part["from_disk"] / 1e9, ".2f"),
            shown(part["peak_bytes"] and part["peak_bytes"] / 1e9, ".2f"),
            shown(part["worker_bytes"] and part["worker_bytes"] / 1e9, ".2f"),
        )
        for name, part in found["parts"].items()
    ]
    title = (
        f"{recipe['n1']:,} × {recipe['n2']:,} float32, {found['M_bytes'] / 1e9:.3g} GB in chunks of "
        f"{recipe['chunk']:,} × {recipe['chunk']:,}, d = {recipe['d1']}, r = {recipe['rank']}, "
        f"{recipe['corruption']:.0%} corrupted; "
        + (f"{sizes['workers']} workers of {WORKER_MEMORY / 1e6:.0f} MB" if sizes["workers"] else "threads")
    )
    remarks = (
        f"zarr, Blosc lz4 with bit shuffling: {found['M_bytes'] / found['stored_bytes']:.3f} times smaller than M; "
        f"made in {found['seconds_to_make']:.0f} s (0: it was there)",
        f"reads {found['reads']:.3f}; share of the speed of merely reading {share(found):.2f}",
        f"{found['status']}, rank {found['rank']}, error of L {found['error']:.1e}; S has {found['S_entries']:,} "
        f"entries, {found['S_bytes'] / 1e9:.2f} GB; on {found['chunks_looked_at']} chunks precision "
        f"{found['precision']:.6f}, recall {found['recall']:.6f}",
        f"orthonormal bases of both sides, in double precision: {found['bases_bytes'] / 1e9:.3f} GB",
    )
    header = ("", "s", "cpu s", "GB/s", "GB from disk", "peak GB above before", "largest worker GB")
    return Report(title, header, rows, remarks)


def bars(found: Found) -> list[Bar]:
    size = f"{found['M_bytes'] / 1e9:.3g} GB"
    errors = f"L {found['error']:.1e}, precision {found['precision']:.6f}, recall {found['recall']:.6f}"
    lines = [
        Bar(f"reads of a store of {size}", *at_most(2, found["reads"], ""), errors),
        Bar(f"speed of the solve, of that of merely reading {size}", *at_least(0.7, share(found), "")),
    ]
    part = found["parts"][SOLVE]
    if part["worker_bytes"] is not None:
        lines.append(Bar("memory of the largest worker", *at_most(0.5, part["worker_bytes"] / 1e9, " GB")))
    elif part["peak_bytes"] is not None:
        above = (part["peak_bytes"] - found["bases_bytes"]) / 1e9
        lines.append(Bar("memory above the bases, S included", *at_most(4, above, " GB")))
    return lines


SIZES = {
    "gigabytes": 40,
    "chunk": 4000,
    "d": 20,
    "rank": 5,
    "corruption": 0.02,
    "store": None,
    "workers": 0,
    "keep": True,
}
QUICK = {**SIZES, "gigabytes": 0.004, "chunk": 400, "d": 10, "rank": 2, "keep": False}
SMALL = {"gigabytes": 2, "chunk": 2000, "workers": 2}
CASES = (
    Case("out-of-core", measure, SIZES, QUICK, report, bars, asked=True),
    Case("small-workers", measure, {**SIZES, **SMALL}, {**QUICK, "workers": 2}, report, bars, asked=True),
)
