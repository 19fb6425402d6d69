"""Files that are still there after a crash, and never there by half, and digests by which they know what they hold."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


@contextmanager
def write_whole(target: Path, suffix: str = ".part") -> Iterator[BinaryIO]:
    """A new file beside ``target`` that takes its place when all of it is on the disk, and otherwise goes away.

    Its name ends with ``suffix``, in case the process is killed and it stays.
    """
    part = target.with_name(f".irpca-{secrets.token_hex(8)}{suffix}")
    try:
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except PermissionError as error:
        raise PermissionError(error.errno, "no permission to write in this folder", str(target.parent)) from error
    finally:
        with suppress(OSError):
            part.unlink()
    sync_folder(target.parent)


def need_folder(target: Path, name: str) -> None:
    """Refuse a file whose folder does not exist; ``name`` is what a message calls the file."""
    folder = target.absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"the folder of {name} does not exist; create it first", str(folder))


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where a system can be asked for that.

    A new file has its name for good only then.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def digest(*parts: Any) -> str:
    """A hash of the types, shapes and numbers of arrays, however they lie in memory, and of other things as spelt."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        array = isinstance(part, np.ndarray)
        found.update((f"{part.dtype.str}{part.shape};" if array else f"{part!r};").encode())
        if array:
            found.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
