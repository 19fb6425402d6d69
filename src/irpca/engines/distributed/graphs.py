"""One graph of tasks per question: a task for each chunk of M, and trees that add up what they answer.

Tasks are pure and their sums have a fixed order, so that a task that is run again, on another worker, changes nothing.
Whatever scheduler dask has at hand runs them: threads, or the workers of a client.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, TypeVar

import dask
import numpy as np
from dask.base import tokenize
from dask.callbacks import Callback

from ...lowrank import Array
from ..arithmetic import Moments
from ..base import Prior, Sums, bad_entries, not_finite
from ..lines import band_of
from ..pieces import Dense, Listed, Piece, piece_of
from ..questions import Answer, Listing, Question, Regression, Tally, Writing
from .sources import Edges, Reading, Source, add_in_tree, client_of_dask, numbered_tasks, place_of

SENT_ARRAYS = 16  # that workers keep for the next question, which has as many at most
ATTEMPTS = 3  # times that a question is asked of a cluster that lost what was sent to it
PAUSE_SECONDS = 0.5  # before it is asked again: a client takes a moment to see that its scheduler is gone
WORKER_SECONDS = 60.0  # that a cluster without any worker has to start one

Part = tuple[Array, ...]
Result = TypeVar("Result")
Watch = Callable[[int, int], None]  # told how many chunks have been read, of how many


class ClusterError(RuntimeError):
    """A cluster that did not answer, with what can be done about it."""


class _LostError(Exception):
    """What was sent to workers did not arrive."""


class Chunks:
    """The chunks of M as tasks, and the tall arrays of a question cut along them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.edges = source.row_edges, source.col_edges
        self.grid = len(source.row_edges) - 1, len(source.col_edges) - 1
        self.sent: dict[tuple[str, int, str], list[Any]] = {}
        self.holes = False
        self.watch: Watch | None = None
        self.topic = f"irpca-{uuid.uuid4().hex}"  # under which workers tell what they have read

    def spans(self, axis: int) -> list[slice]:
        return [slice(first, last) for first, last in pairwise(self.edges[axis])]

    def places(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.grid[0]) for j in range(self.grid[1])]

    # Questions

    def sums(self, question: Question) -> Answer:
        """The answers of all chunks, summed."""
        name = type(question).__name__.lower()
        (whole, tally), *bands = self.compute(lambda: self._sums(name, question), name)
        n1 = self.grid[0] if question.lines[0] else 0
        return Answer(whole, _join(bands[:n1]), _join(bands[n1:]), tally)

    def _sums(self, name: str, question: Question) -> list[Any]:
        """Tasks that sum the answers of all chunks, then of those of the same rows, then of the same columns."""
        answers = self._answers(name, question)
        add, pick = numbered_tasks(_add, f"irpca-sum-{name}"), numbered_tasks(_pick, f"irpca-part-{name}")
        large = isinstance(question, Regression)  # along one side, and that shall not travel with the rest

        def total(side: str, places: Iterable[tuple[int, int]]) -> Any:
            return add_in_tree(add, [pick(answers[k], side) if large else answers[k] for k in places], side)

        found = [total("whole", answers)]
        for axis, side in enumerate(("rows", "cols")):
            for k in range(self.grid[axis]) if question.lines[axis] else ():
                found.append(total(side, [place for place in answers if place[axis] == k]))
        return found

    def _answers(self, name: str, question: Question | Listing) -> dict[tuple[int, int], Any]:
        ask = numbered_tasks(_answer, f"irpca-{name}")
        rows, cols = question.sides
        of_rows, of_cols = self.cut(rows, 0), self.cut(cols, 1)
        rest = question.with_sides([None] * len(rows), [None] * len(cols))
        shared = self._send([rest])[0] if isinstance(rest, Writing) else _Opaque(rest)  # a sink knows all of L
        return {
            (i, j): ask(shared, self.source.read(i, j), of_rows[i], of_cols[j], self._place(i, j))
            for i, j in self.places()
        }

    def _place(self, i: int, j: int) -> _Place:
        topic = self.topic if self.watch is not None and client_of_dask() is not None else ""
        return _Place((i, j), self.edges, self.holes, topic)

    def list_outliers(self, question: Listing) -> list[tuple[Any, Tally]]:
        """The part of S in every run of rows, in order."""
        join, (n1, n2) = numbered_tasks(_side_by_side, "irpca-join"), self.grid

        def roots() -> list[Any]:
            answers = self._answers("outliers", question)
            return [join([answers[i, j] for j in range(n2)]) for i in range(n1)]

        return self.compute(roots, "outliers")

    def lines(self, question: Regression, mean: Array, prior: Prior) -> tuple[Callable[..., list[Any]], Sums]:
        """How to ask every band of rows or columns, which stay where they are; and the sums that rode along."""
        axis, (n1, n2), client = question.axis, self.grid, client_of_dask()
        priors = [_of_lines(prior, mean, span) for span in self.spans(axis)]
        drop, make, ask = (
            numbered_tasks(_without_moments, "irpca-rest"),
            numbered_tasks(_band, "irpca-band"),
            numbered_tasks(_ask, "irpca-solve"),
        )
        kept: list[tuple[list[Any], list[Any]]] = []  # the sums, and the bands as long as workers have them

        def roots() -> list[Any]:
            whole, *found = self._sums("lines", question)
            sides = [found[:n1], found[n1:]]
            bands = [make(part, given) for part, given in zip(sides[axis], self._send(priors), strict=True)]
            sides[axis] = [drop(part) for part in sides[axis]]
            return [whole, *sides[0], *sides[1], *bands]

        def read() -> tuple[list[Any], list[Any]]:
            if not kept:
                with self._watched("lines"):
                    found = dask.persist(*roots(), traverse=False)
                    sums = dask.compute(*found[: 1 + n1 + n2], traverse=False)
                kept.append((list(sums), list(found[1 + n1 + n2 :])))
            return kept[0]

        def ask_all(question: str, *given: Any) -> list[Any]:
            def run() -> list[Any]:
                _, bands = read()
                return list(dask.compute(*(ask(band, question, _Opaque(given)) for band in bands), traverse=False))

            return self._try(run, client, kept.clear)

        ((whole, _), *sums), _ = self._try(read, client, kept.clear)
        (of_rows,), (of_cols,) = _join(sums[:n1]), _join(sums[n1:])
        return ask_all, Sums(of_rows, of_cols, whole[0])

    def look(
        self, wanted: dict[tuple[int, int], list[Any]], name: str, count: bool = False
    ) -> dict[tuple[int, int], Any]:
        """Entries of some chunks: a list of (kind, *positions) for each; and how many are observed, if asked."""

        def roots() -> list[Any]:
            look = numbered_tasks(_look, f"irpca-{name}")
            given = zip(wanted, self._send(list(wanted.values())), strict=True)
            return [look(self.source.read(i, j), some, count, self._place(i, j)) for (i, j), some in given]

        return dict(zip(wanted, self.compute(roots, name), strict=True))

    # Where tasks run

    def cut(self, arrays: list[Array | None], axis: int) -> list[Any]:
        """The arrays of a side for every run of its lines; sent to the workers once, if there are any."""
        spans, client = self.spans(axis), client_of_dask()
        if client is None:
            return [_Opaque([None if A is None else A[span] for A in arrays]) for span in spans]
        sent = [[None] * len(spans) if A is None else self._sent(A, axis, spans, client) for A in arrays]
        bundle = numbered_tasks(_Opaque, "irpca-slices")
        return [bundle([parts[k] for parts in sent]) for k in range(len(spans))]

    def _sent(self, values: Array, axis: int, spans: list[slice], client: Any) -> list[Any]:
        """Known by its contents: factors change in place, and bases come as new arrays with the same numbers.

        ``scatter(hash=True)`` would name the parts by their contents, but send them again.
        """
        values = np.ascontiguousarray(values)  # tokenize takes no notice of the order in memory
        key = client.id, axis, tokenize(values)
        parts = self.sent.pop(key, None)
        if parts is None:
            parts = _scatter(client, [values[span] for span in spans])
        self.sent[key] = parts  # used last
        while len(self.sent) > SENT_ARRAYS:
            self.sent.pop(next(iter(self.sent)))
        return parts

    def _send(self, values: list[Any]) -> list[Any]:
        """Arguments of tasks, one for each; sent to the workers ahead of them, if there are any."""
        opaque, client = [_Opaque(value) for value in values], client_of_dask()
        return opaque if client is None or not opaque else _scatter(client, opaque)

    def compute(self, roots: Callable[[], Sequence[Any]], name: str) -> list[Any]:
        """The results of some tasks, which are made again if a cluster lost what was sent to it."""

        def run() -> list[Any]:
            with self._watched(name):
                return list(dask.compute(*roots(), traverse=False))

        return self._try(run, client_of_dask())

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        """Tell whoever watches how many chunks have been read; one that is read again counts once."""
        watch, client, done = self.watch, client_of_dask(), set[Any]()

        def tell(chunk: Any) -> None:
            done.add(chunk)
            if watch is not None:
                watch(len(done), math.prod(self.grid))

        if watch is None:
            yield
        elif client is None:
            with Callback(posttask=lambda key, *_: tell(key) if str(key).startswith(f"irpca-{name}-") else None):
                yield
        else:
            client.subscribe_topic(self.topic, lambda event: tell(tuple(event[1])))
            try:
                yield
            finally:
                client.unsubscribe_topic(self.topic)

    def _try(self, run: Callable[[], Result], client: Any, forget: Callable[[], None] = lambda: None) -> Result:
        """What a question answers; a cluster that lost something is asked again, one that cannot go on is reported.

        Tasks that a worker takes with it are run again by dask; what was scattered to it is gone.
        """
        for left in reversed(range(ATTEMPTS)):
            try:
                return run()
            except Exception as error:
                lost = client is not None and _is_lost(error)
                if lost:
                    time.sleep(PAUSE_SECONDS)
                if client is not None and (trouble := self._trouble(error, client, lost, left)):
                    go_on = "Solve again; with irpca.callbacks.checkpoint a solve goes on from where it was"
                    raise ClusterError(f"{trouble}. {go_on}") from error
                if not lost:
                    raise
                self.sent.clear()
                forget()
        raise AssertionError

    def _trouble(self, error: Exception, client: Any, lost: bool, left: int) -> str | None:
        """Why a cluster cannot go on, if it is the cluster's fault."""
        if client.status != "running":
            return (
                "the client of dask was closed, or lost its scheduler, while M was read: there is no result. Connect "
                "to a cluster"
            )
        if lost:
            try:
                client.wait_for_workers(1, timeout=WORKER_SECONDS)  # those that died may be started again
            except TimeoutError:
                return f"the cluster had no worker for {WORKER_SECONDS:.0f} seconds while M was read: start some"
        if type(error).__name__ == "KilledWorker" or (lost and not left):
            size = max(map(math.prod, product(*map(np.diff, self.edges)))) * self.source.dtype.itemsize
            return (
                "workers of the cluster died again and again while M was read. If their memory was used up, make the "
                f"chunks smaller (the largest has {size / 1e6:.3g} MB as an array), run fewer threads on a worker, or "
                "give it more memory"
            )
        return None


