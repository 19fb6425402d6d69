"""Rows of a CSV file: written one by one as they are measured, read again, and asked for."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def text(value: Any) -> str:
    """A cell; empty where nothing is known."""
    if value is None or value != value:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def number(cell: str) -> Any:
    """The number in a cell, NaN in an empty one; words, "NaN" among them, stay words."""
    try:
        value = float(cell or "nan")
    except ValueError:
        return cell
    return cell if cell and value != value else value


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a file, none if there is none. A last line that was cut off while it was written does not count."""
    whole, end, _ = (path.read_text() if path.exists() else "").rpartition("\n")
    return list(csv.DictReader(io.StringIO(whole + end)))


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row, in the place of a last line that was cut off; the first one brings the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = path.read_bytes() if path.exists() else b""
    if not kept.endswith(b"\n"):
        kept = kept[: kept.rfind(b"\n") + 1]
        path.write_bytes(kept)
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not kept:
            writer.writerow(row)
        writer.writerow(map(text, row.values()))


def write(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Put these rows in the place of the file."""
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([text(row[name]) for name in columns] for row in rows)
    new.replace(path)


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def in_order(rows: Iterable[Row], name: str) -> list[Any]:
    """The different values of a column, as they come."""
    return list(dict.fromkeys(row[name] for row in rows))


def values(rows: Iterable[Row], name: str) -> list[float]:
    """A column, infinite where nothing is known: a refusal is no success."""
    return [row[name] if row[name] == row[name] else float("inf") for row in rows]


def worst(rows: Iterable[Row], name: str) -> float:
    return max(values(rows, name), default=float("nan"))


def median(rows: Iterable[Row], name: str) -> float:
    return statistics.median(values(rows, name) or [float("nan")])
