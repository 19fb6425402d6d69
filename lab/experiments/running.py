"""Runs what is missing, here or in pinned processes, and writes each row as soon as it is there."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

from lab.machine import count_cores, provenance

from .harness import Rules, measure, warm_up
from .ledger import SETTINGS, Ledger, records
from .methods import EVERYONE, Method
from .plan import Experiment
from .problems import Case, make
from .progress import Progress


@dataclass(frozen=True)
class Task:
    """One run to be done."""

    experiment: str
    case: Case
    method: str
    seed: int
    rules: Rules

    @property
    def row(self) -> dict[str, Any]:
        """What is known of the row before the run; its key is among it."""
        return {
            "experiment": self.experiment,
            **asdict(self.case),
            "method": self.method,
            "solver": EVERYONE[self.method].solver,
            "seed": self.seed,
            "settings": SETTINGS,
            "budget": self.rules.budget,
        }


Done = tuple[Task, dict[str, Any], float]
Skip = Callable[[Task], bool]


def run(experiment: Experiment, ledger: Ledger, methods: Sequence[Method], workers: int = 1) -> int:
    """Add every missing row, seeds interleaved: case, then seed, then method. Returns how many were run."""
    tasks = [
        task
        for case in experiment.cases
        for seed in range(experiment.seeds)
        for method in methods
        if (task := Task(experiment.name, case, method.name, seed, experiment.rules)).row not in ledger
    ]
    where = provenance()
    progress = Progress(experiment.name, Counter(task.method for task in tasks), workers)

    def skip(task: Task) -> bool:
        past = records([row for row in ledger.rows if row["method"] == task.method])
        given_up = experiment.given_up(past, task.case, experiment.seeds)
        if given_up:
            progress.skipped(task.method)
        return given_up

    count = 0
    for task, measured, seconds in _in_processes(tasks, skip, workers) if workers > 1 else _here(tasks, skip):
        row = task.row | where | measured
        ledger.append(row)
        count += 1
        told = f"{task.method}, seed {task.seed}: {row['status'].partition(':')[0]}"
        progress.ran(task.method, seconds, told)
    progress.close()
    return count


def perform(task: Task) -> Done:
    """One run, with all that is not to be timed around it."""
    warm_up(task.method)
    started = time.perf_counter()
    measured = measure(EVERYONE[task.method], make(task.case, task.seed), task.seed, task.rules)
    measured |= {"cores": count_cores(), "date": time.strftime("%Y-%m-%d")}
    return task, measured, time.perf_counter() - started


def _here(tasks: list[Task], skip: Skip) -> Iterator[Done]:
    for task in tasks:
        if not skip(task):
            yield perform(task)


def _in_processes(tasks: list[Task], skip: Skip, workers: int) -> Iterator[Done]:
    """As many runs at a time as there are processes, so that a case is given up as soon as that is known."""
    context = get_context("spawn")  # each with its own numba and its own threads
    shares = context.Queue()
    for share in core_shares(workers):
        shares.put(share)
    with ProcessPoolExecutor(workers, context, _pin, (shares,)) as pool:
        running: set[Future[Done]] = set()
        for task in tasks:
            if skip(task):
                continue
            running.add(pool.submit(perform, task))
            if len(running) == workers:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ended)
        for future in running:
            yield future.result()


def core_shares(workers: int) -> list[set[int]]:
    """Cores of each worker: equally many, none shared."""
    if not hasattr(os, "sched_setaffinity"):
        raise OSError("several workers need os.sched_setaffinity, to keep off each other's cores: use --workers 1")
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // workers
    if each == 0:
        raise ValueError(f"{workers} workers on {len(cores)} cores: use --workers {len(cores)} or fewer")
    return [set(cores[k * each : (k + 1) * each]) for k in range(workers)]


def _pin(shares: Any) -> None:
    os.sched_setaffinity(0, shares.get())
