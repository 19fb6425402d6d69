"""What people hand in, and answers in kind: frames and arrays of any library, lists, paths of tables in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .arguments import reads_as_number
from .arrays import as_numpy, for_torch, in_host_memory, is_tensor, matrix_of, on_gpu
from .labels import Labels, texts
from .lowrank import Array
from .wording import few


@dataclass(frozen=True, eq=False)
class Labelled:
    """An array with the labels of its rows and columns, where no library of frames is installed.

    Examples
    --------
    >>> table = Labelled(np.zeros((2, 2)), rows=["a", "b"])
    >>> taken(table).rows[1]
    'b'
    """

    values: Any
    rows: Any = None
    columns: Any = None


@dataclass(frozen=True, eq=False)
class Given:
    """A table as solve() takes it, its labels, and what answers are made of.

    Attributes
    ----------
    matrix : array, pandas frame of numbers, sparse array, LongTable, M in chunks, or a tensor on a GPU
    rows, columns : Labels or None
    container : {"numpy", "pandas", "polars", "pyarrow", "xarray", "torch"}
    dims : names of the two sides, of an xarray
    chunked : whether M is in chunks, on disk or to be computed; then the matrix is that storage, or the engine that
        reads it
    device : where answers are, if they are tensors
    """

    matrix: Any
    rows: Labels | None = None
    columns: Labels | None = None
    container: str = "numpy"
    dims: tuple[str, str] = ("row", "column")
    chunked: bool = False
    device: str = "cpu"


def kind_of(table: Any) -> str:
    """The library that a table comes from; "numpy" of all others."""
    if is_tensor(table):
        return "torch"
    library = type(table).__module__.partition(".")[0]
    if library in ("polars", "pyarrow", "xarray", "dask", "zarr", "modin", "cudf", "pandas"):
        return library
    return "pandas" if hasattr(table, "iloc") and hasattr(table, "columns") else "numpy"


def taken(M: Any, name: str = "M") -> Given:
    """M of any container, with labels where it has some; refused with what to do where it is no table of numbers.

    Nothing in chunks is read, but for dask DataFrames: these are brought into memory.
    """
    if isinstance(M, Given):
        return M
    if M is None or (isinstance(M, dict) and not hasattr(M, "tocsr")):
        what = "None" if M is None else "a dict: make it a table, such as with pd.DataFrame"
        raise ValueError(f"{name} is {what}; an array, a frame or another table of numbers is needed")
    kind = kind_of(M)
    if isinstance(M, Labelled):
        return _from_labelled(M, name)
    if hasattr(M, "row_labels"):  # a LongTable
        return _from_long(M)
    if kind == "torch":
        return _from_torch(M, name)
    if kind == "xarray":
        return _from_xarray(M, name)
    if kind == "dask" and hasattr(M, "columns"):
        return taken(M.compute(), name)
    if kind in ("dask", "zarr") or isinstance(M, (str, Path)):
        return Given(M, chunked=True)
    if kind in ("polars", "pyarrow"):
        return _from_columns(M, kind, name)
    if hasattr(M, "iloc") and hasattr(M, "columns"):
        if 0 in M.shape:
            raise ValueError(f"{name} is empty: it has {M.shape[0]} rows and {M.shape[1]} columns")
        _refuse_text(M, name)
        return Given(_replace_na(M), Labels.of(M.index), Labels.of(M.columns), "pandas")
    if hasattr(M, "iloc"):
        raise ValueError(f"{name} is a Series; a table is needed. If its index has two levels, pass {name}.unstack()")
    return Given(as_numpy(M, name) if hasattr(M, "__dlpack__") and not isinstance(M, np.ndarray) else M)


def _from_labelled(M: Labelled, name: str) -> Given:
    chunked = kind_of(M.values) in ("dask", "zarr") and hasattr(M.values, "shape")
    values = M.values if chunked else np.asarray(M.values)
    rows, columns = (None if labels is None else Labels.of(labels) for labels in (M.rows, M.columns))
    for labels, side, axis in ((rows, "rows", 0), (columns, "columns", 1)):
        if labels is not None and len(labels) != values.shape[axis]:
            raise ValueError(
                f"{name} has {values.shape[axis]} {side} and {len(labels)} labels for them; give one for each"
            )
    return Given(values, rows, columns, chunked=chunked)


def _from_long(M: Any) -> Given:
    pandas = any(hasattr(labels, "get_level_values") for labels in (M.row_labels, M.col_labels))
    rows, columns = (None if labels is None else Labels.of(labels) for labels in (M.row_labels, M.col_labels))
    return Given(M, rows, columns, "pandas" if pandas else "numpy")


def _from_torch(M: Any, name: str) -> Given:
    """One on a GPU stays there, and so do answers; of one on another device both are on the CPU."""
    if on_gpu(M):
        return Given(matrix_of(M, name), container="torch", device=device_of(M))
    return Given(in_host_memory(M, name), container="torch")


def device_of(table: Any) -> str:
    """Where answers to this table are, if they are tensors."""
    return str(table.device) if on_gpu(table) else "cpu"


def _from_xarray(M: Any, name: str) -> Given:
    if hasattr(M, "data_vars"):
        raise ValueError(f"{name} is a Dataset of {few(list(M.data_vars))}; pass one variable, such as {name}['…']")
    if M.ndim != 2:
        raise ValueError(
            f"{name} has the dimensions {few(M.dims)}; two are needed: select from the others, or stack them into one"
        )
    rows, columns = (Labels.of(M.indexes[dim]) if dim in M.indexes else None for dim in M.dims)
    chunked = M.chunks is not None
    values = M.data if chunked else np.asarray(M.data)
    return Given(values, rows, columns, "xarray", (str(M.dims[0]), str(M.dims[1])), chunked)


def _from_columns(M: Any, kind: str, name: str) -> Given:
    """A frame without an index: its first column holds the labels of rows, if it is no column of numbers."""
    import narwhals as nw

    if hasattr(M, "collect"):
        raise ValueError(f"{name} is lazy, and has no values yet; pass {name}.collect()")
    if not hasattr(M, "columns"):
        raise ValueError(f"{name} is one column; a table with rows and columns is needed")
    frame = nw.from_native(M, eager_only=True)
    numeric = {column: dtype.is_numeric() or dtype == nw.Boolean for column, dtype in frame.schema.items()}
    first, *others = frame.columns or [""]
    wrong = [column for column in others if not numeric[column]]
    if wrong:
        raise ValueError(
            f"the columns {few(wrong)} of {name} hold no numbers. The first column may hold the labels of the rows; "
            f"drop the others, or pass them as row_features. {_LONG}"
        )
    rows = None
    if not numeric.get(first, True):
        rows = Labels.of(_to_labels(frame[first]), first)
        if len(set(rows)) < len(rows):
            raise ValueError(
                f"the first column of {name}, {first!r}, labels the rows, and holds some labels twice. {_LONG}"
            )
    columns = frame.columns if rows is None else others
    values = (
        np.column_stack([_to_numbers(frame[column]) for column in columns]) if columns else np.empty((len(frame), 0))
    )
    return Given(values, rows, Labels.of(columns), kind)


_LONG = "If each line is one measurement, use irpca.LongTable.from_frame(frame, row=…, column=…, value=…)"


def split_first(F: Any) -> tuple[Labels, Any]:
    """Return the first column of a frame of polars or pyarrow as labels, and the frame without it."""
    import narwhals as nw

    frame = nw.from_native(F, eager_only=True)
    first = frame.columns[0]
    return Labels.of(_to_labels(frame[first]), first), frame.drop(first).to_native()


def _to_labels(column: Any) -> Array:
    """Labels in a column of narwhals; text by way of a list, since encoded text with gaps is not what to_numpy says."""
    plain = column.dtype.is_temporal() and getattr(column.dtype, "time_zone", None) is None
    return np.asarray(column.to_numpy() if plain else column.to_list())


def _to_numbers(column: Any) -> Array:
    values = np.asarray(column.to_numpy())
    return values.astype(np.float32 if values.dtype == np.float32 else np.float64)


def _refuse_text(frame: Any, name: str) -> None:
    """Refuse a pandas frame with columns that are no numbers, and say what to do with them."""
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()]
        raise ValueError(f"some columns of {name} have the same name: {few(twice)}; give every column its own")
    wrong = [column for column in frame.columns if _lacks_numbers(frame[column])]
    if wrong:
        values = frame[wrong[0]]
        text = values[[isinstance(value, str) for value in values]]
        shown = f" (such as {text.iloc[0]!r} in row {text.index[0]!r})" if len(text) else ""
        raise ValueError(
            f"the columns {few(wrong)} of {name} hold text or dates{shown}, and {name} is a table of "
            "numbers. Numbers "
            f"as text become numbers by pd.to_numeric(column, errors='coerce'); labels of rows by "
            f"{name}.set_index({wrong[0]!r}); drop the others, or pass them as row_features. {_LONG}"
        )


def _lacks_numbers(column: Any) -> bool:
    if str(column.dtype) == "object":
        return any(isinstance(value, str) or not reads_as_number(value) for value in column.dropna())
    return getattr(column.dtype, "kind", "f") not in "biufc" or str(column.dtype) in ("str", "string", "category")


def _replace_na(frame: Any) -> Any:
    """The frame with None for pandas' own NA in columns of objects, which does not become a number."""
    return frame.where(frame.notna(), None) if "object" in map(str, frame.dtypes) else frame


