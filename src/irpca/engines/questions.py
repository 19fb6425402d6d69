"""The questions that are asked of every piece of M, and what one piece answers.

What a question knows of rows and columns comes in pairs of fields (:class:`~irpca.engines.base.Sided`): it can be cut
along the pieces of M, turned for a piece that is stored turned, and sent to where a piece is. An answer has parts that
are summed over all pieces, over those of the same rows, and over those of the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from ..lowrank import Array
from ..threads import in_order
from .arithmetic import Counts
from .base import Noise, Sided, Sink, Standardised, Trim, in_precision

if TYPE_CHECKING:
    from .pieces import Piece
    from .walks import Walk

Partial = TypeVar("Partial")


class Tally:
    """Running totals of what rides along."""

    def __init__(self) -> None:
        self.size, self.kept, self.finite, self.energy, self.largest, self.missing = 0, 0, True, 0.0, 0.0, 0

    def add(self, size: int, counted: Counts) -> None:
        kept, finite, energy, largest, missing = counted
        self.size += size - missing
        self.missing += missing
        self.kept += kept
        self.finite &= finite
        self.energy += energy
        self.largest = max(self.largest, largest)

    def include(self, other: Tally) -> None:
        counted = other.kept, other.finite, other.energy, other.largest, other.missing
        self.add(other.size + other.missing, counted)

    @classmethod
    def of(cls, tallies: Iterable[Tally]) -> Tally:
        """The total of several."""
        total = cls()
        for tally in tallies:
            total.include(tally)
        return total

    @property
    def trim(self) -> Trim:
        return Trim(self.kept, self.size - self.kept, self.energy, self.largest)


@dataclass(eq=False)
class Answer:
    """What one piece has to say.

    Attributes
    ----------
    whole, rows, cols : tuples of arrays
        To be summed over all pieces, over those with the same rows, and over those with the same columns.
    tally : what rode along
    """

    whole: tuple[Array, ...]
    rows: tuple[Array, ...]
    cols: tuple[Array, ...]
    tally: Tally

    @property
    def T(self) -> Answer:
        return Answer(tuple(A.T for A in self.whole), self.cols, self.rows, self.tally)


@dataclass(frozen=True, eq=False)
class Trimmed(Sided):
    """``T = M − U Vᵀ`` where that is at most zeta, else 0.

    Attributes
    ----------
    U, V : arrays of shape (n1, r) and (n2, r), as all arrays here NumPy's, or tensors once they are on a device
    zeta : float
    ones : bool
        The kept entries as ones are meant, in the place of T.
    """

    PAIRS = (("U", "V"),)
    U: Any
    V: Any
    zeta: float
    ones: bool = False


@dataclass(frozen=True, eq=False)
class Masked(Sided):
    """``U Vᵀ`` where an entry is kept, else 0.

    Attributes
    ----------
    U, V : arrays of shape (n1, r) and (n2, r)
    by : Trimmed
        What decides: the entries that another low-rank matrix keeps.
    """

    PAIRS = (("U", "V"),)
    U: Any
    V: Any
    by: Trimmed


class Question(Sided):
    """What is asked of every piece."""

    @property
    def lines(self) -> tuple[bool, bool]:
        """Whether the answer has something for each row, and for each column."""
        return False, False

    def answer(self, piece: Piece, threads: int) -> Answer:
        if piece.turned:
            return self.T.answer_stored(piece, threads).T
        return self.answer_stored(piece, threads)

    def answer_stored(self, piece: Piece, threads: int) -> Answer:
        """The same for stored rows and columns."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Core(Question):
    """``Q1.T @ T @ Q2``: every thread sums over its rows."""

    PAIRS = (("Q1", "Q2"),)
    of: Trimmed | Masked
    Q1: Any
    Q2: Any

    def answer_stored(self, piece: Piece, threads: int) -> Answer:
        Q1, Q2 = self.Q1, self.Q2

        def work(walk: Walk) -> Array:
            G = np.zeros((Q1.shape[1], Q2.shape[1]))
            for tile, T in walk:
                TQ2 = np.zeros((tile.rows.stop - tile.rows.start, Q2.shape[1]), piece.sum_dtype)
                tile.times(T, Q2, TQ2)
                G += Q1[tile.rows].T @ TQ2
            return G

        sums, tally = _walk(piece, self.of, work, threads)
        return Answer((np.sum(sums, axis=0),), (), (), tally)


@dataclass(frozen=True, eq=False)
class Products(Question):
    """``T @ X`` for the rows and ``T.T @ Y`` for the columns, of the blocks that are given.

    Along the stored rows every thread fills its own rows of the answer; across them every thread has a sum of its own,
    and these are added at the end.
    """

    PAIRS = (("Y", "X"),)
    of: Trimmed | Masked
    Y: Any
    X: Any

    @property
    def lines(self) -> tuple[bool, bool]:
        return self.X is not None, self.Y is not None

    def answer_stored(self, piece: Piece, threads: int) -> Answer:
        (n1, n2), X, Y = piece.stored, self.X, self.Y
        TX = None if X is None else np.zeros((n1, X.shape[1]), piece.sum_dtype)

        def work(walk: Walk) -> Array | None:
            TY = None if Y is None else np.zeros((n2, Y.shape[1]), piece.sum_dtype)
            for tile, T in walk:
                if TX is not None:
                    tile.times(T, X, TX[tile.rows])
                if TY is not None:
                    tile.t_times(T, Y, TY)
            return TY

        most = None if Y is None else piece.most_sums(Y.shape[1])
        sums, tally = _walk(piece, self.of, work, threads, most)
        of_rows = () if TX is None else (TX.astype(piece.dtype, copy=False),)
        of_cols = () if Y is None else (_sum(sums, piece.dtype),)
        return Answer((), of_rows, of_cols, tally)


