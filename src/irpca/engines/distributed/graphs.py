"""One graph of tasks per question: a task for each chunk of M, and trees that add up what they answer.

Tasks are pure and their sums have a fixed order, so that a task that is run again, on another worker, changes nothing.
Whatever scheduler dask has at hand runs them: threads, or the workers of a client.
"""

from __future__ import annotations

import hashlib
import math
import threading
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
from dask.base import get_scheduler
from dask.callbacks import Callback

from ...lowrank import Array
from ...threads import single_threaded_blas
from ..arithmetic import Moments
from ..base import Prior, Sums, bad_entries, not_finite
from ..lines import band_of
from ..pieces import Listed, Piece, piece_of
from ..questions import Answer, Listing, Question, Regression, Tally, Writing
from .sources import Reading, Source, place_of

FAN_IN = 8  # answers that one task adds up: fewer make more tasks, more wait for each other
SENT_ARRAYS = 16  # that workers keep for the next question, which has as many at most
ATTEMPTS = 3  # times that a question is asked of a cluster that lost what was sent to it
PAUSE_SECONDS = 0.5  # before it is asked again: a client takes a moment to see that its scheduler is gone
WORKER_SECONDS = 60.0  # that a cluster without any worker has to start one
POLL_SECONDS = 1.0  # between questions to a scheduler about what is done

