"""Which reader a file needs, by its name."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import arrow, csvfiles, matrixfiles, mtx
from .columns import Options, ReaderError

PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
READERS: dict[str, Callable[[str, bytes, Options], Any]] = {
    ".npy": matrixfiles.from_npy,
    ".npz": matrixfiles.from_npz,
    ".mtx": mtx.from_mtx,
    ".parquet": arrow.from_arrow,
    ".pq": arrow.from_arrow,
    ".feather": arrow.from_arrow,
    ".arrow": arrow.from_arrow,
}


def read(path: str, options: Options | None = None) -> Any:
    """A file as a :class:`Table`, or, if it holds one matrix, as an array or sparse array.

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
        return csvfiles.from_csv("standard input", sys.stdin.buffer.read(), options)
    file = Path(path)
    if file.suffix.lower() == ".zarr":
        return matrixfiles.from_zarr(file, options)
    inner = Path(file.stem) if file.suffix.lower() in PACKED else file
    return READERS.get(inner.suffix.lower(), csvfiles.from_csv)(path, _content(file), options)


def _content(file: Path) -> bytes:
    if file.is_dir():
        raise ReaderError(f"{file} is a folder; name a file in it")
    unpack = PACKED.get(file.suffix.lower(), open)
    try:
        with unpack(file, "rb") as stream:
            return bytes(stream.read())
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ReaderError(f"{file} cannot be unpacked ({error}); it is damaged, or not what its name says") from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise ReaderError(f"{file} cannot be read: {reason}") from error