def _scatter(client: Any, values: list[Any]) -> list[Any]:
    try:
        return list(client.scatter(values, hash=False))
    except Exception as error:
        raise _LostError from error


def _is_lost(error: Exception) -> bool:
    """Whether data that was sent to workers went with one of them: the question can be asked again."""
    gone = isinstance(error, (_LostError, CancelledError))
    return gone or any(kind.__name__ == "CommClosedError" for kind in type(error).__mro__)


class _Opaque:
    """An argument that dask does not look into."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Place:
    """Where a chunk is, what is known of it, and under which topic to tell that it was read, if anybody watches."""

    def __init__(self, place: tuple[int, int], edges: tuple[Edges, Edges], holes: bool, topic: str) -> None:
        self.place, self.holes, self.topic = place, holes, topic
        self.rows, self.cols = (ends[k : k + 2] for ends, k in zip(edges, place, strict=True))

    def piece(self, chunk: Any, holes: bool = False) -> Piece:
        return piece_of(chunk, holes, f" in {place_of(self.rows, self.cols)}")

    def tell(self) -> None:
        if self.topic:
            from distributed import get_worker

            get_worker().log_event(self.topic, self.place)


# What tasks do


def _read(chunk: Any) -> Any:
    return chunk() if isinstance(chunk, Reading) else chunk


def _answer(question: _Opaque, chunk: Any, rows: _Opaque, cols: _Opaque, at: _Place) -> Any:
    asked, chunk = question.value.with_sides(rows.value, cols.value), _read(chunk)
    if isinstance(asked, Writing):
        asked = replace(asked, place=at.place, first=(at.rows[0], at.cols[0]))
    if not (hasattr(chunk, "tocsr") or chunk.flags.c_contiguous or chunk.flags.f_contiguous):
        chunk = np.ascontiguousarray(chunk)  # kernels are several times as fast then, a copy is quick
    answer = asked.answer(at.piece(chunk, at.holes), 1)
    if isinstance(asked, Regression):  # its largest arrays will be used again by the next task of this thread
        of_rows, of_cols = (tuple(part.copy() for part in side) for side in (answer.rows, answer.cols))
        answer = replace(answer, rows=of_rows, cols=of_cols)
    at.tell()
    return answer


def _pick(answer: Any, part: str) -> Any:
    """A part of an answer; ``whole`` comes with what rode along. Of what was picked before, all."""
    if not isinstance(answer, Answer):
        return answer
    return (answer.whole, answer.tally) if part == "whole" else getattr(answer, part)


def _add(answers: Sequence[Any], part: str) -> Any:
    """The sum of one part of some answers, in their order."""
    parts = [_pick(answer, part) for answer in answers]
    if part == "whole":
        return _sum([whole for whole, _ in parts]), Tally.of(tally for _, tally in parts)
    return _sum(parts)


def _sum(parts: Sequence[Part]) -> Part:
    totals = [part.copy() for part in parts[0]]
    for other in parts[1:]:
        for total, part in zip(totals, other, strict=True):
            total += part
    return tuple(totals)


def _join(bands: Sequence[Part]) -> Part:
    return bands[0] if len(bands) == 1 else tuple(np.concatenate(parts) for parts in zip(*bands, strict=True))


def _side_by_side(found: Sequence[tuple[Any, Tally]]) -> tuple[Any, Tally]:
    """Parts of S with the same rows as one, with the columns of M; and what rode along."""
    from scipy.sparse import hstack

    return hstack([S for S, _ in found], format="csr"), Tally.of(tally for _, tally in found)


def _of_lines(prior: Prior, mean: Array, span: slice) -> tuple[Array, Prior]:
    """What a band needs of the prior; what all of them share is kept where they are asked from."""
    part = replace(
        prior,
        scale=prior.scale[span],
        mean=None if prior.mean is None else prior.mean[span],
        basis=None if prior.basis is None else prior.basis[span],
        coefficients=None,
        other_spread=np.zeros(0),
    )
    return mean[span], part


def _band(parts: Part, given: _Opaque) -> tuple[Any, Any]:
    mean, prior = given.value
    band = band_of(Moments(*parts[:3]), mean, prior, keep=True)
    return band, band.prepare() if prior.basis is not None else None


def _without_moments(parts: Part) -> Part:
    return parts[3:]


def _ask(band: tuple[Any, Any], question: str, given: _Opaque) -> Any:
    """``prepare`` was asked when the band was made."""
    return band[1] if question == "prepare" else getattr(band[0], question)(*given.value)


def _look(chunk: Any, wanted: _Opaque, count: bool, at: _Place) -> tuple[list[Part], Any]:
    """What was wanted of a chunk; and, if asked, how many entries of its rows and columns are observed."""
    chunk, counts = _read(chunk), None
    piece = at.piece(chunk)
    found = [_find(piece, at, *some) for some in wanted.value]
    if count:
        missing, infinite = bad_entries(chunk) if isinstance(piece, Dense) else (0, 0)
        if infinite:
            raise not_finite(infinite, piece.where)
        counts = at.piece(chunk, holes=missing > 0).counts
    at.tell()
    return found, counts


def _find(piece: Piece, at: _Place, kind: str, *where: Array) -> Part:
    if kind == "positions":
        assert isinstance(piece, Listed)
        rows, cols, values = piece.at(*where)
        return rows + at.rows[0], cols + at.cols[0], values
    return (piece.block(*where) if kind == "block" else piece.entries(*where),)
