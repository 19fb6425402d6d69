"""Checkpoints: a journal of the engine's answers, from which an interrupted solve goes on.

A solver is deterministic and sees M only through its engine, whose answers are thin. So the answers are all there is to
keep: run again from the start and given the same answers, without reading M, it comes to where it was. No solver knows
about it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache, partial
from itertools import chain
from math import inf, isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from .durable import digest, need_folder
from .engines.base import Engine, Lines, Look, Sums, Trim
from .lowrank import Array

__all__ = ["Checkpoint", "CheckpointError", "Journal"]

READS = frozenset({"core", "products", "solve_lines"})  # all of M: the answers are kept
# Entries are asked for again. Where they are dear, a survey has brought them, and is kept; if not, so are they.
ACCESSES = frozenset({"block", "entries"})
GLANCE = 256  # entries by which M is recognised
CLOSE = 1e-6  # relative to the size of what is compared: far above rounding, far below what a solver does in a step
CLASSES: dict[str, type] = {cls.__name__: cls for cls in (Lines, Sums, Trim)}  # of answers
KINDS = "biuf"  # of arrays
# Errors after which a solver may go on: they are answers, too.
RAISED: dict[str, type[Exception]] = {"FloatingPointError": FloatingPointError, "LinAlgError": np.linalg.LinAlgError}
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
TABLE = "CREATE TABLE checkpoint_1 (record INTEGER, part INTEGER, data BLOB, digest BLOB, PRIMARY KEY (record, part))"
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

    Questions that read M are numbered. As long as the file has an answer of that number, to the same question, it is
    given and M is not read; from then on the engine is asked, and its answers are appended. S is not kept:
    ``corruption`` and ``write`` are always asked. What reads nothing (``shape``, ``counts``, …) is the engine's own.

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
        self._next: Record | None = None  # what the file has there
        self._placed: dict[int, tuple[Any, Array]] = {}  # the handle too: while it lives, its id is its own
        self._normals = 0
        self._ended = self._rounded = self._mapped = False
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
                self._header = dict(json.loads(self._file.text(0))) if self._file.count else {}

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
            self._file.append(json.dumps(header))
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
        asked = describe(name, args, self._placed)
        if self._next is not None:
            return self._answer(asked, live) if self._next.same(asked) else live()
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
        return live() if self._ended else self._answer(describe(name, arguments, self._placed), live)

    def _answer(self, asked: Record, live: Callable[[], Any]) -> Any:
        then = self._next
        answer = self._record(asked, live) if then is None or not then.same(asked) else self._replay(asked, then)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _replay(self, asked: Record, then: Record) -> Any:
        """Give the recorded answer."""
        assert self._file is not None
        if then.bits != asked.bits and not self._rounded:
            self._rounded = True
            log.warning(
                "%s: from question %d on, questions agree with the recorded ones to rounding only (another machine, or "
                "other versions of libraries); so will the result",
                *(self.path, self._at),
            )
        with self._file.guard():
            answer = restore(then.answer, self._file.arrays(self._at, then.arrays))
        self._advance()
        if then.holes:
            self.engine.holes = True
        return answer

    def _record(self, asked: Record, live: Callable[[], Any]) -> Any:
        """Ask the engine, and keep its answer in place of all that the file still has."""
        assert self._file is not None
        if self._next is not None:
            log.warning(
                "%s: question %d is now %r, and differs from the recorded %r (another machine, or other versions of "
                "libraries); %d records from there on are not used, and M is read instead",
                *(self.path, self._at, asked.name, self._next.name, self._file.count - self._at),
            )
            self._next = None
        arrays: list[Array] = []
        try:
            found = live()
        except tuple(RAISED.values()) as error:
            found = error
        node = flatten(found, arrays)
        answer = found if isinstance(found, Exception) else restore(node, arrays)  # to lie in memory as a replayed one
        forms = [(array.dtype.str, array.shape, "C" if array.flags.c_contiguous else "F") for array in arrays]
        record = replace(asked, answer=node, arrays=forms, holes=self.engine.holes)
        self._file.cut(self._at)
        self._file.append(json.dumps(asdict(record)), arrays)
        self._at = self._file.count
        return answer

    def _advance(self) -> None:
        assert self._file is not None
        self._at += 1
        with self._file.guard():
            self._next = Record.read(self._file.text(self._at)) if self._at < self._file.count else None


class RecordFile:
    """Records in a file of SQLite, which is whole whenever the process is killed. Nothing in it is executed.

    A record is a text and some arrays; it is kept in parts, each with a digest of itself and of all before it: what is
    changed, moved or taken from another file is seen. The file is locked as long as it is open. An error closes it,
    without what was not yet committed, which is the work of half a second at most.

    Attributes
    ----------
    count : number of records
    """

    def __init__(self, path: Path, *, new: bool) -> None:
        if new:
            open(path, "xb").close()
        elif not (path.is_file() and os.access(path, os.R_OK | os.W_OK)):  # to open and close it would end locks
            raise OSError(errno.EACCES, "this is no file that can be read and written", str(path))
        self.path, self.count = path, 0
        self._digest, self._committed = b"", time.monotonic()
        self._db = sqlite3.connect(path.absolute(), timeout=1, check_same_thread=False)
        with self.guard():
            self._db.text_factory = bytes
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("BEGIN EXCLUSIVE")
            schema = self._db.execute("SELECT sql FROM sqlite_master").fetchall()
            if not schema:  # a new file, or a process was killed when it had begun one
                self._db.execute(TABLE)
                return
            if schema != [(TABLE.encode(),), (None,)]:
                raise ValueError("it holds other tables")
            self._check()
            self._db.commit()

    def _check(self) -> None:
        """Look through the file; whatever is wrong with it is found now."""
        (found,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if found != b"ok":
            raise ValueError(str(found, "utf8", "replace"))
        for record, part, data, chained in self._db.execute("SELECT * FROM checkpoint_1 ORDER BY record, part"):
            if self._chain(record, part, data) != chained:
                raise ValueError(f"it has changed after {self.count} records")
            self.count = record + 1

    def _chain(self, record: int, part: int, data: Any) -> bytes:
        """The digest of a part and of all before it."""
        total = hashlib.blake2b(self._digest + b"%d %d " % (record, part), digest_size=16)
        total.update(data)
        self._digest = total.digest()
        return self._digest

    def text(self, record: int) -> str:
        with self.guard():
            return str(self._parts(record).fetchone()[0], "utf8")

    def arrays(self, record: int, forms: Iterable[Any]) -> list[Array]:
        """Those of a record, by their types, shapes and orders in memory."""
        found = []
        with self.guard():
            parts = self._parts(record)
            parts.fetchone()
            for name, shape, order in forms:
                dtype = np.dtype(name)
                if dtype.kind not in KINDS:
                    raise ValueError(f"an array of {dtype}")
                found.append(np.empty(shape, dtype, order))
                for piece in _split_memory(found[-1]):
                    piece[:] = parts.fetchone()[0]
            if parts.fetchone():
                raise ValueError("a record is longer than what it describes")
        return found

    def _parts(self, record: int) -> sqlite3.Cursor:
        return self._db.execute("SELECT data FROM checkpoint_1 WHERE record = ? ORDER BY part", (record,))

    def cut(self, count: int) -> None:
        """Forget all records but the first so many."""
        if count < self.count:
            with self.guard():
                self._db.execute("DELETE FROM checkpoint_1 WHERE record >= ?", (count,))
                last = "SELECT digest FROM checkpoint_1 ORDER BY record DESC, part DESC LIMIT 1"
                self.count, (self._digest,) = count, self._db.execute(last).fetchone()

    def append(self, text: str, arrays: Iterable[Array] = ()) -> None:
        pieces = (piece for array in arrays for piece in _split_memory(array))
        with self.guard():
            for part, data in enumerate(chain([text.encode()], pieces)):
                row = self.count, part, data, self._chain(self.count, part, data)
                self._db.execute("INSERT INTO checkpoint_1 VALUES (?, ?, ?, ?)", row)
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


@dataclass(frozen=True)
class Record:
    """A question, as much of it as shows whether an answer belongs to it, and its answer.

    Attributes
    ----------
    name : str
    form : str
        A digest of all that is not subject to rounding: shapes, integers, indices, seeds.
    numbers : list of (float, float)
        The norm and a projection of every array of real numbers, and of every real number.
    bits : str
        A digest of everything, to the bit.
    answer : the answer as :func:`flatten` makes it
    arrays : types, shapes and orders in memory of its arrays
    holes : whether the engine had met a NaN by then
    """

    name: str
    form: str
    numbers: list[tuple[float, float]]
    bits: str
    answer: Any = None
    arrays: Sequence[tuple[str, tuple[int, ...], str]] = ()
    holes: bool = False

    @classmethod
    def read(cls, text: str) -> Record:
        found = json.loads(text)
        numbers = [(float(size), float(wave)) for size, wave in found.pop("numbers")]
        return cls(numbers=numbers, **found)

    def same(self, other: Record) -> bool:
        """Whether they ask the same, up to rounding."""
        alike = (self.name, self.form, len(self.numbers)) == (other.name, other.form, len(other.numbers))
        return alike and all(
            max(abs(size - other_size), abs(wave - other_wave)) <= CLOSE * max(size, other_size)
            for (size, wave), (other_size, other_wave) in zip(self.numbers, other.numbers, strict=True)
        )


def describe(name: str, arguments: Any, placed: Mapping[int, tuple[Any, Array]]) -> Record:
    """The record of a question that has no answer yet."""
    arrays: list[Array] = []
    form, bits, numbers = [json.dumps(flatten(arguments, arrays, placed))], [], []
    for array in arrays:
        bits.append(digest(array))
        with np.errstate(over="ignore", invalid="ignore"):
            size = float(np.linalg.norm(array.astype(float, copy=False))) if array.dtype.kind == "f" else inf
        form.append(f"{array.dtype.str}{array.shape}" if isfinite(size) else bits[-1])
        if isfinite(size):
            numbers.append((size, _project(array)))
    return Record(name, digest(*form), numbers, digest(*form, *bits))


def flatten(value: Any, arrays: list[Array], placed: Mapping[int, tuple[Any, Array]] | None = None) -> Any:
    """A value as JSON has it; its arrays and real numbers are added to the list, and named by their places there.

    ``placed``: blocks that are known here by a handle only, by the id of that.
    """
    into = partial(flatten, arrays=arrays, placed=placed)
    if placed and id(value) in placed:
        value = placed[id(value)][1]
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, np.ndarray | np.generic | float):
        array = np.asarray(value)
        if array.dtype.kind not in KINDS:
            raise TypeError(f"a checkpoint cannot hold an array of {array.dtype}: solve without one")
        arrays.append(_lay_out(array))
        kind = "array" if isinstance(value, np.ndarray) else "scalar" if isinstance(value, np.generic) else "float"
        return {kind: len(arrays) - 1}
    if isinstance(value, tuple | list):
        return list(map(into, value))
    if isinstance(value, Exception):
        return {"error": [next(kind for kind, one in RAISED.items() if isinstance(value, one)), str(value)]}
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {"dict": {key: into(one) for key, one in value.items()}}
    if isinstance(value, np.random.SeedSequence):
        return {"seed": value.generate_state(4, np.uint64).tolist()}
    if is_dataclass(value):
        return {"class": [type(value).__name__, *(into(getattr(value, field.name)) for field in fields(value))]}
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}: solve without one")


def restore(node: Any, arrays: Sequence[Array]) -> Any:
    """The value of an answer that was flattened; a list is a tuple now."""
    into = partial(restore, arrays=arrays)
    if isinstance(node, list):
        return tuple(map(into, node))
    if not isinstance(node, dict):
        return node
    ((kind, held),) = node.items()
    if kind == "dict":
        return {key: into(one) for key, one in held.items()}
    if kind == "class" and held[0] in CLASSES:
        return CLASSES[held[0]](*map(into, held[1:]))
    if kind == "error":
        return RAISED[held[0]](held[1])
    if kind in ("array", "scalar", "float"):
        array = arrays[held]
        return array if kind == "array" else array[()] if kind == "scalar" else float(array)
    raise TypeError(f"a checkpoint cannot hold a {held[0] if kind == 'class' else kind}: solve without one")


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


def _project(array: Array) -> float:
    """On waves of no simple period: unlike the norm, it changes with the order and the signs of the numbers."""
    left: Any = array.astype(float, copy=False)
    while left.ndim:
        left = np.cos(1.0 + np.arange(len(left))) @ left
    return float(left)


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
