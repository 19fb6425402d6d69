"""What a solve costs on a cluster: bytes, flops, seconds, and what is the bottleneck.

    python -m lab.benchmarks.cluster_cost                 # docs/cluster-table.md, from the JSON in results/
    python -m lab.benchmarks.cluster_cost --measure       # measure this machine first, and check the simulation
    python -m lab.benchmarks.cluster_cost --workers 20    # print it for another cluster

Numbers of the machine are measured on one core (:class:`Machine`), that of the network is given. A question to the
engine reads all chunks once: factors travel to the workers, a task per chunk answers for it, and the answers are summed
in a tree. :func:`cost` counts what that takes and :func:`simulate` schedules it: the scheduler hands out one task after
another, and the first worker that is free takes it, a sum before a chunk. The simulation is compared with real graphs
of the same tasks on one and on two workers of this machine, and then asked about a hundred.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lab.machine import ROOT, describe_machine, origin
from lab.tables import markdown_table

from . import stores
from .cluster import processes
from .pages import RESULTS, rounded, table_of_bars
from .registry import CASES

KEPT = RESULTS / "cluster_cost.json"
MEASURED = tuple(RESULTS / name for name in ("out_of_core.json", "cluster.json"))
PAGE = ROOT / "docs" / "cluster-table.md"
NETWORK = 1.25e9  # bytes a second, each way: 10 Gbit/s
FAN_IN = 8  # answers that are summed at once
RANK, FEATURES = 5, 20

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


@dataclass(frozen=True)
class Machine:
    """Seconds, of one core, as measured; ``network`` is given, in bytes a second."""

    read_byte: float  # of M, read from a store in the page cache and unpacked
    disk_byte: float  # of M, where the disk is the limit, whatever the number of cores
    entry: float  # of M, in a question without flops: looked at, compared, counted
    flop: float  # beyond that
    observation: float  # of a long table, in one question of a fit to it; features, sweeps and all
    observation_reads: float  # of that fit
    parquet_observation: float  # read from Parquet and brought into order
    parquet_bytes: float  # of an observation in the file
    task: float  # of the scheduler, which has one core
    question: float  # the fixed part: an empty graph, there and back
    network: float = NETWORK


@dataclass(frozen=True)
class Question:
    """What one read is asked for."""

    flops: float  # an entry
    sent: float = 0.0  # bytes of each line of M that travel to where its chunks are
    rows: float = 0.0  # bytes of each row in the answer of a chunk, summed over the chunks of the same rows
    cols: float = 0.0
    whole: float = 512.0  # bytes of the part that is summed over all chunks
    tasks: float = 1.0  # a chunk of a store: read and answer. Regressions have three more, that pick parts of it
    back: tuple[float, float] = (0.0, 0.0)  # bytes of each row, of each column, that come back to the client


@dataclass(frozen=True)
class Dense:
    """M in square chunks, float32."""

    n1: int
    n2: int
    chunk: int
    ratio: float = 1.10  # by which the store is smaller than M

    @property
    def entries(self) -> float:
        return self.n1 * self.n2

    @property
    def grid(self) -> tuple[int, int]:
        return -(-self.n1 // self.chunk), -(-self.n2 // self.chunk)

    def seconds(self, on: Machine, question: Question) -> float:
        """On one core."""
        return self.entries * (4 * on.read_byte + on.entry + on.flop * question.flops)

    def bytes_read(self, on: Machine) -> float:
        return 4 * self.entries / self.ratio


@dataclass(frozen=True)
class Listed:
    """Observed entries of M in bands of rows."""

    n1: int
    n2: int
    observed: float
    band: float = 1 << 22  # entries of a chunk, as in irpca.engines.distributed

    @property
    def entries(self) -> float:
        return self.observed

    @property
    def grid(self) -> tuple[int, int]:
        return max(1, round(self.observed / self.band)), 1

    def seconds(self, on: Machine, question: Question) -> float:
        """On one core."""
        return self.entries * (on.parquet_observation + on.observation)

    def bytes_read(self, on: Machine) -> float:
        return self.observed * on.parquet_bytes


def questions(rank: int, d: int) -> dict[str, Question]:
    """Those of a solve. Factors and products are float32, moments and what is known of lines float64."""
    moments = 8 * (rank * (rank + 1) / 2 + rank + 4)
    solved = 8 * (3 * rank + 4)
    return {
        "survey": Question(0),
        "core": Question(2 * (rank + d), 4 * (rank + d), whole=8 * d * d),
        "products": Question(6 * rank, 8 * rank, 4 * rank, 4 * rank),
        "rows": Question(
            2 * rank + rank**2, 4 * rank + 16, moments, 32, tasks=4, back=(solved, 0)
        ),  # and three to pick the parts
        "columns": Question(2 * rank + rank**2, 4 * rank + 16, 32, moments, tasks=4, back=(0, solved)),
        "outliers": Question(2 * rank, 4 * rank),
    }


def cost(M: Dense | Listed, question: Question, on: Machine, workers: int) -> dict[str, float]:
    """Of one read: what is read, moved and computed, and how long each would take if it were all there is."""
    (n1, n2), (down, across) = (M.n1, M.n2), M.grid
    chunks = down * across
    # Each line leaves the client once, and goes on to every worker that has one of its chunks.
    sent = question.sent * (n1 * min(workers, across) + n2 * min(workers, down))
    answered = chunks * question.whole + n1 * across * question.rows + n2 * down * question.cols
    back = n1 * question.back[0] + n2 * question.back[1]
    tasks = chunks * (question.tasks + 1 / (FAN_IN - 1))
    return {
        "chunks": chunks,
        "bytes_read": M.bytes_read(on),
        "flops": M.entries * question.flops,
        "bytes_sent": sent,
        "bytes_answered": answered,
        "bytes_back": back,
        "tasks": tasks,
        "seconds_working": M.seconds(on, question) / workers,
        "seconds_scheduling": tasks * on.task,
        "seconds_moving": (question.sent * (n1 + n2) + (sent + answered) / workers + back) / on.network,
    }


def seconds(M: Dense | Listed, question: Question, on: Machine, workers: int) -> float:
    """Of one read, by simulation."""
    spent, (down, across) = cost(M, question, on, workers), M.grid
    chunks = down * across
    answer = question.whole + M.n1 / down * question.rows + M.n2 / across * question.cols
    if across == 1:  # a band is a whole row: what is known of rows is not summed
        answer -= M.n1 / down * question.rows
    ends = (question.sent * (M.n1 + M.n2) + spent["bytes_back"] + spent["bytes_sent"] / workers) / on.network
    each = np.full(chunks, M.seconds(on, question) / chunks)
    return on.question + ends + simulate(each, workers, question.tasks * on.task, on.task, answer / on.network)


def simulate(chunks: Sequence[float], workers: int, each: float, task: float, transfer: float = 0.0) -> float:
    """How long a graph takes: chunks, and their sums in a tree.

    ``chunks`` are the seconds of each. The scheduler spends ``each`` seconds on a chunk and ``task`` on a sum, one
    after the other; ``transfer`` are those of one answer on the network. A worker that is free takes a sum before a
    chunk.
    """
    sizes = [len(chunks)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // FAN_IN))
    missing = [[min(FAN_IN, below - FAN_IN * k) for k in range(size)] for below, size in pairwise([0, *sizes])]
    fetched = [[count - 1 for count in counts] for counts in missing]  # one answer is where the sum is made
    latest = [[0.0] * size for size in sizes]  # when the last answer for a sum was there
    free = [(0.0, worker) for worker in range(workers)]
    ready: list[tuple[float, int, int]] = []
    begun, scheduled, end = 0, 0.0, 0.0
    while begun < len(chunks) or ready:
        at, worker = heapq.heappop(free)
        if ready and (ready[0][0] <= at or begun == len(chunks)):
            there, level, k = heapq.heappop(ready)
            scheduled += task
            done = max(at, there, scheduled) + fetched[level][k] * transfer
        else:
            level, k = 0, begun
            begun += 1
            scheduled += each
            done = max(at, scheduled) + chunks[k]
        end = max(end, done)
        heapq.heappush(free, (done, worker))
        if level + 1 < len(sizes):
            parent = k // FAN_IN
            missing[level + 1][parent] -= 1
            latest[level + 1][parent] = max(latest[level + 1][parent], done)
            if not missing[level + 1][parent]:
                heapq.heappush(ready, (latest[level + 1][parent], level + 1, parent))
    return end


# What is measured on this machine.


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.zarr"
        recipe = stores.square(1, 2000, FEATURES, RANK, 0.02)
        stores.make(path, recipe)
        on = Machine(**of_the_store(path, recipe), **of_arithmetic(recipe), **of_long_tables(Path(folder)), **of_dask())
        return {"of_one_core": asdict(on), "checks": checked(path, recipe, on)}


def timed(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def alone(run: Callable[[], Any], repeats: int = 5) -> float:
    """The median seconds of one core: those that this process had it, whatever else ran."""
    cores, taken = os.sched_getaffinity(0), []
    os.sched_setaffinity(0, {min(cores)})
    try:
        run()
        for _ in range(repeats):
            started = time.process_time()
            run()
            taken.append(time.process_time() - started)
    finally:
        os.sched_setaffinity(0, cores)
    return statistics.median(taken)


def of_the_store(path: Path, recipe: stores.Recipe) -> dict[str, float]:
    """Unpacked from the page cache by one core; and from the disk by all of them."""
    import dask
    import zarr

    M, places = zarr.open_array(path, mode="r"), recipe.places()
    some = places[:16]
    size = sum(M[recipe.slices(place)].nbytes for place in some)
    cached = alone(lambda: [M[recipe.slices(place)] for place in some]) / size
    stores.forget(path)
    read = dask.delayed(lambda place: M[recipe.slices(place)].nbytes, pure=False)
    disk = timed(lambda: dask.compute(*map(read, places), scheduler="threads")) / recipe.nbytes
    return {"read_byte": cached, "disk_byte": disk}


def of_arithmetic(recipe: stores.Recipe) -> dict[str, float]:
    """Two questions of other flops on one chunk in memory: the fixed part of an entry, and a flop."""
    chunk, L, Q1, Q2 = piece_of(recipe, (0, 0))
    few, many = alone(lambda: asked(chunk, L, Q1[:, :1], Q2[:, :1])), alone(lambda: asked(chunk, L, Q1, Q2))
    flop = max(many - few, 0) / chunk.size / (2 * (FEATURES - 1))
    return {"flop": flop, "entry": max(few / chunk.size - 2 * (RANK + 1) * flop, 0)}


def piece_of(recipe: stores.Recipe, place: stores.Place) -> tuple[np.ndarray, Any, np.ndarray, np.ndarray]:
    from irpca import LowRank

    rows, cols = recipe.slices(place)
    F1, F2, L = recipe.known
    part = LowRank(L.left[rows], L.core, L.right[cols])
    return recipe.chunk_of(place), part, F1[rows].copy(), F2[cols].copy()


def asked(chunk: np.ndarray, L: Any, Q1: np.ndarray, Q2: np.ndarray) -> np.ndarray:
    from irpca.engines import choose

    return choose(chunk).core(L, 1e-6, Q1, Q2)[0]


def of_long_tables(folder: Path, observed: int = 1_000_000) -> dict[str, float]:
    """A long table of a thousand observations a row: read and ordered; then fitted, per read of it."""
    import pyarrow
    from pyarrow import parquet
    from scipy.sparse import csr_array

    import irpca

    rng = np.random.default_rng(0)
    n1, n2, d = observed // 1000, 5000, 10
    F1, F2 = rng.standard_normal((n1, d)), rng.standard_normal((n2, d))
    rows = np.repeat(np.arange(n1), 1000)
    cols = np.concatenate([np.sort(rng.choice(n2, 1000, replace=False)) for _ in range(n1)])
    values = np.einsum("kd,kd->k", (F1 @ rng.standard_normal((d, d)))[rows], F2[cols]) / d
    values += 0.1 * rng.standard_normal(observed)
    values[::50] += 5
    file = folder / "long.parquet"
    parquet.write_table(pyarrow.table({"row": rows, "column": cols, "value": values.astype(np.float32)}), file)

    def read() -> Any:
        long = parquet.read_table(file, use_threads=False)
        row, column, value = (long[name].to_numpy() for name in ("row", "column", "value"))
        return csr_array((value, (row, column)), shape=(n1, n2))

    found = []
    M = read()
    fit = alone(lambda: found.append(irpca.solve(M, F1, F2, rank=d, extra_rank=0)), 3)
    return {
        "parquet_observation": alone(read) / observed,
        "parquet_bytes": file.stat().st_size / observed,
        "observation": fit / found[-1].reads / observed,
        "observation_reads": found[-1].reads,
    }


def of_dask(few: int = 200, many: int = 2200) -> dict[str, float]:
    """Tasks that do nothing: a fixed part, and so much each. Scheduler and client are this process; workers are not."""
    import dask

    def graph(size: int) -> float:
        task, started = dask.delayed(abs, pure=False), time.process_time()
        dask.compute(*(task(k) for k in range(size)))
        return time.process_time() - started

    with processes(2) as client, client.as_current():
        short, long = (statistics.median(graph(size) for _ in range(5)) for size in (few, many))
        one = statistics.median(timed(lambda: graph(1)) for _ in range(5))
    return {"task": (long - short) / (many - few), "question": one}


def checked(path: Path, recipe: stores.Recipe, on: Machine) -> list[dict[str, Any]]:
    """One question, and a whole solve, on one worker and on two: said and measured."""
    import zarr

    import irpca
    from irpca.engines import choose

    M, ask = Dense(recipe.n1, recipe.n2, recipe.chunk), questions(RANK, FEATURES)
    F1, F2, L = recipe.known
    array = zarr.open_array(path, mode="r")
    engine, solve = choose(array), partial(irpca.solve, array, F1, F2, rank=RANK, extra_rank=0)
    work: dict[str, tuple[Callable[[], Any], dict[str, float]]] = {
        "core": (lambda: engine.core(L, 1e-6, F1, F2), {"core": 1}),
        "solve without S": (lambda: solve(sparse=False), {"survey": 1}),
        "solve": (solve, {"survey": 1, "outliers": 1}),
    }
    found = []
    for workers in (1, 2):
        with processes(workers) as client, client.as_current():
            for name, (run, reads) in work.items():
                run()
                taken = statistics.median(timed(run) for _ in range(3))
                said = sum(count * seconds(M, ask[part], on, workers) for part, count in reads.items())
                found.append({"work": name, "workers": workers, "said": said, "measured": taken})
    return found


# What is said about a hundred workers.

LARGE = 10**6
PLANS: dict[str, tuple[Dense | Listed, dict[str, float]]] = {
    "10⁶ × 10⁶, exact, chunks of 64 MB": (Dense(LARGE, LARGE, 4000), {"survey": 1, "outliers": 1}),
    "10⁶ × 10⁶, exact, chunks of 400 MB": (Dense(LARGE, LARGE, 10_000), {"survey": 1, "outliers": 1}),
    "10⁶ × 10⁶, noise, chunks of 400 MB": (Dense(LARGE, LARGE, 10_000), {"survey": 1, "core": 2, "outliers": 1}),
    "10¹⁰ observations of 10⁷ × 10⁵": (Listed(10**7, 10**5, 1e10), {"survey": 1, "rows": 0.5, "columns": 0.5}),
}


def planned(name: str, on: Machine, workers: int) -> dict[str, float]:
    """A whole solve: the sums over its reads. Those of a long table are as many as the fit measured here had."""
    M, reads = PLANS[name]
    if isinstance(M, Listed):
        reads = {part: count * on.observation_reads if count < 1 else count for part, count in reads.items()}
    ask = questions(RANK, FEATURES) if isinstance(M, Dense) else questions(10, FEATURES)
    whole: dict[str, float] = {"reads": sum(reads.values()), "seconds": 0.0}
    for part, count in reads.items():
        for key, value in cost(M, ask[part], on, workers).items():
            whole[key] = value if key == "chunks" else whole.get(key, 0.0) + count * value
        whole["seconds"] += count * seconds(M, ask[part], on, workers)
    return whole


def machine_in_words(on: Machine) -> str:
    return (
        f"One core: {1e-9 / on.read_byte:.2f} GB/s of M read from a store in the page cache, {1e9 * on.entry:.2f} ns "
        f"an entry, {1e-9 / on.flop:.0f} Gflop/s. Parquet: {1e9 * on.parquet_observation:.0f} ns and "
        f"{on.parquet_bytes:.1f} bytes an observation, and {1e9 * on.observation:.0f} ns in each of "
        f"{on.observation_reads:.0f} reads of a fit. The disk: {1e-9 / on.disk_byte:.2f} GB/s of M. Dask: "
        f"{1e3 * on.task:.2f} ms a task, {1e3 * on.question:.0f} ms a question. Network, given: "
        f"{on.network / 1e9:.2f} GB/s."
    )


def table_of_checks(checks: list[dict[str, Any]]) -> Table:
    rows = [
        (
            f"{row['work']}, {row['workers']} worker{'s' * (row['workers'] > 1)}",
            f"{row['said']:.2f}",
            f"{row['measured']:.2f}",
            f"{row['said'] / row['measured']:.2f}",
        )
        for row in checks
    ]
    return ("", "predicted, s", "measured, s", "predicted / measured"), rows


def table_of_plans(on: Machine, workers: int) -> Table:
    plans = {name: planned(name, on, workers) for name in PLANS}
    lines = {
        "reads of M": ("reads", 1, ".0f"),
        "chunks": ("chunks", 1, ",.0f"),
        "tasks": ("tasks", 1, ",.0f"),
        "TB read": ("bytes_read", 1e12, ".2f"),
        "Tflop": ("flops", 1e12, ".0f"),
        "GB to workers": ("bytes_sent", 1e9, ".1f"),
        "GB of partial answers": ("bytes_answered", 1e9, ".2f"),
        "GB to the client": ("bytes_back", 1e9, ".1f"),
        "workers alone, s": ("seconds_working", 1, ".0f"),
        "scheduler alone, s": ("seconds_scheduling", 1, ".0f"),
        "network alone, s": ("seconds_moving", 1, ".1f"),
        "**all, simulated, s**": ("seconds", 1, ".0f"),
    }
    rows = [
        (label, *(f"{plan[key] / unit:{form}}" for plan in plans.values()))
        for label, (key, unit, form) in lines.items()
    ]
    return ("", *plans), rows


def page(content: dict[str, Any], workers: int) -> str:
    """What the documentation includes, in Markdown: bars that were measured, the check of the model, and its plans."""
    on = Machine(**content["of_one_core"])
    kept = [json.loads(path.read_text())["cases"] for path in MEASURED if path.exists()]
    cases = {name: found for some in kept for name, found in some.items()}
    parts = ["<!-- written by: python -m lab.benchmarks.cluster_cost -->"]
    if cases:
        parts += [
            table_of_bars(CASES, cases),
            *(f"{name}: {origin(found['machine'])}." for name, found in cases.items()),
        ]
    parts += [
        machine_in_words(on),
        markdown_table(*table_of_checks(content["checks"]), "---:"),
        f"{workers} workers of one core each:",
        markdown_table(*table_of_plans(on, workers), "---:"),
        f"{origin(content['machine'])}.",
    ]
    return "\n\n".join(parts) + "\n"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.cluster_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure this machine first")
    parser.add_argument("--workers", type=int, help="print the plans for so many, and write nothing")
    chosen = parser.parse_args(words)
    if chosen.measure:
        content = rounded({"machine": describe_machine(), **measure()})
        KEPT.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    text = page(json.loads(KEPT.read_text()), chosen.workers or 100)
    print(text, end="")
    if not chosen.workers:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
