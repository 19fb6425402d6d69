"""Files as tables or matrices, each by the reader that its name asks for."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shlex
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..lowrank import Array
from ..wording import few
from .csvfiles import from_csv
from .table import UNNAMED, FileTable, Options, ReaderError, objects, one_line, spell_values

PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
MOST_EMPTY_LINES = 10**7  # rows or columns of a Matrix Market file beyond those that the entries can fill


def read(path: str, options: Options | None = None) -> Any:
    """Return a file as a :class:`FileTable`, or, if it holds one matrix, as an array or sparse array.

    Parameters
    ----------
    path : str
        ``-`` is a csv file on standard input. A name with an ending that is not known is that of a csv file.
    options : Options or None

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp(), "wind.csv")
    >>> _ = file.write_text("day,wind\\n2013-01-01,10.4\\n2013-01-02,NA\\n")
    >>> table = read(str(file))
    >>> table.columns["wind"]
    array([10.4,  nan])
    >>> table.columns["day"].dtype
    dtype('<M8[us]')
    """
    options = options or Options()
    if path == "-":
        return from_csv("standard input", sys.stdin.buffer.read(), options)
    file = Path(path)
    kind = Path(file.stem if file.suffix.lower() in PACKED else file.name).suffix.lower()
    if kind == ".zarr":
        return _read_matrix(path, lambda: _open_zarr(path, options.key), "zarr array")
    content = _read_bytes(file)
    match kind:
        case ".npy" | ".npz":
            return _read_matrix(path, lambda: _load_numpy(path, content, options.key), f"{kind[1:]} file of numbers")
        case ".mtx":
            return _read_matrix(path, lambda: _parse_mtx(content), "Matrix Market file that can be used here")
        case ".parquet" | ".pq" | ".feather" | ".arrow":
            return _from_arrow(path, kind, content, options)
    return from_csv(path, content, options)


def _read_bytes(file: Path) -> bytes:
    if file.is_dir():
        raise ReaderError(f"{file} is a folder; name a file in it")
    try:
        with PACKED.get(file.suffix.lower(), open)(file, "rb") as stream:
            return bytes(stream.read())
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ReaderError(f"{file} cannot be unpacked ({error}); it is damaged, or not what its name says") from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise ReaderError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _read_matrix(name: str, load: Callable[[], Any], what: str) -> Any:
    """Return what ``load`` does, if that is a matrix of real numbers; whatever it raises becomes a ReaderError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about files of old versions
            matrix = load()
    except ReaderError:
        raise
    except Exception as error:  # damaged files raise almost anything, and announce more than memory holds
        raise ReaderError(f"{name} is no {what}, or damaged: {one_line(error)}") from error
    if matrix.ndim != 2:
        raise ReaderError(f"{name} holds an array of shape {matrix.shape}; a matrix, with rows and columns, is needed")
    if matrix.dtype.kind not in "biuf":
        raise ReaderError(f"{name} holds {matrix.dtype}; real numbers are needed")
    if 0 in matrix.shape:
        raise ReaderError(f"{name} holds an empty array, of shape {matrix.shape}")
    return matrix.astype(np.float32 if matrix.dtype.str[1:] == "f4" else np.float64, copy=False)


def _load_numpy(name: str, content: bytes, key: str | None) -> Any:
    found = np.load(io.BytesIO(content), allow_pickle=False)
    return found if isinstance(found, np.ndarray) else found[_choose_key(name, found.files, key)]


def _open_zarr(path: str, key: str | None) -> Array:
    _require("zarr", path)
    import zarr

    if not Path(path).exists():
        raise ReaderError(f"{path} cannot be read: No such file or directory")
    found: Any = zarr.open(path, mode="r")
    if hasattr(found, "array_keys"):
        found = found[_choose_key(path, sorted(found.array_keys()), key)]
    return np.asarray(found[...])


def _choose_key(name: str, keys: list[str], key: str | None) -> str:
    if not keys:
        raise ReaderError(f"{name} holds no array")
    if key is None and len(keys) > 1:
        raise ReaderError(f"{name} holds several arrays, {few(keys)}; name one of them: --key {shlex.quote(keys[0])}")
    if key is not None and key not in keys:
        raise ReaderError(f"--key: {name} has no array {key!r}; it has {few(keys)}")
    return keys[0] if key is None else key


