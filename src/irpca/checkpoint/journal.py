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
from .questions import Question, digest_of, question
from .recordfile import CheckpointError, RecordFile
from .records import Malformed, NotStorable, decoded, encoded

# Questions whose answers are kept: those that read all of M. Few entries are asked for again: where they are dear, they
# were brought by a survey, which is kept.
READS = frozenset({"core", "products", "solve_rows", "solve_cols", "cut"})
OF_NORMAL = frozenset({"times", "products"})
GLANCE = 256  # entries by which M is recognised
# Errors after which a solver may go on: they are answers, too.
RAISED: dict[str, type[Exception]] = {"FloatingPointError": FloatingPointError, "LinAlgError": np.linalg.LinAlgError}
PARTS = {"question", "end", "answer", "raised", "moved", "holes"}  # of a record
CALLED = {
    "irpca": "the version of irpca",
    "shape": "the shape of M",
    "dtype": "the type of M",
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

    Every question is numbered. As long as the file has an answer of that number, to the same question, it is given
    and M is not read; from then on the engine is asked, and its answers are appended. S is not kept: ``corruption`` and
    ``write`` are always asked. Whatever is no question (``shape``, ``reads``, ``place``, …) is the engine's own.

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
        self.dear = engine.dear
        self.file = RecordFile(path)
        self._header: dict[str, Any] = {}
        self._placed: dict[int, tuple[Any, Array]] = {}  # the handle too: while it lives, its id is its own
        self._normals = 0
        self._ending = False
        self._muted = False
        self._rounded = False
        self._begun = False
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
        engine = self.engine
        seen = digest_of(engine.glance(GLANCE))
        if self._at < self.file.count:
            then = self._record(self._at)["question"]
            if then.name == "glance" and then.form != seen:
                raise CheckpointError(f"{self.file.path} is the checkpoint of another M, which had other values")
        self._answer(Question("glance", seen, [], ""), lambda: None)

    def ending(self) -> None:
        """The solver has stopped: what is asked from now on belongs to the end of this run, and not to its path."""
        self._ending = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "engine":
            raise AttributeError(name)
        return partial(self._ask, name) if name in READS else getattr(self.engine, name)

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

    def dual(self) -> Any:
        if self._begun:
            self.file.remove()
        raise ValueError(dual_refused(self._header.get("solver")))

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.ask(name, args, kwargs, lambda: getattr(self.engine, name)(*args, **kwargs))

    def ask(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], live: Callable[[], Any]) -> Any:
        """The answer to a question: the recorded one, or that of ``live()``."""
        moved = [one for one in (*args, *kwargs.values()) if isinstance(one, np.random.Generator)]
        return self._answer(question(name, (args, kwargs), self._placed), live, moved)

    def _answer(self, asked: Question, live: Callable[[], Any], moved: Iterable[np.random.Generator] = ()) -> Any:
        record = self._recorded(asked)
        if record is None:
            return self._live(asked, live, moved)
        for rng, state in zip(moved, record["moved"], strict=True):
            rng.bit_generator.state = state
        if record["holes"]:
            self.engine.holes = True  # type: ignore[attr-defined]
        if record["raised"]:
            kind, text = record["raised"]
            raise RAISED[kind](text)
        return record["answer"]

    def _recorded(self, asked: Question) -> dict[str, Any] | None:
        """The next record, if it belongs to this question."""
        if self._at >= self.file.count:
            return None
        record = self._record(self._at)
        then = record["question"]
        if record["end"] is self._ending and then.same(asked):
            self._at += 1
            self._note_rounding(then, asked)
            return record
        if self._ending and not record["end"]:  # stopped earlier than then: what the solver asked later stays
            self._muted = True
            return None
        if not record["end"]:
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

    def _live(self, asked: Question, live: Callable[[], Any], moved: Iterable[np.random.Generator]) -> Any:
        answer, failed = None, None
        try:
            answer = live()
        except tuple(RAISED.values()) as error:
            failed = error
        raised = [(kind, str(failed)) for kind, error in RAISED.items() if isinstance(failed, error)]
        record = {
            "question": asdict(asked),
            "end": self._ending,
            "answer": answer,
            "raised": raised[0] if raised else None,
            "moved": [rng.bit_generator.state for rng in moved],
            "holes": bool(getattr(self.engine, "holes", False)),  # version 1: they are met on the way
        }
        try:
            data = encoded(record)
        except NotStorable as error:
            text = f"the answer to {asked.name!r} holds {error}, which a checkpoint cannot: leave it out"
            raise CheckpointError(text) from None
        if not self._muted:
            self._append(data)
        if failed is not None:
            raise failed
        return decoded(data)["answer"]  # not as it was: a replayed one shall lie in memory in the same way

    def _append(self, data: bytes) -> None:
        if not self.file.count:
            self._begun = True
            self.file.append(encoded(self._header))
        self.file.append(data)
        self._at = self.file.count

    def _record(self, index: int) -> dict[str, Any]:
        try:
            record: dict[str, Any] = decoded(self.file[index])
            if not isinstance(record, dict) or (index and record.keys() != PARTS):
                raise Malformed("a record lacks some of its parts")
            if index:
                record["question"] = Question(**record["question"])
        except (Malformed, TypeError) as error:
            raise CheckpointError(f"{self.file.path} is no checkpoint of this version of irpca: {error}") from error
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


def dual_refused(solver: Any) -> str:
    return (
        f"solver={solver!r} keeps a dual variable as large as M, which a checkpoint does not hold: leave checkpoint "
        "and resume out, or take another solver, such as 'irpca'"
    )


def _check_missing(path: Path, begin: bool) -> None:
    if not begin:
        text = "there is no checkpoint to resume from; a first solve takes callbacks=irpca.callbacks.checkpoint(path)"
        raise FileNotFoundError(errno.ENOENT, text, str(path))
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the folder of the checkpoint does not exist; create it first", str(path))


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
