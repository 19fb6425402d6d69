"""Files as results: complete or not at all, and none replaced unasked."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..lowrank import Array

DIGITS = 10  # of numbers that are estimates; those that were given are written in full


class OutputError(OSError):
    """A place that cannot be written to; the message says why, and what to do."""

    exit_code = 5


@contextmanager
def staged(folder: str | Path, names: Sequence[str], force: bool = False) -> Iterator[Path]:
    """A folder to write to, whose files come to their place together, at the end, if there is no error before.

    Parameters
    ----------
    folder : path
        Where the files shall be. It is made at the end if need be.
    names : names of files
        None of them may be there already, unless ``force``.
    force : bool

    Examples
    --------
    >>> here = Path(tempfile.mkdtemp())
    >>> with staged(here / "new", ["a.txt"]) as place:
    ...     _ = (place / "a.txt").write_text("done")
    >>> (here / "new" / "a.txt").read_text()
    'done'
    """
    target = Path(folder)
    there = [name for name in names if os.path.lexists(target / name)]
    if there and not force:
        raise OutputError(f"{target / there[0]} is there already; --force replaces it, --out names another place")
    try:
        above = next(each for each in (target, *target.absolute().parents) if each.exists())
        place = Path(tempfile.mkdtemp(prefix=".irpca-", dir=above))
    except OSError as error:
        raise OutputError(f"cannot write to {target}: {error.strerror}; choose another place with --out") from error
    try:
        yield place
        target.mkdir(parents=True, exist_ok=True)
        for name in sorted(os.listdir(place)):
            os.replace(place / name, target / name)
    except OSError as error:
        if isinstance(error, OutputError) or error.filename is None or str(place) not in str(error.filename):
            raise
        raise OutputError(f"cannot write to {target}: {error.strerror}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def write_csv(path: Path, header: Sequence[str] | None, records: Iterable[Sequence[str]]) -> None:
    """A csv file in UTF-8."""
    with open(path, "w", encoding="utf-8", newline="") as stream:
        csv_lines(stream, header, records)


def csv_lines(stream: Any, header: Sequence[str] | None, records: Iterable[Sequence[str]]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    if header is not None:
        writer.writerow(header)
    writer.writerows(records)


def full(values: Iterable[Any]) -> list[str]:
    """Numbers with all their digits; "" for NaN."""
    return ["" if math.isnan(x) else str(int(x)) if abs(x) < 1e15 and float(x).is_integer() else str(x) for x in values]


def rounded(values: Iterable[float]) -> list[str]:
    return ["" if math.isnan(x) else f"{x:.{DIGITS}g}" for x in values]


def exact_list(values: Array) -> list[Any]:
    """Numbers that str() writes in as few digits as their precision needs."""
    return values.tolist() if values.dtype != np.float32 else list(values)


def as_json(thing: Any) -> str:
    """As strict JSON: null in the place of what is not finite."""
    finite = json.loads(json.dumps(thing, default=np.generic.item), parse_constant=lambda _: None)
    return json.dumps(finite, ensure_ascii=False, indent=2)