GO_ON = "Solve again; with irpca.callbacks.checkpoint a solve goes on from where it was"

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
        self.sent: dict[tuple[str, int, bytes], list[Any]] = {}
        self.holes = False
        self.watch: Watch | None = None

    def spans(self, axis: int) -> list[slice]:
        return [slice(first, last) for first, last in pairwise(self.edges[axis])]

    def places(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.grid[0]) for j in range(self.grid[1])]

    # Questions

    def sums(self, question: Question) -> Answer:
        """The answers of all chunks, summed."""
        name = type(question).__name__.lower()

        def roots() -> list[Any]:
            answers = self._answers(name, question)
            return [self._tree(name, list(answers.values()), "whole"), *self._bands(name, answers, question.lines)]

        (whole, tally), *bands = self.computed(roots, name)
        found = iter(bands)
        joined = [
            _joined([next(found) for _ in range(n)]) if there else ()
            for there, n in zip(question.lines, self.grid, strict=True)
        ]
        return Answer(whole, joined[0], joined[1], tally)

    def _answers(self, name: str, question: Question | Listing) -> dict[tuple[int, int], Any]:
        ask = _later(_answered, f"irpca-{name}")
        rows, cols = question.sides
        of_rows, of_cols = self.cut(rows, 0), self.cut(cols, 1)
        rest = question.with_sides([None] * len(rows), [None] * len(cols))
        shared = self._given([rest])[0] if isinstance(rest, Writing) else _Opaque(rest)  # a sink knows all of L
        return {
            (i, j): ask(shared, self._chunk(i, j), of_rows[i], of_cols[j], self.holes, self._at(i, j))
            for i, j in self.places()
        }

    def _chunk(self, i: int, j: int) -> Any:
        """What a task needs to have a chunk: how to read it, or another task that makes it."""
        found = self.source.read(i, j)
        return _Opaque(found) if isinstance(found, Reading) else found

    def _at(self, i: int, j: int) -> tuple[int, int, int, int, int, int]:
        rows, cols = self.edges
        return i, j, rows[i], rows[i + 1], cols[j], cols[j + 1]

    def _bands(self, name: str, answers: dict[tuple[int, int], Any], lines: tuple[bool, bool]) -> list[Any]:
        """What is known of every run of rows, then of columns: the sums over the chunks that it consists of."""
        found = []
        for axis, side in enumerate(("rows", "cols")):
            for k in range(self.grid[axis]) if lines[axis] else ():
                found.append(self._tree(name, [a for place, a in answers.items() if place[axis] == k], side))
        return found

    def _tree(self, name: str, parts: list[Any], side: str) -> Any:
        """The sum of one part of some answers, or of what was picked of them before."""
        add = _later(_added, f"irpca-{name}-sum")
        while True:
            parts = [add(parts[k : k + FAN_IN], side) for k in range(0, len(parts), FAN_IN)]
            if len(parts) == 1:
                return parts[0]

    def listed(self, question: Listing) -> list[tuple[Any, Tally]]:
        """The part of S in every run of rows, in order."""

        def roots() -> list[Any]:
            answers = self._answers("outliers", question)
            n1, n2 = self.grid
            return [join([answers[i, j] for j in range(n2)], self.edges[1]) for i in range(n1)]

        join = _later(_side_by_side, "irpca-outliers-join")
        return self.computed(roots, "outliers")

    def lines(self, question: Regression, mean: Array, prior: Prior) -> tuple[Callable[..., list[Any]], Sums]:
        """How to ask every band of rows or columns, which stay where they are; and the sums that rode along."""
        axis = question.axis
        pick = _later(_picked, "irpca-lines-part")
        priors = [_of_lines(prior, mean, span) for span in self.spans(axis)]

        def roots() -> list[Any]:
            # What is summed along one side is far larger than the rest, and shall not travel with it.
            answers = self._answers("lines", question)
            parts = {s: {place: pick(a, s) for place, a in answers.items()} for s in ("whole", "rows", "cols")}
            whole = self._tree("lines", list(parts["whole"].values()), "whole")
            found = [
                *self._bands("lines", parts["rows"], (True, False)),
                *self._bands("lines", parts["cols"], (False, True)),
            ]
            mine = found[: self.grid[0]] if axis == 0 else found[self.grid[0] :]
            make, rest = _later(_band, "irpca-lines-band"), _later(_without_moments, "irpca-lines-part")
            bands = [make(part, given) for part, given in zip(mine, self._given(priors), strict=True)]
            n1 = self.grid[0]
            of_rows, of_cols = (
                (rest(part, axis == 0) for part in found[:n1]),
                (rest(part, axis == 1) for part in found[n1:]),
            )
            return [whole, *of_rows, *of_cols, *bands]

        n1, n2 = self.grid
        ask = _later(_asked, "irpca-lines-solve")

        made: list[tuple[list[Any], list[Any]]] = []  # the sums, and the bands as long as workers have them

        def make() -> tuple[list[Any], list[Any]]:
            if not made:
                with self._watched("lines"):
                    kept = self._persisted(roots)
                    sums = list(dask.compute(*kept[: 1 + n1 + n2], traverse=False))
                made.append((sums, kept[1 + n1 + n2 :]))
            return made[0]

        client = client_of_dask()

        def ask_all(question: str, *given: Any) -> list[Any]:
            def run() -> list[Any]:
                _, bands = make()
                return list(dask.compute(*(ask(band, question, _Opaque(given)) for band in bands), traverse=False))

            return self._tried(run, client, made.clear)

        ((whole, _), *sums), _ = self._tried(make, client, made.clear)
        (of_rows,), (of_cols,) = _joined(sums[:n1]), _joined(sums[n1:])
        return ask_all, Sums(of_rows, of_cols, whole[0])

    def picked(
        self, wanted: dict[tuple[int, int], list[Any]], name: str, count: bool = False
    ) -> dict[tuple[int, int], Any]:
        """Entries of some chunks: a list of (kind, *positions) for each; and how many are observed, if asked."""

        def roots() -> list[Any]:
            look = _later(_looked, f"irpca-{name}")
            given = zip(wanted, self._given(list(wanted.values())), strict=True)
            return [look(self._chunk(i, j), some, count, self._at(i, j)) for (i, j), some in given]

        return dict(zip(wanted, self.computed(roots, name), strict=True))

    # Where tasks run

    def cut(self, arrays: list[Array | None], axis: int) -> list[Any]:
        """The arrays of a side for every run of its lines; sent to the workers once, if there are any."""
        spans, client = self.spans(axis), client_of_dask()
        if client is None:
            return [_Opaque([None if A is None else A[span] for A in arrays]) for span in spans]
        sent = [[None] * len(spans) if A is None else self._sent(A, axis, spans, client) for A in arrays]
        bundle = _later(_Opaque, "irpca-slices")
        return [bundle([parts[k] for parts in sent]) for k in range(len(spans))]

    def _sent(self, values: Array, axis: int, spans: list[slice], client: Any) -> list[Any]:
        """Known by its contents: factors change in place, and bases come as new arrays with the same numbers."""
        key = client.id, axis, _digest(values)
        parts = self.sent.pop(key, None)
        if parts is None:
            parts = _scattered(client, [np.ascontiguousarray(values[span]) for span in spans])
        self.sent[key] = parts  # used last
        while len(self.sent) > SENT_ARRAYS:
            self.sent.pop(next(iter(self.sent)))
        return parts

    def _given(self, values: list[Any]) -> list[Any]:
        """Arguments of tasks, one for each; sent to the workers ahead of them, if there are any."""
        opaque, client = [_Opaque(value) for value in values], client_of_dask()
        return opaque if client is None or not opaque else _scattered(client, opaque)

    def computed(self, roots: Callable[[], Sequence[Any]], name: str) -> list[Any]:
        """The results of some tasks, which are made again if a cluster lost what was sent to it."""

        def run() -> list[Any]:
            with self._watched(name):
                return list(dask.compute(*roots(), traverse=False))

        return self._tried(run, client_of_dask())

    def _persisted(self, roots: Callable[[], Sequence[Any]]) -> list[Any]:
        """Tasks whose results stay where they were made."""
        kept = list(dask.persist(*roots(), traverse=False))
        if client_of_dask() is not None:
            from distributed import futures_of, wait

            wait(futures_of(kept))
        return kept

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        """Tell whoever watches how many chunks have been read."""
        if self.watch is None:
            yield
        elif (client := client_of_dask()) is None:
            counter = _Counter(f"irpca-{name}-", math.prod(self.grid), self.watch)
            with Callback(posttask=counter):
                yield
        else:
            with _polled(client, f"irpca-{name}", math.prod(self.grid), self.watch):
                yield

    def _tried(self, run: Callable[[], Result], client: Any, forget: Callable[[], None] = lambda: None) -> Result:
        """What a question answers; a cluster that lost something is asked again, one that cannot go on is reported."""
        for left in reversed(range(ATTEMPTS)):
            try:
                return run()
            except Exception as error:
                if client is None:
                    raise
                if _lost(error):
                    time.sleep(PAUSE_SECONDS)
                    if client.status == "running" and not _has_worker(client):
                        raise ClusterError(
                            f"the cluster had no worker for {WORKER_SECONDS:.0f} seconds while M was read: start some. "
                            f"{GO_ON}"
                        ) from error
                if trouble := self._trouble(error, client, left):
                    raise trouble from error
                if not _lost(error):
                    raise
                self.sent.clear()
                forget()
        raise AssertionError

    def _trouble(self, error: Exception, client: Any, left: int) -> ClusterError | None:
        """Why a cluster cannot go on, if it is the cluster's fault."""
        if client.status != "running":
            return ClusterError(
                "the client of dask was closed, or lost its scheduler, while M was read: there is no result. Connect "
                f"to a cluster. {GO_ON}"
            )
        if type(error).__name__ == "KilledWorker" or (_lost(error) and not left):
            size = max(map(math.prod, product(*map(np.diff, self.edges)))) * self.source.dtype.itemsize
            return ClusterError(
                "workers of the cluster died again and again while M was read. If their memory was used up, make the "
                f"chunks smaller (the largest has {size / 1e6:.3g} MB as an array), run fewer threads on a worker, or "
                f"give it more memory. {GO_ON}"
            )
        return None


