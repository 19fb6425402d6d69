"""The engine for an M in chunks, on disk or on several machines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
from dask.base import tokenize

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
from ..holes import stack_entries
from ..memory import MemoryEngine
from ..questions import Answer, Listing, Question, Regression, Tally, Writing
from .sources import Edges, Source, add_in_tree, client_of_dask, tasks
from .workers import (
    Opaque,
    Part,
    Watch,
    Workers,
    add_parts,
    answer_of_chunk,
    ask_band,
    drop_moments,
    join_bands,
    join_outliers,
    look_at_chunk,
    make_band,
    pick_part,
    prior_of_band,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from ...model.maps import ColumnMaps

MAX_REDRAWS = 4  # reads for entries that are drawn in place of missing ones; what is still missing then is read later
KEPT_ENTRIES = 1 << 26  # of what was looked at, that are kept for the next question

Place = tuple[int, int]
Request = tuple[str, Array, Array]  # block, entries, or positions in the list of observed entries; and where


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
        self._source, self.workers = source, Workers(source)
        self.grid = len(source.row_edges) - 1, len(source.col_edges) - 1
        self.places = [(i, j) for i in range(self.grid[0]) for j in range(self.grid[1])]
        self.reads, self.holes = 0.0, False
        self._known: dict[str, Any] = {}
        self._counts: tuple[Array, Array] | None = None
        self._whole: MemoryEngine | None = None  # all of M, if it is so small that a solver asked for it
        self._ends = np.zeros(1, np.int64)  # how many observed entries the chunks before each have
        self._ahead = False  # entries are asked for only to see which are not known

    @property
    def watch(self) -> Watch | None:
        return self.workers.watch

    @watch.setter
    def watch(self, watch: Watch | None) -> None:
        self.workers.watch = watch

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape

    @property
    def source(self) -> Source:
        return self._source

    @property
    def edges(self) -> tuple[Edges, Edges]:
        return self.workers.edges

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
        known = set(self._known)
        self._survey(looks)
        return {
            "counts": self._counts if self.holes or self.source.listed else None,
            "ends": self._ends,
            "known": {key: answer for key, answer in self._known.items() if key not in known},
        }

    def recall(self, found: dict[str, Any]) -> None:
        counts = found["counts"]
        self._counts = all_counted(self.shape) if counts is None else (counts[0], counts[1])
        self._ends, self.holes = found["ends"], counts is not None and not self.source.listed
        for key, answer in found["known"].items():
            self._remember(key, tuple(answer))

    def forget(self) -> None:
        self._known.clear()

    def mapped(self, maps: ColumnMaps) -> DistributedEngine:
        """Chunks are mapped by the tasks that read them, entries here: what was looked at ahead is of M."""
        new = copy(self)
        new.workers, new._known = Workers(self.source, replace(maps, names=())), dict(self._known)
        new.watch = self.watch
        return new

    def glance(self, size: int) -> Array:
        rows, cols = self.edges
        return self.entries(*spread_places((rows[1], cols[1]), size))

    def _survey(self, looks: Sequence[Look]) -> None:
        if self.source.listed and self._counts is None:
            self._look([], count=True)  # which entries are drawn depends on how many there are
        fixed: list[Request] = [("entries", *look.cells) for look in looks if look.cells is not None]
        fixed += [("block", *look.lines) for look in looks if look.lines is not None]
        draws = [look for look in looks if look.seed is not None]
        wanted = self._unknown_draws(draws)
        wanted += [some for some in fixed if self._whole is None and _key(*some) not in self._known]
        for _ in range(1 + MAX_REDRAWS):
            if not wanted and self._counts is not None:
                return
            for request, answer in zip(wanted, self._look(wanted, self._counts is None), strict=True):
                self._remember(_key(*request), answer)
            wanted = self._unknown_draws(draws)  # some were not observed, and others are drawn in their place

    def _unknown_draws(self, draws: Sequence[Look]) -> list[Request]:
        """What has to be read next to draw entries at random."""
        wanted: list[Request] = []
        self._ahead = True
        try:
            for look in draws:
                try:
                    self.draw(look.size, np.random.default_rng(look.seed))
                except _UnknownError as error:
                    wanted.append(error.request)
        finally:
            self._ahead = False
        return wanted

    def _look(self, wanted: Sequence[Request], count: bool = False) -> list[Part]:
        """Answer some requests for entries in one read of the chunks they are in; of all, to count."""
        by_chunk: dict[Place, list[Any]] = {place: [] for place in self.places} if count else {}
        back: dict[Place, list[tuple[int, Any]]] = {}
        for k, request in enumerate(wanted):
            for place, at, here in self._split(*request):
                by_chunk.setdefault(place, []).append((request[0], *at))
                back.setdefault(place, []).append((k, here))

        def roots() -> list[Any]:
            look, given = tasks(look_at_chunk, f"irpca-{name}"), self.workers.send(list(map(Opaque, by_chunk.values())))
            return [
                look(self.source.read(i, j), some, count, self.workers.place(i, j))
                for (i, j), some in zip(by_chunk, given, strict=True)
            ]

        name = "survey" if count else "look"
        found = dict(zip(by_chunk, self.workers.compute(roots, name), strict=True))
        heights, widths = map(np.diff, self.edges)
        self.reads += sum(int(heights[i]) * int(widths[j]) for i, j in by_chunk) / math.prod(self.shape)
        if count:
            self._take_counts({place: counts for place, (_, counts) in found.items()})
        answers = [self._empty(*request) for request in wanted]
        for place, (values, _) in found.items():
            for (k, here), parts in zip(back.get(place, []), values, strict=True):
                for whole, part in zip(answers[k], parts, strict=True):
                    whole[here] = part
        return answers

    def _split(self, kind: str, rows: Array, cols: Array) -> Iterator[tuple[Place, Part, Any]]:
        """A request by chunks: where, what is wanted there, and where that belongs in the answer."""
        (row_edges, col_edges), n2 = self.edges, self.grid[1]
        if kind == "positions":  # of observed entries, chunk by chunk
            for k, mine in _by_number(_chunk_of(rows, self._ends)):
                yield divmod(k, n2), (rows[mine] - self._ends[k],), mine
            return
        of_rows, of_cols = _chunk_of(rows, row_edges), _chunk_of(cols, col_edges)
        if kind == "block":
            for (i, mine), (j, across) in product(_by_number(of_rows), _by_number(of_cols)):
                yield (i, j), (rows[mine] - row_edges[i], cols[across] - col_edges[j]), np.ix_(mine, across)
            return
        for k, mine in _by_number(of_rows * n2 + of_cols):
            i, j = divmod(k, n2)
            yield (i, j), (rows[mine] - row_edges[i], cols[mine] - col_edges[j]), mine

    def _empty(self, kind: str, rows: Array, cols: Array) -> Part:
        """Room for the values; of positions, after their rows and columns."""
        shape = (len(rows), len(cols)) if kind == "block" else (len(rows),)
        dtypes = (np.int64, np.int64, self.dtype) if kind == "positions" else (self.dtype,)
        return tuple(np.empty(shape, dtype) for dtype in dtypes)

    def _take_counts(self, found: dict[Place, tuple[Array, Array]]) -> None:
        total = np.zeros(self.shape[0], np.int64), np.zeros(self.shape[1], np.int64)
        for place, counts in found.items():
            for axis, k in enumerate(place):
                total[axis][self.edges[axis][k] : self.edges[axis][k + 1]] += counts[axis]
        sizes = [int(of_rows.sum()) for of_rows, _ in found.values()]
        if not any(sizes):
            raise ValueError("every cell of M is missing")
        complete = not self.source.listed and sum(sizes) == math.prod(self.shape)
        self.holes = not (self.source.listed or complete)
        self._counts = all_counted(self.shape) if complete else total
        self._ends = np.append(0, np.cumsum(sizes))

    def _remember(self, key: str, answer: Part) -> None:
        whole = answer[0].shape == self.shape and key == _key("block", *map(np.arange, self.shape))
        if whole:
            self._whole = MemoryEngine(answer[0])
        if whole or sum(part.size for one in (answer, *self._known.values()) for part in one) <= KEPT_ENTRIES:
            self._known[key] = answer

    # Entries

    def block(self, rows: Array, cols: Array) -> Array:
        refuse_large_block(rows, cols)
        (values,), maps = self._entries("block", rows, cols), self.workers.maps
        return values if maps is None else maps.cut(slice(None), np.asarray(cols)).table(values)

    def entries(self, rows: Array, cols: Array) -> Array:
        return self._latent(self._entries("entries", rows, cols)[0], cols)

    def _latent(self, values: Array, cols: Array) -> Array:
        maps = self.workers.maps
        return values if maps is None else maps.cells(values, np.asarray(cols))

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        if not self.source.listed:
            return drawn_anywhere(self, size, rng)
        at = drawn(self.n_observed, size, rng)
        rows, cols, values = self._entries("positions", at, at[:0])
        return rows, cols, self._latent(values, cols)

    def _entries(self, kind: str, rows: Array, cols: Array) -> Part:
        if self._whole is not None and kind != "positions":
            return (getattr(self._whole, kind)(rows, cols),)
        request = kind, np.asarray(rows), np.asarray(cols)
        if (key := _key(*request)) in self._known:
            if kind == "block":
                return self._known.pop(key)  # kept no longer than needed
            return tuple(part.copy() for part in self._known[key])
        if self._ahead:
            raise _UnknownError(request)
        return self._look([request])[0]

    # Reads of all of M

    def ask(self, question: Question) -> Answer:
        name = type(question).__name__.lower()
        (whole, tally), *bands = self.workers.compute(lambda: self._sums(name, question), name)
        n1 = self.grid[0] if question.lines[0] else 0
        return Answer(whole, join_bands(bands[:n1]), join_bands(bands[n1:]), tally)

    def _sums(self, name: str, question: Question) -> list[Any]:
        """Tasks that sum the answers of all chunks, then of those of the same rows, then of the same columns."""
        answers = self._answers(name, question)
        add, pick = tasks(add_parts, f"irpca-sum-{name}"), tasks(pick_part, f"irpca-part-{name}")
        large = isinstance(question, Regression)  # along one side, and that shall not travel with the rest

        def total(side: str, places: Iterable[Place]) -> Any:
            return add_in_tree(add, [pick(answers[k], side) if large else answers[k] for k in places], side)

        found = [total("whole", answers)]
        for axis, side in enumerate(("rows", "cols")):
            for k in range(self.grid[axis]) if question.lines[axis] else ():
                found.append(total(side, [place for place in answers if place[axis] == k]))
        return found

    def _answers(self, name: str, question: Question | Listing) -> dict[Place, Any]:
        ask, workers = tasks(answer_of_chunk, f"irpca-{name}"), self.workers
        rows, cols = question.sides
        of_rows, of_cols, maps = workers.cut(rows, 0), workers.cut(cols, 1), workers.cut_maps()
        rest = question.with_sides([None] * len(rows), [None] * len(cols))
        shared = workers.send([Opaque(rest)])[0] if isinstance(rest, Writing) else Opaque(rest)  # a sink knows all of L
        return {
            (i, j): ask(
                shared, self.source.read(i, j), of_rows[i], of_cols[j], workers.place(i, j, self.holes), maps[j]
            )
            for i, j in self.places
        }

    def ask_lines(self, question: Regression, mean: Array, prior: Prior) -> tuple[Callable[..., list[Any]], Sums]:
        """The bands stay where they are made."""
        axis, (n1, n2), workers, client = question.axis, self.grid, self.workers, client_of_dask()
        priors = [Opaque(prior_of_band(prior, mean, slice(*span))) for span in pairwise(self.edges[axis])]
        drop, make = tasks(drop_moments, "irpca-rest"), tasks(make_band, "irpca-band")
        ask = tasks(ask_band, "irpca-solve")
        kept: list[tuple[list[Any], list[Any]]] = []  # the sums, and the bands as long as workers have them

        def roots() -> list[Any]:
            whole, *found = self._sums("lines", question)
            sides = [found[:n1], found[n1:]]
            bands = [make(part, given) for part, given in zip(sides[axis], workers.send(priors), strict=True)]
            sides[axis] = [drop(part) for part in sides[axis]]
            return [whole, *sides[0], *sides[1], *bands]

        def read() -> tuple[list[Any], list[Any]]:
            if not kept:
                with workers.watched("lines"):
                    found = dask.persist(*roots(), traverse=False)
                    sums = dask.compute(*found[: 1 + n1 + n2], traverse=False)
                kept.append((list(sums), list(found[1 + n1 + n2 :])))
            return kept[0]

        def ask_all(question: str, *given: Any) -> list[Any]:
            def run() -> list[Any]:
                _, bands = read()
                return list(dask.compute(*(ask(band, question, Opaque(given)) for band in bands), traverse=False))

            return workers.try_again(run, client, kept.clear)

        ((whole, _), *sums), _ = workers.try_again(read, client, kept.clear)
        (of_rows,), (of_cols,) = join_bands(sums[:n1]), join_bands(sums[n1:])
        return ask_all, Sums(of_rows, of_cols, whole[0])

    def corruption(self, L: LowRank, limit: float | Standardised) -> tuple[csr_array, Trim]:
        self.reads += 1
        join = tasks(join_outliers, "irpca-join")

        def roots() -> list[Any]:
            answers = self._answers("outliers", self.listing(L, limit))
            return [join([answers[place] for place in self.places if place[0] == i]) for i in range(self.grid[0])]

        bands, tallies = zip(*self.workers.compute(roots, "outliers"), strict=True)
        refuse_nothing(total := Tally.of(tallies))
        counts = np.concatenate([np.diff(S.indptr) for S in bands])
        parts = [(S.indices, S.data) for S in bands]
        del bands
        return stack_entries(parts, counts, self.shape, self.dtype), total.trim

    def write(self, L: LowRank, limit: float | Standardised, sink: Sink) -> tuple[tuple[Array, Array], Trim]:
        answer = self.read(Writing(self.listing(L, limit), sink))
        return (answer.rows[0], answer.cols[0]), answer.tally.trim


class _UnknownError(Exception):
    """Entries that have to be read first."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request


def _by_number(numbers: Array) -> list[tuple[int, Array]]:
    """Each of some numbers, and where it stands."""
    order = np.argsort(numbers, kind="stable")
    places = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(order) else []
    return [(int(numbers[some[0]]), some) for some in places]


def _key(kind: str, rows: Array, cols: Array) -> str:
    return tokenize(kind, *(np.ascontiguousarray(lines, dtype=np.int64) for lines in (rows, cols)))


def _chunk_of(positions: Array, edges: Edges | Array) -> Array:
    """The chunk in which each position is."""
    return np.searchsorted(edges, positions, side="right") - 1
