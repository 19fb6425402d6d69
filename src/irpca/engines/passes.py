"""Each question over one piece of M.

What is as long as M has rows, or columns, comes as a dictionary of arrays for each side, under the same names, so that
a matrix that is stored turned asks the same question with the two swapped:

    L       a factor of the low-rank matrix          Q   a basis, for the core
    frozen  a factor of the one that decided what is kept            B   a block to multiply with
    scale, spread, other   of the noise, and of the other factors
    unit    in which a line of M is measured, for the moments

An answer has parts that are summed over all pieces, over those of the same rows, and over those of the same columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..lowrank import Array
from ..threads import in_order
from .base import Noise, Sink, Standardised, in_precision
from .pieces import Piece, Walk
from .tiles import Tally

Arrays = dict[str, Array]
Numbers = dict[str, Any]
Partial = TypeVar("Partial")


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


def core(piece: Piece, rows: Arrays, cols: Arrays, common: Numbers, threads: int) -> Answer:
    """``Q1.T @ T @ Q2``: every thread sums over its rows."""
    if piece.turned:
        rows, cols = cols, rows
    Q1, Q2 = rows["Q"], cols["Q"]

    def work(walk: Walk) -> Array:
        G = np.zeros((Q1.shape[1], Q2.shape[1]))
        for some, bits in walk:
            TQ2 = np.zeros((some.stop - some.start, Q2.shape[1]), piece.dtype)
            for bit in bits:
                bit.times(bit.T, Q2, TQ2)
            G += Q1[some].T @ TQ2
        return G

    sums, tally = _walked(piece, work, _walks(piece, rows, cols, common), threads)
    answer = Answer((np.sum(sums, axis=0),), (), (), tally)
    return answer.T if piece.turned else answer


def products(piece: Piece, rows: Arrays, cols: Arrays, common: Numbers, threads: int) -> Answer:
    """``T X`` for the rows, ``Tᵀ Y`` for the columns, of the blocks B that are given; or of the kept entries as ones.

    Along the stored rows every thread fills its own rows of the answer; across them every thread has a sum of its own,
    and these are added at the end.
    """
    if piece.turned:
        rows, cols = cols, rows
    (n1, n2), kept = piece.stored, bool(common.get("kept"))
    X, Y = cols.get("B"), rows.get("B")
    TX = None if X is None else np.zeros((n1, X.shape[1]), piece.dtype)

    def work(walk: Walk) -> Array | None:
        TY = None if Y is None else np.zeros((n2, Y.shape[1]), piece.sum_dtype)
        for some, bits in walk:
            for bit in bits:
                A = bit.K if kept else bit.T
                if TX is not None and X is not None:
                    bit.times(A, X, TX[some])
                if TY is not None and Y is not None:
                    bit.t_times(A, Y, TY)
        return TY

    most = None if Y is None else piece.most_sums(Y.shape[1])
    sums, tally = _walked(piece, work, _walks(piece, rows, cols, common), threads, most)
    answer = Answer((), () if TX is None else (TX,), () if Y is None else (_sum(sums, piece.dtype),), tally)
    return answer.T if piece.turned else answer


def moments(piece: Piece, rows: Arrays, cols: Arrays, common: Numbers, threads: int) -> Answer:
    """H, g and κ of the rows (``axis=0``) or columns, and the sums of all lines."""
    axis = common["axis"]
    if piece.turned:
        rows, cols, axis = cols, rows, 1 - axis
    noise = _noise(rows, cols, common)
    spread = (cols if axis == 0 else rows)["other"]
    units = rows.get("unit"), cols.get("unit")
    found, sums = piece.moments(axis, rows["L"], cols["L"], noise, spread, units, threads)
    parts = found.H, found.g, found.kappa
    of_rows, of_cols = (parts, ()) if axis == 0 else ((), parts)
    answer = Answer((sums.totals,), (*of_rows, sums.rows), (*of_cols, sums.cols), Tally())
    return answer.T if piece.turned else answer


def listed(piece: Piece, rows: Arrays, cols: Arrays, common: Numbers, threads: int) -> tuple[Any, Tally]:
    """The part of S in this piece, and what rode along."""
    if piece.turned:
        rows, cols = cols, rows
    limit = common["zeta"]
    if "scale" in rows:
        limit = Standardised(rows["scale"], cols["scale"], limit)
    return piece.listed((rows["L"], cols["L"]), limit, threads)


def written(piece: Piece, rows: Arrays, cols: Arrays, common: Numbers, threads: int) -> Answer:
    """The same, given to a sink; answers how many there were in each row and column."""
    S, tally = listed(piece, rows, cols, common, threads)
    sink: Sink = common["sink"]
    i, j = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.indices.astype(np.int64)
    observed = piece.entries(i, j) if len(i) else S.data
    expected = np.einsum("kr,kr->k", rows["L"][i].astype(float), cols["L"][j])
    (first_row, first_col), place = common["first"], common["place"]
    kept = sink.write(place, i + first_row, j + first_col, observed, expected)
    tally.kept += int((~kept).sum())
    counts = tuple(np.bincount(at[kept], minlength=n) for at, n in zip((i, j), S.shape, strict=True))
    return Answer((), counts[:1], counts[1:], tally)


def _noise(rows: Arrays, cols: Arrays, common: Numbers) -> Noise:
    """The noise model of these rows and columns."""
    noise: Noise = common["noise"]
    return noise.of_lines(rows["scale"], cols["scale"], rows["spread"], cols["spread"])


def _walks(piece: Piece, rows: Arrays, cols: Arrays, common: Numbers) -> Callable[[range], Walk]:
    """What makes the walk of one thread over its rows; rows and columns are the stored ones."""
    L = rows["L"], cols["L"]
    if "K" in common:
        return lambda share: piece.masked(share, L, common["K"])
    zeta = in_precision(common["zeta"], piece.dtype)
    if "frozen" in rows:
        return lambda share: piece.masked_again(share, L, (rows["frozen"], cols["frozen"]), zeta)
    kept, remember = bool(common.get("kept")), common.get("remember")
    return lambda share: piece.trimmed(share, L, zeta, kept, remember)


def _walked(
    piece: Piece, work: Callable[[Any], Partial], walk: Callable[[range], Walk], threads: int, most: int | None = None
) -> tuple[list[Partial], Tally]:
    """Let every thread, ``most`` of them, walk its share of the rows once."""
    parts = 1 if piece.small else threads
    walks = [walk(share) for share in piece.shares(min(parts, most or parts))]
    sums = list(in_order(work, walks, len(walks), ahead=len(walks)))
    tally = Tally.of(some.tally for some in walks)
    piece.seen(tally)
    return sums, tally


def _sum(sums: list[Any], dtype: np.dtype) -> Array:
    total = sums[0]
    for k in range(1, len(sums)):
        total += sums[k]
        sums[k] = None  # no longer than needed
    return total.astype(dtype, copy=False)
