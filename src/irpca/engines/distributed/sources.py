"""Storages of M as a grid of chunks, each read when it is asked for: dask, zarr, ``.npy`` files and long tables."""

from __future__ import annotations

import importlib
import os
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...lowrank import Array
from ...wording import few
from .. import holes

SMALL_BYTES = 1 << 22  # zarr chunks below that are read several together: a task costs about as much as to read 1 MiB
JOINED_BYTES = 1 << 24  # what those make at least, and less than 4 times as much
PIECE_BYTES = 1 << 26  # of a .npy file that one task reads at most

# The header of a .npy file is parsed as Python, and up to 3.12 two threads that do so at once may disturb each other:
# "SystemError: AST constructor recursion depth mismatch" (python/cpython#106905).
PARSING = threading.Lock()

Edges = tuple[int, ...]


class UnreadableError(OSError):
    """A part of M that its storage does not give, with where it is and why.

    One string and no cause: it reaches the user from another process or machine, whatever was raised there.
    """


class Reading(partial[Any]):
    """What reads a chunk and depends on no other task: whoever needs the chunk may call it in a task of their own."""


@dataclass(frozen=True, eq=False)
class Source:
    """M as a grid of chunks that are read when a task asks for them.

    Attributes
    ----------
    shape : (n1, n2)
    dtype : numpy.dtype
        float32 or float64; every chunk has it.
    row_edges, col_edges : tuple of int
        From 0 to n1 and from 0 to n2: chunk ``(i, j)`` holds the rows from ``row_edges[i]`` to ``row_edges[i + 1]``.
    listed : bool
        The chunks are CSR arrays, whose stored entries are the observed ones; else arrays with NaN where M is missing.
    name : str
        What kind of storage it is, for messages.
    labels : (array or None, array or None)
        The ids of the rows and of the columns, sorted, of a table of (row, column, value).
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    row_edges: Edges
    col_edges: Edges
    listed: bool
    name: str
    labels: tuple[Array | None, Array | None] = (None, None)
    read: Callable[[int, int], Any] = field(kw_only=True, repr=False)
    token: str = field(default_factory=lambda: uuid.uuid4().hex, kw_only=True, repr=False)

    def chunk(self, i: int, j: int) -> Any:
        """The task that reads a chunk, a dask ``Delayed``.

        It gives an array or a canonical ``csr_array``, of this dtype. Infinite entries are refused in a CSR
        array only: of a dense chunk the pass that reads it sees them at no cost.
        """
        if not (0 <= i < len(self.row_edges) - 1 and 0 <= j < len(self.col_edges) - 1):
            grid = f"{len(self.row_edges) - 1} × {len(self.col_edges) - 1}"
            raise IndexError(f"there is no chunk ({i}, {j}) of M, which has {grid} of them")
        found = self.read(i, j)
        return tasks(found, token=self.token)((i, j)) if isinstance(found, Reading) else found


def source_of(M: Any) -> Source | None:
    """M in chunks, if it is a storage that is read by dask; None of anything else.

    Parameters
    ----------
    M : dask array, zarr array or group, dask DataFrame of (row, column, value), str or Path
        A path leads to a zarr store, a folder of ``.npy`` files that are stacked by rows, or a Parquet file or folder
        of (row, column, value).
    """
    library = type(M).__module__.partition(".")[0]
    if library == "dask":
        if hasattr(M, "chunks") and hasattr(M, "to_delayed"):
            return _from_dask(M)
        if hasattr(M, "columns") and M.ndim == 2:
            return _table("a dask DataFrame", "from_frame", M)
        kind = type(M).__name__
        raise ValueError(f"M is a dask {kind}; a dask array, or a DataFrame of row, column and value, is needed")
    if library == "zarr" and hasattr(M, "arrays"):
        return _from_group(M)
    if library == "zarr" and hasattr(M, "chunks"):
        return _from_zarr(M)
    return _from_path(M) if isinstance(M, (str, Path)) else None


def required(what: str, *libraries: str) -> None:
    for library in libraries:
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise ImportError(f'M is {what}, and {library} reads it: pip install "irpca[dask]"') from error


def tasks(function: Callable[..., Any], what: str = "irpca-read", token: str = "") -> Callable[..., Any]:
    """Calls of a function as tasks: first the place of the chunk, by which the task is named, then the arguments."""
    import dask

    later, token = dask.delayed(function, pure=False), token or uuid.uuid4().hex
    return lambda place, *given: later(*given, dask_key_name="-".join([what, token, *map(str, place)]))


def attempt(read: Callable[[], Any], where: str) -> Any:
    """What is read, or an error that says where it failed, and that any process can send to another."""
    try:
        return read()
    except MemoryError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    raise UnreadableError(f"M cannot be read: {where}. {reason}")  # out of the block, else it takes the cause along


def place_of(rows: tuple[int, int], cols: tuple[int, int]) -> str:
    return f"rows {rows[0]} to {rows[1] - 1}, columns {cols[0]} to {cols[1] - 1}"


def _float_type(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    """What entries are converted to: float32 stays, other real numbers become float64."""
    if dtype.kind not in "biufc":
        raise ValueError(f"{name} has dtype {dtype} and does not convert to numbers; real numbers are needed")
    return holes.floats(np.empty(0, dtype), name).dtype


def _check_shape(shape: Sequence[int], name: str) -> None:
    if len(shape) != 2:
        raise ValueError(f"{name} must have two dimensions, got shape {tuple(shape)}")
    if 0 in shape:
        raise ValueError(f"{name} is empty: its shape is {tuple(shape)}")


def _span(edges: Edges, k: int) -> tuple[int, int]:
    return edges[k], edges[k + 1]


def _from_dask(M: Any) -> Source:
    required("a dask array", "dask.array")
    if np.isnan(np.concatenate([np.asarray(sizes, float) for sizes in M.chunks])).any():
        raise ValueError(
            "M is a dask array with unknown chunk sizes; find them out first, with M.compute_chunk_sizes()"
        )
    _check_shape(M.shape, "M")
    dtype, listed = _float_type(M.dtype, "M"), hasattr(M._meta, "tocsr")
    there = [np.flatnonzero(sizes) for sizes in M.chunks]  # a chunk may have no rows
    row_edges, col_edges = (tuple(np.unique(np.append(0, np.cumsum(sizes))).tolist()) for sizes in M.chunks)
    blocks, call = M.to_delayed(), tasks(partial(_as_declared, declared=M.dtype, dtype=dtype, listed=listed))

    def read(i: int, j: int) -> Any:
        block = blocks[there[0][i], there[1][j]]
        return call((i, j), block, (i, j), _span(row_edges, i), _span(col_edges, j))

    shape = int(M.shape[0]), int(M.shape[1])
    return Source(shape, dtype, row_edges, col_edges, listed, "dask array", read=read)


def _as_declared(
    block: Any,
    place: tuple[int, int],
    rows: tuple[int, int],
    cols: tuple[int, int],
    *,
    declared: np.dtype[Any],
    dtype: np.dtype[Any],
    listed: bool,
) -> Any:
    """A chunk of a dask array as the array promised it: chunks come from anywhere, and nothing has checked them."""
    block = block if hasattr(block, "tocsr") else np.asanyarray(block)
    name = f"chunk {place} of M ({place_of(rows, cols)})"
    promised = rows[1] - rows[0], cols[1] - cols[0]
    if block.shape != promised:
        raise ValueError(f"{name} has shape {block.shape}, and M declares {promised} for it")
    _float_type(block.dtype, name)
    if block.dtype != declared and not np.can_cast(block.dtype, dtype):
        raise ValueError(
            f"{name} has dtype {block.dtype}, and M declares {declared}: digits would be lost. Declare what is there, "
            f"such as with dtype={str(block.dtype)!r} where M is made, or convert the chunks"
        )
    if listed:
        return _entries(block, name).astype(dtype, copy=False)
    if hasattr(block, "tocsr"):
        block = with_missing(_entries(block, name))
    elif isinstance(block, np.ma.MaskedArray):
        mask, block = np.ma.getmaskarray(block), block.data.astype(dtype)
        block[mask] = np.nan
    return np.asarray(block, dtype)  # in any order: a piece reads what lies together in memory


def _entries(block: Any, name: str) -> Any:
    """The observed entries of a chunk; there may be none."""
    if hasattr(block, "tocsr"):
        none, values = not block.nnz, block.dtype
    else:
        data = np.ma.getdata(block)
        none, values = bool(np.all(np.isnan(data) | np.ma.getmaskarray(block))), data.dtype
    if none:
        ends = np.zeros(block.shape[0] + 1, np.int32)
        return holes.compressed(np.empty(0, values), np.empty(0, np.int32), ends, block.shape)
    return holes.observed_entries(block, name)


def with_missing(entries: Any) -> Array:
    full = np.full(entries.shape, np.nan, holes.floats(entries.data, "M").dtype)
    full[np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr)), entries.indices] = entries.data
    return full


def _from_group(group: Any) -> Source:
    arrays = dict(sorted(group.arrays()))
    matrices = [name for name, array in arrays.items() if array.ndim == 2 and array.dtype.kind in "biuf"]
    if len(matrices) == 1:
        return _from_zarr(arrays[matrices[0]])
    if not arrays:
        raise ValueError(f"M is a zarr group, {group.store_path}, that holds no array")
    raise ValueError(
        f"M is a zarr group of the arrays {few(arrays)}, of which {len(matrices)} have two dimensions and "
        f'hold real numbers; pass one array, as in group["{next(iter(matrices), "name")}"]'
    )


def _from_zarr(array: Any) -> Source:
    required("a zarr array", "dask", "zarr")
    _check_shape(array.shape, "M")
    dtype = _float_type(array.dtype, "M")
    steps = _joined(array.shards or array.chunks, array.shape, dtype.itemsize)
    row_edges, col_edges = ((*range(0, length, step), length) for length, step in zip(array.shape, steps, strict=True))

    def read(i: int, j: int) -> Reading:
        return Reading(_read_zarr, array, dtype, _span(row_edges, i), _span(col_edges, j))

    return Source(tuple(array.shape), dtype, row_edges, col_edges, False, "zarr array", read=read)


def _joined(chunk: tuple[int, int], shape: tuple[int, int], itemsize: int) -> tuple[int, int]:
    """Rows and columns that are read together: whole chunks, twice as many until they are worth a task."""
    rows, cols = chunk
    if rows * cols * itemsize >= SMALL_BYTES:
        return rows, cols
    while rows * cols * itemsize < JOINED_BYTES and (rows < shape[0] or cols < shape[1]):
        if cols >= shape[1] or (rows < shape[0] and rows <= cols):
            rows *= 2
        else:
            cols *= 2
    return rows, cols


def _read_zarr(array: Any, dtype: np.dtype[Any], rows: tuple[int, int], cols: tuple[int, int]) -> Array:
    where = f"{place_of(rows, cols)} of {array.store_path}"
    return attempt(lambda: np.ascontiguousarray(array[slice(*rows), slice(*cols)], dtype), where)


def _from_path(given: str | Path) -> Source | None:
    """A storage by its name; None of a file of another kind."""
    text = os.path.expanduser(given)
    suffix = os.path.splitext(text.rstrip("/"))[1].lower()
    ours = suffix in (".zarr", ".parquet", ".parq", ".pq")
    if "://" in text and ours:
        opened = "zarr.open(…)" if suffix == ".zarr" else "dask.dataframe.read_parquet(…)"
        raise ValueError(f"M is {text!r}, which is not on this machine; pass {opened} of it")
    if not os.path.exists(text):
        if ours:
            raise ValueError(f"M is a file name, {text!r}, and there is no such file or folder")
        return None
    path = Path(text)
    if path.is_file():
        return _table("a Parquet file", "from_parquet", path) if ours and suffix != ".zarr" else None
    return _from_folder(path, suffix)


def _from_folder(path: Path, suffix: str) -> Source:
    if suffix == ".zarr" or any((path / file).exists() for file in ("zarr.json", ".zarray", ".zgroup")):
        return _open_zarr(path)
    numpys = sorted(path.glob("*.npy"), key=lambda file: natural(file.name))
    tables = any(path.rglob("*.parquet"))
    if numpys and tables:
        raise ValueError(f"M is a folder, {str(path)!r}, of both .npy and Parquet files; keep one kind in it")
    if numpys:
        return _from_npy(path, numpys)
    if tables:
        return _table("a folder of Parquet files", "from_parquet", path)
    raise ValueError(
        f"M is a folder, {str(path)!r}, that holds neither .npy nor Parquet files, and is no zarr store; "
        "pass one of these"
    )


def _table(what: str, function: str, M: Any) -> Source:
    required(what, "dask.dataframe", "pyarrow")
    from . import observations

    return getattr(observations, function)(M)


def _open_zarr(path: Path) -> Source:
    required("a zarr store", "dask", "zarr")
    import zarr

    try:
        found: Any = zarr.open(str(path), mode="r")
    except Exception as error:  # damaged metadata raise almost anything
        raise ValueError(f"M is a folder, {str(path)!r}, that is no zarr store, or damaged: {error}") from error
    return _from_group(found) if hasattr(found, "arrays") else _from_zarr(found)


def natural(name: str) -> tuple[list[tuple[int, int | str]], str]:
    """``part-2`` before ``part-10``."""
    parts = filter(None, re.split(r"([0-9]+)", name))
    return [(0, int(part)) if part[0] in "0123456789" else (1, part) for part in parts], name


def _from_npy(folder: Path, files: list[Path]) -> Source:
    required("a folder of .npy files", "dask")
    shapes, dtypes = zip(*map(_header, files), strict=True)
    n2 = shapes[0][1]
    for file, shape in zip(files, shapes, strict=True):
        if shape[1] != n2:
            raise ValueError(f"M: {file} has {shape[1]} columns, and {files[0]} has {n2}; all need the same number")
    dtype = np.dtype(np.float32 if all(one == np.float32 for one in dtypes) else np.float64)
    most = max(1, PIECE_BYTES // max(1, n2 * dtype.itemsize))  # rows
    pieces = [
        (file, rows)
        for file, (length, _) in zip(files, shapes, strict=True)
        for rows in spans(np.linspace(0, length, -(-length // most) + 1).astype(int))
    ]
    together = grouped([last - first for _, (first, last) in pieces], most)
    ends = np.cumsum([0, *(last - first for _, (first, last) in pieces)])
    row_edges = (*(int(ends[group[0]]) for group in together), int(ends[-1]))
    shape = row_edges[-1], int(n2)
    _check_shape(shape, "M")

    def read(i: int, j: int) -> Reading:
        return Reading(_read_npy, dtype, [(str(file), *rows) for file, rows in (pieces[k] for k in together[i])])

    return Source(shape, dtype, row_edges, (0, shape[1]), False, "folder of .npy files", read=read)


def spans(edges: Sequence[int] | Array) -> list[tuple[int, int]]:
    return [(int(first), int(last)) for first, last in pairwise(edges)]


def grouped(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Neighbours that are read together: as many as make no more than ``most``, and at least one."""
    groups: list[list[int]] = []
    total = 0
    for k, size in enumerate(sizes):
        if groups and total + size <= most:
            groups[-1].append(k)
            total += size
        else:
            groups.append([k])
            total = size
    return groups


def _header(file: Path) -> tuple[tuple[int, int], np.dtype[Any]]:
    try:
        array = mapped(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"M: {file} is no .npy array of numbers, or damaged: {error}") from None
    if array.ndim != 2:
        raise ValueError(f"M: {file} must have two dimensions, got shape {array.shape}")
    _float_type(array.dtype, f"M: {file}")
    return array.shape, array.dtype


def mapped(file: str | Path) -> Array:
    """A ``.npy`` file, memory-mapped; safe in threads."""
    with PARSING:
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    return array


def _read_npy(dtype: np.dtype[Any], pieces: list[tuple[str, int, int]]) -> Array:
    read = [
        attempt(partial(_rows_of, file, first, last, dtype), f"rows {first} to {last - 1} of {file}")
        for file, first, last in pieces
    ]
    return read[0] if len(read) == 1 else np.concatenate(read)


def _rows_of(file: str, first: int, last: int, dtype: np.dtype[Any]) -> Array:
    return np.array(mapped(file)[first:last], dtype, order="C")