def _require(library: str, name: str) -> None:
    try:
        __import__(library)
    except ImportError as error:
        advice = f'{library}, which is not installed: pip install "irpca[files]", or save the table as csv'
        raise ReaderError(f"{name}: {Path(name).suffix} files are read by {advice}") from error


def _parse_mtx(content: bytes) -> Any:
    """Return a dense array, or a sparse one whose stored entries are the observed ones; ValueError if it is neither.

    Not by SciPy's reader, which ends the process where a line holds the beginning of a second entry (seen in 1.17).
    """
    from scipy.sparse import coo_array

    first, *lines = content.split(b"\n")
    words = first.decode("ascii").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError("it does not begin with %%MatrixMarket matrix …")
    layout, kind, symmetry = words[2:]
    k = {"coordinate": 3, "array": 1}.get(layout, 0)  # numbers of one entry
    if not k or symmetry != "general" or kind not in ("real", "integer", "double"):
        raise ValueError(f"it holds {layout} {kind} {symmetry}; a matrix of real numbers, saved as general, is needed")
    numbers = np.array(b" ".join(line for line in lines if not line.startswith(b"%")).split(), float)
    sizes, numbers = numbers[: max(k, 2)], numbers[max(k, 2) :]
    if min(sizes) < 1 or (sizes != np.floor(sizes)).any() or max(sizes) > 2**53:
        raise ValueError(f"its sizes are {few(sizes)}")
    n1, n2 = (int(size) for size in sizes[:2])
    stored = int(sizes[2]) if k == 3 else n1 * n2
    if len(numbers) != k * stored:
        raise ValueError(f"it announces {stored} entries, and has {len(numbers) / k:.12g}")
    if k == 1:
        return numbers.reshape(n2, n1).T
    if max(n1, n2) > MOST_EMPTY_LINES + stored:
        raise ValueError(f"it announces {n1} × {n2}, almost all rows or columns of it empty")
    i, j, values = numbers.reshape(stored, 3).T
    if not np.isfinite(numbers).all() or (np.floor([i, j]) != [i, j]).any():
        raise ValueError("an entry is not finite, or its place no whole number; leave out what is not known")
    places = np.array([i, j]).astype(np.intp) - 1
    if len(np.unique(places, axis=1).T) < stored:
        raise ValueError("a cell is there more than once")
    return coo_array((values, tuple(places)), shape=(n1, n2)).tocsr()  # which refuses places outside


def _from_arrow(name: str, kind: str, content: bytes, options: Options) -> FileTable:
    """Return the columns of a parquet or feather file."""
    _require("pyarrow", name)
    import pyarrow
    from pyarrow import feather, parquet

    try:
        source = pyarrow.BufferReader(content)
        found = parquet.ParquetFile(source).read() if kind in (".parquet", ".pq") else feather.read_table(source)
    except Exception as error:
        raise ReaderError(f"{name} is no {kind[1:]} file, or damaged: {one_line(error)}") from error
    names = [
        UNNAMED + str(j) if column.startswith("__index_level_") else column
        for j, column in enumerate(found.column_names)
    ]
    twice = next((column for column in names if names.count(column) > 1), None)
    if twice is not None:
        raise ReaderError(f"{name} has several columns named {twice!r}; give every column its own name")
    wanted = options.choose(name, names)
    if not found.num_rows:
        raise ReaderError(f"{name} has no rows of data")
    columns = {column: _from_chunks(name, column, found.column(names.index(column)), options) for column in wanted}
    texts = {column: spell_values(values) for column, values in columns.items() if values.dtype.kind in "OM"}
    return FileTable(name, columns, texts)


def _from_chunks(file: str, name: str, chunks: Any, options: Options) -> Array:
    """Return a column of Arrow as an array."""
    from pyarrow import types

    if types.is_dictionary(chunks.type):
        chunks = chunks.cast(chunks.type.value_type)
    kind = chunks.type
    if types.is_date(kind) or types.is_timestamp(kind):
        return np.asarray(chunks.to_numpy(), "datetime64[us]")
    if types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind):
        return objects(chunks.to_pylist())
    if name in options.labels and types.is_integer(kind):  # which may have more digits than a float
        return objects(chunks.cast("string").to_pylist())
    if types.is_primitive(kind) or types.is_decimal(kind):
        values = np.asarray(chunks.cast("float64", safe=False))
        return values.astype(bool) if types.is_boolean(kind) and not chunks.null_count else values
    raise ReaderError(f"{file}: column {name!r} holds {kind}, not numbers, dates or text; --drop {shlex.quote(name)}")
