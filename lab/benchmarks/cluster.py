"""What the distributed engine costs, and what a second worker gains.

workers
    The same solves on a ``LocalCluster`` of one process and on one of two, one thread each, M held in their memory in
    chunks: nothing is read from a disk. *Algorithm 1* with 200 features a side is bound by arithmetic, some
    2·n²·(r + d) flops a read, and the client has next to nothing to do. The default solver under noise has a part of
    its work, the fits to samples and blocks of M, in the client, which more workers do not make faster.
overhead
    ``irpca.solve`` of a dask array in threads against the same array in memory: the same numbers, asked through a graph
    of chunks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from . import problems
from .case import Bar, Case, Found, Report, at_least, at_most, measured, shown
from .contenders import Answer, check, solve
from .runner import Contender, interleave, ratio, times, worst

ALGORITHM_1, NOISY, EXACT = "Algorithm 1", "default, noise", "default, exact"
OPTIONS = {ALGORITHM_1: {"solver": "irpca_iht"}, NOISY: {}, EXACT: {}}


def workers(n: int, chunk: int, d: int, d_noisy: int, rank: int, corruption: float, repeats: int) -> Found:
    """One worker and two, in turn."""
    with tempfile.TemporaryDirectory() as temporary, processes(1) as one, processes(2) as two:
        folder = Path(temporary)
        tasks = {
            ALGORITHM_1: problems.make(folder / "exact", n, n, d, rank, corruption, "float32"),
            NOISY: problems.make(folder / "noisy", n, n, d_noisy, rank, corruption, "float32", noisy=True),
        }
        runs: dict[str, Contender] = {}
        task_of = {}
        for (kind, task), name in zip(tasks.items(), ("exact", "noisy"), strict=True):
            for client, count in ((one, "1 worker"), (two, "2 workers")):
                with client.as_current():
                    held = chunked(folder / name / "M.npy", task.M.shape, chunk).persist()
                    held.sum().compute()  # all of it is there
                task_of[f"{kind}, {count}"] = task
                runs[f"{kind}, {count}"] = partial(solved, task, held, client, **OPTIONS[kind])
        records = interleave(runs, repeats, lambda name, answer: check(task_of[name], answer))
    return found_of(records, {name: name.replace("2 workers", "1 worker") for name in records}, 4 * n * n)


def overhead(n: int, chunk: int, d: int, rank: int, corruption: float, repeats: int) -> Found:
    """In memory and as a dask array, in turn."""
    import dask.array as da

    with tempfile.TemporaryDirectory() as temporary:
        tasks = {
            kind: problems.make(Path(temporary) / kind, n, n, d, rank, corruption, "float32", noisy=kind == NOISY)
            for kind in (EXACT, NOISY)
        }
        runs: dict[str, Contender] = {}
        task_of = {}
        for kind, task in tasks.items():
            split = da.from_array(task.M, chunks=(chunk, chunk), name=False)
            for where, M in (("memory", task.M), ("dask, threads", split)):
                task_of[f"{kind}, {where}"] = task
                runs[f"{kind}, {where}"] = partial(solved, task, M, None)
        records = interleave(runs, repeats, lambda name, answer: check(task_of[name], answer))
    return found_of(records, {name: name.replace("dask, threads", "memory") for name in records}, 4 * n * n)


def solved(task: problems.Task, M: Any, client: Any, seed: int, **options: Any) -> Answer:
    """The solve of the same problem, with M wherever it is."""
    moved = problems.Task(M, task.F1, task.F2, task.W, task.L, task.noise, task.zeta)
    with client.as_current() if client else nullcontext():
        return solve(moved, seed, **options)


@contextmanager
def processes(count: int, memory: int = 0) -> Iterator[Any]:
    """A client of so many workers of one thread and so many bytes, 0 for any; it is nobody's default."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=count, threads_per_worker=1, memory_limit=memory, dashboard_address=":0") as local,
        Client(local, set_as_default=False) as client,
    ):
        yield client


