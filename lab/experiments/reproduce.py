"""``make reproduce``: every number of the documentation measured anew, in one go, on this machine.

    python -m lab.experiments.reproduce                 # what was not measured on this version of src/ yet
    python -m lab.experiments.reproduce --list          # the stages, how long each took, and which are older than src/
    python -m lab.experiments.reproduce fig1a speed     # some of them, even if nothing has changed

A stage is a command. What it prints is kept as ``results/NAME.txt`` under a line that says when, where and on which
commit it was run; its figures and CSVs are replaced. A run that was stopped begins again with the stage it was in. A
stage that cannot be run here, for want of data, a GPU or a package, says so, and what is kept of it stays.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lab.machine import DATA, ROOT, count_cores, describe_machine, origin

from .study import RESULTS


def _nothing() -> str:
    return ""


def _real_data() -> str:
    folder = Path(os.environ["IRPCA_DATA"]) if "IRPCA_DATA" in os.environ else DATA
    return "" if folder.is_dir() else "IRPCA_DATA names no folder with the data sets"


def _gpu() -> str:
    if find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    return "" if torch.cuda.is_available() else "there is no CUDA device"


def _dask() -> str:
    return "" if find_spec("distributed") else "dask is not installed"


@dataclass(frozen=True)
class Stage:
    """One command.

    Attributes
    ----------
    words : what follows ``python -m``; ``{cores}`` is replaced by their number
    replaces : files of earlier runs, to which the command would only add
    lacking : why it cannot be run here, or nothing
    """

    name: str
    words: str
    replaces: tuple[str, ...] = ()
    lacking: Callable[[], str] = _nothing

    @property
    def kept(self) -> Path:
        return RESULTS / f"{self.name}.txt"

    def command(self) -> list[str]:
        return [sys.executable, "-m", *self.words.format(cores=count_cores()).split()]

    def origin(self) -> str:
        """The line that says where what is kept was measured."""
        return self.kept.read_text().partition("\n")[0] if self.kept.exists() else ""

    def current(self) -> bool:
        """Whether what is kept was measured on src/ as it is."""
        commit = self.origin().partition("irpca at ")[2].partition(",")[0]
        known = bool(commit) and " " not in commit
        return known and not subprocess.run(["git", "diff", "--quiet", commit, "--", "src"], cwd=ROOT).returncode

    def run(self) -> bool:
        """Run it, and keep what it printed if it ended well."""
        for name in self.replaces:
            (ROOT / name).unlink(missing_ok=True)
        on, started = describe_machine(), time.perf_counter()
        done = subprocess.run(self.command(), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - started
        if done.returncode == 0:
            self.kept.write_text(f"{origin(on)}, {seconds / 60:.1f} minutes\n\n{done.stdout}")
        print(f"{self.name}: {'done' if done.returncode == 0 else 'FAILED'} in {seconds / 60:.1f} minutes", flush=True)
        return done.returncode == 0


def _rows(name: str) -> str:
    return f"lab/experiments/results/{name}.csv"


def _random(first: int, name: str) -> Stage:
    words = f"lab.experiments.random_tables --first {first} --jobs {{cores}} --out {_rows(name)}"
    return Stage(name, words, (_rows(name),))


def _figure(name: str, seeds: int, workers: str = "{cores}", lacking: Callable[[], str] = _nothing) -> Stage:
    return Stage(name, f"lab.experiments {name} --seeds {seeds} --workers {workers}", (_rows(name),), lacking)


def _study(name: str, seeds: int, lacking: Callable[[], str] = _nothing, jobs: str = "{cores}") -> Stage:
    return Stage(name, f"lab.experiments.{name} --seeds {seeds} --jobs {jobs}", (_rows(name),), lacking)


def _benchmark(name: str, words: str, file: str, lacking: Callable[[], str] = _nothing) -> Stage:
    return Stage(name, f"lab.benchmarks{words} --json lab/benchmarks/results/{file}.json", (), lacking)


STAGES = (
    _random(0, "random_tables"),
    _random(10_000, "random_tables_10000"),
    _study("real_tables", 2, _real_data),
    _study("kept_right", 4),
    _study("calibration", 1),
    _study("dominance", 1),
    _study("holes", 2, _real_data, jobs="1"),  # as this and those below are timed, they have all cores
    _study("traffic", 3, _real_data, jobs="1"),
    *(_figure(name, 3) for name in ("fig1a", "fig1b", "fig1c", "fig1d")),
    _figure("phase", 1),
    _figure("scaling", 2, workers="1"),  # a large matrix needs the memory of the whole machine
    Stage("methods", "lab.experiments table"),
    _benchmark("speed", "", "latest"),
    Stage("speed_table", "lab.benchmarks table"),
    _figure("fig2", 3, lacking=_real_data),
    _study("seeds", 5, _real_data),
    _study("imperfect", 2, jobs="1"),
    Stage("ratings", "lab.experiments.ratings", (_rows("ratings"), _rows("ratings_found")), _real_data),
    _benchmark("workers", " workers overhead", "cluster", _dask),
    _benchmark("small_workers", " small-workers", "out_of_core", _dask),
    Stage("cluster_cost", "lab.benchmarks.cluster_cost --measure", (), _dask),
    _benchmark("out_of_core", " out-of-core", "out_of_core", _dask),
    _benchmark("gpu", ".gpu", "gpu", _gpu),
)


def main(words: list[str] | None = None) -> int:
    names = [stage.name for stage in STAGES]
    parser = argparse.ArgumentParser(prog="python -m lab.experiments.reproduce", description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="stage", help=f"of {', '.join(names)} (those not yet current)")
    parser.add_argument("--list", action="store_true", help="run nothing, say what is there")
    chosen = parser.parse_args(words)
    if unknown := set(chosen.stages) - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    wanted = [stage for stage in STAGES if stage.name in chosen.stages or not chosen.stages]
    if chosen.list:
        for stage in wanted:
            print(f"{stage.name:20} {'current' if stage.current() else 'older':8} {stage.origin() or 'never run'}")
        return 0
    failed = []
    for stage in wanted:
        if why := stage.lacking():
            print(f"{stage.name}: not run, {why}", flush=True)
        elif (chosen.stages or not stage.current()) and not stage.run():
            failed.append(stage.name)
    print(f"{len(failed)} stages failed{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
