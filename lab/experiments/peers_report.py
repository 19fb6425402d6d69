"""What ``peers`` measured, as the page docs/peers-table.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lab.rows import Row, in_order, where
from lab.tables import markdown_table

from .peer_methods import PEERS

TITLES = {
    "i94": "Traffic on Interstate 94 (1860 days × 24 hours, 9 % missing; features of both)",
    "life": "Life expectancy (202 countries × 50 years; features of the years)",
    "pines": "Hyperspectral image (1369 pixels × every fourth of 200 bands; features of both)",
    "digits": "Handwritten digits (1797 images × 52 pixels; no features)",
    "cancer": "Breast cancer (569 samples × 30 measurements; no features)",
    "tiny": "A small part of breast cancer",
}
Column = tuple[str, str, str]  # heading, kind, what of it
REAL: tuple[Column, ...] = (
    ("gross: error", "gross", "error"),
    ("found", "gross", "found"),
    ("false", "gross", "false"),
    ("repaired", "gross", "repaired"),
    ("mixed up: error", "mixed up", "error"),
    ("found", "mixed up", "found"),
    ("false", "mixed up", "false"),
    ("holes: error", "holes", "error"),
    ("clean: flagged", "clean", "flagged"),
    ("seconds", "gross", "seconds"),
)
LEAST = ("error", "repaired")  # of which the least is set in bold


def render(rows: Sequence[Row]) -> str:
    """The page, in Markdown."""
    parts = ["<!-- written by: python -m lab.experiments table -->"]
    for name in (name for name in TITLES if where(rows, table=name)):
        some = [row for row in where(rows, table=name) if row["kind"] != "rows"]
        columns = [column for column in REAL if where(some, kind=column[1])]
        values = [[where(some, kind=kind), what] for _, kind, what in columns]
        parts += [f"**{TITLES[name]}**", _table([heading for heading, *_ in columns], _methods(some), values)]
    parts += _rows(rows) + _drawn(rows) + [_failures(rows), _origin(rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(rows: Sequence[Row]) -> list[str]:
    """Who finds spoilt rows."""
    some = where(rows, kind="rows")
    methods = _methods(row for row in some if row["flagged_rows"] == row["flagged_rows"])  # not NaN
    tables = [name for name in TITLES if where(some, table=name)]
    header = [f"{name}: {what}" if what == "found" else what for name in tables for what in ("found", "false")]
    values = [[where(some, table=name), what] for name in tables for what in ("found_rows", "false_rows")]
    return ["**Rows of which half of the cells are gross errors (5 % of the rows)**", _table(header, methods, values)]


def _drawn(rows: Sequence[Row]) -> list[str]:
    some = where(rows, kind="drawn")
    levels = sorted({(row["table"], row["share"]) for row in some})
    wanted = [(level, what) for level in levels for what in ("error", "found", "false")]
    header = [f"{name}, {share:.0%}: {what}" if what == "error" else what for (name, share), what in wanted]
    values = [[where(some, table=name, share=share), what] for (name, share), what in wanted]
    title = "**Synthetic tables (300 × 60, rank 3, 10 perfect features a side; noise of a tenth of L, or none)**"
    return [title, _table([*header, "seconds"], _methods(some), [*values, [some, "seconds"]])]


def _methods(rows: Iterable[Row]) -> list[str]:
    here = {row["method"] for row in rows}
    return [name for name in PEERS if name in here]


def _table(header: Sequence[str], methods: Sequence[str], values: Sequence[Any]) -> str:
    """A line for each method; ``values`` are, for each column, its rows and what to show of them."""
    columns = []
    for rows, what in values:
        means = [_mean(where(rows, method=name), what) for name in methods]
        numbers = [mean for mean in means if isinstance(mean, float)]
        least = min(numbers, default=np.nan) if what in LEAST else np.nan
        columns.append([f"**{_text(mean, what)}**" if mean == least else _text(mean, what) for mean in means])
    lines = [[PEERS[name].label, *cells] for name, *cells in zip(methods, *columns, strict=True)]
    return markdown_table(["", *header], lines)


def _mean(rows: Sequence[Row], what: str) -> float | str:
    """Of the seeds; a word where there is none: why it is not known, or a dash where the method does not say."""
    numbers = [row[what] for row in rows if row[what] == row[what]]
    if numbers:
        return float(np.mean(numbers))
    failed = [row["status"].partition(":")[0] for row in rows if row["status"] != "done"]
    return failed[0] if failed else "–"


def _text(mean: float | str, what: str) -> str:
    if isinstance(mean, str):
        return mean
    if what == "seconds":
        return f"{mean:.1f}" if mean >= 1 else f"{mean:.2f}"
    if what in LEAST:
        return f"{mean:.2f}" if mean >= 0.01 else f"{mean:.0e}"
    return f"{mean:.1%}" if mean < 0.1 and what == "flagged" else f"{mean:.0%}"


def _failures(rows: Iterable[Row]) -> str:
    said = {}
    for row in rows:
        if row["status"].startswith("failed"):
            said.setdefault((row["method"], row["status"]), set()).add(row["table"])
    told = (f"{PEERS[name].label} on {', '.join(sorted(on))}: {why}" for (name, why), on in said.items())
    return "\n".join(["Failures, in the words of the package:", "", *(f"- {line}" for line in told)]) if said else ""


def _origin(rows: Sequence[Row]) -> str:
    packages = sorted(
        {row["package"] for row in rows if isinstance(row["package"], str) and not row["package"].startswith("numpy")}
    )
    counts = [len({row["seed"] for row in where(rows, table=name)}) for name in in_order(rows, "table")]
    seeds = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"
    machines = ", ".join(in_order(rows, "cpu"))
    return f"Seeds: {seeds}; means; {machines}; {', '.join(packages)}; commit {', '.join(in_order(rows, 'commit'))}."