def tensor_of(values: Any, device: str = "cpu") -> Any:
    """An array as a tensor on a device; a tensor that is there is returned as it is."""
    import torch

    return torch.as_tensor(for_torch(values), device=device)


def in_kind(values: Any, given: Given) -> Any:
    """A table of values, in the container of ``given`` and with its labels."""
    if given.container == "torch":
        return tensor_of(values, given.device)
    if given.container == "xarray":
        return _to_xarray(values, given)
    if given.rows is None and given.columns is None:
        return values
    if given.container in ("polars", "pyarrow"):
        return _to_columns(values, given)
    if given.container == "pandas":
        import pandas as pd

        index, columns = (None if side is None else side.pandas() for side in (given.rows, given.columns))
        return pd.DataFrame(values, index=index, columns=columns)
    return Labelled(values, given.rows, given.columns)


def _to_xarray(values: Array, given: Given) -> Any:
    import xarray

    sides = zip(given.dims, (given.rows, given.columns), strict=True)
    return xarray.DataArray(values, dims=given.dims, coords={d: side.pandas() for d, side in sides if side is not None})


def _to_columns(values: Array, given: Given) -> Any:
    rows, columns = given.rows, given.columns
    made = {} if rows is None else {rows.names[0] or "row": rows.column()}
    named = zip(texts(columns, values.shape[1]), values.T, strict=True)
    return frame_of({**made, **dict(named)}, given.container)


