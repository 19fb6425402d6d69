"""The archive that a model file is: written at once or not at all, read with distrust."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile, ZipInfo

import numpy as np

from ..lowrank import Array
from .decoding import DTYPE, check_bits
from .registry import require, storable

HEADER, SUMS = "header.json", "SHA256SUMS"
LARGEST_HEADER = 1 << 24  # bytes of text; numbers and labels are in arrays
MOST_ARRAYS = 10_000
PIECE = 1 << 20  # bytes that are read at a time
# What NumPy writes before the numbers of an array. Nothing else is accepted, so nothing has to be evaluated.
NPY_START = re.compile(
    rb"\{'descr': '(" + DTYPE.encode() + rb")', "
    rb"'fortran_order': (True|False), 'shape': \(([0-9, ]{0,200})\), \} *\n"
)
NPY_MAGIC = b"\x93NUMPY\x01\x00"


class _Summed:
    """A file that is written, and the checksum of what was."""

    def __init__(self, file: Any) -> None:
        self.file, self.sum = file, hashlib.sha256()

    def write(self, data: Any) -> None:
        self.sum.update(data)
        self.file.write(data)


def write(file: BinaryIO, header: bytes, arrays: list[Array]) -> None:
    sums: list[str] = []
    parts: list[tuple[str, Any]] = [(HEADER, header), *((array_name(k), array) for k, array in enumerate(arrays))]
    with ZipFile(file, "w") as archive:
        for name, content in parts:
            with archive.open(ZipInfo(name), "w", force_zip64=True) as member:  # no date: equal models, equal files
                summed = _Summed(member)
                if isinstance(content, bytes):
                    summed.write(content)
                else:
                    np.lib.format.write_array(summed, content, version=(1, 0), allow_pickle=False)
            sums.append(f"{summed.sum.hexdigest()}  {name}\n")
        archive.writestr(ZipInfo(SUMS), "".join(sums))


def array_name(k: int) -> str:
    return f"a{k}.npy"


@contextmanager
def atomic(target: Path) -> Iterator[BinaryIO]:
    """A new file beside ``target`` that takes its place when all is written, and otherwise goes away."""
    part = target.with_name(f".irpca-{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except PermissionError as error:
        raise PermissionError(error.errno, "no permission to write in the folder of path", str(target)) from error
    finally:
        with suppress(FileNotFoundError, PermissionError):
            part.unlink()


def members_of(archive: ZipFile, size: int) -> dict[str, ZipInfo]:
    """What is in the archive. Sizes are compared with that of the file before anything is read."""
    listed = archive.infolist()
    members = {info.filename: info for info in listed}
    require(len(members) == len(listed) <= MOST_ARRAYS + 2, "parts are there twice, or far too many")
    require(HEADER in members and SUMS in members, "it is no model file of irpca")
    for info in listed:
        plain = info.compress_type == 0 and info.compress_size == info.file_size and not info.flag_bits & 1
        require(plain, "its parts are compressed or encrypted, which those of a model file are not")
    require(sum(info.file_size for info in listed) <= size, "its parts claim to be larger than the file")
    most = max(members[HEADER].file_size, members[SUMS].file_size)
    require(most <= LARGEST_HEADER, "its header is too large")
    return members


def sums_of(text: bytes) -> dict[str, str]:
    found = re.findall(r"([0-9a-f]{64})  ([A-Za-z0-9.]{1,40})\n", text.decode("ascii"))
    sums = {name: digest for digest, name in found}
    require(len(sums) == len(found) and 67 * len(sums) <= len(text), "its checksums are malformed")
    require(sum(len(name) + 67 for name in sums) == len(text), "its checksums are malformed")
    return sums


def read_array(archive: ZipFile, info: ZipInfo, digest: str) -> Array:
    """One array. Its memory is taken only when the file is known to have as many bytes."""
    with archive.open(info) as member:
        start = member.read(10)
        require(len(start) == 10 and start.startswith(NPY_MAGIC), f"{info.filename} is not an array")
        start += member.read(int.from_bytes(start[8:], "little"))
        found = NPY_START.fullmatch(start[10:])
        require(found is not None, f"{info.filename} is not an array of numbers, dates or text")
        assert found is not None
        dtype, shape = np.dtype(found[1].decode()), _shape(found[3].decode())
        require(storable(dtype), f"{info.filename} is not an array of numbers, dates or text")
        count = int(np.prod(shape, dtype=object))
        require(count * dtype.itemsize == info.file_size - len(start), f"{info.filename} is shorter than it claims")
        flat = np.empty(count, dtype)
        total = hashlib.sha256(start)
        _fill(member, flat.view(np.uint8), total)
    require(total.hexdigest() == digest, f"{info.filename} does not match its checksum")
    check_bits(flat)
    return flat.reshape(shape, order="F" if found[2] == b"True" else "C")


def _shape(text: str) -> tuple[int, ...]:
    shape = tuple(int(n) for n in text.replace(" ", "").split(",") if n)
    # An array of no columns may have any number of rows, of which others of the model must have something to say.
    require(all(n < 1 << 40 for n in shape) and len(shape) < 9, "an array claims to be larger than the file")
    return shape


def _fill(member: Any, memory: Array, total: Any) -> None:
    for first in range(0, len(memory), PIECE):
        wanted = memory[first : first + PIECE]
        data = member.read(len(wanted))
        require(len(data) == len(wanted), "it is cut off")
        wanted[:] = np.frombuffer(data, np.uint8)
        total.update(data)
    require(not member.read(1), "a part is longer than it claims")
