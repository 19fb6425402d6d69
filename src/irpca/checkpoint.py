"""Checkpoints: a journal of the engine's answers, from which an interrupted solve goes on.

A solver is deterministic and sees M only through its engine, whose answers are thin. So the answers are all there is to
keep: run again from the start and given the same answers, without reading M, it comes to where it was. No solver knows
about it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from .durable import digest, need_folder
from .encoding import Kinds, decode, encode, kinds_of
from .engines.base import Engine, Lines, Look, Sums, Trim
from .lowrank import Array

__all__ = ["Checkpoint", "CheckpointError", "Journal"]

READS = frozenset({"core", "products", "solve_lines"})  # all of M: the answers are kept
# Entries are asked for again. Where they are dear, a survey has brought them, and is kept; if not, so are they.
ACCESSES = frozenset({"block", "entries"})
GLANCE = 256  # entries by which M is recognised
# Errors after which a solver may go on: they are answers, too.
RAISED: dict[str, type[Exception]] = {"FloatingPointError": FloatingPointError, "LinAlgError": np.linalg.LinAlgError}
ANSWERS: Kinds = {**kinds_of(Lines, Sums, Trim), **{name: (error, str, error) for name, error in RAISED.items()}}
CALLED = {
    "irpca": "the version of irpca",
    "shape": "the shape of M",
    "dtype": "the type of M",
    "chunks": "the division of M into chunks",
    "F1": "the features of the rows",
    "F2": "the features of the columns",
    "seed": "random_state",
    "values": "some values of M",
}
TABLE = "CREATE TABLE checkpoint_2 (record INTEGER, part INTEGER, data BLOB, digest TEXT, PRIMARY KEY (record, part))"
PIECE = 1 << 22  # bytes of an array in one row: SQLite copies a row, and holds no more than 1 GB in one
COMMIT_EVERY = 0.5  # seconds: to wait for the disk takes longer than most questions about a small table

MALFORMED = ValueError | TypeError | LookupError | AttributeError | ArithmeticError | MemoryError | RecursionError

log = logging.getLogger("irpca")


class CheckpointError(ValueError):
    """A file is not a checkpoint from which this solve could go on."""


class Checkpoint:
    """A callback that does nothing: ``solve()`` finds it among the others, and keeps answers in its file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __call__(self, state: Any, history: Any) -> None:
        return None


