"""One measurement of many tables: cases spread over processes, one or two versions of irpca, one CSV.

Every script that uses this has the same options::

    python -m lab.experiments.NAME --jobs 16 --label new --against ../old/src --data DIR --out FILE.csv

The CSV has one row per case and version. Rows of the labels of this run are replaced, those of other labels stay, so
that versions may also be measured on different days. ``--resume`` keeps what is there and runs what is missing,
``--report`` runs nothing, and ``--quick`` runs a few small cases in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lab.machine import DATA, PROVENANCE, ROOT, provenance
from lab.rows import Row, append, in_order, number, read, text, where, write

RESULTS = Path(__file__).resolve().parent / "results"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
WORDS = ("version", "doubts", *PROVENANCE)  # columns that hold no numbers

Case = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """What is measured, and what is said about it.

    Attributes
    ----------
    name : of the CSV
    cases : all cases, or a few small ones if quick; the same columns in all, "seed" among them if there are seeds
    measure : the other columns of the row of one case; a function of a module, so that processes can be sent it
    measured : the names of these columns; those of ``PROVENANCE`` among them are filled in
    report : what is printed at the end, from all rows of the run
    finish : fills in, in place, columns that need more than one row of a version
    warm_up : measure the quick cases first, in every process, to compile what is needed outside every clock
    """

    name: str
    cases: Callable[[bool], list[Case]]
    measure: Callable[[Case], Row]
    measured: tuple[str, ...]
    report: Callable[[list[Row]], str]
    finish: Callable[[list[Row]], None] = lambda rows: None
    warm_up: bool = False

    def main(self, words: Sequence[str] | None = None) -> list[Row]:
        """Run from the command line."""
        return self.run(options(self.name, words))

    def run(self, chosen: argparse.Namespace) -> list[Row]:
        """Measure what is missing, version after version."""
        cases = self.chosen_cases(chosen)
        if chosen.report:
            return self._end(chosen, cases)
        known = {_key(row, ("version", *cases[0])) for row in self._begin(chosen)}
        first = self.cases(True) if self.warm_up and not chosen.quick else []
        for label, source in versions(chosen).items():
            missing = [case for case in cases if (label, *_key(case, case)) not in known]
            for count, (case, found) in enumerate(spread(self.measure, missing, chosen.jobs, source, first), 1):
                self._keep(chosen, label, case, found, f"{count}/{len(missing)}")
        return self._end(chosen, cases)

    def store(self, chosen: argparse.Namespace, found: Iterable[tuple[Case, dict[str, Row]]]) -> list[Row]:
        """The same for what was measured elsewhere: cases, and for each a row per version."""
        cases = self.chosen_cases(chosen)
        self._begin(chosen)
        for count, (case, rows) in enumerate(found, 1):
            for label, row in rows.items():
                self._keep(chosen, label, case, row, f"{count}/{len(cases)}")
        return self._end(chosen, cases)

    def chosen_cases(self, chosen: argparse.Namespace) -> list[Case]:
        return [case for case in self.cases(chosen.quick) if case.get("seed", 0) < chosen.seeds]

    def columns(self) -> tuple[str, ...]:
        return ("version", *self.cases(True)[0], *self.measured)

    def rows(self, path: Path | None = None) -> list[Row]:
        """What is in a file (``results/NAME.csv``), numbers as numbers."""
        rows = self._read(path or RESULTS / f"{self.name}.csv")
        return [{name: cell if name in WORDS else number(cell) for name, cell in row.items()} for row in rows]

    def _read(self, path: Path) -> list[Row]:
        rows: list[Row] = list(read(path))
        if rows and tuple(rows[0]) != self.columns():
            sys.exit(f"{path} has other columns than this version writes: move it away, or choose another --out")
        return rows

    def _begin(self, chosen: argparse.Namespace) -> list[Row]:
        """The rows that need not be measured again; those that are replaced leave the file."""
        rows, labels = self._read(chosen.out), versions(chosen)
        write(chosen.out, self.columns(), [row for row in rows if chosen.resume or row["version"] not in labels])
        return [row for row in rows if chosen.resume]

    def _keep(self, chosen: argparse.Namespace, label: str, case: Case, found: Row, count: str) -> None:
        found = found | (_here() if set(PROVENANCE) <= set(self.measured) else {})
        row = {"version": label, **case, **{name: found.get(name) for name in self.measured}}
        append(chosen.out, row)
        print(f"{self.name} {label} {count}  {_told(row)}", file=sys.stderr, flush=True)

    def _end(self, chosen: argparse.Namespace, cases: list[Case]) -> list[Row]:
        rows = self.rows(chosen.out)
        if not rows:
            sys.exit(f"no rows in {chosen.out}: leave out --report to run {self.name}")
        labels = list(dict.fromkeys([*versions(chosen), *(row["version"] for row in rows)]))
        for label in labels:
            self.finish([row for row in rows if row["version"] == label])
        order = {_key(case, case): place for place, case in enumerate(cases)}
        rows.sort(key=lambda row: (labels.index(row["version"]), order.get(_key(row, cases[0]), len(order))))
        if not chosen.report:
            write(chosen.out, self.columns(), rows)
        print(self.report(rows))
        out = chosen.out.resolve()
        print(f"{len(rows)} rows in {out.relative_to(ROOT) if out.is_relative_to(ROOT) else out}")
        return rows


def options(
    name: str, words: Sequence[str] | None = None, more: Iterable[tuple[str, dict[str, Any]]] = ()
) -> argparse.Namespace:
    """The options that all scripts share, and ``more`` arguments of one of them."""
    parser = argparse.ArgumentParser(description=f"measure {name}")
    for flag, told in more:
        parser.add_argument(flag, **told)
    parser.add_argument("--quick", action="store_true", help="few and small cases, into a temporary folder")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes; of one thread each if more than 1")
    parser.add_argument("--seeds", type=int, default=sys.maxsize, metavar="N", help="fewer seeds per setting")
    parser.add_argument("--label", default="current", help="of the version on the path, in the column 'version'")
    parser.add_argument("--against", type=Path, metavar="SRC", help="the src folder of another version")
    parser.add_argument("--against-label", default="0.1", metavar="LABEL", help="of that version (0.1)")
    parser.add_argument("--only-against", action="store_true", help="measure the other version alone")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the data (IRPCA_DATA, else ../shared/data)")
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help=f"the rows (results/{name}.csv)")
    parser.add_argument("--resume", action="store_true", help="run only what is not in the file yet")
    parser.add_argument("--report", action="store_true", help="run nothing, say what is in the file")
    chosen = parser.parse_args(words)
    if chosen.jobs < 1 or chosen.seeds < 1:
        parser.error("--jobs and --seeds must be at least 1")
    if chosen.against and not (chosen.against / "irpca").is_dir():
        parser.error(f"--against {chosen.against}: there is no folder irpca in it")
    if chosen.only_against and not chosen.against:
        parser.error("--only-against needs --against")
    if chosen.against and chosen.against_label == chosen.label:
        parser.error("--label and --against-label must differ")
    folder = Path(tempfile.mkdtemp(prefix="study-")) if chosen.quick and not chosen.out else RESULTS
    chosen.out = chosen.out or folder / f"{name}.csv"
    if chosen.quick and chosen.out.resolve().is_relative_to(RESULTS):
        parser.error("--quick does not write where the real results are: choose another --out")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    if chosen.data or "IRPCA_DATA" not in os.environ:
        os.environ["IRPCA_DATA"] = str((chosen.data or DATA).resolve())
    return chosen


def versions(chosen: argparse.Namespace) -> dict[str, Path | None]:
    """The source folder of every label; None for the version that is on the path."""
    other = {chosen.against_label: chosen.against.resolve()} if chosen.against else {}
    return other if chosen.only_against else {chosen.label: None} | other


def spread(
    measure: Callable[[Case], Row],
    cases: Sequence[Case],
    jobs: int = 1,
    source: Path | None = None,
    first: Sequence[Case] = (),
) -> Iterator[tuple[Case, Row]]:
    """Every case and what was measured, in the order in which they end; before that every process has its ``first``."""
    if not cases:
        return
    if jobs == 1 and source is None:
        _measure_all(measure, first)
        yield from ((case, attempt(measure, case)) for case in cases)
        return
    with workers(jobs, source, begin=partial(_measure_all, measure, first)) as submit:
        running = {submit(attempt, measure, case): case for case in cases}
        for future in as_completed(running):
            yield running[future], future.result()


def attempt(measure: Callable[[Case], Row], case: Case) -> Row:
    """What was measured, or the error as a status: one table must not end the run."""
    try:
        return measure(case)
    except Exception as error:
        return {"status": f"ERROR {type(error).__name__}: {' '.join(str(error).split())[:160]}", "verdict": "error"}


def _measure_all(measure: Callable[[Case], Row], cases: Sequence[Case]) -> None:
    for case in cases:
        attempt(measure, case)


@contextmanager
def workers(
    jobs: int, source: Path | None = None, core: int | None = None, begin: Callable[[], None] | None = None
) -> Iterator[Callable[..., Future[Any]]]:
    """Processes that import irpca from ``source``; several, or one with a ``core``, have one thread and one core each.

    What is handed in is submitted at once, under the path and the environment that the processes are to start with.
    """
    context = get_context("spawn")
    places = context.Queue()
    single = jobs > 1 or core is not None
    cores = sorted(os.sched_getaffinity(0)) if single and hasattr(os, "sched_getaffinity") else [None]
    for k in range(jobs):
        places.put(cores[(k + (core or 0)) % len(cores)])

    def submit(*work: Any) -> Future[Any]:
        with _started_with(source, single):
            return pool.submit(*work)

    with ProcessPoolExecutor(jobs, context, _settle, (places, source, begin)) as pool:
        try:
            yield submit
        finally:
            pool.shutdown(cancel_futures=True)


def report_each_version(report: Callable[[list[Row]], str]) -> Callable[[list[Row]], str]:
    """A report on the rows of one version becomes one on the rows of all."""

    def report_all(rows: list[Row]) -> str:
        parts = {label: report(where(rows, version=label)) for label in in_order(rows, "version")}
        return "\n\n".join(parts.values() if len(parts) == 1 else map("\n".join, parts.items()))

    return report_all


@contextmanager
def _started_with(source: Path | None, single: bool) -> Iterator[None]:
    """New processes take over the module search path and the environment of this one."""
    path, environment = list(sys.path), dict(os.environ)
    if source is not None:
        sys.path.insert(0, str(source))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(source), environment.get("PYTHONPATH")]))
    if single:
        os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)


def _settle(places: Any, source: Path | None, begin: Callable[[], None] | None) -> None:
    core = places.get()
    if core is not None:
        os.sched_setaffinity(0, {core})
    import irpca

    if source is not None and not Path(irpca.__file__).resolve().is_relative_to(source):
        raise ImportError(f"irpca came from {irpca.__file__}, not from {source}")
    if begin is not None:
        begin()


def _key(row: Row, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(text(row[name]) for name in names)


@cache
def _here() -> Row:
    return provenance()


def _told(row: Row) -> str:
    return ", ".join(f"{name} {text(value)}" for name, value in row.items() if name != "version" and text(value))[:200]
