"""One measurement of many tables: cases spread over processes, one or two versions of irpca, one CSV.

Every script that uses this has the same options::

    python -m experiments.NAME --jobs 16 --label new --against ../old/src --data DIR --out FILE.csv [--quick] [--resume]

The CSV has one row per case and version. Rows of the labels of this run are replaced, those of other labels stay, so
that versions may also be measured on different days. ``--resume`` keeps what is there and runs what is missing.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

Case = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """What is measured, and what is said about it.

    Attributes
    ----------
    name : of the CSV
    cases : all cases, or a few small ones if quick; the same columns in all, "seed" among them if there are seeds
    measure : the other columns of the row of one case; a function of a module, so that processes can be sent it
    measured : the names of these columns
    report : what is printed at the end, from all rows of the run
    finish : fills in, in place, columns that need more than one row of a version
    """

    name: str
    cases: Callable[[bool], list[Case]]
    measure: Callable[[Case], Row]
    measured: tuple[str, ...]
    report: Callable[[list[Row]], str]
    finish: Callable[[list[Row]], None] = lambda rows: None

    def main(self, words: Sequence[str] | None = None, folder: Path = ROOT / "experiments" / "results") -> list[Row]:
        """Run from the command line."""
        return self.run(options(self.name, folder, words))

    def run(self, chosen: argparse.Namespace) -> list[Row]:
        """Measure what is missing, version after version."""
        cases = self.chosen_cases(chosen)
        known = {_key(row, ("version", *cases[0])) for row in self._begin(chosen, cases)}
        for label, source in versions(chosen).items():
            missing = [case for case in cases if (label, *_key(case, case)) not in known]
            for count, (case, found) in enumerate(spread(self.measure, missing, chosen.jobs, source), 1):
                self._keep(chosen, label, case, found, f"{count}/{len(missing)}")
        return self._end(chosen, cases)

    def store(self, chosen: argparse.Namespace, found: Iterable[tuple[Case, dict[str, Row]]]) -> list[Row]:
        """The same for what was measured elsewhere: cases, and for each a row per version."""
        cases = self.chosen_cases(chosen)
        self._begin(chosen, cases)
        for count, (case, rows) in enumerate(found, 1):
            for label, row in rows.items():
                self._keep(chosen, label, case, row, f"{count}/{len(cases)}")
        return self._end(chosen, cases)

    def chosen_cases(self, chosen: argparse.Namespace) -> list[Case]:
        return [case for case in self.cases(chosen.quick) if case.get("seed", 0) < chosen.seeds]

    def columns(self, case: Case) -> tuple[str, ...]:
        return ("version", *case, *self.measured)

    def _begin(self, chosen: argparse.Namespace, cases: list[Case]) -> list[Row]:
        """The rows that need not be measured again; those that are replaced leave the file."""
        columns, labels = self.columns(cases[0]), versions(chosen)
        rows = _read(chosen.out, columns)
        _write(chosen.out, columns, [row for row in rows if chosen.resume or row["version"] not in labels])
        return [row for row in rows if chosen.resume]

    def _keep(self, chosen: argparse.Namespace, label: str, case: Case, found: Row, count: str) -> None:
        row = {"version": label, **case, **{name: found.get(name) for name in self.measured}}
        _append(chosen.out, self.columns(case), row)
        print(f"{self.name} {label} {count}  {_told(row)}", file=sys.stderr, flush=True)

    def _end(self, chosen: argparse.Namespace, cases: list[Case]) -> list[Row]:
        rows = [_numbers(row) for row in _read(chosen.out, self.columns(cases[0]))]
        labels = list(dict.fromkeys([*versions(chosen), *(row["version"] for row in rows)]))
        for label in labels:
            self.finish([row for row in rows if row["version"] == label])
        order = {_key(case, case): place for place, case in enumerate(cases)}
        rows.sort(key=lambda row: (labels.index(row["version"]), order.get(_key(row, cases[0]), len(order))))
        _write(chosen.out, self.columns(cases[0]), rows)
        print(self.report(rows))
        out = chosen.out.resolve()
        print(f"{len(rows)} rows in {out.relative_to(ROOT) if out.is_relative_to(ROOT) else out}")
        return rows


def options(
    name: str, folder: Path, words: Sequence[str] | None = None, more: Iterable[tuple[str, dict[str, Any]]] = ()
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
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help=f"the rows ({folder.name}/{name}.csv)")
    parser.add_argument("--resume", action="store_true", help="run only what is not in the file yet")
    chosen = parser.parse_args(words)
    if chosen.jobs < 1 or chosen.seeds < 1:
        parser.error("--jobs and --seeds must be at least 1")
    if chosen.against and not (chosen.against / "irpca").is_dir():
        parser.error(f"--against {chosen.against}: there is no folder irpca in it")
    if chosen.only_against and not chosen.against:
        parser.error("--only-against needs --against")
    if chosen.against and chosen.against_label == chosen.label:
        parser.error("--label and --against-label must differ")
    folder = Path(tempfile.mkdtemp(prefix="study-")) if chosen.quick and not chosen.out else folder
    chosen.out = chosen.out or folder / f"{name}.csv"
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    if chosen.data or "IRPCA_DATA" not in os.environ:
        os.environ["IRPCA_DATA"] = str((chosen.data or ROOT.parent / "shared" / "data").resolve())
    return chosen


def versions(chosen: argparse.Namespace) -> dict[str, Path | None]:
    """The source folder of every label; None for the version that is on the path."""
    other = {chosen.against_label: chosen.against.resolve()} if chosen.against else {}
    return other if chosen.only_against else {chosen.label: None} | other


def spread(
    measure: Callable[[Case], Row], cases: Sequence[Case], jobs: int = 1, source: Path | None = None
) -> Iterator[tuple[Case, Row]]:
    """Every case and what was measured, in the order in which they end."""
    if not cases:
        return
    if jobs == 1 and source is None:
        yield from ((case, attempt(measure, case)) for case in cases)
        return
    with workers(jobs, source) as submit:
        running = {submit(attempt, measure, case): case for case in cases}
        for future in as_completed(running):
            yield running[future], future.result()


def attempt(measure: Callable[[Case], Row], case: Case) -> Row:
    """What was measured, or the error as a status: one table must not end the run."""
    try:
        return measure(case)
    except Exception as error:
        return {"status": f"ERROR {type(error).__name__}: {' '.join(str(error).split())[:160]}", "verdict": "error"}


@contextmanager
def workers(jobs: int, source: Path | None = None, core: int | None = None) -> Iterator[Callable[..., Future[Any]]]:
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

    with ProcessPoolExecutor(jobs, context, _settle, (places, source)) as pool:
        try:
            yield submit
        finally:
            pool.shutdown(cancel_futures=True)


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


def _settle(places: Any, source: Path | None) -> None:
    core = places.get()
    if core is not None:
        os.sched_setaffinity(0, {core})
    import irpca

    if source is not None and not Path(irpca.__file__).resolve().is_relative_to(source):
        raise ImportError(f"irpca came from {irpca.__file__}, not from {source}")


def text(value: Any) -> str:
    """A cell of the CSV; empty where nothing is known."""
    if value is None or value != value:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _key(row: Row, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(text(row[name]) for name in names)


def _numbers(row: Row) -> Row:
    return {name: value if name in ("version", "doubts") else _number(value) for name, value in row.items()}


def _number(value: Any) -> Any:
    try:
        return float(value) if value != "" else float("nan")
    except ValueError:
        return value


def _told(row: Row) -> str:
    return ", ".join(f"{name} {text(value)}" for name, value in row.items() if name != "version" and text(value))[:200]


def _read(path: Path, columns: Sequence[str]) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = [row for row in reader if None not in row.values()]  # a last line that was cut off does not count
    if tuple(reader.fieldnames or columns) != tuple(columns):
        sys.exit(f"{path} has other columns than this version writes: move it away, or choose another --out")
    return rows


def _write(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([text(row[name]) for name in columns] for row in rows)
    new.replace(path)


def _append(path: Path, columns: Sequence[str], row: Row) -> None:
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow([text(row[name]) for name in columns])


def lines(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of plain text: words to the left, numbers to the right."""
    cells = [list(map(str, header)), *([f"{x:.3g}" if isinstance(x, float) else str(x) for x in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    word = [any(isinstance(_number(c), str) for c in column[1:]) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(c.ljust(w) if left else c.rjust(w) for c, w, left in zip(row, widths, word, strict=True)).rstrip()
        for row in cells
    )


def seconds_of(work: Callable[[], Any]) -> tuple[Any, float]:
    """An answer, and how long it took."""
    started = time.perf_counter()
    answer = work()
    return answer, time.perf_counter() - started
