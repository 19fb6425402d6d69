"""Loops over the entries of M, for numba; imported by :mod:`irpca.engines.kernels` when one is first asked for.

The loops are shaped so that LLVM turns them into vector instructions, which is four to ten times as fast: rows are
taken out of the matrix first (no index can be negative then); no two arrays in a loop are views of one buffer; the
largest entry is found among integers, since a maximum that minds NaN does not cross lanes; counts within a row are
floats, which are as wide as the entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ..lowrank import Array
from .arithmetic import Counts

WORD = 64  # booleans that are looked at together


def compiled(loops: Any) -> Any:
    return _compiled(loops, {"reassoc", "contract", "nsz"})


def exactly(loops: Any) -> Any:
    """Compiled as it is written, but for products that are added: nothing cancels before it has been rounded."""
    return _compiled(loops, {"contract"})


def _compiled(loops: Any, fastmath: set[str]) -> Any:
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(loops)
    except RuntimeError:  # nowhere to write the cache
        return njit(**options)(loops)


def reinterpreted(kinds: dict[Any, Any]) -> Any:
    """A function that reads the bits of a number as those of another kind."""

    @intrinsic
    def cast(context: Any, x: Any) -> Any:
        kind = kinds[x]

        def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], target.get_value_type(kind))

        return kind(x), generate

    return cast


# As integers, floats that are not negative have the same order, and NaN is beyond all.
bits = reinterpreted({types.float32: types.int32, types.float64: types.int64})
number = reinterpreted({types.int32: types.float32, types.int64: types.float64})


@intrinsic
def word(context: Any, mask: Any, start: Any) -> Any:
    """A bit for each of the WORD booleans from ``start`` on."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = target.make_array(mask)(target, builder, args[0])
        vector = ir.VectorType(ir.IntType(8), WORD)
        values = builder.load(builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer()))
        values.align = 1
        return builder.bitcast(builder.icmp_unsigned("!=", values, ir.Constant(vector, [0] * WORD)), ir.IntType(WORD))

    return types.uint64(mask, types.int64), generate


@intrinsic
def lowest(context: Any, bits: Any) -> Any:
    """The position of the lowest bit that is set; there must be one."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@compiled
def collect(beyond: Array, R: Array, where: Array, values: Array, counts: Array) -> int:
    """Columns and values of what is true, row by row; how many each row has, and all. No branch for each entry."""
    n, width = 0, R.shape[1]
    last = width - width % WORD
    for p in range(len(R)):
        start, mask, r = n, beyond[p], R[p]
        for first in range(0, last, WORD):
            left = word(mask, first)
            while left:
                q = first + lowest(left)
                where[n] = q
                values[n] = r[q]
                n += 1
                left &= left - np.uint64(1)
        for q in range(last, width):
            if mask[q]:
                where[n] = q
                values[n] = r[q]
                n += 1
        counts[p] = n - start
    return n


@compiled
def trim(
    M: Array, i: int, j: int, P: Array, K: Array | None, rows: Array, cols: Array | None, listing: bool | None
) -> Counts:
    """Turn the tile P of L into the tile of T that starts at ``M[i, j]``.

    The limit of an entry is ``rows[p] · cols[q]``, without ``cols`` that of its row. K, if given, receives ones where
    an entry is kept. For a ``listing`` P becomes M − L, also beyond the limit, and K says which entries are beyond it.
    """
    kept, missing, energy = 0, 0, 0.0
    zero, one, width = P.dtype.type(0), P.dtype.type(1), P.shape[1]
    peak = top = bits(zero)
    for p in range(P.shape[0]):
        row_kept, row_missing, row_energy = zero, zero, 0.0
        along, m, t = rows[p], M[i + p][j : j + width], P[p]
        if K is not None:  # decided when it is compiled, as all that may be None
            k = K[p]
        for q in range(width):
            value = m[q] - t[q]
            size, seen = abs(value), m[q] == m[q]
            limit = along if cols is None else along * cols[q]
            keep = size <= limit
            top = max(top, bits(size if seen else zero))
            if listing is None:
                value = value if keep else zero
                size = abs(value)
                if K is not None:
                    k[q] = keep
            else:
                k[q] = size > limit
                size = size if keep else zero
            t[q] = value
            row_missing += zero if seen else one
            row_kept += one if keep else zero
            row_energy += np.float64(size) * np.float64(size)
            peak = max(peak, bits(size))
        kept += int(row_kept)
        missing += int(row_missing)
        energy += row_energy
    return kept, top < bits(P.dtype.type(np.inf)), energy, float(number(peak)), missing


# Of some entries, listed row by row: those of row i are from ``starts[i]`` to ``starts[i + 1]``, in the columns that
# ``indices`` tells.


@compiled
def low_rank(starts: Array, indices: Array, U: Array, V: Array, P: Array) -> None:
    """``U @ V.T`` at these entries."""
    for i in range(len(starts) - 1):
        u = U[i]
        for k in range(starts[i], starts[i + 1]):
            v, value = V[indices[k]], P.dtype.type(0)
            for c in range(len(u)):
                value += u[c] * v[c]
            P[k] = value


@compiled
def times(starts: Array, indices: Array, T: Array, B: Array, out: Array) -> None:
    """Add ``T @ B`` to ``out``, T being zero elsewhere."""
    for i in range(len(starts) - 1):
        o = out[i]
        for k in range(starts[i], starts[i + 1]):
            t, b = np.float64(T[k]), B[indices[k]]
            for c in range(len(b)):
                o[c] += t * b[c]


@compiled
def t_times(starts: Array, indices: Array, T: Array, B: Array, out: Array) -> None:
    """Add ``T.T @ B`` to ``out``."""
    for i in range(len(starts) - 1):
        b = B[i]
        for k in range(starts[i], starts[i + 1]):
            t, o = np.float64(T[k]), out[indices[k]]
            for c in range(len(b)):
                o[c] += t * b[c]
