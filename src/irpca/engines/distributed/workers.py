"""Where tasks run, by threads of this process or the workers of a client; and what a task does with a chunk of M.

Tasks are pure and their sums have a fixed order, so that a task that is run again, on another worker, changes nothing.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, TypeVar

import dask
import numpy as np
from dask.base import tokenize
from dask.callbacks import Callback

from ...lowrank import Array
from ..arithmetic import Moments
from ..base import Prior, bad_entries, not_finite
from ..pieces import Dense, Listed, Piece, piece_of
from ..questions import Answer, Regression, Tally, Writing
from ..regressions import Band
from .sources import Edges, Reading, Source, client_of_dask, place_of, tasks

if TYPE_CHECKING:
    from ...model.maps import ColumnMaps

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


class Workers:
    """Runs tasks, with the tall arrays of a question cut along the chunks of M."""

    def __init__(self, source: Source, maps: ColumnMaps | None = None) -> None:
        self.source, self.edges = source, (source.row_edges, source.col_edges)
        self.maps = maps
        self.sent: dict[Any, list[Any]] = {}
        self.watch: Watch | None = None
        self.topic = f"irpca-{uuid.uuid4().hex}"  # under which workers tell what they have read

    def place(self, i: int, j: int, holes: bool = False) -> ChunkPlace:
        topic = self.topic if self.watch is not None and client_of_dask() is not None else ""
        return ChunkPlace((i, j), self.edges, holes, topic)

    def cut(self, arrays: list[Array | None], axis: int) -> list[Any]:
        """The arrays of a side for every run of its lines.

        Known by their contents: factors change in place, and bases come as new arrays with the same numbers.
        ``scatter(hash=True)`` would name the parts by their contents, but send them again.
        """
        spans = [slice(*span) for span in pairwise(self.edges[axis])]
        if client_of_dask() is None:
            return [Opaque([None if A is None else A[span] for A in arrays]) for span in spans]
        bundle, sent = tasks(Opaque, "irpca-slices"), []
        for A in arrays:
            values = None if A is None else np.ascontiguousarray(A)  # tokenize takes no notice of the order in memory
            parts = [None if values is None else values[span] for span in spans]
            sent.append(parts if values is None else self.send(parts, (axis, tokenize(values))))
        return [bundle([parts[k] for parts in sent]) for k in range(len(spans))]

    def cut_maps(self) -> list[Any]:
        """The maps of every run of columns, or None for each."""
        spans, maps = [slice(*span) for span in pairwise(self.edges[1])], self.maps
        if maps is None:
            return [None] * len(spans)
        return self.send([Opaque(maps.cut(slice(None), span)) for span in spans], "maps")

    def send(self, values: list[Any], key: Any = None) -> list[Any]:
        """Arguments of tasks; sent to the workers ahead of them, if there are any, and once if they have a key."""
        client = client_of_dask()
        if client is None or not values:
            return values
        found = self.sent.pop((client.id, key), None)
        if found is None:
            try:
                found = list(client.scatter(values, hash=False))
            except Exception as error:
                raise _LostError from error
        if key is not None:
            self.sent[client.id, key] = found  # used last
        while len(self.sent) > SENT_ARRAYS:
            self.sent.pop(next(iter(self.sent)))
        return found

    def compute(self, roots: Callable[[], Sequence[Any]], name: str) -> list[Any]:
        """The results of some tasks, which are made again if a cluster lost what was sent to it."""

        def run() -> list[Any]:
            with self.watched(name):
                return list(dask.compute(*roots(), traverse=False))

        return self.try_again(run, client_of_dask())

    @contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """Tell whoever watches how many chunks have been read; one that is read again counts once."""
        watch, client, done = self.watch, client_of_dask(), set[Any]()

        def tell(chunk: Any) -> None:
            done.add(chunk)
            if watch is not None:
                watch(len(done), math.prod(len(edges) - 1 for edges in self.edges))

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

    def try_again(self, run: Callable[[], Result], client: Any, forget: Callable[[], None] = lambda: None) -> Result:
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


def _is_lost(error: Exception) -> bool:
    """Whether data that was sent to workers went with one of them: the question can be asked again."""
    gone = isinstance(error, (_LostError, CancelledError))
    return gone or any(kind.__name__ == "CommClosedError" for kind in type(error).__mro__)


class Opaque:
    """An argument that dask does not look into."""

    def __init__(self, value: Any) -> None:
        self.value = value


class ChunkPlace:
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


def answer_of_chunk(
    question: Opaque, chunk: Any, rows: Opaque, cols: Opaque, at: ChunkPlace, maps: Opaque | None = None
) -> Any:
    asked, chunk = question.value.with_sides(rows.value, cols.value), _read(chunk)
    if isinstance(asked, Writing):
        asked = replace(asked, place=at.place, first=(at.rows[0], at.cols[0]))
    if not (hasattr(chunk, "tocsr") or chunk.flags.c_contiguous or chunk.flags.f_contiguous):
        chunk = np.ascontiguousarray(chunk)  # kernels are several times as fast then, a copy is quick
    piece = at.piece(chunk, at.holes)
    answer = asked.answer(piece if maps is None else piece.mapped(maps.value), 1)
    if isinstance(asked, Regression):  # its largest arrays will be used again by the next task of this thread
        of_rows, of_cols = (tuple(part.copy() for part in side) for side in (answer.rows, answer.cols))
        answer = replace(answer, rows=of_rows, cols=of_cols)
    at.tell()
    return answer


def pick_part(answer: Any, part: str) -> Any:
    """A part of an answer; ``whole`` comes with what rode along. Of what was picked before, all."""
    if not isinstance(answer, Answer):
        return answer
    return (answer.whole, answer.tally) if part == "whole" else getattr(answer, part)


def add_parts(answers: Sequence[Any], part: str) -> Any:
    """The sum of one part of some answers, in their order."""
    parts = [pick_part(answer, part) for answer in answers]
    if part == "whole":
        return _sum([whole for whole, _ in parts]), Tally.of(tally for _, tally in parts)
    return _sum(parts)


def _sum(parts: Sequence[Part]) -> Part:
    totals = [part.copy() for part in parts[0]]
    for other in parts[1:]:
        for total, part in zip(totals, other, strict=True):
            total += part
    return tuple(totals)


def join_bands(bands: Sequence[Part]) -> Part:
    return bands[0] if len(bands) == 1 else tuple(np.concatenate(parts) for parts in zip(*bands, strict=True))


def join_outliers(found: Sequence[tuple[Any, Tally]]) -> tuple[Any, Tally]:
    """Parts of S with the same rows as one, with the columns of M; and what rode along."""
    from scipy.sparse import hstack

    return hstack([S for S, _ in found], format="csr"), Tally.of(tally for _, tally in found)


def prior_of_band(prior: Prior, mean: Array, span: slice) -> tuple[Array, Prior]:
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


def make_band(parts: Part, given: Opaque) -> tuple[Any, Any]:
    mean, prior = given.value
    band = Band(Moments(*parts[:3]), mean, prior, keep=True)
    return band, band.prepare() if prior.basis is not None else None


def drop_moments(parts: Part) -> Part:
    return parts[3:]


def ask_band(band: tuple[Any, Any], question: str, given: Opaque) -> Any:
    """``prepare`` was asked when the band was made."""
    return band[1] if question == "prepare" else getattr(band[0], question)(*given.value)


def look_at_chunk(chunk: Any, wanted: Opaque, count: bool, at: ChunkPlace) -> tuple[list[Part], Any]:
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


def _find(piece: Piece, at: ChunkPlace, kind: str, *where: Array) -> Part:
    if kind == "positions":
        assert isinstance(piece, Listed)
        rows, cols, values = piece.at(*where)
        return rows + at.rows[0], cols + at.cols[0], values
    return (piece.block(*where) if kind == "block" else piece.entries(*where),)
