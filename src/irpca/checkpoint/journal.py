"""An engine that keeps its answers in a file, and gives them again when the same questions come."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..engines.base import Engine, Look, Trim
from ..lowrank import Array
from .questions import Question, digest_of, question, recorded
from .recordfile import CheckpointError, RecordFile
from .records import Malformed, NotStorable, decoded, parts, settled

READS = frozenset({"core", "products", "solve_lines"})  # all of M: the answers are kept
# Entries are asked for again. Where they are dear, a survey has brought them, and is kept; if not, so are they.
ACCESSES = frozenset({"block", "entries"})
OF_NORMAL = frozenset({"times", "products"})
GLANCE = 256  # entries by which M is recognised
# Errors after which a solver may go on: they are answers, too.
RAISED: dict[str, type[Exception]] = {"FloatingPointError": FloatingPointError, "LinAlgError": np.linalg.LinAlgError}
PARTS = {"question", "answer", "raised", "holes"}  # of a record
CALLED = {
    "irpca": "the version of irpca",
    "shape": "the shape of M",
    "dtype": "the type of M",
    "chunks": "the division of M into chunks",
    "F1": "the features of the rows",
    "F2": "the features of the columns",
    "seed": "random_state",
}

log = logging.getLogger("irpca")


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
        Whether a new one may be begun. It appears with the first answer.
    """

    def __init__(self, engine: Engine, path: str | os.PathLike[str], *, resume: bool, begin: bool) -> None:
        self.engine = engine
        self.file = RecordFile(path)
        self._header: dict[str, Any] = {}
        self._placed: dict[int, tuple[Any, Array]] = {}  # the handle too: while it lives, its id is its own
        self._normals = 0
        self._seen: tuple[int, Question] | None = None
        self._ended = False
        self._rounded = False
        if not os.path.lexists(path):
            _check_missing(self.file.path, begin)
        elif not resume:
            text = f"this checkpoint exists: pass resume={os.fspath(path)!r} to go on from it, or delete it"
            raise FileExistsError(errno.EEXIST, text, os.fspath(path))
        else:
            self.file.read()
            if self.file.count:
                self._header = self._record(0)
        self._at = 1  # the record that is next; the first is the header

    @classmethod
    def asked_for(
        cls, engine: Engine, callbacks: Iterable[Any], resume: str | os.PathLike[str] | None
    ) -> Journal | None:
        """The journal that callbacks and the argument ``resume`` of solve() ask for, if they do."""
        paths = [one.path for one in callbacks if isinstance(one, Checkpoint)]
        if len(paths) > 1:
            raise ValueError(f"give one checkpoint; got {len(paths)}")
        if resume is None:
            return cls(engine, paths[0], resume=False, begin=True) if paths else None
        if paths and paths[0].absolute() != Path(resume).absolute():
            raise ValueError(f"a resumed solve goes on in its own file: leave checkpoint('{paths[0]}') out")
        return cls(engine, resume, resume=True, begin=bool(paths))

    @property
    def seed(self) -> np.random.SeedSequence | None:
        """Of the solve that began the file."""
        seed = self._header.get("seed")
        return None if seed is None else np.random.SeedSequence(seed[0], spawn_key=tuple(seed[1]))

    def begin(self, asked: Mapping[str, Any]) -> None:
        """Say what is being solved; refuse a file of anything else."""
        from .. import __version__

        engine = self.engine
        asked = {
            "irpca": __version__,
            "engine": engine.name,
            "shape": engine.shape,
            "dtype": str(engine.dtype),
            "chunks": _chunks(engine),
            **asked,
        }
        header = {name: _plain(value) for name, value in asked.items()}
        if differences := _differences(self._header, header):
            raise CheckpointError(
                f"{self.file.path} is the checkpoint of another solve: {'; '.join(differences)}. Solve as then, or "
                "give the path of a new file to irpca.callbacks.checkpoint"
            )
        self._header = header
        self._witness()

    def _witness(self) -> None:
        """Refuse the file of another M, by values at some places; where they are dear, those of one chunk."""
        seen = digest_of(self.engine.glance(GLANCE))
        then = self._next()
        if then is not None and then.name == "glance" and then.form != seen:
            raise CheckpointError(
                f"{self.file.path} is the checkpoint of another M, which had other values. Pass the M of then, or give "
                "the path of a new file to irpca.callbacks.checkpoint"
            )
        self._answer(Question("glance", seen, [], ""), lambda: None)

    def ending(self) -> None:
        """The solver has stopped: what is asked from now on belongs to the end of this run, and is not kept."""
        self._ended = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "engine":
            raise AttributeError(name)
        if name in READS:
            return partial(self._ask, name)
        if name in ACCESSES and self.engine.dear:
            return partial(self._access, name)
        return getattr(self.engine, name)

    def survey(self, looks: Sequence[Look]) -> Any:
        """What was found is kept, and given back to the engine when it is not asked."""
        asked = []

        def live() -> Any:
            asked.append(True)
            return self.engine.survey(looks)

        found = self.ask("survey", (looks,), {}, live)
        if not asked:
            self.engine.recall(found)
        return found

    def place(self, B: Array) -> Any:
        handle: Any = self.engine.place(B)
        if not isinstance(handle, np.ndarray):
            self._placed[id(handle)] = handle, B
        return handle

    def normal(self, *args: Any, **kwargs: Any) -> JournalNormal:
        made: list[Any] = []

        def make() -> tuple[Array, Trim]:
            made.append(self.engine.normal(*args, **kwargs))
            return made[0].gradient, made[0].trim

        gradient, trim = self.ask("normal", args, kwargs, make)
        self._normals += 1
        return JournalNormal(self, self._normals, gradient, trim, made, make)

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.ask(name, args, kwargs, lambda: getattr(self.engine, name)(*args, **kwargs))

    def _access(self, name: str, *args: Any) -> Any:
        """Entries of M where they are dear: kept if the engine had to read for them, and did not know them already."""
        ask, reads = partial(getattr(self.engine, name), *args), self.engine.reads
        if self._ended:
            return ask()
        asked, then = question(name, (args, {}), self._placed), self._next()
        if then is not None:
            return self._answer(asked, ask) if then.same(asked) else ask()
        answer = ask()
        return answer if self.engine.reads == reads else self._answer(asked, lambda: answer)

    def ask(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], live: Callable[[], Any]) -> Any:
        """The answer to a question: the recorded one, or that of ``live()``."""
        return live() if self._ended else self._answer(question(name, (args, kwargs), self._placed), live)

    def _answer(self, asked: Question, live: Callable[[], Any]) -> Any:
        record = self._recorded(asked)
        if record is None:
            return self._live(asked, live)
        if record["holes"]:
            self.engine.holes = True
        if record["raised"]:
            kind, text = record["raised"]
            raise RAISED[kind](text)
        return record["answer"]

    def _next(self) -> Question | None:
        """That of the next record."""
        if self._at >= self.file.count:
            return None
        if self._seen is None or self._seen[0] != self._at:
            self._seen = self._at, self._record(self._at)["question"]
        return self._seen[1]

    def _recorded(self, asked: Question) -> dict[str, Any] | None:
        """The next record, if it belongs to this question."""
        if self._at >= self.file.count:
            return None
        record = self._record(self._at)
        then = record["question"]
        if then.same(asked):
            self._at += 1
            self._note_rounding(then, asked)
            return record
        log.warning(
            "%s: question %d is now %r, and differs from the recorded %r (another machine, or other versions of "
            "libraries); %d records from there on are not used, and M is read instead",
            *(self.file.path, self._at, asked.name, then.name, self.file.count - self._at),
        )
        self.file.cut(self._at)
        return None

    def _note_rounding(self, then: Question, asked: Question) -> None:
        if then.bits != asked.bits and not self._rounded:
            self._rounded = True
            log.warning(
                "%s: from question %d on, questions agree with the recorded ones to rounding only (another machine, or "
                "other versions of libraries); so will the result",
                *(self.file.path, self._at - 1),
            )

    def _live(self, asked: Question, live: Callable[[], Any]) -> Any:
        answer, failed = None, None
        try:
            answer = settled(live())  # a replayed one shall lie in memory in the same way
        except tuple(RAISED.values()) as error:
            failed = error
        raised = [(kind, str(failed)) for kind, error in RAISED.items() if isinstance(failed, error)]
        record = {
            "question": asdict(asked),
            "answer": answer,
            "raised": raised[0] if raised else None,
            "holes": self.engine.holes,  # of an array: known from when one is met
        }
        try:
            data = parts(record)
        except NotStorable as error:
            text = f"the answer to {asked.name!r} holds {error}, which a checkpoint cannot hold: solve without one"
            raise CheckpointError(text) from None
        self._append(data)
        if failed is not None:
            raise failed
        return answer

    def _append(self, data: list[bytes | memoryview]) -> None:
        if not self.file.count:
            self.file.append(*parts(self._header))
        self.file.append(*data)
        self._at = self.file.count

    def _record(self, index: int) -> dict[str, Any]:
        try:
            record: dict[str, Any] = decoded(self.file[index])
            if not isinstance(record, dict) or (index and record.keys() != PARTS):
                raise Malformed("a record lacks some of its parts")
            if index:
                record["question"] = recorded(record["question"])
        except (Malformed, TypeError) as error:
            raise CheckpointError(
                f"{self.file.path} is no checkpoint of this version of irpca: {error}. Resume with the version that "
                "wrote it, or delete it and solve anew"
            ) from error
        return record