def chunked(path: Path, shape: tuple[int, int], chunk: int) -> Any:
    """The array in that file, each chunk read where it is wanted: no chunk travels."""
    import dask
    import dask.array as da

    read = dask.delayed(piece, pure=True)
    edges = [[*range(0, n, chunk), n] for n in shape]
    slices = [[slice(a, b) for a, b in pairwise(edge)] for edge in edges]
    blocks = [
        [
            da.from_delayed(read(str(path), i, j), (i.stop - i.start, j.stop - j.start), dtype=np.float32)
            for j in slices[1]
        ]
        for i in slices[0]
    ]
    return da.block(blocks)


def piece(path: str, rows: slice, cols: slice) -> np.ndarray:
    return np.ascontiguousarray(np.load(path, mmap_mode="r")[rows, cols])


def found_of(records: dict[str, list[dict[str, Any]]], yardstick: dict[str, str], nbytes: int) -> Found:
    return {
        "M_bytes": nbytes,
        "contenders": {
            name: {**times(rounds, records[yardstick[name]]), "yardstick": yardstick[name], "rounds": rounds}
            for name, rounds in records.items()
        },
    }


def report(found: Found) -> Report:
    header = ("", "s", "min", "max", "client cpu s", "ratio", "reads", "error of L", "S: false", "missed")
    rows = [
        (
            name,
            *(f"{row[key]:.3f}" for key in ("seconds", "fastest", "slowest", "cpu_seconds")),
            f"{row['ratio']:.2f}",
            f"{worst(row['rounds'], 'reads'):.2f}",
            f"{worst(row['rounds'], 'error'):.1e}",
            *(shown(worst(row["rounds"], key), ",d") for key in ("false", "missed")),
        )
        for name, row in found["contenders"].items()
    ]
    size = found["sizes"]
    title = (
        f"{size['n']:,} × {size['n']:,} float32 ({found['M_bytes'] / 1e6:.4g} MB) in chunks of {size['chunk']:,} × "
        f"{size['chunk']:,}, d = {size['d']}{', under noise ' + str(size['d_noisy']) if 'd_noisy' in size else ''}, "
        f"r = {size['rank']}, {size['corruption']:.0%} corrupted"
    )
    return Report(title, header, rows, ("ratio: of the time, to one worker or to memory; the median of the rounds",))


def workers_bars(found: Found) -> list[Bar]:
    rows = found["contenders"]
    lines = []
    for kind in (ALGORITHM_1, NOISY):
        one, two = (rows[f"{kind}, {count}"]["rounds"] for count in ("1 worker", "2 workers"))
        gain = ratio(one, two)
        told = at_least(1.7, gain) if kind == ALGORITHM_1 else measured(gain)
        lines.append(Bar(f"{kind}: two workers against one", *told, f"L {worst(two, 'error'):.1e}"))
    return lines


def overhead_bars(found: Found) -> list[Bar]:
    rows = found["contenders"]
    return [
        Bar(
            f"{kind}: dask array in threads against memory",
            *at_most(1.5, rows[f"{kind}, dask, threads"]["ratio"]),
            f"L {worst(rows[f'{kind}, dask, threads']['rounds'], 'error'):.1e}",
        )
        for kind in (EXACT, NOISY)
    ]


CASES = (
    Case(
        "workers",
        workers,
        {"n": 12_000, "chunk": 3000, "d": 200, "d_noisy": 20, "rank": 5, "corruption": 0.02, "repeats": 3},
        {"n": 300, "chunk": 150, "d": 10, "d_noisy": 8, "rank": 2, "corruption": 0.1, "repeats": 1},
        report,
        workers_bars,
        asked=True,
    ),
    Case(
        "overhead",
        overhead,
        {"n": 16_000, "chunk": 4000, "d": 20, "rank": 5, "corruption": 0.1, "repeats": 5},
        {"n": 300, "chunk": 150, "d": 8, "rank": 2, "corruption": 0.1, "repeats": 1},
        report,
        overhead_bars,
        asked=True,
    ),
)
