"""Storages of M as a grid of chunks, each read when it is asked for: dask, zarr, ``.npy`` files and long tables."""

from __future__ import annotations

import importlib
import math
import os
import threading
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ...lowrank import Array
from ...wording import few
from .. import holes
from ..pieces import Listed

SMALL_BYTES = 1 << 22  # zarr chunks below that are read several together: a task costs about as much as to read 1 MiB
JOINED_BYTES = 1 << 25  # what those make at most
PIECE_BYTES = 1 << 26  # of .npy files that one task reads at most
FAN_IN = 8  # answers that one task adds up: fewer make more tasks, more wait for each other

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
    dtype : numpy.dtype
        float32 or float64; every chunk has it.
    row_edges, col_edges : tuple of int
        From 0 to n1 and from 0 to n2: chunk ``(i, j)`` holds the rows from ``row_edges[i]`` to ``row_edges[i + 1]``.
    name : str
        What kind of storage it is, for messages.
    read : callable
        Of the place of a chunk: a ``Reading``, or a task, always of the same name. It gives an array or a canonical
        ``csr_array``, of this dtype. Infinite entries are refused in a CSR array only: of a dense chunk the pass that
        reads it sees them at no cost.
    listed : bool
        The chunks are CSR arrays, whose stored entries are the observed ones; else arrays with NaN where M is missing.
    labels : (array or None, array or None)
        The ids of the rows and of the columns, sorted, of a table of (row, column, value).
    """

    dtype: np.dtype[Any]
    row_edges: Edges
    col_edges: Edges
    name: str
    read: Callable[[int, int], Any]
    listed: bool = False
    labels: tuple[Array | None, Array | None] = (None, None)

    @property
    def shape(self) -> tuple[int, int]:
        return self.row_edges[-1], self.col_edges[-1]


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


def tasks(function: Callable[..., Any], what: str = "irpca-read") -> Callable[..., Any]:
    """Calls of a function as tasks, which are numbered."""
    import dask

    later, token, numbers = dask.delayed(function, pure=False), uuid.uuid4().hex, count()
    return lambda *given: later(*given, dask_key_name=f"{what}-{token}-{next(numbers)}")


def add_in_tree(add: Callable[..., Any], parts: list[Any], *given: Any) -> Any:
    """The task at the root of a tree, each of whose tasks adds up a few parts, in their order."""
    while True:
        parts = [add(parts[k : k + FAN_IN], *given) for k in range(0, len(parts), FAN_IN)]
        if len(parts) == 1:
            return parts[0]


def client_of_dask() -> Any:
    """The client whose workers would run a task now; None: threads of this process.

    ``distributed.get_client`` answers a client too where another scheduler is set in the configuration of dask.
    """
    from dask.base import get_scheduler

    owner = getattr(get_scheduler(), "__self__", None)
    return owner if hasattr(owner, "scatter") else None


def attempt(read: Callable[[], Any], where: str) -> Any:
    """What is read, or an error that says where it failed, and that any process can send to another."""
    try:
        return read()
    except MemoryError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    raise UnreadableError(f"M cannot be read: {where}. {reason}")  # out of the block, else it takes the cause along


def place_of(rows: Edges, cols: Edges) -> str:
    return f"rows {rows[0]} to {rows[1] - 1}, columns {cols[0]} to {cols[1] - 1}"


def _float_type(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    """What entries are converted to: float32 stays, other real numbers become float64."""
    if dtype.kind not in "biufc":
        raise ValueError(f"{name} has dtype {dtype} and does not convert to numbers; real numbers are needed")
    return holes.floats(np.empty(0, dtype), name).dtype


def _edges(sizes: Iterable[int]) -> Edges:
    return 0, *np.cumsum(list(sizes)).tolist()


def _check_shape(shape: Sequence[int], name: str) -> None:
    if len(shape) != 2:
        raise ValueError(f"{name} must have two dimensions, got shape {tuple(shape)}")
    if 0 in shape:
        raise ValueError(f"{name} is empty: its shape is {tuple(shape)}")


def _from_dask(M: Any) -> Source:
    import dask

    if np.isnan(np.concatenate([np.asarray(sizes, float) for sizes in M.chunks])).any():
        raise ValueError(
            "M is a dask array with unknown chunk sizes; find them out first, with M.compute_chunk_sizes()"
        )
    _check_shape(M.shape, "M")
    dtype, listed = _float_type(M.dtype, "M"), hasattr(M._meta, "tocsr")
    there = [np.flatnonzero(sizes) for sizes in M.chunks]  # a chunk may have no rows
    row_edges, col_edges = (_edges(np.asarray(sizes)[some]) for sizes, some in zip(M.chunks, there, strict=True))
    blocks, token = M.to_delayed(), uuid.uuid4().hex
    check = dask.delayed(partial(_as_declared, declared=M.dtype, dtype=dtype, listed=listed), pure=False)

    def read(i: int, j: int) -> Any:
        block, rows, cols = blocks[there[0][i], there[1][j]], row_edges[i : i + 2], col_edges[j : j + 2]
        return check(block, (i, j), rows, cols, dask_key_name=f"irpca-read-{token}-{i}-{j}")

    return Source(dtype, row_edges, col_edges, "dask array", read, listed)


def _as_declared(
    block: Any, place: Edges, rows: Edges, cols: Edges, *, declared: np.dtype[Any], dtype: np.dtype[Any], listed: bool
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
        block = Listed(_entries(block, name)).whole()
    elif isinstance(block, np.ma.MaskedArray):
        block = np.ma.filled(block.astype(dtype), np.nan)
    return np.asarray(block, dtype)  # in any order: a piece reads what lies together in memory


def _entries(block: Any, name: str) -> Any:
    """The observed entries of a chunk; there may be none."""
    if hasattr(block, "tocsr"):
        some = block.nnz
    else:
        some = np.any(~(np.isnan(np.ma.getdata(block)) | np.ma.getmaskarray(block)))
    if some:
        return holes.observed_entries(block, name)
    ends = np.zeros(block.shape[0] + 1, np.int32)
    return holes.compressed(np.empty(0, block.dtype), ends[:0], ends, block.shape)


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
    required("a zarr array", "dask.array", "zarr")
    from dask.array.core import normalize_chunks

    _check_shape(array.shape, "M")
    dtype, chunk = _float_type(array.dtype, "M"), array.shards or array.chunks
    small = math.prod(chunk) * dtype.itemsize < SMALL_BYTES  # then several are read together
    sizes = normalize_chunks("auto" if small else chunk, array.shape, JOINED_BYTES, dtype, chunk if small else None)
    row_edges, col_edges = map(_edges, sizes)

    def read(i: int, j: int) -> Reading:
        return Reading(_read_zarr, array, dtype, row_edges[i : i + 2], col_edges[j : j + 2])

    return Source(dtype, row_edges, col_edges, "zarr array", read)


def _read_zarr(array: Any, dtype: np.dtype[Any], rows: Edges, cols: Edges) -> Array:
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
    numpys, tables = list(path.glob("*.npy")), any(path.rglob("*.parquet"))
    if numpys and tables:
        raise ValueError(f"M is a folder, {str(path)!r}, of both .npy and Parquet files; keep one kind in it")
    if numpys:
        return _from_npy(numpys)
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


def naturally_sorted(files: Iterable[Path]) -> list[Path]:
    """``part-2`` before ``part-10``."""
    from dask.utils import natural_sort_key

    return sorted(sorted(files), key=lambda file: natural_sort_key(str(file)))


def _from_npy(found: list[Path]) -> Source:
    required("a folder of .npy files", "dask")
    files = naturally_sorted(found)
    shapes, dtypes = zip(*map(_header, files), strict=True)
    n2 = shapes[0][1]
    for file, shape in zip(files, shapes, strict=True):
        if shape[1] != n2:
            raise ValueError(f"M: {file} has {shape[1]} columns, and {files[0]} has {n2}; all need the same number")
    dtype = np.dtype(np.float32 if all(one == np.float32 for one in dtypes) else np.float64)
    ends = _edges([length for length, _ in shapes])
    _check_shape((ends[-1], n2), "M")
    number = math.ceil(ends[-1] * n2 * dtype.itemsize / PIECE_BYTES)
    row_edges = tuple(np.linspace(0, ends[-1], number + 1).astype(int).tolist())

    def read(i: int, j: int) -> Reading:
        first, last = row_edges[i : i + 2]
        some = range(bisect_right(ends, first) - 1, bisect_left(ends, last))
        inside = [(str(files[k]), max(first - ends[k], 0), min(last, ends[k + 1]) - ends[k]) for k in some]
        return Reading(_read_npy, dtype, inside)

    return Source(dtype, row_edges, (0, n2), "folder of .npy files", read)


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


def _read_npy(dtype: np.dtype[Any], parts: list[tuple[str, int, int]]) -> Array:
    def read(file: str, first: int, last: int) -> Array:
        rows = f"rows {first} to {last - 1} of {file}"
        return attempt(lambda: np.array(mapped(file)[first:last], dtype, order="C"), rows)

    found = [read(*part) for part in parts]
    return found[0] if len(found) == 1 else np.concatenate(found)
