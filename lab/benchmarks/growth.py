"""W alone, on larger and larger M: its time should not grow as M does.

M is a memory-mapped float32 file, made a few rows at a time in a temporary folder; the largest, 50,000 × 50,000, has
10 GB. It is made smaller where the disk has not one and a half times as much to spare. After writing, a file that fits
into memory is still in the page cache: the last column tells how many pages had to come from the disk all the same.

Needed are a block of M and a sample of its entries, whose sizes depend on d and not on n, and F of both sides, n·d
numbers each: once to see that all are finite, once for the factors of L. From n = 2,000 to 50,000 the features grow
25-fold, to 32 MB, M 625-fold. Each sampled entry lies in a page of its own, which has to be mapped when it is first
touched.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from . import problems
from .case import Bar, Case, Found, Report, at_most
from .contenders import CONTENDERS, W_ONLY, check
from .runner import interleave, times, worst

ROOM = 1.5  # of the largest file, to be free on the disk


def measure(smallest: int, between: list[int], largest: int, repeats: int, **size: Any) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        fits = int((shutil.disk_usage(folder).free / ROOM / 4) ** 0.5)
        last = largest if largest <= fits else fits // 1000 * 1000
        ns = sorted({smallest, *(n for n in between if n < last), max(last, smallest)})
        tasks = [
            problems.make(Path(folder) / str(n), n, n, **size, dtype="float32", mapped=True, keep_S=False) for n in ns
        ]
        runs = {f"n = {n:,}": partial(CONTENDERS[W_ONLY], task) for n, task in zip(ns, tasks, strict=True)}
        task_of = dict(zip(runs, tasks, strict=True))
        records = interleave(runs, repeats, lambda name, answer: check(task_of[name], answer))
    first = next(iter(records.values()))
    return {
        "contenders": {
            name: {**times(rounds, first), "n": len(task.M), "M_bytes": task.M.nbytes, "rounds": rounds}
            for (name, rounds), task in zip(records.items(), tasks, strict=True)
        }
    }


def report(found: Found) -> Report:
    header = ("", "GB", "s", "min", "max", "/smallest", "reads", "error of L", "pages from disk")
    rows = [
        (
            name,
            f"{row['M_bytes'] / 1e9:.3g}",
            *(f"{row[key]:.3f}" for key in ("seconds", "fastest", "slowest")),
            f"{row['ratio']:.2f}",
            f"{worst(row['rounds'], 'reads'):.1e}",
            f"{worst(row['rounds'], 'error'):.1e}",
            str(worst(row["rounds"], "from_disk")),
        )
        for name, row in found["contenders"].items()
    ]
    size, largest = found["sizes"], max(row["n"] for row in found["contenders"].values())
    title = (
        f"{W_ONLY}; n × n float32 files, memory-mapped, d = {size['d']}, r = {size['rank']}, "
        f"{size['corruption']:.0%} corrupted"
    )
    short = [f"the disk had no room for n = {size['largest']:,}"] if largest < size["largest"] else []
    return Report(title, header, rows, short)


def bars(found: Found) -> list[Bar]:
    (first, _), *_, (last, row) = found["contenders"].items()
    rounds, disk = row["rounds"], worst(row["rounds"], "from_disk")
    source = f"{disk} pages from disk" if disk else "in page cache"
    work = f"{W_ONLY}, {last}, a {row['M_bytes'] / 1e9:.3g} GB file {source}, against {first}"
    return [Bar(work, *at_most(2, row["ratio"]), f"L {worst(rounds, 'error'):.1e}")]


CASES = (
    Case(
        "growth",
        measure,
        {
            "smallest": 2000,
            "between": [10_000],
            "largest": 50_000,
            "d": 40,
            "rank": 5,
            "corruption": 0.3,
            "repeats": 9,
        },
        {"smallest": 300, "between": [400], "largest": 600, "d": 8, "rank": 2, "corruption": 0.3, "repeats": 2},
        report,
        bars,
    ),
)
