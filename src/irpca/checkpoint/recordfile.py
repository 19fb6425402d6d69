"""A file of records that is only ever appended to.

It begins with ``MAGIC``. A record is its length, a checksum of that, a digest of the record and of all before it, and
its bytes: what is cut off, changed, moved or taken from another file is seen.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ..durable import sync_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAGIC = b"irpca checkpoint 1\n"
LENGTH, CHECK, DIGEST = 8, 4, 16  # bytes
HEAD = LENGTH + CHECK + DIGEST
PIECE = 1 << 20  # bytes that are looked at together
SYNC_EVERY = 0.5  # seconds: to wait for the disk takes longer than most questions about a small table

log = logging.getLogger("irpca")


class CheckpointError(ValueError):
    """A file is not a checkpoint from which this solve could go on."""


class RecordFile:
    """Records on disk. No descriptor is held between two of them, so there is nothing to close.

    Attributes
    ----------
    count : number of whole records
    torn : bytes of a last record that was not finished; the next one takes its place
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.torn = 0
        self._ends: list[int] = []  # of every record: the next begins there
        self._digests: list[bytes] = []
        self._size: int | None = None  # of the file, as it was last seen; None: there is none yet
        self._unfinished = False  # a write of ours was interrupted: the file may have any size
        self._synced = -float("inf")

    @property
    def count(self) -> int:
        return len(self._ends)

    @property
    def _end(self) -> int:
        return self._ends[-1] if self._ends else len(MAGIC)

    def read(self) -> None:
        """Look through the file; whatever is wrong with it is found now."""
        with open(self.path, "rb") as file, _locked(file.fileno(), shared=True):
            self._size = os.fstat(file.fileno()).st_size
            start = file.read(len(MAGIC))
            if start != MAGIC[: len(start)]:
                raise CheckpointError(
                    f"{self.path} is no checkpoint, or one of another version of irpca: give the path of a checkpoint, "
                    "or resume with the version that wrote it"
                )
            while self._found(file, self._size):
                pass
        self.torn = max(self._size - self._end, 0)
        if self.torn:
            log.info(
                "%s ends with %d bytes of an unfinished record: that question is asked again", self.path, self.torn
            )

    def _found(self, file: BinaryIO, size: int) -> bool:
        """Whether there is another whole record; then it is counted."""
        start = self._end
        head = _at(file, start, HEAD)
        if len(head) < HEAD:
            return False
        length = int.from_bytes(head[:LENGTH], "little")
        end = start + HEAD + length
        if zlib.crc32(head[:LENGTH]) != int.from_bytes(head[LENGTH:-DIGEST], "little"):
            if _only_zeros(file, start):  # as a power cut may leave them
                return False
            raise self._damaged()
        if end > size:
            return False
        if self._digest(_pieces(file, start + HEAD, length)) != head[-DIGEST:]:
            if end == size:  # a power cut may leave what was not yet on the disk
                return False
            raise self._damaged()
        self._ends.append(end)
        self._digests.append(head[-DIGEST:])
        return True

    def _damaged(self) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is damaged after {self.count} records: restore it from a copy, or delete it and solve anew"
        )

    def _digest(self, data: Iterable[bytes | memoryview], index: int | None = None) -> bytes:
        """Of the bytes of a record, the next one if no index is given, and of all before it."""
        before = self._digests[:index]
        total = hashlib.blake2b(before[-1] if before else MAGIC, digest_size=DIGEST)
        for part in data:
            total.update(part)
        return total.digest()

    def __getitem__(self, index: int) -> bytes:
        start = (self._ends[index - 1] if index else len(MAGIC)) + HEAD
        with open(self.path, "rb") as file:
            data = _at(file, start, self._ends[index] - start)
        if self._digest([data], index) != self._digests[index]:
            raise self._changed()
        return data

    def _changed(self) -> CheckpointError:
        return CheckpointError(
            f"{self.path} was changed meanwhile: another process seems to use the same checkpoint. Give each solve a "
            "file of its own"
        )

    def cut(self, count: int) -> None:
        """Forget all records but the first so many; on disk the next one takes their place."""
        del self._ends[count:], self._digests[count:]

    def append(self, *data: bytes | memoryview) -> None:
        """Add a record, given in parts. Interrupted, it is as if it had not been added."""
        found, size = self._digest(data), sum(map(len, data))
        length = size.to_bytes(LENGTH, "little")
        start = self._end if self._ends else 0
        magic = b"" if self._ends else MAGIC
        head = b"".join([magic, length, zlib.crc32(length).to_bytes(CHECK, "little"), found])
        with self._opened() as file, _locked(file.fileno()):
            if not self._unfinished and os.fstat(file.fileno()).st_size != self._size:
                raise self._changed()
            self._unfinished = True
            file.truncate(start)
            file.seek(start)
            for part in (head, *data):
                rest = memoryview(part)
                while rest:
                    rest = rest[file.write(rest) :]
            if time.monotonic() - self._synced >= SYNC_EVERY:
                os.fsync(file.fileno())
                self._synced = time.monotonic()
        self._size = start + len(head) + size
        self._digests.append(found)
        self._ends.append(self._size)
        self._unfinished = False

    def _opened(self) -> BinaryIO:
        if self._size is not None:
            return open(self.path, "r+b", buffering=0)
        file = open(self.path, "x+b", buffering=0)  # noqa: SIM115
        self._size = 0
        sync_folder(self.path.parent)
        return file


def _at(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)


def _pieces(file: BinaryIO, start: int, length: int) -> Iterator[bytes]:
    file.seek(start)
    while length > 0 and (piece := file.read(min(length, PIECE))):
        length -= len(piece)
        yield piece


def _only_zeros(file: BinaryIO, start: int) -> bool:
    file.seek(start)
    while piece := file.read(PIECE):
        if piece.count(0) < len(piece):
            return False
    return True


@contextmanager
def _locked(fd: int, shared: bool = False) -> Iterator[None]:
    """No other process writes meanwhile, where the file system knows locks."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    yield