def frame_of(columns: dict[str, Any], container: Any) -> Any:
    """Columns as a frame of that library; text as lists, of which any makes a column of text."""
    import narwhals as nw

    if container != "pandas":
        columns = {name: list(x) if x.dtype == object else x for name, x in columns.items()}
    return nw.from_dict(columns, backend=container).to_native()


def as_records(columns: dict[str, Array]) -> Array:
    """Columns as a structured array."""
    table = np.empty(len(next(iter(columns.values()))), [(name, values.dtype) for name, values in columns.items()])
    for name, values in columns.items():
        table[name] = values
    return table


def listing(columns: dict[str, Any], labels: dict[str, Labels | None], container: str, device: str = "cpu") -> Any:
    """A list of things found, with labels in the place of positions: a frame if there are some, else records.

    Of tensors, which have no labels, a dict of columns that are tensors on the device.
    """
    labelled = any(names is not None for names in labels.values())
    if container == "torch" and not labelled:
        return {name: tensor_of(values, device) for name, values in columns.items()}
    if container not in ("polars", "pyarrow") and not labelled:
        return as_records(columns)
    named = {name: names.take(columns[name]) for name, names in labels.items() if names is not None}
    if container not in ("numpy", "polars", "pyarrow"):
        return frame_of({**columns, **{name: taken.pandas() for name, taken in named.items()}}, "pandas")
    whole = {**columns, **{name: taken.column() for name, taken in named.items()}}
    return as_records(whole) if container == "numpy" else frame_of(whole, container)
