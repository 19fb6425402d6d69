"""What pictures read of a fitted model: labels, entries of M, outliers, and how uncertain every cell is."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arguments import is_whole, naming, shown
from ..engines import Engine, choose
from ..engines.sparse_part import places, to_host
from ..labels import Labels, texts
from ..lowrank import Array
from ..outliers import standardised
from ..result import Result
from ..wording import few

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SIDES = ("row", "column")


def result_of(model: Any) -> Result:
    """The result of a fitted model; a Result itself is refused, since it has neither labels nor M."""
    if isinstance(result := getattr(model, "result_", None), Result):
        return result
    raise ValueError(
        f"model must be a fitted irpca.InductiveRobustPCA, got {type(model).__name__}"
        + (": call fit first" if hasattr(model, "fit") else "")
    )


def engine_of(model: Any, M: Any = None) -> Engine:
    """What answers questions about the entries of the fitted M."""
    from ..answers import owned  # scikit-learn, and with it pandas, would come with every import of pictures

    shape = result_of(model).L.shape
    matrix = getattr(model, "_M", None) if M is None else owned(M).matrix
    if matrix is None:
        raise ValueError("a model that was loaded from a file has no table: pass M=, the table that was fitted")
    engine = choose(matrix, "auto")
    if engine.shape != shape:
        raise ValueError(
            f"M has shape {engine.shape} and the fitted table {shape}: pass the table that was fitted, or None. "
            "For new rows, see model.outliers(M)"
        )
    return engine


def labels_of(model: Any, axis: int) -> Labels | None:
    return model.col_labels_ if axis else model.row_labels_


def texts_of(model: Any, axis: int) -> list[str]:
    """Labels of the rows (axis 0) or columns as text, or positions."""
    return texts(labels_of(model, axis), result_of(model).L.shape[axis])


def name_of(model: Any, axis: int) -> str:
    """What the labels of a side are called, such as "country"; "row" or "column" if they have no name."""
    labels = labels_of(model, axis)
    names = [] if labels is None else [name for name in labels.names if name is not None]
    return ", ".join(map(str, names)) or SIDES[axis]


def outliers_of(model: Any) -> csr_array:
    """S: M − L at the outliers."""
    result = result_of(model)
    if result.S is None:
        raise ValueError(f"this fit has no outliers to show. {result.status.name}: {result.status.advice}")
    return to_host(result.S, "a plot of the outliers")


def scores_of(model: Any) -> csr_array:
    """The signed scores of the outliers: their differences in standard deviations of clean cells there."""
    result, S = result_of(model), outliers_of(model)
    if result.scale is None:
        return standardised(S, result.judge)
    scores = S.astype(float)
    scores.data = S.data / model._std_at(result, *places(S))
    return scores


def known_of(model: Any) -> tuple[Array, Array]:
    """Of which rows and columns L is known."""
    result = result_of(model)
    n1, n2 = result.L.shape
    return result.known or (np.ones(n1, bool), np.ones(n2, bool))


def expected_at(model: Any, rows: Array, cols: Array) -> Array:
    """L at scattered entries; NaN where it is not known."""
    known = known_of(model)
    L = result_of(model).L.entries(rows, cols).astype(float)
    return np.where(known[0][rows] & known[1][cols], L, np.nan)


def standardised_at(model: Any, residuals: Array, rows: Array, cols: Array) -> Array:
    """Residuals in units of their uncertainty; NaN of solvers without a noise model, and of an exact fit."""
    scale = result_of(model).scale
    return residuals * np.nan if scale is None else residuals / scale.unit_at(residuals, rows, cols)


def std_at(model: Any, rows: Array, cols: Array) -> Array:
    """Standard deviation of a clean measurement, as ``model.expected(return_std=True)`` has it."""
    std: Array = model._std_at(result_of(model), rows, cols)
    return std


def position(wanted: Any, labels: Labels | None, n: int, side: str) -> int:
    """Where a label is; where there are no labels, a position is meant."""
    if labels is None:
        if is_whole(wanted) and 0 <= wanted < n:
            return int(wanted)
        raise ValueError(f"{side}={wanted!r}: the {side}s have no labels, so give a position from 0 to {n - 1}")
    if not isinstance(wanted, (tuple, list)) and np.ndim(wanted):
        raise ValueError(f"{side} must be one label, got {shown(wanted)}")
    found = _found(wanted, labels)
    if len(found) == 1:
        return int(found[0])
    if len(found):
        raise ValueError(
            f"{side}={wanted!r} is the label of {len(found)} {side}s: make the labels unique, and fit again"
        )
    near = get_close_matches(str(wanted), labels.texts(), n=4)
    advice = f"did you mean {few(near)}?" if near else f"there are {few(labels)}"
    raise ValueError(f"{side}={wanted!r} is not the label of a {side}; {advice}")


def positions(wanted: Iterable[Any], labels: Labels | None, n: int, side: str) -> Array:
    if isinstance(wanted, str):
        raise ValueError(f"{side}s must be a list of labels, got the text {wanted!r}: pass [{wanted!r}]")
    with naming(f"{side}s"):
        listed = list(wanted)
    return np.array([position(label, labels, n, side) for label in listed], np.intp)


def _found(wanted: Any, labels: Labels) -> Array:
    """Positions of a label: by value, dates by their moment, and else by how it reads."""
    if len(labels.levels) == 1 and labels.levels[0].dtype.kind == "M":
        try:
            return np.flatnonzero(labels.levels[0] == np.datetime64(wanted))
        except (ValueError, TypeError):
            return np.zeros(0, np.intp)
    same = [i for i, label in enumerate(labels) if type(label) is type(wanted) and label == wanted]
    if not same:
        text = Labels.of([wanted]).texts()[0] if not isinstance(wanted, (tuple, list)) else ", ".join(map(str, wanted))
        same = [i for i, label in enumerate(labels.texts()) if label == text]
    return np.array(same, np.intp)


def seed_of(model: Any) -> int:
    """A seed for what is drawn at random in a picture: that of the model, or 0."""
    seed = getattr(model, "random_state", 0)
    return int(seed) if is_whole(seed) else 0
