"""Parquet and feather files, by pyarrow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ..lowrank import Array
from .columns import UNNAMED, Options, ReaderError, Table, as_texts, check_known, objects, quoted, short


def from_arrow(name: str, content: bytes, options: Options) -> Table:
    """The columns of a parquet or feather file."""
    found = _loaded(name, content)
    names = [
        UNNAMED + str(j) if given.startswith("__index_level_") else given for j, given in enumerate(found.column_names)
    ]
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise ReaderError(f"{name} has several columns named {twice[0]!r}; give every column its own name")
    check_known(name, names, options)
    wanted = set(options.only or names) - set(options.drop)
    kept = {column: found.column(j) for j, column in enumerate(names) if column in wanted}
    if not kept or not found.num_rows:
        raise ReaderError(f"{name} has no rows of data" if kept else f"every column of {name} is dropped")
    columns = {column: _values(name, column, chunks, options) for column, chunks in kept.items()}
    texts = {column: as_texts(values) for column, values in columns.items() if values.dtype.kind in "OM"}
    return Table(name, columns, texts)


def _loaded(name: str, content: bytes) -> Any:
    suffix = Path(name).suffix.lower()
    try:
        import pyarrow
        from pyarrow import feather, parquet
    except ImportError as error:
        advice = 'pip install "irpca[files]", or save the table as csv'
        raise ReaderError(f"{name}: {suffix} files are read by pyarrow, which is not installed: {advice}") from error
    load = parquet.read_table if suffix in (".parquet", ".pq") else feather.read_table
    try:
        return load(pyarrow.BufferReader(content))
    except Exception as error:
        raise ReaderError(f"{name} is no {suffix[1:]} file, or damaged: {short(error)}") from error


def _values(file: str, name: str, chunks: Any, options: Options) -> Array:
    """A column as an array."""
    import pyarrow.types as kinds

    kind = chunks.type.value_type if kinds.is_dictionary(chunks.type) else chunks.type
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        return np.asarray(chunks.to_numpy(), "datetime64[us]")
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_null(kind):
        return objects(chunks.to_pylist())
    if name in options.labels and kinds.is_integer(kind):
        return objects(None if value is None else str(value) for value in chunks.to_pylist())  # longer than a float's
    if kinds.is_boolean(kind) and not chunks.null_count:
        return np.array(chunks.to_pylist(), bool)
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind) or kinds.is_boolean(kind):
        return np.array([math.nan if value is None else float(value) for value in chunks.to_pylist()])
    raise ReaderError(f"{file}: column {name!r} holds {chunks.type}, not numbers, dates or text; --drop {quoted(name)}")
