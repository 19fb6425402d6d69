"""What the scripts of a report show, as a dictionary that JSON can hold: labels, and columns of numbers in base64."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any

import numpy as np

from ..answers import Asked
from ..engines.base import LARGEST_BLOCK
from ..lowrank import Array
from ..plots.fitted import NUMBERS, SIDES, Fitted

ORDERED = re.compile("u?int|float|datetime|period|timedelta")  # types of labels whose neighbours a line may join
MOST_OUTLIERS = 1_000_000  # listed one by one: 30 MB of numbers, 40 MB of base64
MOST_EXPLAINED = 5_000  # of these, the most certain: 1 MB of sentences
MOST_CELLS = 375_000  # of which values are in the file, 8 MB of base64: all of a table, or its worst rows and columns
MOST_LABELS = 8_000_000  # characters of labels; beyond, only those of lines that are listed
WORST = 15  # rows and columns in the tables of the worst


def payload(case: Fitted) -> dict[str, Any]:
    return {
        "shape": list(case.shape),
        "names": [name.capitalize() if name in SIDES else name for name in case.names],
        "ordered": [labels is None or all(map(ORDERED.match, labels.dtypes)) for labels in case.labels],
        "labels": [_labels(case, axis) for axis in (0, 1)],
        "order": {side: packed(case.scored[axis]["position"]) for axis, side in enumerate(SIDES)},
        "outliers": _outliers(case),
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


def _labels(case: Fitted, axis: int) -> dict[str, Any] | None:
    """All labels; where they are too many, those of lines that are listed; None where positions are the labels."""
    if case.labels[axis] is None:
        return None
    labels = case.texts[axis]
    if sum(map(len, labels)) <= MOST_LABELS:
        return {"text": labels}
    listed = case.listed[SIDES[axis]][:MOST_OUTLIERS]
    at = np.unique(np.r_[listed, worst_lines(case, axis)["position"]])
    return {"text": [labels[k] for k in at], "at": packed(at)}


def _unit(case: Fitted) -> float:
    """The size below which differences between values mean nothing; tiny where columns have units of their own."""
    return float(case.result.noise or 0.0) if case.result.maps is None else float(np.finfo(float).tiny)


def _outliers(case: Fitted) -> dict[str, Any]:
    some = {name: column[:MOST_OUTLIERS] for name, column in case.listed.items()}
    return {
        "count": len(case.listed["row"]),
        "listed": len(some["row"]),
        **{side: packed(some[side]) for side in SIDES},
        **{name: packed(some[name], _unit(case)) for name in NUMBERS if name != "expected"},
        "why": _why(case, some["row"], some["column"]),
    }


def _why(case: Fitted, rows: Array, cols: Array) -> list[str]:
    """A sentence for each of the first outliers, where M is at hand and there is a model of the noise."""
    result, most = case.result, min(MOST_EXPLAINED, LARGEST_BLOCK // case.shape[1])
    if not case.has_table or (result.calibration is None and result.noise != 0) or not len(rows):
        return []
    prior = case.model._said if case.M is None else case.model._new_rows(case.M, None)[1]
    asked = Asked(result, lambda: case.engine, None, prior=prior)
    return [one.why for one in case.model._explanations(asked, rows[:most], cols[:most])]


def worst_lines(case: Fitted, axis: int) -> Array:
    """The rows or columns whose outliers are the most surprising, as :func:`irpca.outliers.score_lines` has them."""
    scored = case.scored[axis]
    worst: Array = scored[scored["flagged"] > 0][:WORST]
    return worst


def _values(case: Fitted) -> dict[str, Any]:
    """Observed and expected values and their 95 % ranges: of all rows, or of the worst lines, or of no line."""
    if not case.has_table or case.result.S is None:
        return {"kind": "none"}
    if np.prod(case.shape) <= MOST_CELLS:
        return {"kind": "all", "row": _drawn(case, 0, np.arange(case.shape[0]))}
    return {"kind": "lines", **{side: _drawn(case, axis, _worst(case, axis)) for axis, side in enumerate(SIDES)}}


def _worst(case: Fitted, axis: int) -> Array:
    """The worst lines and those of the most certain outliers, as many as may be in the file."""
    many = MOST_CELLS // 2 // case.shape[1 - axis]
    scored = case.scored[axis]
    worst = scored["position"][scored["flagged"] > 0][: max(WORST, many // 2)]
    wanted = np.r_[worst, case.listed[SIDES[axis]]]
    _, first = np.unique(wanted, return_index=True)
    return wanted[np.sort(first)][:many]


def _drawn(case: Fitted, axis: int, at: Array) -> dict[str, Any]:
    """Observed and expected values of some lines, and the lower and upper ends of their ranges, line by line."""
    others = np.arange(case.shape[1 - axis])
    cells = (at[:, None], others) if axis == 0 else (others[:, None], at)
    four = [case.engine.block(*map(np.ravel, cells)), case.expected_at(*cells), *case.bounds_at(*cells)]
    table = np.stack(four if axis == 0 else [part.T for part in four], axis=1)
    return {"count": len(at), "at": packed(at), "values": packed(table.ravel(), _unit(case))}
