"""What a report shows, as a dictionary that JSON can hold: words, tables, and long columns of numbers in base64."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any

import numpy as np

from ..answers import Asked
from ..engines.base import LARGEST_BLOCK
from ..lowrank import Array
from ..plots.fitted import SIDES, Fitted
from ..tables import Criterion
from . import words

ORDERED = re.compile("u?int|float|datetime|period|timedelta")  # types of labels whose neighbours a line may join
MOST_OUTLIERS = 1_000_000  # listed one by one: 30 MB of numbers, 40 MB of base64
MOST_EXPLAINED = 5_000  # of these, the most certain: 1 MB of sentences
MOST_VALUES = 6_000_000  # bytes of observed and expected values
MOST_LABELS = 8_000_000  # characters of labels; beyond, only those of lines that are listed
LISTED = 0.4  # share of observed cells below which a list of them is smaller than the table with its holes
WORST = 15  # rows and columns in the tables of the worst
BLOCKS = 512  # along each side of the grid in which outliers are counted that are not listed


def payload(
    model: Any, M: Any = None, title: str | None = None, command: str | None = None, cut: Criterion | None = None
) -> dict[str, Any]:
    """All that the report of a fitted model shows: the arguments are those of :func:`irpca.report.write`."""
    case = Fitted(model, M, cut or Criterion())
    lines = {side: _lines(case, axis) for axis, side in enumerate(SIDES)}
    return {
        "title": title or "What was found in the table",
        "verdict": words.verdict(case),
        "facts": words.facts(case),
        "doubts": words.doubts(case.result),
        "choices": words.choices(case.result, case.texts[1]),
        "candidates": words.candidates(case.result),
        "columns": words.columns(case.result, case.texts[1]),
        "reproduce": words.reproduce(case, command),
        "shape": list(case.shape),
        "names": [name.capitalize() if name in SIDES else name for name in case.names],
        "ordered": [labels is None or all(map(ORDERED.match, labels.dtypes)) for labels in case.labels],
        "labels": [_labels(case, axis, lines) for axis in (0, 1)],
        "worst": {side: found["worst"] for side, found in lines.items()},
        "order": {side: found["order"] for side, found in lines.items()},
        "outliers": _outliers(case),
        "rest": _rest(case),
        "values": _values(case),
    }


def packed(values: Any, unit: float = 0.0) -> dict[str, str]:
    """Numbers in base64: the smallest integers that hold them, or floats; in double precision if ``unit`` needs it.

    Examples
    --------
    >>> packed(np.array([1, 2, 300]))
    {'type': 'uint16', 'data': 'AQACACwB'}
    """
    values = np.asarray(values)
    largest = float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))
    dtype = np.dtype(np.float64 if largest * 2.0**-20 > unit > 0 or largest > 1e37 else np.float32)
    if values.dtype.kind in "bui":
        dtype = np.min_scalar_type(int(largest))
    return {"type": dtype.name, "data": b64encode(values.astype(dtype.newbyteorder("<")).tobytes()).decode()}


def _labels(case: Fitted, axis: int, lines: dict[str, Any]) -> dict[str, Any] | None:
    """All labels; where they are too many, those of lines that are listed; None where positions are the labels."""
    if case.labels[axis] is None:
        return None
    labels = case.texts[axis]
    if sum(map(len, labels)) <= MOST_LABELS:
        return {"text": labels}
    listed = case.cells[axis][case.order[:MOST_OUTLIERS]]
    worst = [line["position"] for line in lines[SIDES[axis]]["worst"]]
    at = np.unique(np.r_[listed, np.array(worst, int)])
    return {"text": [labels[k] for k in at], "at": packed(at)}


def _unit(case: Fitted) -> float:
    """The size below which differences between values mean nothing; tiny where columns have units of their own."""
    return float(case.result.noise or 0.0) if case.result.maps is None else float(np.finfo(float).tiny)


def _outliers(case: Fitted) -> dict[str, Any]:
    some = case.order[:MOST_OUTLIERS]
    rows, cols = (cells[some] for cells in case.cells)
    lower, upper = case.bounds_at(rows, cols)
    return {
        "count": int(case.S.nnz),
        "listed": len(some),
        "row": packed(rows),
        "column": packed(cols),
        "observed": packed(case.observed[some], _unit(case)),
        "difference": packed(case.S.data[some].astype(float)),
        "std": packed(case.std_at(rows, cols)),
        "lower": packed(lower, _unit(case)),
        "upper": packed(upper, _unit(case)),
        "score": packed(np.abs(case.scores.data[some])),
        "probability": packed(case.probability[some]),
        "why": _why(case, rows, cols.astype(np.int64)),
    }


def _why(case: Fitted, rows: Array, cols: Array) -> list[str]:
    """A sentence for each of the first outliers, where M is at hand and there is a model of the noise."""
    result, most = case.result, min(MOST_EXPLAINED, LARGEST_BLOCK // case.shape[1])
    known = result.calibration is not None or result.noise == 0
    if not case.has_table or not known or not hasattr(case.model, "explain") or not len(rows):
        return []
    prior = case.model._said if case.M is None else case.model._new_rows(case.M, None)[1]
    asked = Asked(result, lambda: case.engine, None, prior=prior)
    return [one.why for one in case.model._explanations(asked, rows[:most], cols[:most])]


def _rest(case: Fitted) -> dict[str, Any] | None:
    """Outliers that are not listed, counted in blocks, with the largest score in each; None if all are listed."""
    some = case.order[MOST_OUTLIERS:]
    if not len(some):
        return None
    size = [-(-n // BLOCKS) for n in case.shape]
    rows, cols = (cells[some] // step for cells, step in zip(case.cells, size, strict=True))
    block, which, count = np.unique(rows * BLOCKS + cols, return_inverse=True, return_counts=True)
    largest = np.zeros(len(block))
    z = case.scores.data[some]
    np.maximum.at(largest, which, np.abs(z))
    below = np.bincount(which, z < 0, len(block)) > count / 2
    return {
        "size": size,
        "row": packed(block // BLOCKS),
        "column": packed(block % BLOCKS),
        "count": packed(count),
        "score": packed(np.where(below, -largest, largest)),
    }


def _lines(case: Fitted, axis: int) -> dict[str, Any]:
    """Rows or columns in the order of how surprising their outliers are, and a table of the worst."""
    scored = case.scored[axis]
    worst = scored[scored["flagged"] > 0][:WORST]
    return {
        "order": packed(scored["position"]),
        "worst": [
            {
                "position": int(line["position"]),
                "label": case.texts[axis][line["position"]],
                "observed": int(line["observed"]),
                "flagged": int(line["flagged"]),
                "share": float(line["share"]),
                "signed": float(line["mean_signed"] / line["mean_size"]),
                "broken": bool(line["broken"]),
            }
            for line in worst
        ],
    }


def _values(case: Fitted) -> dict[str, Any]:
    """Observed and expected values with their 95 % ranges: of all cells, of some lines, or of the outliers only."""
    if not case.has_table or case.result.S is None:
        return {"kind": "none"}
    U, V = case.result.factors.thin()
    (n1, n2), observed = case.shape, int(case.engine.counts[0].sum())
    listed = observed < LISTED * n1 * n2
    numbers = 2 * observed + n1 if listed else n1 * n2
    size = 2 * n1 * n2 + 4 * (U.size + V.size + numbers) if case.result.maps is None else 8 * (3 * n1 * n2 + numbers)
    if size > MOST_VALUES:
        return {"kind": "lines", **{side: _drawn(case, axis) for axis, side in enumerate(SIDES)}}
    table = case.engine.block(np.arange(n1), np.arange(n2))
    found = {"kind": "all", **(_products(case, U, V) if case.result.maps is None else _mapped(case))}
    if not listed:
        return {**found, "observed": packed(table.ravel(), _unit(case))}
    there = ~np.isnan(table)
    starts, at = np.append(0, np.cumsum(there.sum(axis=1))), np.nonzero(there)[1]
    return {**found, "starts": packed(starts), "at": packed(at), "observed": packed(table[there], _unit(case))}


def _products(case: Fitted, U: Array, V: Array) -> dict[str, Any]:
    """Expected values as products of factors, which are NaN in lines of which nothing is known, and deviations."""
    left, right = (
        packed(np.where(known[:, None], factor, np.nan).ravel(), _unit(case) / max(1, U.shape[1]))
        for known, factor in zip(case.known, (U, V), strict=True)
    )
    std = case.std_at(*np.ix_(*map(np.arange, case.shape)))
    return {"rank": U.shape[1], "left": left, "right": right, "std": logs(std.ravel())}


def _mapped(case: Fitted) -> dict[str, Any]:
    """Expected values and their 95 % ranges, where columns are mapped."""
    cells = np.ix_(*map(np.arange, case.shape))
    three = zip(("expected", "lower", "upper"), (case.expected_at(*cells), *case.bounds_at(*cells)), strict=True)
    return {name: packed(table.ravel(), _unit(case)) for name, table in three}


def logs(values: Array) -> dict[str, Any]:
    """Positive numbers to about four digits, in two bytes each: steps of their logarithms. 65535 is for all others."""
    there = np.isfinite(values) & (values > 0)
    exponents = np.log2(values, out=np.zeros(len(values)), where=there)
    low, high = (float(find(exponents[there])) for find in (np.min, np.max)) if there.any() else (0.0, 0.0)
    step = max((high - low) / 65534, 1e-9)
    codes = np.where(there, np.rint((exponents - low) / step), 65535)
    return {"low": low, "step": step, "codes": packed(codes.astype(np.uint16))}


def _drawn(case: Fitted, axis: int) -> dict[str, Any]:
    """The worst lines and those of the most certain outliers, as many as half of the bytes hold."""
    length = case.shape[1 - axis]
    many = MOST_VALUES // 2 // (16 * length)
    scored = case.scored[axis]
    worst = scored["position"][scored["flagged"] > 0][: max(WORST, many // 2)]
    wanted = np.r_[worst, case.cells[axis][case.order]]
    _, first = np.unique(wanted, return_index=True)
    at = wanted[np.sort(first)][:many]
    others = np.arange(length)
    cells = (at[:, None], others) if axis == 0 else (others[:, None], at)
    four = [case.engine.block(*map(np.ravel, cells)), case.result.L.entries(*cells), *case.bounds_at(*cells)]
    table = np.stack(four if axis == 0 else [part.T for part in four], axis=1)
    return {"count": len(at), "at": packed(at), "values": packed(table.ravel(), _unit(case))}
