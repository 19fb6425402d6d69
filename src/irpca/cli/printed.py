"""What the command line prints: text for people, or one JSON object."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..labels import texts
from ..readers import Data
from ..result import Unseen
from ..tables import Criterion
from ..wording import count
from . import DO_NOT_USE, USABLE, writers
from .findings import FIELDS

SHOWN = 10  # outliers on the screen
WIDEST = 32  # characters of a label on the screen


def verdict(model: Any) -> str:
    return str(model.result_.summary()).partition("\n")[0]


def code_of(model: Any) -> int:
    return DO_NOT_USE if model.result_.usable == "do not use" else USABLE


def say(arguments: Namespace, text: str) -> None:
    if not arguments.quiet:
        print(text)


def say_fit(
    arguments: Namespace, model: Any, data: Data, found: dict[str, list[Any]], notes: list[str], files: dict[str, str]
) -> None:
    result, code = model.result_, code_of(model)
    about = {
        "verdict": result.usable,
        "reason": verdict(model).partition(": ")[2],
        "status": result.status.name,
        "missing": int(np.prod(data.shape)) - result.n_observed,
        "rank": result.rank,
        "noise": result.noise,
        "columns": None if result.maps is None else dict(zip(_columns(model), result.maps.names, strict=True)),
        "cells_left_out": None if result.unseen is None else _left_out(result.unseen, _columns(model)),
        "doubts": [{"kind": doubt.kind, "text": str(doubt)} for doubt in result.doubts],
        "seconds": result.seconds,
        "exit_code": code,
    }
    lines = [*_summarise(arguments, model, len(found["row"])), *_list_outliers(found)]
    if code == DO_NOT_USE:
        lines.append("The files are written all the same, to look at what went wrong:")
    _tell(arguments, about, lines, data, found, notes, files)


def _left_out(unseen: Unseen, columns: list[str]) -> dict[str, Any]:
    known = {"skill": unseen.skill, "agreement": unseen.agreement}
    covered = {"covered_50": unseen.covered[0], "covered_95": unseen.covered[1]}
    return {**known, **covered, "columns": unseen.of_columns(columns)}


def say_check(
    arguments: Namespace, model: Any, data: Data, found: dict[str, list[Any]], notes: list[str], path: str
) -> None:
    code, (n1, n2) = code_of(model), data.shape
    about = {"model": arguments.model, "verdict": model.result_.usable, "exit_code": code or int(bool(found["row"]))}
    lines = [f"The model itself is not to be used ({verdict(model)})"] if code else []
    lines += [f"{data.name}: {n1} rows × {n2} columns, {count(len(found['row']), 'outlier')} by {arguments.model}"]
    _tell(arguments, about, [*lines, *_list_outliers(found)], data, found, notes, {"outliers.csv": path})


def _tell(
    arguments: Namespace,
    about: dict[str, Any],
    lines: list[str],
    data: Data,
    found: dict[str, list[Any]],
    notes: list[str],
    files: dict[str, str],
) -> None:
    """Print lines with what all commands say around them, or the same as one JSON object."""
    if not arguments.json:
        written = ["Written:", *(f"  {path}" for path in files.values())]
        return say(arguments, "\n".join([*(f"Note: {note}" for note in notes), *lines, *written]))
    fields = (*FIELDS, "why") if "why" in found else FIELDS
    first = list(zip(*(found[name] for name in fields), strict=True))[:SHOWN]
    facts = {
        **about,
        "data": data.name,
        "shape": data.shape,
        "outliers": len(found["row"]),
        "first_outliers": [dict(zip(fields, record, strict=True)) for record in first],
        "notes": notes,
        "files": files,
    }
    print(writers.as_json(facts))


def _summarise(arguments: Namespace, model: Any, number: int) -> Iterator[str]:
    """The summary of the fit, its line about outliers in the words of the command line."""
    share = number / max(model.result_.n_observed, 1)
    cut = Criterion(arguments.fdr, arguments.probability, arguments.threshold)
    cells = f"Outliers: {count(number, 'cell')} ({share:.2%}), {cut}"
    for line in str(model.result_.summary(_columns(model))).split("\n"):
        outliers = line.startswith("Outliers: ")
        yield f"{cells}; for more or fewer: --fdr, --probability or --threshold" if outliers else line


def _columns(model: Any) -> list[str]:
    """The columns of the fitted table as people read them."""
    return texts(model.col_labels_, model.low_rank_.shape[1])


def _list_outliers(found: dict[str, list[Any]]) -> list[str]:
    """The first outliers, in columns."""
    total = len(found["row"])
    if not total:
        return []
    head = (
        "The outliers, the most certain first:"
        if total <= SHOWN
        else f"The {SHOWN} most certain of {total:,} outliers:"
    )
    if "why" in found:
        said = zip(*(found[name][:SHOWN] for name in ("row", "column", "why")), strict=True)
        return [head, *(f"  {_spell_cell(row)}, {_spell_cell(column)}: {why}" for row, column, why in said)]
    names = ("row", "column", "observed", "expected", "std", "probability")
    cells = [[_spell_cell(found[name][k]) for name in names] for k in range(min(total, SHOWN))]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in (names, *cells)]
    return [head, *(f"  {line.rstrip()}" for line in lines)]


def _spell_cell(value: Any) -> str:
    if not isinstance(value, str):
        return f"{value:.4g}"
    text = " ".join("".join(c if c.isprintable() else " " for c in value).split())
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
