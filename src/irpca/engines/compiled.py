"""The kernels as loops for numba; imported by :mod:`irpca.engines.kernels` when one of them is first asked for.

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

LINE = 64  # bytes of a line of cache
WORD = 64  # entries that are looked at together when the flagged ones are listed


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
def positive(context: Any, row: Any, start: Any) -> Any:
    """A bit for each of the WORD entries from ``start`` on: whether it is positive."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = target.make_array(row)(target, builder, args[0])
        vector = ir.VectorType(target.get_value_type(row.dtype), WORD)
        values = builder.load(builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer()))
        values.align = row.dtype.bitwidth // 8
        zeros = ir.Constant(vector, [0.0] * WORD)
        return builder.bitcast(builder.fcmp_ordered(">", values, zeros), ir.IntType(WORD))

    return types.uint64(row, types.int64), generate


@intrinsic
def fetch(context: Any, row: Any, start: Any) -> Any:
    """Ask for the WORD entries from ``start`` on ahead of time: to be in cache when they are read."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = target.make_array(row)(target, builder, args[0])
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        line = LINE * 8 // row.dtype.bitwidth
        for k in range(0, WORD, line):
            place = builder.gep(array.data, [builder.add(args[1], ir.Constant(args[1].type, k))])
            builder.call(ask, [builder.bitcast(place, byte), *(ir.Constant(word, x) for x in (0, 3, 1))])
        return target.get_dummy_value()

    return types.void(row, types.int64), generate


@intrinsic
def lowest(context: Any, word: Any) -> Any:
    """The position of the lowest bit that is set; there must be one."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@compiled
def trim(
    M: Array,
    i: int,
    j: int,
    P: Array,
    K: Array | None,
    zeta: Any,
    holes: bool | None = None,
) -> Counts:
    kept, missing, energy = 0, 0, 0.0
    zero, one, width = P.dtype.type(0), P.dtype.type(1), P.shape[1]
    peak = top = bits(zero)
    for p in range(P.shape[0]):
        row_kept, row_missing, row_energy = zero, zero, 0.0
        m, t = M[i + p][j : j + width], P[p]
        if K is not None:  # decided when it is compiled, as is the question about holes
            k = K[p]
        for q in range(width):
            value = m[q] - t[q]
            size = abs(value)
            if holes is None:
                top = max(top, bits(size))
            else:
                seen = m[q] == m[q]
                top = max(top, bits(size if seen else zero))
                row_missing += zero if seen else one
            keep = size <= zeta
            value = value if keep else zero
            t[q] = value
            if K is not None:
                k[q] = keep
            row_kept += one if keep else zero
            row_energy += np.float64(value) * np.float64(value)
            peak = max(peak, bits(abs(value)))
        kept += int(row_kept)
        missing += int(row_missing)
        energy += row_energy
    return kept, top < bits(P.dtype.type(np.inf)), energy, float(number(peak)), missing


@compiled
def flag(
    M: Array,
    i: int,
    j: int,
    P: Array,
    rows: Array,
    cols: Array,
    where: Array,
    values: Array,
    counts: Array,
    holes: bool | None = None,
) -> Counts:
    n, missing, energy = 0, 0, 0.0
    zero, one, width = P.dtype.type(0), P.dtype.type(1), P.shape[1]
    peak = top = bits(zero)
    across, wrong = cols[j : j + width], np.empty(width, P.dtype)
    for p in range(P.shape[0]):
        start, row_missing, row_energy = n, zero, 0.0
        along, m, r = rows[i + p], M[i + p][j : j + width], P[p]
        for q in range(width):
            value = m[q] - r[q]
            r[q] = value
            size, limit = abs(value), along * across[q]
            if holes is None:
                top = max(top, bits(size))
            else:
                seen = m[q] == m[q]
                top = max(top, bits(size if seen else zero))
                row_missing += zero if seen else one
            wrong[q] = one if size > limit else zero
            size = size if size <= limit else zero
            row_energy += np.float64(size) * np.float64(size)
            peak = max(peak, bits(size))
        energy += row_energy
        missing += int(row_missing)
        last = width - width % WORD
        following = M[min(i + p + 1, M.shape[0] - 1)][j : j + width]
        for first in range(0, last, WORD):
            fetch(following, first)
            word = positive(wrong, first)
            while word:
                q = first + lowest(word)
                where[n] = q
                values[n] = r[q]
                n += 1
                word &= word - np.uint64(1)
        for q in range(last, width):
            if wrong[q] > zero:
                where[n] = q
                values[n] = r[q]
                n += 1
        counts[p] = n - start
    return P.size - n - missing, top < bits(P.dtype.type(np.inf)), energy, float(number(peak)), missing


@compiled
def mask(P: Array, K: Array) -> None:
    for p in range(P.shape[0]):
        t, k = P[p], K[p]
        for q in range(P.shape[1]):
            t[q] *= k[q]


@compiled
def low_rank(starts: Array, indices: Array, U: Array, V: Array, P: Array) -> None:
    for i in range(len(starts) - 1):
        u = U[i]
        for k in range(starts[i], starts[i + 1]):
            v, value = V[indices[k]], P.dtype.type(0)
            for c in range(len(u)):
                value += u[c] * v[c]
            P[k] = value


@compiled
def along(starts: Array, indices: Array, T: Array, X: Array, out: Array) -> None:
    sums = np.empty(X.shape[1], np.float64)
    for i in range(len(starts) - 1):
        o = out[i]
        sums[:] = 0
        for k in range(starts[i], starts[i + 1]):
            t, x = np.float64(T[k]), X[indices[k]]
            for c in range(len(sums)):
                sums[c] += t * x[c]
        for c in range(len(sums)):
            o[c] += sums[c]


@compiled
def across(starts: Array, indices: Array, T: Array, Y: Array, out: Array) -> None:
    for i in range(len(starts) - 1):
        y = Y[i]
        for k in range(starts[i], starts[i + 1]):
            t, o = np.float64(T[k]), out[indices[k]]
            for c in range(len(y)):
                o[c] += t * y[c]