class _Counter:
    """Counts the tasks of one name as threads finish them."""

    def __init__(self, name: str, total: int, watch: Watch) -> None:
        self.name, self.total, self.watch, self.done = name, total, watch, 0

    def __call__(self, key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:
        if _of_chunk(str(key), self.name):
            self.done += 1
            self.watch(self.done, self.total)


def _of_chunk(key: str, name: str) -> bool:
    """Whether a task has the name, a token and a number, and nothing between them."""
    return key.startswith(name) and key[len(name) :].count("-") == 1


@contextmanager
def _polled(client: Any, name: str, total: int, watch: Watch) -> Iterator[None]:
    """Asks the scheduler now and then how many tasks of a name are done."""
    over = threading.Event()

    def poll() -> None:
        before = None
        while not over.wait(POLL_SECONDS):
            try:
                done = client.run_on_scheduler(_done, name)
            except Exception:  # whatever ails the cluster, the question itself will say so
                return
            if done != before:
                watch(min(done, total), total)
            before = done

    thread = threading.Thread(target=poll, name="irpca-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _done(name: str, dask_scheduler: Any = None) -> int:
    prefix = dask_scheduler.task_prefixes.get(name)
    states = prefix.active_states if prefix is not None else {}
    return int(states.get("memory", 0) + states.get("released", 0) + states.get("forgotten", 0))


def client_of_dask() -> Any:
    """The client whose workers would run a task now; None: threads of this process."""
    owner = getattr(get_scheduler(), "__self__", None)
    return owner if hasattr(owner, "scatter") else None


def _digest(values: Array) -> bytes:
    digest = hashlib.blake2b(repr((values.shape, values.dtype.str)).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(values).data)
    return digest.digest()


def _scattered(client: Any, values: list[Any]) -> list[Any]:
    try:
        return list(client.scatter(values, hash=False))
    except Exception as error:
        raise _LostError from error


def _has_worker(client: Any) -> bool:
    """Whether there is a worker, perhaps after a while: those that died may be started again."""
    try:
        client.wait_for_workers(1, timeout=WORKER_SECONDS)
    except TimeoutError:
        return False
    return True


def _lost(error: Exception) -> bool:
    """Whether data that was sent to workers went with one of them: the question can be asked again."""
    gone = isinstance(error, (_LostError, CancelledError))
    return gone or any(kind.__name__ == "CommClosedError" for kind in type(error).__mro__)


class _Opaque:
    """An argument that dask does not look into."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _later(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function whose calls are tasks of that name."""
    later, token, count = dask.delayed(function, pure=False), uuid.uuid4().hex, iter(range(1 << 62))
    return lambda *given: later(*given, dask_key_name=f"{name}-{token}-{next(count)}")


# What tasks do


def _piece(chunk: Any, at: tuple[int, ...], holes: bool = False) -> Piece:
    _, _, r0, r1, c0, c1 = at
    return piece_of(_read(chunk), holes, f" in {place_of((r0, r1), (c0, c1))}")


def _together(chunk: Any) -> Any:
    """A chunk whose rows or columns lie together in memory: kernels are several times as fast then, a copy is quick."""
    if hasattr(chunk, "tocsr") or chunk.flags.c_contiguous or chunk.flags.f_contiguous:
        return chunk
    return np.ascontiguousarray(chunk)


def _read(chunk: Any) -> Any:
    return chunk.value() if isinstance(chunk, _Opaque) else chunk


def _answered(question: _Opaque, chunk: Any, rows: _Opaque, cols: _Opaque, holes: bool, at: tuple[int, ...]) -> Any:
    asked = question.value.with_sides(rows.value, cols.value)
    if isinstance(asked, Writing):
        asked = replace(asked, place=(at[0], at[1]), first=(at[2], at[4]))
    answer = asked.answer(_piece(_together(_read(chunk)), at, holes), 1)
    if isinstance(asked, Regression):  # its largest arrays will be used again by the next task of this thread
        of_rows, of_cols = (tuple(part.copy() for part in side) for side in (answer.rows, answer.cols))
        answer = replace(answer, rows=of_rows, cols=of_cols)
    return answer


def _picked(answer: Any, part: str) -> Any:
    """A part of an answer; ``whole`` comes with what rode along."""
    if not isinstance(answer, Answer):
        return answer
    return (answer.whole, answer.tally) if part == "whole" else getattr(answer, part)


def _added(answers: Sequence[Any], part: str) -> Any:
    """The sum of one part of some answers, in their order."""
    parts = [_picked(answer, part) for answer in answers]
    if part == "whole":
        return _summed([whole for whole, _ in parts]), Tally.of(tally for _, tally in parts)
    return _summed(parts)


def _summed(parts: Sequence[Part]) -> Part:
    totals = [part.copy() for part in parts[0]]
    for other in parts[1:]:
        for total, part in zip(totals, other, strict=True):
            total += part
    return tuple(totals)


def _joined(bands: Sequence[Part]) -> Part:
    if len(bands) == 1:
        return bands[0]
    return tuple(np.concatenate(parts) for parts in zip(*bands, strict=True))


def _side_by_side(found: Sequence[tuple[Any, Tally]], edges: Sequence[int]) -> tuple[Any, Tally]:
    """Parts of S with the same rows as one, with the columns of M; and what rode along."""
    tally = Tally.of(tally for _, tally in found)
    counts = [np.diff(S.indptr) for S, _ in found]
    ends = np.append(0, np.cumsum(np.sum(counts, axis=0)))
    index = np.int32 if edges[-1] <= np.iinfo(np.int32).max else np.int64
    indices, values = np.empty(ends[-1], index), np.empty(ends[-1], found[0][0].dtype)
    base = ends[:-1].copy()
    for (S, _), count, first in zip(found, counts, edges, strict=False):
        to = np.arange(S.nnz) + np.repeat(base - S.indptr[:-1], count)
        indices[to], values[to] = S.indices.astype(index, copy=False) + index(first), S.data
        base += count
    return (indices, values, np.diff(ends)), tally


def _of_lines(prior: Prior, mean: Array, span: slice) -> tuple[Array, Prior]:
    """What a band needs of the prior; what all of them share is kept where they are asked from."""
    nothing = np.zeros(0)
    part = replace(
        prior,
        scale=prior.scale[span],
        mean=None if prior.mean is None else prior.mean[span],
        basis=None if prior.basis is None else prior.basis[span],
        coefficients=None,
        other_spread=nothing,
    )
    return mean[span], part


def _band(parts: Part, given: _Opaque) -> tuple[Any, Any]:
    mean, prior = given.value
    band = band_of(Moments(*parts[:3]), mean, prior, keep=True)
    return band, band.prepare() if prior.basis is not None else None


def _without_moments(parts: Part, solved: bool) -> Part:
    return parts[3:] if solved else parts


def _asked(band: tuple[Any, Any], question: str, given: _Opaque) -> Any:
    """``prepare`` was asked when the band was made."""
    return band[1] if question == "prepare" else getattr(band[0], question)(*given.value)


def _looked(chunk: Any, wanted: _Opaque, count: bool, at: tuple[int, ...]) -> tuple[list[Any], Any]:
    """What was wanted of a chunk; and, if asked, how many entries of its rows and columns are observed."""
    chunk = _read(chunk)
    piece = _piece(chunk, at)
    found = [_found(piece, (at[2], at[4]), *some) for some in wanted.value]
    if not count:
        return found, None
    if isinstance(piece, Listed):
        return found, piece.counts
    missing, infinite = _bad(chunk)
    if infinite:
        raise not_finite(infinite, piece.where)
    return found, _piece(chunk, at, holes=True).counts if missing else None


def _bad(chunk: Array) -> tuple[int, int]:
    """How many entries are NaN, and infinite; the sums of rows, as fast as memory, tell where to look for them."""
    with single_threaded_blas, np.errstate(invalid="ignore", over="ignore"):
        rows = np.flatnonzero(~np.isfinite(chunk @ np.ones(chunk.shape[1], chunk.dtype)))
    missing, infinite = 0, 0
    for row in rows:
        some = bad_entries(chunk[row])
        missing, infinite = missing + some[0], infinite + some[1]
    return missing, infinite


def _found(piece: Piece, first: tuple[int, int], kind: str, *at: Array) -> Any:
    if kind == "positions":
        assert isinstance(piece, Listed)
        rows, cols, values = piece.at(*at)
        return rows + first[0], cols + first[1], values
    return piece.block(*at) if kind == "block" else piece.entries(*at)


def in_chunks(positions: Array, edges: Iterable[int]) -> Array:
    """The chunk in which each position is."""
    return np.searchsorted(np.asarray(list(edges)), positions, side="right") - 1
