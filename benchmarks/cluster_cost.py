"""What a solve costs on a cluster: bytes, flops, seconds, and what is the bottleneck.

    python -m benchmarks.cluster_cost                 # the tables, from benchmarks/results/cluster_cost.json
    python -m benchmarks.cluster_cost --measure       # measure this machine first, check the simulation, write the JSON

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
from pathlib import Path
from typing import Any

import numpy as np

from . import stores
from .cluster import processes
from .runner import ROOT, machine, origin, table

RESULTS = ROOT / "benchmarks" / "results" / "cluster_cost.json"
NETWORK = 1.25e9  # bytes a second, each way: 10 Gbit/s
FAN_IN = 8  # answers that are summed at once
RANK, FEATURES = 5, 20


@dataclass(frozen=True)
class Machine:
    """Seconds, of one core, as measured; ``network`` is given, in bytes a second."""

    read_byte: float  # of M, read from a store in the page cache and unpacked
    disk_byte: float  # of M, where the disk is the limit, whatever the number of cores
    entry: float  # of M, in a question without flops: looked at, compared, counted
    flop: float  # beyond that
    observation: float  # of a long table, in one question of a fit to it; features, sweeps and all
    parquet_observation: float  # read from Parquet and brought into order
    parquet_bytes: float  # of an observation in the file
    task: float  # of the scheduler, which has one core
    question: float  # the fixed part: an empty graph, there and back
    network: float = NETWORK


@dataclass(frozen=True)
class Question:
    """What one read is asked for."""

    name: str
    flops: float  # an entry
    sent: float  # bytes a line of M, of rows and of columns: what travels to the workers
    lines: float  # bytes a line of M of a chunk's answer, of both sides together
    whole: float  # bytes of the part that is as small as the features


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
    def chunks(self) -> int:
        return -(-self.n1 // self.chunk) * -(-self.n2 // self.chunk)

    @property
    def lines_of_chunk(self) -> float:
        return self.chunk

    def seconds(self, on: Machine, question: Question, entries: float) -> float:
        return entries * (4 * on.read_byte + on.entry + on.flop * question.flops)

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
    def chunks(self) -> int:
        return max(1, round(self.observed / self.band))

    @property
    def lines_of_chunk(self) -> float:
        return self.n1 / self.chunks + self.n2

    def seconds(self, on: Machine, question: Question, entries: float) -> float:
        return entries * (on.parquet_observation + on.observation)

    def bytes_read(self, on: Machine) -> float:
        return self.observed * on.parquet_bytes


def questions(rank: int = RANK, d: int = FEATURES) -> dict[str, Question]:
    """Those of a solve: bytes of float32 factors, answers of lines in float32, of moments in float64."""
    K = rank
    return {
        "survey": Question("survey", 0, 0, 0, 8 * 64),
        "core": Question("core", 2 * (rank + d), 4 * (rank + d), 0, 8 * d * d),
        "products": Question("products", 4 * rank + 2 * rank, 4 * 2 * rank, 4 * rank, 8 * 64),
        "moments": Question("moments", 2 * rank + K * K, 4 * rank, 8 * (K * (K + 1) / 2 + K), 8 * 64),
        "outliers": Question("outliers", 2 * rank, 4 * rank, 0, 8 * 64),
    }


def cost(M: Dense | Listed, question: Question, on: Machine, workers: int) -> dict[str, float]:
    """Of one read: what is read, moved and computed, and how long each would take alone."""
    lines = M.n1 + M.n2
    # A worker keeps the factors it was sent; with few chunks it does not need them all.
    sent = question.sent * min(workers * lines, 2 * M.chunks * M.lines_of_chunk)
    answers = M.chunks * (question.lines * M.lines_of_chunk + question.whole)
    tasks = M.chunks * (1 + 1 / (FAN_IN - 1))
    work = M.seconds(on, question, M.entries)
    return {
        "bytes_read": M.bytes_read(on),
        "flops": M.entries * question.flops,
        "bytes_sent": sent,
        "bytes_answered": answers,
        "tasks": tasks,
        "seconds_working": work / workers,
        "seconds_scheduling": tasks * on.task,
        "seconds_sending": sent / workers / on.network * (1 + np.log2(workers)),  # from worker to worker, in a tree
        "seconds_answering": answers / workers / on.network,
    }


def seconds(M: Dense | Listed, question: Question, on: Machine, workers: int) -> float:
    """Of one read, by simulation."""
    spent = cost(M, question, on, workers)
    each = M.seconds(on, question, M.entries) / M.chunks
    answer = question.lines * M.lines_of_chunk + question.whole
    made = simulate(np.full(M.chunks, each), workers, on.task, answer / on.network)
    return on.question + spent["seconds_sending"] + made


def simulate(chunks: Sequence[float], workers: int, task: float, transfer: float = 0.0, merge: float = 0.0) -> float:
    """How long a graph takes: chunks, and their sums in a tree.

    ``chunks`` are the seconds of each, ``task`` those that the scheduler spends on any task, one after the other, and
    ``transfer`` those of one answer on the network; a sum waits for the answers of others, and takes ``merge`` itself.
    """
    sizes = [len(chunks)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // FAN_IN))
    waiting = [[FAN_IN] * size for size in sizes]
    for level in range(1, len(sizes)):
        waiting[level][-1] = sizes[level - 1] - FAN_IN * (sizes[level] - 1)
    last = [[0.0] * size for size in sizes]  # when the last answer for a sum was there
    free = [(0.0, worker) for worker in range(workers)]
    ready: list[tuple[float, int, int]] = []
    given, left, end = 0, iter(range(len(chunks))), 0.0
    following = next(left, None)
    while following is not None or ready:
        at, worker = heapq.heappop(free)
        if ready and (ready[0][0] <= at or following is None):
            when, level, k = heapq.heappop(ready)
            level, k, length = level, k, merge + transfer * (min(FAN_IN, sizes[level - 1]) - 1) / FAN_IN
            start = max(at, when)
        else:
            assert following is not None
            level, k, length, start = 0, following, chunks[following], at
            following = next(left, None)
        given += 1
        done = max(start, given * task) + length
        end = max(end, done)
        heapq.heappush(free, (done, worker))
        if level + 1 < len(sizes):
            parent = k // FAN_IN
            waiting[level + 1][parent] -= 1
            last[level + 1][parent] = max(last[level + 1][parent], done)
            if waiting[level + 1][parent] == 0:
                heapq.heappush(ready, (last[level + 1][parent] + transfer, level + 1, parent))
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


def alone(run: Callable[[], Any]) -> float:
    """The median of five, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        run()
        return statistics.median(timed(run) for _ in range(5))
    finally:
        os.sched_setaffinity(0, cores)


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
    fit = alone(lambda: found.append(irpca.solve(M, F1, F2, rank=d)))
    return {
        "parquet_observation": alone(read) / observed,
        "parquet_bytes": file.stat().st_size / observed,
        "observation": fit / found[-1].reads / observed,
    }


