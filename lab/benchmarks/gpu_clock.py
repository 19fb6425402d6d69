"""Where the GPU benchmark runs, what it times, and where the time of a solve goes."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .case import Found
from .gpu_tasks import Recipe, Task, make
from .runner import Rounds, times

# All questions that a solver, or the loop around it, may ask; the last two are what `normal` asks later.
QUESTIONS = (
    *("survey", "recall", "glance", "place", "core", "products", "normal", "solve_lines", "whole"),
    *("corruption", "write", "block", "entries", "draw", "asked_products", "_read"),
)


class Bench:
    """A device, and the one large problem that is kept there from one section to the next."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.task: Task | None = None

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")

    def engine(self, M: Any, **options: Any) -> Any:
        """The GPU engine; on a CPU with its torch kernels, so that everything can be tried without a GPU."""
        from irpca.engines.gpu import GPUEngine

        return GPUEngine(M, device=self.device, kernels="auto" if self.cuda else "torch", **options)

    def problem(self, recipe: Recipe, noise: float = 0.0) -> Task:
        """That problem: the one that is there, if it is the same or becomes it by adding noise."""
        kept = self.task
        if kept is None or kept.recipe != recipe or kept.noise not in (0.0, noise):
            del kept
            self.release()
            self.task = kept = make(recipe, self.device)
        if noise and not kept.noise:
            kept.add_noise(noise)
        return kept

    def release(self) -> None:
        self.task = None
        self.free()

    def free(self) -> None:
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def sync(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def on_device(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """What work answers, and the seconds between two events around it; on a CPU those of a clock."""
        if not self.cuda:
            started = time.perf_counter()
            answer = work()
            return answer, time.perf_counter() - started
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        answer = work()
        end.record()
        end.synchronize()
        return answer, start.elapsed_time(end) / 1e3

    def waited(self, work: Callable[[], Any]) -> Any:
        """What work answers, when the device has nothing left to do."""
        answer = work()
        self.sync()
        return answer


class Clocked:
    """A module, of which one function is timed on the device."""

    def __init__(self, module: Any, name: str, bench: Bench) -> None:
        self.module, self.name, self.bench = module, name, bench
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.module, name)
        return self._timed(found) if name == self.name else found

    def _timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            answer, seconds = self.bench.on_device(lambda: work(*args, **options))
            self.seconds += seconds
            return answer

        return run


def summed(records: dict[str, list[dict[str, Any]]], yardstick: str) -> Found:
    """Medians of all contenders and their ratios to one, with every round."""
    return {
        name: {**times(rounds, records[yardstick]), **_device(rounds, records[yardstick]), "rounds": rounds}
        for name, rounds in records.items()
    }


def _device(rounds: Rounds, yardstick: Rounds) -> dict[str, float]:
    """The same of what the device alone took, where that was measured."""
    if "device_seconds" not in rounds[0]:
        return {}
    key = "device_seconds"
    pairs = zip(rounds, yardstick, strict=True)
    return {
        key: statistics.median(record[key] for record in rounds),
        "device_ratio": statistics.median(record[key] / other[key] for record, other in pairs),
    }


@contextmanager
def questions_timed(engine: Any, sync: Callable[[], None]) -> Iterator[dict[str, dict[str, float]]]:
    """Calls and seconds of each question to an engine; one that is asked by another counts for that."""
    spent: dict[str, dict[str, float]] = {}
    inside: list[str] = []

    def timed(name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any, **options: Any) -> Any:
            if inside:
                return ask(*args, **options)
            inside.append(name)
            started = time.perf_counter()
            try:
                return ask(*args, **options)
            finally:
                sync()
                inside.pop()
                row = spent.setdefault(name, {"calls": 0, "seconds": 0.0})
                row["calls"] += 1
                row["seconds"] += time.perf_counter() - started

        return asked

    for name in QUESTIONS:
        if callable(ask := getattr(engine, name, None)):
            setattr(engine, name, timed(name, ask))
    try:
        yield spent
    finally:
        for name in QUESTIONS:
            vars(engine).pop(name, None)


def breakdown(bench: Bench, engine: Any, run: Callable[[Any], Any]) -> Found:
    """Where the seconds of a solve go: in questions to the engine, and between them; and what history says."""
    with questions_timed(engine, bench.sync) as spent:
        started = time.perf_counter()
        result = bench.waited(lambda: run(engine))
        seconds = time.perf_counter() - started
    history = result.history
    asked = dict(sorted(spent.items(), key=lambda item: -item[1]["seconds"]))
    return {
        "seconds": seconds,
        "questions": asked,
        "host_seconds": seconds - sum(row["seconds"] for row in asked.values()),
        "history": [
            {"stage": stage, "seconds": at, "reads": reads}
            for stage, at, reads in zip(history.stage, history.seconds, history.reads, strict=True)
        ],
        "engine": result.engine,
    }
