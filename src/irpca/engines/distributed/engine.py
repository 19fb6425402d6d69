"""The engine for an M in chunks, on disk or on several machines."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ...lowrank import Array, LowRank
from ..base import (
    Look,
    Prior,
    Sink,
    Standardised,
    Sums,
    Trim,
    all_counted,
    drawn,
    drawn_anywhere,
    refuse_large_block,
    spread_places,
)
from ..body import PiecedEngine, refuse_nothing
from ..listing import Found, GrowingRows
from ..memory import MemoryEngine
from ..questions import Answer, Question, Regression, Tally, Writing
from .graphs import Chunks, Watch, in_chunks
from .sources import Source

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MAX_REDRAWS = (
    4  # reads for entries that are drawn in the place of missing ones; what is still missing then is read later
)
KEPT_ENTRIES = 1 << 26  # of what was looked at, that are kept for the next question

Place = tuple[int, int]
Request = tuple[str, Array, Array]  # block, entries or positions, and where


class DistributedEngine(PiecedEngine):
    """M in chunks that are read when a question is asked, by the threads of this process or the workers of a client.

    One task answers a question for one chunk. What it answers is thin, and is added up on the way to this process.

    Parameters
    ----------
    source : Source
        Where the chunks are.
    """

    name = "distributed"
    dear = True

    def __init__(self, source: Source) -> None:
        self._source, self.chunks = source, Chunks(source)
        self.reads = 0.0
        self._known: dict[bytes, Any] = {}
        self._room = KEPT_ENTRIES
        self._counts: tuple[Array, Array] | None = None
        self._whole: MemoryEngine | None = None  # all of M, if it is so small that a solver asked for it
        self._ends = np.zeros(1, np.int64)  # how many observed entries the chunks before each have

    @property
    def watch(self) -> Watch | None:
        return self.chunks.watch

    @watch.setter
    def watch(self, watch: Watch | None) -> None:
        self.chunks.watch = watch

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape

    @property
    def source(self) -> Source:
        return self._source

    @property
    def edges(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.chunks.edges

    @property
    def labels(self) -> tuple[Array | None, Array | None]:
        return self.source.labels

    @property
    def dtype(self) -> np.dtype:
        return self.source.dtype

    @property
    def n_observed(self) -> int:
        return int(self.counts[0].sum())

    @property
    def counts(self) -> tuple[Array, Array]:
        if self._counts is None:
            self._survey([])
        assert self._counts is not None
        return self._counts

    # One read for all that will be looked at

    def survey(self, looks: Sequence[Look]) -> dict[str, Any]:
        known, whole = set(self._known), self._whole
        self._survey(looks)
        new = None if self._whole is None or self._whole is whole else self._whole
        return {
            "counts": self._counts if self.chunks.holes or self.source.listed else None,
            "ends": self._ends,
            "whole": None if new is None else new.piece.block(*(np.arange(n) for n in self.shape)),
            "known": {key.hex(): answer for key, answer in self._known.items() if key not in known},
        }

    def recall(self, found: dict[str, Any]) -> None:
        counts, whole = found["counts"], found["whole"]
        self._counts = all_counted(self.shape) if counts is None else (counts[0], counts[1])
        self._ends, self.chunks.holes = found["ends"], counts is not None and not self.source.listed
        if whole is not None:
            self._whole = MemoryEngine(whole)
        for key, answer in found["known"].items():
            self._remember(bytes.fromhex(key), answer)

    def forget(self) -> None:
        self._known.clear()
        self._room = KEPT_ENTRIES

    def glance(self, size: int) -> Array:
        (rows, cols), place = self.chunks.edges, (0, 0)
        at = spread_places((rows[1], cols[1]), size)
        values, _ = self.chunks.picked({place: [("entries", *at)]}, "look")[place]
        self.reads += self._size(place) / math.prod(self.shape)
        seen: Array = values[0]
        return seen

    def _survey(self, looks: Sequence[Look]) -> None:
        if self.source.listed and self._counts is None:
            self._look([], count=True)  # which entries are drawn depends on how many there are
        blocks: list[Request] = [("block", *look.lines) for look in looks if look.lines is not None]
        cells: list[Request] = [("entries", *look.cells) for look in looks if look.cells is not None]
        draws = [look for look in looks if look.seed is not None]
        wanted = [*self._positions(draws), *(some for some in (*cells, *blocks) if not self._has(*some))]
        if self._counts is None or wanted:
            self._look(wanted, count=self._counts is None)
        for _ in range(MAX_REDRAWS):
            if not (wanted := self._positions(draws)):
                return
            self._look(wanted)  # some were not observed, and others are drawn in their place

    def _has(self, kind: str, rows: Array, cols: Array) -> bool:
        return self._whole is not None or _key(kind, rows, cols) in self._known

    def _positions(self, draws: Sequence[Look]) -> list[Request]:
        """What is needed next to draw entries at random."""
        wanted: list[Request] = []
        for look in draws:
            try:
                _Ahead(self).draw(look.size, np.random.default_rng(look.seed))
            except _NotKnownError as error:
                wanted.append(error.at)
        return wanted

    def _look(self, wanted: Sequence[Request], count: bool = False, keep: bool = True) -> list[Any]:
        """Answer some requests for entries in one read of the chunks they are in; of all, to count."""
        by_chunk: dict[Place, list[Any]] = {place: [] for place in self.chunks.places()} if count else {}
        back: dict[Place, list[tuple[int, Any]]] = {}
        for k, (kind, rows, cols) in enumerate(wanted):
            for place, at, here in self._split(kind, rows, cols):
                by_chunk.setdefault(place, []).append((kind, *at))
                back.setdefault(place, []).append((k, here))
        found = self.chunks.picked(by_chunk, "survey" if count else "look", count)
        self.reads += sum(self._size(place) for place in by_chunk) / math.prod(self.shape)
        if count:
            self._take_counts({place: counts for place, (_, counts) in found.items()})
        answers = [self._empty(*request) for request in wanted]
        for place, (values, _) in found.items():
            for (k, here), value in zip(back.get(place, []), values, strict=True):
                _put(answers[k], here, value)
        for request, answer in zip(wanted if keep else (), answers, strict=False):
            self._keep(request, answer)
        return answers

    def _size(self, place: Place) -> int:
        (i, j), (rows, cols) = place, self.chunks.edges
        return (rows[i + 1] - rows[i]) * (cols[j + 1] - cols[j])

    def _split(self, kind: str, rows: Array, cols: Array) -> list[tuple[Place, tuple[Array, ...], Any]]:
        """A request by chunks: where, what is wanted there, and where that belongs in the answer."""
        row_edges, col_edges = self.chunks.edges
        if kind == "positions":  # of observed entries, chunk by chunk
            which, places = in_chunks(rows, self._ends), self.chunks.places()
            return [(places[k], (rows[mine] - self._ends[k],), mine) for k, mine in _by_number(which)]
        of_rows, of_cols = in_chunks(rows, row_edges), in_chunks(cols, col_edges)
        parts: list[tuple[Place, tuple[Array, ...], Any]] = []
        if kind == "block":
            for (i, mine), (j, across) in product(_by_number(of_rows), _by_number(of_cols)):
                at = rows[mine] - row_edges[i], cols[across] - col_edges[j]
                parts.append(((i, j), at, np.ix_(mine, across)))
            return parts
        for chunk, mine in _by_number(of_rows * self.chunks.grid[1] + of_cols):
            i, j = divmod(chunk, self.chunks.grid[1])
            parts.append(((i, j), (rows[mine] - row_edges[i], cols[mine] - col_edges[j]), mine))
        return parts

    def _empty(self, kind: str, rows: Array, cols: Array) -> Any:
        if kind == "positions":
            return np.empty(len(rows), np.int64), np.empty(len(rows), np.int64), np.empty(len(rows), self.dtype)
        shape = (len(rows), len(cols)) if kind == "block" else (len(rows),)
        return np.empty(shape, self.dtype)

    def _take_counts(self, found: dict[Place, Any]) -> None:
        rows, cols = self.chunks.edges
        complete = all(counts is None for counts in found.values())
        if complete and not self.source.listed:
            self._counts = all_counted(self.shape)
            return
        self.chunks.holes = not self.source.listed
        total = np.zeros(self.shape[0], np.int64), np.zeros(self.shape[1], np.int64)
        sizes: list[int] = []
        for (i, j), counts in found.items():
            spans = slice(rows[i], rows[i + 1]), slice(cols[j], cols[j + 1])
            some = all_counted((rows[i + 1] - rows[i], cols[j + 1] - cols[j])) if counts is None else counts
            for axis in (0, 1):
                total[axis][spans[axis]] += some[axis]
            sizes.append(int(some[0].sum()))
        if not total[0].any():
            raise ValueError("every cell of M is missing")
        self._counts, self._ends = total, np.append(0, np.cumsum(sizes))

    def _keep(self, request: Request, answer: Any) -> None:
        kind, *lines = request
        every = all(np.array_equal(some, np.arange(n)) for some, n in zip(lines, self.shape, strict=True))
        if kind == "block" and every:
            self._whole = MemoryEngine(answer)
        else:
            self._remember(_key(*request), answer)

    def _remember(self, key: bytes, answer: Any) -> None:
        size = sum(part.size for part in answer) if isinstance(answer, tuple) else answer.size
        if size <= self._room:
            self._room -= size
            self._known[key] = answer

    # Entries

    def block(self, rows: Array, cols: Array) -> Array:
        refuse_large_block(rows, cols)
        return self._entries("block", np.asarray(rows), np.asarray(cols))

    def entries(self, rows: Array, cols: Array) -> Array:
        return self._entries("entries", np.asarray(rows), np.asarray(cols))

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        if not self.source.listed:
            return drawn_anywhere(self, size, rng)
        return self.positions(drawn(self.n_observed, size, rng))

    def positions(self, at: Array) -> tuple[Array, Array, Array]:
        """Rows, columns and values of observed entries, by their number, counted chunk by chunk."""
        rows, cols, values = self._entries("positions", at, at[:0])
        return rows, cols, values

    def _entries(self, kind: str, rows: Array, cols: Array) -> Any:
        if self._whole is not None and kind != "positions":
            return getattr(self._whole, kind)(rows, cols)
        if (key := _key(kind, rows, cols)) in self._known:
            answer = self._known[key]
            if kind == "block":  # no longer than needed
                self._room += answer.size
                return self._known.pop(key)
            return tuple(part.copy() for part in answer) if isinstance(answer, tuple) else answer.copy()
        (answer,) = self._look([(kind, rows, cols)], keep=False)
        return answer

    # Reads of all of M

    def ask(self, question: Question) -> Answer:
        return self.chunks.sums(question)

    def ask_lines(self, question: Regression, mean: Array, prior: Prior) -> tuple[Callable[..., list[Any]], Sums]:
        return self.chunks.lines(question, mean, prior)

    def corruption(self, L: LowRank, limit: float | Standardised) -> tuple[csr_array, Trim]:
        self.reads += 1
        S, total = GrowingRows(self.shape, self.dtype), Tally()
        bands = self.chunks.listed(self.listing(L, limit))
        for k in range(len(bands)):
            (indices, values, counts), tally = bands[k]
            bands[k] = None  # type: ignore[call-overload]  # no longer than needed
            S.append(Found(indices, values, counts, tally, len(values)))
            total.include(tally)
        refuse_nothing(total)
        return S.finished(), total.trim

    def write(self, L: LowRank, limit: float | Standardised, sink: Sink) -> tuple[tuple[Array, Array], Trim]:
        answer = self.read(Writing(self.listing(L, limit), sink))
        return (answer.rows[0], answer.cols[0]), answer.tally.trim


class _NotKnownError(Exception):
    """Entries that have to be looked at first."""

    def __init__(self, at: Request) -> None:
        super().__init__()
        self.at = at


class _Ahead:
    """Draws entries as the engine will, from those that are known; the first that are not end it."""

    def __init__(self, engine: DistributedEngine) -> None:
        self.engine, self.shape = engine, engine.shape

    @property
    def n_observed(self) -> int:
        return self.engine.n_observed

    def draw(self, size: int, rng: np.random.Generator) -> None:
        if self.engine.source.listed:
            self._known("positions", at := drawn(self.n_observed, size, rng), at[:0])
        else:
            drawn_anywhere(self, size, rng)  # type: ignore[arg-type]

    def entries(self, rows: Array, cols: Array) -> Array:
        return self._known("entries", rows, cols)

    def _known(self, *request: Any) -> Any:
        whole, (kind, rows, cols) = self.engine._whole, request
        if whole is not None and kind == "entries":
            return whole.entries(rows, cols)
        key = _key(*request)
        if key not in self.engine._known:
            raise _NotKnownError(request)
        return self.engine._known[key]


def _by_number(numbers: Array) -> list[tuple[int, Array]]:
    """Each of some numbers, and where it stands."""
    order = np.argsort(numbers, kind="stable")
    places = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(order) else []
    return [(int(numbers[some[0]]), some) for some in places]


def _key(kind: str, rows: Array, cols: Array) -> bytes:
    digest = hashlib.blake2b(kind.encode(), digest_size=16)
    for lines in (rows, cols):
        digest.update(b"%d:" % len(lines))
        digest.update(np.ascontiguousarray(lines, dtype=np.int64).tobytes())
    return digest.digest()


def _put(answer: Any, here: Any, value: Any) -> None:
    for whole, part in zip(answer, value, strict=True) if isinstance(answer, tuple) else ((answer, value),):
        whole[here] = part