def of_dask(few: int = 200, many: int = 2200) -> dict[str, float]:
    """Tasks that do nothing, on two workers: a fixed part, and so much each."""
    import dask

    def graph(size: int) -> Callable[[], Any]:
        task = dask.delayed(abs, pure=False)
        return lambda: dask.compute(*(task(k) for k in range(size)))

    with processes(2) as client, client.as_current():
        short, long, one = (statistics.median(timed(graph(size)) for _ in range(5)) for size in (few, many, 1))
    return {"task": (long - short) / (many - few), "question": one}


def checked(path: Path, recipe: stores.Recipe, on: Machine) -> list[dict[str, float]]:
    """A graph of real chunks, read, unpacked and asked for their core, on one worker and on two: said and measured."""
    import dask

    one, many = dask.delayed(answered, pure=False), dask.delayed(summed, pure=False)

    def run() -> Any:
        level = [one(str(path), recipe, place) for place in recipe.places()]
        while len(level) > 1:
            level = [many(level[k : k + FAN_IN]) for k in range(0, len(level), FAN_IN)]
        return level[0].compute()

    M, question = Dense(recipe.n1, recipe.n2, recipe.chunk), questions()["core"]
    found = []
    for workers in (1, 2):
        with processes(workers) as client, client.as_current():
            for core, address in enumerate(client.scheduler_info(n_workers=-1)["workers"]):
                client.run(pinned, core, workers=[address])
            run()
            taken = statistics.median(timed(run) for _ in range(3))
        said = seconds(M, question, on, workers)
        found.append({"workers": workers, "chunks": M.chunks, "said": said, "measured": taken})
    return found