class Journal:
    """An engine whose answers are kept in a file.

    Questions that read M are numbered. As long as the file has an answer of that number, to a question that is the same
    to the bit, it is given and M is not read; from then on the engine is asked, and its answers are appended. S is not
    kept: ``corruption`` and ``write`` are always asked. What reads nothing (``shape``, ``counts``, …) is the engine's
    own.

    Parameters
    ----------
    engine : Engine
    path : str or path
    resume : bool
        Whether to go on from an existing file.
    begin : bool
        Whether a new one may be begun. It appears when :meth:`begin` has said what is being solved.
    """

    def __init__(self, engine: Engine, path: str | os.PathLike[str], *, resume: bool, begin: bool) -> None:
        self.engine, self.path = engine, Path(path)
        self._file: RecordFile | None = None
        self._header: dict[str, Any] = {}
        self._at = 0  # the number of the next record
        self._next: tuple[Any, Any, bool, Iterator[bytes]] | None = None  # what the file has there
        self._placed: dict[int, tuple[Any, Array]] = {}  # the handle too: while it lives, its id is its own
        self._questions: Kinds = {
            "seed": (np.random.SeedSequence, lambda seed: seed.generate_state(4, np.uint64), _refuse),
            "class": ("__dataclass_fields__", _take_class, _refuse),
        }
        self._normals = 0
        self._ended = self._mapped = False
        if not os.path.lexists(path):
            if not begin:
                text = "there is no checkpoint to resume from; a first solve takes callbacks=irpca.callbacks."
                raise FileNotFoundError(errno.ENOENT, f"{text}checkpoint(path)", str(path))
            need_folder(self.path, "the checkpoint")
        elif not resume:
            text = f"this checkpoint exists: pass resume={os.fspath(path)!r} to go on from it, or delete it"
            raise FileExistsError(errno.EEXIST, text, os.fspath(path))
        else:
            self._file = RecordFile(self.path, new=False)
            with self._file.guard():
                self._header = dict(self._file.read(0)[0]) if self._file.count else {}

    @classmethod
    @contextmanager
    def asked_for(
        cls, engine: Engine, callbacks: Iterable[Any], resume: str | os.PathLike[str] | None
    ) -> Iterator[Journal | None]:
        """The journal that callbacks and the argument ``resume`` of solve() ask for, if they do; it is closed after."""
        paths = [one.path for one in callbacks if isinstance(one, Checkpoint)]
        if len(paths) > 1:
            raise ValueError(f"give one checkpoint; got {len(paths)}")
        if paths and resume is not None and paths[0].absolute() != Path(resume).absolute():
            raise ValueError(f"a resumed solve goes on in its own file: leave checkpoint('{paths[0]}') out")
        if not paths and resume is None:
            yield None
            return
        journal = cls(engine, paths[0] if resume is None else resume, resume=resume is not None, begin=bool(paths))
        try:
            yield journal
        finally:
            journal.ending()

    @property
    def seed(self) -> np.random.SeedSequence | None:
        """Of the solve that began the file."""
        if self._file is None or "seed" not in self._header:
            return None
        with self._file.guard():
            entropy, spawn_key = self._header["seed"]
            return np.random.SeedSequence(entropy, spawn_key=tuple(spawn_key))

    def begin(self, asked: Mapping[str, Any]) -> None:
        """Say what is being solved; refuse a file of anything else.

        M is recognised by values at some places; where they are dear, those of one chunk.
        """
        from . import __version__

        engine = self.engine
        found = {
            "irpca": __version__,
            "engine": engine.name,
            "shape": engine.shape,
            "dtype": str(engine.dtype),
            "chunks": None if engine.edges is None else np.concatenate(engine.edges),
            **asked,
            "values": engine.glance(GLANCE),
        }
        header = json.loads(json.dumps(found, default=_abridge))
        if self._header and (differences := _list_differences(self._header, header)):
            raise CheckpointError(
                f"{self.path} is the checkpoint of another solve: {'; '.join(differences)}. Solve as then, or "
                "give the path of a new file to irpca.callbacks.checkpoint"
            )
        self._file = self._file or RecordFile(self.path, new=True)
        if not self._header:
            self._file.append(header)
        self._advance()

    def mapped(self, maps: Any) -> Journal:
        """The same journal, from now on of the latent values of M: who asks again gets what the first got."""
        if not self._mapped:
            self.engine, self._mapped = self.engine.mapped(maps), True
        return self

    def ending(self) -> None:
        """The solver has stopped: what is asked from now on belongs to the end of this run, and is not kept."""
        self._ended = True
        if self._file is not None:
            self._file.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "engine":
            raise AttributeError(name)
        if name in READS:
            return lambda *args, **kwargs: self.ask(
                name, (args, kwargs), lambda: getattr(self.engine, name)(*args, **kwargs)
            )
        if name in ACCESSES and self.engine.dear:
            return partial(self._access, name)
        return getattr(self.engine, name)

    def _access(self, name: str, *args: Any) -> Any:
        """Entries of M where they are dear: kept if the engine had to read for them, and did not know them already."""
        live, reads = partial(getattr(self.engine, name), *args), self.engine.reads
        if self._ended:
            return live()
        asked = self._describe(name, args)
        if self._next is not None:
            return self._answer(asked, live) if self._next[0] == asked else live()
        answer = live()
        return answer if self.engine.reads == reads else self._answer(asked, lambda: answer)

    def survey(self, looks: Sequence[Look]) -> Any:
        """What was found is kept, and given back to the engine when it is not asked."""
        live = cache(lambda: self.engine.survey(looks))
        found = self.ask("survey", looks, live)
        if not live.cache_info().currsize:
            self.engine.recall(found)
        return found

    def place(self, B: Array) -> Any:
        handle: Any = self.engine.place(B)
        if not isinstance(handle, np.ndarray):
            self._placed[id(handle)] = handle, B
            known = type(handle), lambda one: self._placed[id(one)][1], _refuse
            self._questions = {"handle": known, **self._questions}
        return handle

    def normal(self, *args: Any, **kwargs: Any) -> Any:
        """Normal equations whose answers are kept. Those at the engine are made only when it is asked."""
        make = cache(lambda: self.engine.normal(*args, **kwargs))
        gradient, trim = self.ask("normal", (args, kwargs), lambda: (make().gradient, make().trim))
        self._normals += 1
        number = self._normals

        def ask(name: str, *given: Any) -> Any:
            return self.ask(f"normal.{name}", (number, *given), lambda: getattr(make(), name)(*given))

        return SimpleNamespace(
            gradient=gradient, trim=trim, times=partial(ask, "times"), products=partial(ask, "products")
        )

    def ask(self, name: str, arguments: Any, live: Callable[[], Any]) -> Any:
        """The answer to a question: the recorded one, or that of ``live()``."""
        return live() if self._ended else self._answer(self._describe(name, arguments), live)

    def _describe(self, name: str, arguments: Any) -> list[str]:
        """The name of a question, and a digest of its arguments."""
        with _naming_checkpoints():
            return [name, digest(json.dumps(encode(arguments, self._questions, digest)))]

    def _answer(self, asked: list[str], live: Callable[[], Any]) -> Any:
        same = self._next is not None and self._next[0] == asked
        answer = self._replay() if same else self._record(asked, live)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _replay(self) -> Any:
        """Give the recorded answer."""
        assert self._file is not None and self._next is not None
        _, node, holes, parts = self._next
        with self._file.guard():
            answer = decode(node, ANSWERS, partial(_gather, parts))
        if holes:
            self.engine.holes = True
        self._advance()
        return answer

    def _record(self, asked: list[str], live: Callable[[], Any]) -> Any:
        """Ask the engine, and keep its answer in place of all that the file still has."""
        assert self._file is not None
        if self._next is not None:
            log.warning(
                "%s: question %d is now %r, and differs from the recorded %r (another machine, or other versions of "
                "libraries); %d records from there on are not used, and M is read instead",
                *(self.path, self._at, asked[0], self._next[0][0], self._file.count - self._at),
            )
            self._next = None
        arrays: list[Array] = []

        def keep(array: Array) -> list[Any]:
            arrays.append(_lay_out(array))
            return [array.dtype.str, array.shape, "C" if arrays[-1].flags.c_contiguous else "F"]

        try:
            found = live()
        except tuple(RAISED.values()) as error:
            found = error
        with _naming_checkpoints():
            node = encode(found, ANSWERS, keep)
        self._file.cut(self._at)
        self._file.append([asked, node, self.engine.holes], arrays)
        self._at = self._file.count
        left = iter(arrays)  # as they will lie in memory when this is replayed
        return found if isinstance(found, Exception) else decode(node, ANSWERS, lambda _: next(left))

    def _advance(self) -> None:
        assert self._file is not None
        self._at, self._next = self._at + 1, None
        if self._at < self._file.count:
            with self._file.guard():
                (asked, node, holes), parts = self._file.read(self._at)
                self._next = [*asked], node, holes, parts


