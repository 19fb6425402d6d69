"""Files that hold one matrix: npy, npz and zarr."""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..lowrank import Array
from .columns import Options, ReaderError, few, quoted, short

MOST_BYTES_PER_PACKED = 1032  # of deflate: a file that announces more does not tell the truth


def from_npy(name: str, content: bytes, options: Options) -> Array:
    return checked(name, _npy(name, io.BytesIO(content), len(content)))


def from_npz(name: str, content: bytes, options: Options) -> Array:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return checked(name, _member(name, archive, len(content), options.key))
    except ReaderError:
        raise
    except Exception as error:  # damaged archives raise almost anything
        raise ReaderError(f"{name} is no npz file, or damaged: {short(error)}") from error


def _member(name: str, archive: zipfile.ZipFile, size: int, key: str | None) -> Array:
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if not members:
        raise ReaderError(f"{name} holds no array")
    info = members[_key(name, list(members), key)]
    if info.compress_size > size or info.file_size > MOST_BYTES_PER_PACKED * max(info.compress_size, 1):
        raise ReaderError(f"{name} is damaged: the size of {info.filename!r} cannot be {info.file_size} bytes")
    with archive.open(info) as stream:
        content = stream.read(info.file_size + 1)
    return _npy(name, io.BytesIO(content), len(content))


def _key(name: str, keys: list[str], key: str | None) -> str:
    shown = few(keys)
    if key is None and len(keys) > 1:
        raise ReaderError(f"{name} holds several arrays, {shown}; name one of them: --key {quoted(keys[0])}")
    if key is not None and key not in keys:
        raise ReaderError(f"--key: {name} has no array {key!r}; it has {shown}")
    return keys[0] if key is None else key


def _npy(name: str, stream: IO[bytes], size: int) -> Array:
    """An array, whose header is compared with the size of the file before anything is allocated."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            version = np.lib.format.read_magic(stream)
            header = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(stream)
            needed = math.prod(shape) * dtype.itemsize
            if dtype.hasobject or any(n < 0 for n in shape) or stream.tell() + needed > size:
                raise ValueError(f"the header announces {shape} of {dtype}, {needed} bytes; the file has {size}")
            stream.seek(0)
            array: Array = np.lib.format.read_array(stream, allow_pickle=False)
            return array
    except Exception as error:  # a header is a Python expression: it fails in many ways
        raise ReaderError(f"{name} is no npy array of numbers, or damaged: {short(error)}") from error


def checked(name: str, array: Array) -> Array:
    if array.ndim != 2:
        raise ReaderError(f"{name} holds an array of shape {array.shape}; a matrix, with rows and columns, is needed")
    if array.dtype.kind not in "biuf":
        raise ReaderError(f"{name} holds {array.dtype}; real numbers are needed")
    if 0 in array.shape:
        raise ReaderError(f"{name} holds an empty array, of shape {array.shape}")
    single = array.dtype.kind == "f" and array.dtype.itemsize == 4
    return array.astype(np.float32 if single else np.float64, copy=False)


def from_zarr(file: Path, options: Options) -> Array:
    try:
        import zarr
    except ImportError as error:
        advice = 'zarr files are read by zarr, which is not installed: pip install "irpca[files]"'
        raise ReaderError(f"{file}: {advice}") from error
    if not file.exists():
        raise ReaderError(f"{file} cannot be read: No such file or directory")
    try:
        found: Any = zarr.open(str(file), mode="r")
        if hasattr(found, "array_keys"):
            found = found[_key(str(file), sorted(found.array_keys()), options.key)]
        return checked(str(file), np.asarray(found[...]))
    except ReaderError:
        raise
    except Exception as error:
        raise ReaderError(f"{file} is no zarr array, or damaged: {short(error)}") from error