def pinned(core: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


def answered(path: str, recipe: stores.Recipe, place: stores.Place) -> np.ndarray:
    import zarr

    from irpca import LowRank

    rows, cols = recipe.slices(place)
    F1, F2, L = recipe.known
    chunk = zarr.open_array(path, mode="r")[rows, cols]
    return asked(chunk, LowRank(L.left[rows], L.core, L.right[cols]), F1[rows], F2[cols])


def summed(parts: list[np.ndarray]) -> np.ndarray:
    return np.sum(parts, axis=0)


# What is said about a hundred workers.

PLANS: dict[str, tuple[Dense | Listed, dict[str, float]]] = {
    "10⁶ × 10⁶ float32, exact, chunks of 64 MB": (Dense(10**6, 10**6, 4000), {"survey": 1, "outliers": 1}),
    "10⁶ × 10⁶ float32, exact, chunks of 400 MB": (Dense(10**6, 10**6, 10_000), {"survey": 1, "outliers": 1}),
    "10⁶ × 10⁶ float32, noise, chunks of 400 MB": (
        Dense(10**6, 10**6, 10_000),
        {"survey": 1, "core": 2, "outliers": 1},
    ),
    "10¹⁰ observations, 10⁷ × 10⁵": (Listed(10**7, 10**5, 1e10), {"survey": 1, "moments": 30, "outliers": 1}),
}


def planned(M: Dense | Listed, reads: dict[str, float], on: Machine, workers: int) -> dict[str, float]:
    """A whole solve: the sums over its reads."""
    ask = questions() if isinstance(M, Dense) else questions(10, 20)
    whole: dict[str, float] = {"reads": sum(reads.values()), "seconds": 0.0}
    for name, count in reads.items():
        for key, value in cost(M, ask[name], on, workers).items():
            whole[key] = whole.get(key, 0.0) + count * value
        whole["seconds"] += count * seconds(M, ask[name], on, workers)
    return whole


def tables(content: dict[str, Any], workers: int = 100) -> str:
    on = Machine(**content["of_one_core"])
    parts = [
        "one core: "
        f"{1e-9 / on.read_byte:.2f} GB/s unpacked, {1e-9 / on.flop:.1f} Gflop/s, {1e9 * on.entry:.2f} ns an entry, "
        f"{1e9 * on.parquet_observation:.0f} ns an observation from Parquet ({on.parquet_bytes:.1f} bytes), "
        f"{1e9 * on.observation:.0f} ns in each read of a fit; disk {1e-9 / on.disk_byte:.2f} GB/s; "
        f"{1e3 * on.task:.2f} ms a task, {1e3 * on.question:.0f} ms a question; network {on.network / 1e9:.2f} GB/s",
        table(
            ("workers", "chunks", "said, s", "measured, s", "said / measured"),
            [
                (
                    str(row["workers"]),
                    str(row["chunks"]),
                    f"{row['said']:.2f}",
                    f"{row['measured']:.2f}",
                    f"{row['said'] / row['measured']:.2f}",
                )
                for row in content["checks"]
            ],
        ),
    ]
    plans = {name: (M, planned(M, reads, on, workers)) for name, (M, reads) in PLANS.items()}
    parts.append(f"{workers} workers of one core each, seconds by simulation:")
    for name, (M, whole) in plans.items():
        parts.append(
            f"{name}\n  {whole['reads']:.0f} reads, {M.chunks:,} chunks, {whole['bytes_read'] / 1e12:.3g} TB read, "
            f"{whole['flops']:.2g} flops, {whole['bytes_sent'] / 1e9:.3g} GB sent, "
            f"{whole['bytes_answered'] / 1e9:.3g} GB answered\n  {whole['seconds']:.0f} s in all; alone: working "
            f"{whole['seconds_working']:.0f} s, scheduling {whole['seconds_scheduling']:.0f} s, sending "
            f"{whole['seconds_sending']:.1f} s, answering {whole['seconds_answering']:.1f} s"
        )
    return "\n\n".join(parts)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure this machine first")
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="PATH")
    chosen = parser.parse_args(words)
    if chosen.measure:
        from .__main__ import rounded

        content = rounded({"machine": machine(), **measure()})
        chosen.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    content = json.loads(chosen.json.read_text())
    print(tables(content, chosen.workers), origin(content["machine"]), sep="\n\n")


if __name__ == "__main__":
    main()
