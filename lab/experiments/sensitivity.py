"""How much depends on every number of the default solver: each constant halved and doubled, on random tables.

    python -m lab.experiments.sensitivity [tables] [--jobs N] [--first SEED] [--only NAME ...]

The constants are those of :mod:`irpca.constants`: numbers, and tuples of them, which are scaled as a whole. Of a number
between a half and two, such as a quantile or the factor of a step, the distance to one is doubled and halved. For every
constant: on how many tables the verdict of ``random_tables`` changes, better or worse, and on how many the
answer changes at all. Where no answer changes the constant is not used on these tables, or it was copied at import and
cannot be changed from here: by ``from .constants import NAME``, as a default argument, or inside compiled code.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lab.tables import text_table

from .random_tables import judged
from .study import Case, Row, Study, options

FACTORS = {"halved": 0.5, "doubled": 2.0}
TABLES = 200
MODULE = "irpca.constants"
AS_IT_IS = ("none", "unchanged")


def constants() -> dict[str, Any]:
    """Every number, and every tuple of numbers, that the default solver was given."""
    module = import_module(MODULE)
    return {name: value for name, value in vars(module).items() if name.isupper() and _numeric(value)}


def _numeric(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_numeric, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def scaled(value: Any, factor: float) -> Any:
    """A number times a factor: whole numbers stay whole and at least 1, shares near one stay below it."""
    if isinstance(value, tuple):
        return tuple(scaled(one, factor) for one in value)
    if isinstance(value, int):
        return value if value == 0 else max(1, round(value * factor)) if value > 0 else round(value * factor)
    if 0.5 < value < 1:
        return 1 - (1 - value) / factor
    if 1 < value < 2:
        return 1 + (value - 1) * factor
    return value * factor


def measure(case: Case) -> Row:
    if case["change"] == AS_IT_IS[1]:
        return judged(case["seed"])
    module = import_module(MODULE)
    value = getattr(module, case["constant"])
    setattr(module, case["constant"], scaled(value, FACTORS[case["change"]]))
    try:
        return judged(case["seed"])
    finally:
        setattr(module, case["constant"], value)


def finish(rows: list[Row]) -> None:
    before = {row["seed"]: row for row in rows if row["change"] == AS_IT_IS[1]}
    for row in rows:
        known = before[row["seed"]]
        row["changed"] = int(row["verdict"] != known["verdict"])
        near = abs(row["error"] - known["error"]) <= 1e-3 * known["error"] + 1e-12
        row["moved"] = int(not near and not row["verdict"] == known["verdict"] == "error")


def report(rows: list[Row]) -> str:
    version = rows[0]["version"]
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["version"] == version:
            found.setdefault((row["constant"], row["change"]), []).append(row)
    before = {row["seed"]: row["verdict"] == "right" for row in found.pop(AS_IT_IS)}
    body = []
    for (name, change), some in found.items():
        lost = sum(before[row["seed"]] and row["verdict"] != "right" for row in some)
        won = sum(not before[row["seed"]] and row["verdict"] == "right" for row in some)
        moved, changed = (int(sum(row[what] for row in some)) for what in ("moved", "changed"))
        body.append([name, change, changed, lost, won, moved, len(some)])
    body.sort(key=lambda line: -line[2])
    header = ("constant", "change", "verdicts changed", "right lost", "right won", "answers changed", "tables")
    refused = Counter(row["verdict"] for some in found.values() for row in some)["error"]
    dead = {name for name, *_ in body} - {line[0] for line in body if line[5]}
    told = f"no answer changed: {', '.join(sorted(dead)) or 'none'}\nfits that raised an error: {refused}"
    return f"{text_table(header, body)}\n{told}"


MEASURED = ("verdict", "changed", "moved", "error", "oracle", "rank", "status")
MORE = (
    ("tables", {"nargs": "?", "type": int, "default": TABLES}),
    ("--first", {"type": int, "default": 0, "metavar": "SEED"}),
    ("--only", {"nargs": "+", "metavar": "NAME", "help": "these constants alone"}),
)


def main(words: Sequence[str] | None = None) -> list[Row]:
    if find_spec(MODULE) is None:
        sys.exit(f"there is no {MODULE} in this version: nothing to change")
    chosen = options("sensitivity", words, MORE)
    names = [name for name in constants() if not chosen.only or name in chosen.only]
    changes = [AS_IT_IS, *((name, change) for name in names[: 2 if chosen.quick else None] for change in FACTORS)]
    seeds = range(chosen.first, chosen.first + (4 if chosen.quick else chosen.tables))
    cases = [{"constant": name, "change": change, "seed": seed} for name, change in changes for seed in seeds]
    return Study("sensitivity", lambda quick: cases, measure, MEASURED, report, finish).run(chosen)


if __name__ == "__main__":
    main()
