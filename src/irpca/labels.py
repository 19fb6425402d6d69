"""Labels of rows and columns, where pandas came in: kept, matched and put back."""

from __future__ import annotations

from typing import Any

import numpy as np

from .lowrank import Array


def labels_of(frame: Any, axis: str) -> Any:
    """The index or the columns of a pandas frame, or what a long table has of them; None of anything else."""
    if hasattr(frame, "iloc") and hasattr(frame, "columns"):
        return getattr(frame, axis)
    return getattr(frame, "row_labels" if axis == "index" else "col_labels", None)


def labelled(values: Array, index: Any, columns: Any) -> Any:
    if index is None and columns is None:
        return values
    import pandas as pd

    return pd.DataFrame(values, index=index, columns=columns)


def without_na(frame: Any) -> Any:
    """A pandas frame of objects with None for pandas' own NA, which does not become a number; all else as it is."""
    objects = hasattr(frame, "iloc") and hasattr(frame, "columns") and "object" in map(str, frame.dtypes)
    return frame.where(frame.notna(), None) if objects else frame


def match(F: Any, M: Any, name: str, side: str) -> None:
    """Refuse features whose index is not that of the rows, or columns, of M, when both are labelled."""
    labels = labels_of(M, "index" if side == "rows" else "columns")
    index = labels_of(F, "index")
    if index is None or labels is None or len(index) != len(labels) or index.equals(labels):
        return
    frame, table = ("index", "row_labels") if side == "rows" else ("columns", "col_labels")
    of_M = f"M.{frame if hasattr(M, frame) else table}"
    if index.is_unique and labels.is_unique and labels.isin(index).all():
        advice = f"the labels are the same in another order: pass {name}.loc[{of_M}]"
    else:
        advice = f"if they belong together as they stand, pass {name}.set_axis({of_M})"
    raise ValueError(
        f"the index of {name} does not match the {side} of M: {few(index)} against {few(labels)}; {advice}"
    )


def few(labels: Any, most: int = 4) -> str:
    return ", ".join(map(repr, labels[:most].tolist())) + (", …" if len(labels) > most else "")


def as_table(columns: dict[str, Any], labels: dict[str, Any]) -> Any:
    """Columns as a frame if some of them have labels in place of positions, else as a structured array."""
    if any(names is not None for names in labels.values()):
        import pandas as pd

        named = {name: names[columns[name]] for name, names in labels.items() if names is not None}
        return pd.DataFrame({**columns, **named})
    table = np.empty(
        len(next(iter(columns.values()))), dtype=[(name, values.dtype) for name, values in columns.items()]
    )
    for name, values in columns.items():
        table[name] = values
    return table