@dataclass(frozen=True, eq=False)
class Regression(Question):
    """The moments H, g and κ of all rows (``axis=0``) or columns, and the sums of all lines.

    Attributes
    ----------
    U, V : arrays of shape (n1, K) and (n2, K)
    noise : Noise
    row_spread, col_spread : arrays of shape (n1,) and (n2,), or None
        How uncertain the factors of the other side are.
    row_units, col_units : arrays of shape (n1,) and (n2,), or None
        What M is divided by.
    """

    PAIRS = (("U", "V"), ("row_spread", "col_spread"), ("row_units", "col_units"))
    axis: int
    U: Any
    V: Any
    noise: Noise
    row_spread: Any = None
    col_spread: Any = None
    row_units: Any = None
    col_units: Any = None

    @property
    def lines(self) -> tuple[bool, bool]:
        return True, True

    @property
    def T(self) -> Self:
        return replace(super().T, axis=1 - self.axis)

    @property
    def factors(self) -> tuple[Array, Array]:
        """U and V as kernels take them."""
        return np.ascontiguousarray(self.U), np.ascontiguousarray(self.V)

    @property
    def other(self) -> tuple[Any, Any]:
        """The factors of the other side, and how uncertain they are."""
        return (self.V, self.col_spread) if self.axis == 0 else (self.U, self.row_spread)

    def answer(self, piece: Piece, threads: int) -> Answer:
        found, sums = piece.moments(self, threads)
        parts = found.H, found.g, found.kappa
        of_rows, of_cols = (parts, ()) if self.axis == 0 else ((), parts)
        return Answer((sums.totals,), (*of_rows, sums.rows), (*of_cols, sums.cols), Tally())


@dataclass(frozen=True, eq=False)
class Listing(Sided):
    """S, the entries of ``M − U Vᵀ`` beyond a limit."""

    PAIRS = (("U", "V"),)
    U: Any
    V: Any
    limit: float | Standardised

    def answer(self, piece: Piece, threads: int) -> tuple[Any, Tally]:
        """The part of S in this piece, as a CSR array in the order of M, and what rode along."""
        return piece.listed(self.T if piece.turned else self, threads)


@dataclass(frozen=True, eq=False)
class Writing(Question):
    """S, given to a sink; answers how many entries there were in each row and column.

    Attributes
    ----------
    listing : Listing
    sink : Sink
    first, place : the first row and column of the piece, and where it is among the pieces
    """

    listing: Listing
    sink: Sink
    first: tuple[int, int] = (0, 0)
    place: tuple[int, int] = (0, 0)

    @property
    def lines(self) -> tuple[bool, bool]:
        return True, True

    def answer(self, piece: Piece, threads: int) -> Answer:
        S, tally = self.listing.answer(piece, threads)
        i, j = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.indices.astype(np.int64)
        observed = piece.entries(i, j) if len(i) else S.data
        expected = np.einsum("kr,kr->k", self.listing.U[i].astype(float), self.listing.V[j])
        kept = self.sink.write(self.place, i + self.first[0], j + self.first[1], observed, expected)
        tally.kept += int((~kept).sum())
        counts = tuple(np.bincount(at[kept], minlength=n) for at, n in zip((i, j), S.shape, strict=True))
        return Answer((), counts[:1], counts[1:], tally)


def limits_of(limit: float | Standardised, n: int, dtype: np.dtype) -> tuple[Array, Array | None]:
    """Of n rows, and of the columns, in the precision of M: the product of both is the limit of an entry."""
    if not isinstance(limit, Standardised):
        return np.full(n, in_precision(limit, dtype)), None
    return (limit.limit * np.sqrt(limit.rows)).astype(dtype), np.sqrt(limit.cols).astype(dtype)


def _walk(
    piece: Piece, of: Trimmed | Masked, work: Callable[[Any], Partial], threads: int, most: int | None = None
) -> tuple[list[Partial], Tally]:
    """Let every thread, ``most`` of them, walk its share of the rows once."""
    parts = 1 if piece.small else threads
    walks = piece.walks(of, min(parts, most or parts))
    sums = list(in_order(work, walks, len(walks), ahead=len(walks)))
    tally = Tally.of(walk.tally for walk in walks)
    piece.seen(tally)
    return sums, tally


def _sum(sums: list[Any], dtype: np.dtype) -> Array:
    total = sums[0]
    for k in range(1, len(sums)):
        total += sums[k]
        sums[k] = None  # no longer than needed
    return total.astype(dtype, copy=False)