class JournalNormal:
    """Normal equations whose answers are kept. Those at the engine are made only when it is asked."""

    def __init__(
        self, journal: Journal, number: int, gradient: Array, trim: Trim, made: list[Any], make: Callable[[], Any]
    ) -> None:
        self.gradient, self.trim = gradient, trim
        self._journal, self._number, self._made, self._make = journal, number, made, make

    def __getattr__(self, name: str) -> Any:
        if name not in OF_NORMAL:
            raise AttributeError(name)
        return partial(self._ask, name)

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        def live() -> Any:
            if not self._made:  # the answers that came before were recorded ones
                self._make()
            return getattr(self._made[0], name)(*args, **kwargs)

        return self._journal.ask(f"normal.{name}", (self._number, *args), kwargs, live)


def _check_missing(path: Path, begin: bool) -> None:
    if not begin:
        text = "there is no checkpoint to resume from; a first solve takes callbacks=irpca.callbacks.checkpoint(path)"
        raise FileNotFoundError(errno.ENOENT, text, str(path))
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the folder of the checkpoint does not exist; create it first", str(path))


def _chunks(engine: Engine) -> Array | None:
    """Where the chunks of M end, if it has any: what was found in some does not belong to others."""
    if engine.edges is None:
        return None
    return np.concatenate([np.asarray(side, np.int64) for side in engine.edges])


def _plain(value: Any) -> Any:
    """A value as JSON has it, and arrays as digests of theirs."""
    if isinstance(value, np.ndarray):
        return f"array {digest_of(value)}" if value.ndim else value.item()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__name__


def _differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [
        f"{CALLED.get(name, name)} {_changed(then.get(name), now.get(name))}"
        for name in (dict.fromkeys([*now, *then]) if then else ())
        if then.get(name) != now.get(name)
    ]


def _changed(then: Any, now: Any) -> str:
    long = any(isinstance(value, str) and value.startswith("array ") for value in (then, now))
    return "changed" if long else f"was {then!r}, now {now!r}"