class RecordFile:
    """Records in a file of SQLite, which is whole whenever the process is killed. Nothing in it is executed.

    A record is a text and some arrays; it is kept in parts, each with a digest of itself and its place. The file is
    locked as long as it is open. An error closes it, without what was not yet committed, which is the work of half a
    second at most.

    Attributes
    ----------
    count : number of records
    """

    def __init__(self, path: Path, *, new: bool) -> None:
        if new:
            open(path, "xb").close()
        elif not (path.is_file() and os.access(path, os.R_OK | os.W_OK)):  # to open and close it would end locks
            raise OSError(errno.EACCES, "this is no file that can be read and written", str(path))
        self.path, self.count, self._committed = path, 0, time.monotonic()
        self._db = sqlite3.connect(path.absolute(), timeout=1, check_same_thread=False)
        with self.guard():
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("BEGIN EXCLUSIVE")
            schema = self._db.execute("SELECT sql FROM sqlite_master").fetchall()
            if not schema:  # a new file, or a process was killed when it had begun one
                self._db.execute(TABLE)
                return
            if schema != [(TABLE,), (None,)]:
                raise ValueError("it holds other tables")
            (found,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise ValueError(found)
            (last,) = self._db.execute("SELECT max(record) FROM checkpoint_2").fetchone()
            self.count = 0 if last is None else last + 1
            self._db.commit()

    def read(self, record: int) -> tuple[Any, Iterator[bytes]]:
        """The text of a record, and its arrays in pieces."""
        parts = self._parts(record)
        with self.guard():
            return json.loads(next(parts, b"")), parts

    def _parts(self, record: int) -> Iterator[bytes]:
        found = self._db.execute("SELECT data, digest FROM checkpoint_2 WHERE record = ? ORDER BY part", (record,))
        for part, (data, claimed) in enumerate(found):
            if _digest_part(record, part, data) != claimed:
                raise ValueError(f"record {record} has changed")
            yield data

    def cut(self, count: int) -> None:
        """Forget all records but the first so many."""
        if count < self.count:
            with self.guard():
                self._db.execute("DELETE FROM checkpoint_2 WHERE record >= ?", (count,))
                self.count = count

    def append(self, text: Any, arrays: Iterable[Array] = ()) -> None:
        pieces = (piece for array in arrays for piece in _split_memory(array))
        with self.guard():
            for part, data in enumerate(chain([json.dumps(text).encode()], pieces)):
                row = self.count, part, data, _digest_part(self.count, part, data)
                self._db.execute("INSERT INTO checkpoint_2 VALUES (?, ?, ?, ?)", row)
            self.count += 1
            if time.monotonic() - self._committed >= COMMIT_EVERY:
                self._db.commit()
                self._committed = time.monotonic()

    def close(self) -> None:
        with self.guard(), suppress(sqlite3.ProgrammingError):  # that it is closed already
            self._db.commit()
            self._db.close()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Close the file on errors, and say what they mean for it."""
        try:
            yield
        except BaseException as error:
            self._db.close()
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith("SQLITE_BUSY"):
                text = f"{self.path} is used by another solve, or cannot be locked: give each solve a file of its own"
                raise CheckpointError(text) from error
            if isinstance(error, sqlite3.OperationalError):
                text = f"the checkpoint cannot be written ({error}); with more room, go on from what it has by resume"
                raise OSError(errno.ENOSPC if name == "SQLITE_FULL" else errno.EIO, text, str(self.path)) from error
            if isinstance(error, sqlite3.Error | MALFORMED) and not isinstance(error, CheckpointError):
                raise CheckpointError(
                    f"{self.path} is damaged, or no checkpoint of this version of irpca ({error}): restore it from a "
                    "copy, resume with the version that wrote it, or delete it and solve anew"
                ) from error
            raise


@contextmanager
def _naming_checkpoints() -> Iterator[None]:
    """What a codec does not know is refused by name."""
    try:
        yield
    except TypeError as error:
        raise TypeError(f"a checkpoint cannot hold {error}: solve without one") from error


def _take_class(value: Any) -> list[Any]:
    return [type(value).__name__, *(getattr(value, field.name) for field in fields(value))]


def _refuse(parts: Any) -> Any:
    """Questions are compared, never read."""
    raise TypeError


def _digest_part(record: int, part: int, data: Any) -> str:
    return digest(record, part, np.frombuffer(data, np.uint8))


def _lay_out(array: Array) -> Array:
    """The array itself if it lies without gaps in memory, along rows or along columns; else such a copy."""
    if type(array) is np.ndarray and array.flags.forc and array.flags.writeable:
        return array
    copy = np.array(array, order="K")
    return copy if copy.flags.forc else np.array(array, order="C")


def _split_memory(array: Array) -> Iterator[memoryview]:
    """The memory of an array without gaps, some at a time."""
    flat = (array if array.flags.c_contiguous else array.T).reshape(-1).view(np.uint8).data
    return (flat[start : start + PIECE] for start in range(0, len(flat), PIECE))


def _gather(parts: Iterator[bytes], form: Any) -> Array:
    """The next of the arrays that were split, by its type, shape and order in memory."""
    dtype, shape, order = form
    array: Array = np.empty(shape, np.dtype(dtype), order)
    for piece in _split_memory(array):
        piece[:] = next(parts, b"")
    return array


def _abridge(value: Any) -> Any:
    """A value of the header that JSON does not know."""
    if isinstance(value, np.ndarray | np.generic):
        return f"array {digest(np.asarray(value))}" if value.ndim else value.item()
    return type(value).__name__


def _list_differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    found = []
    for name in dict.fromkeys([*now, *then]):
        old, new = then.get(name), now.get(name)
        long = any(isinstance(value, str) and value.startswith("array ") for value in (old, new))
        if old != new:
            found.append(f"{CALLED.get(name, name)} {'changed' if long else f'was {old!r}, now {new!r}'}")
    return found
