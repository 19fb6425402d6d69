"""The kernels as loops for numba; imported by :mod:`irpca.engines.kernels` when one of them is first asked for.

The loops are shaped so that LLVM turns them into vector instructions, which is four to ten times as fast: rows are
taken out of the matrix first (no index can be negative then); no two arrays in a loop are views of one buffer; the
largest entry is found among integers, since a maximum that minds NaN does not cross lanes; counts within a row are
floats, which are as wide as the entries.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ..lowrank import Array
from .base import COMPONENTS
from .kernels import LOG_2PI, MOST_SPREAD, TINY, Counts

LINE = 64  # bytes of a line of cache
WORD = 64  # entries that are looked at together when the flagged ones are listed


def compiled(loops: Any) -> Any:
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}}
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
def outside(context: Any, row: Any, start: Any, limit: Any) -> Any:
    """A bit for each of the WORD entries from ``start`` on: whether it is beyond ±limit, or not a number."""
    return _beyond(row, "fcmp_unordered")


@intrinsic
def beyond(context: Any, row: Any, start: Any, limit: Any) -> Any:
    """The same, but not for what is not a number."""
    return _beyond(row, "fcmp_ordered")


def _beyond(row: Any, compare: str) -> Any:

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = target.make_array(row)(target, builder, args[0])
        number = target.get_value_type(row.dtype)
        vector = ir.VectorType(number, WORD)
        place = builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer())
        values = builder.load(place)
        values.align = row.dtype.bitwidth // 8

        def everywhere(x: Any) -> Any:
            first, nothing = ir.Constant(ir.IntType(32), 0), ir.Constant(vector, ir.Undefined)
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), WORD), [0] * WORD)
            return builder.shuffle_vector(builder.insert_element(nothing, x, first), nothing, lanes)

        above = getattr(builder, compare)(">", values, everywhere(args[2]))
        below = getattr(builder, compare)("<", values, everywhere(builder.fneg(args[2])))
        return builder.bitcast(builder.or_(above, below), ir.IntType(WORD))

    return types.uint64(row, types.int64, row.dtype), generate


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
    cut_rows: Array | None,
    cut_cols: Array | None,
    holes: bool | None = None,
) -> Counts:
    kept, missing, energy = 0, 0, 0.0
    zero, one, width = P.dtype.type(0), P.dtype.type(1), P.shape[1]
    peak = top = bits(zero)
    for p in range(P.shape[0]):
        row_kept, row_missing, row_energy = zero, zero, 0.0
        m, t = M[i + p][j : j + width], P[p]
        if K is not None:  # decided when it is compiled, as are the questions about a cut and about holes
            k = K[p]
        if cut_rows is not None and cut_cols is not None:
            row_limit, col_limits = cut_rows[i + p], cut_cols[j : j + width]
        for q in range(width):
            value = m[q] - t[q]
            size = abs(value)
            if holes is None:
                top = max(top, bits(size))
            else:
                seen = m[q] == m[q]
                top = max(top, bits(size if seen else zero))
                row_missing += zero if seen else one
            keep = size <= zeta if cut_rows is None else (size <= row_limit) | (size <= col_limits[q])
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
    zeta: Any,
    where: Array,
    values: Array,
    counts: Array,
    holes: bool | None = None,
) -> Counts:
    n, missing, energy = 0, 0, 0.0
    zero, one, width = P.dtype.type(0), P.dtype.type(1), P.shape[1]
    peak = top = bits(zero)
    for p in range(P.shape[0]):
        start, row_missing, row_energy = n, zero, 0.0
        m, r = M[i + p][j : j + width], P[p]
        for q in range(width):
            value = m[q] - r[q]
            r[q] = value
            size = abs(value)
            if holes is None:
                top = max(top, bits(size))
            else:
                seen = m[q] == m[q]
                top = max(top, bits(size if seen else zero))
                row_missing += zero if seen else one
            size = size if size <= zeta else zero
            row_energy += np.float64(size) * np.float64(size)
            peak = max(peak, bits(size))
        energy += row_energy
        missing += int(row_missing)
        last = width - width % WORD
        following = M[min(i + p + 1, M.shape[0] - 1)][j : j + width]
        for first in range(0, last, WORD):
            fetch(following, first)
            word = outside(r, first, zeta) if holes is None else beyond(r, first, zeta)
            while word:
                q = first + lowest(word)
                where[n] = q
                values[n] = r[q]
                n += 1
                word &= word - np.uint64(1)
        for q in range(last, width):
            if not abs(r[q]) <= zeta and (holes is None or r[q] == r[q]):
                where[n] = q
                values[n] = r[q]
                n += 1
        counts[p] = n - start
    return P.size - n - missing, top < bits(P.dtype.type(np.inf)), energy, float(number(peak)), missing


@compiled
def turn(where: Array, values: Array, counts: Array, cols: Array, turned: Array, row_counts: Array) -> None:
    row_counts[:] = 0
    for k in range(len(where)):
        row_counts[where[k]] += 1
    ends = np.cumsum(row_counts) - row_counts
    k = 0
    for col in range(len(counts)):
        for _ in range(counts[col]):
            end = ends[where[k]]
            cols[end], turned[end] = col, values[k]
            ends[where[k]] += 1
            k += 1


@compiled
def mask(P: Array, K: Array) -> None:
    for p in range(P.shape[0]):
        t, k = P[p], K[p]
        for q in range(P.shape[1]):
            t[q] *= k[q]


@compiled
def ascend(M: Array, i: int, j: int, B: Array, Y: Array, penalty: Any, bound: Any, box: Any) -> Counts:
    kept, missing, energy = 0, 0, 0.0
    zero, one, width = B.dtype.type(0), B.dtype.type(1), B.shape[1]
    peak = top = bits(zero)
    for p in range(B.shape[0]):
        row_kept, row_missing, row_energy = zero, zero, 0.0
        m, b, y = M[i + p][j : j + width], B[p], Y[p]
        for q in range(width):
            seen = m[q] == m[q]
            raised = y[q] + penalty * (m[q] - b[q]) if seen else zero
            row_missing += zero if seen else one
            top = max(top, bits(abs(raised)))
            new = min(max(raised, -bound), bound)
            s = (raised - new) / penalty
            inside = min(max(s, m[q] - box), m[q] + box)
            new = new + penalty * (s - inside) if seen else zero
            row_kept += one if seen and inside == zero else zero
            t = (new - y[q]) / penalty
            y[q] = new
            row_energy += np.float64(t) * np.float64(t)
            peak = max(peak, bits(abs(t)))
        kept += int(row_kept)
        missing += int(row_missing)
        energy += row_energy
    return kept, top < bits(B.dtype.type(np.inf)), energy, float(number(peak)), missing


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


@compiled
def next_largest(starts: Array, sizes: Array, largest: int, found: Array) -> None:
    for i in range(len(starts) - 1):
        line = sizes[starts[i] : starts[i + 1]]
        found[i] = np.partition(line, len(line) - 1 - largest)[len(line) - 1 - largest] if len(line) > largest else 0


@compiled
def weigh(
    starts: Array, indices: Array, values: Array, P: Array, K: Array | None, rows: Array, cols: Array, tail: float
) -> Counts:
    energy = 0.0
    peak = top = bits(P.dtype.type(0))
    for i in range(len(starts) - 1):
        for k in range(starts[i], starts[i + 1]):
            r = values[k] - P[k]
            square = np.float64(r) * np.float64(r)
            w = (1 + tail) / (1 + tail * square / (rows[i] * cols[indices[k]]))
            t = P.dtype.type(w * r)
            P[k] = t
            if K is not None:
                K[k] = w
            energy += w * square
            top = max(top, bits(abs(r)))
            peak = max(peak, bits(abs(t)))
    return len(P), top < bits(P.dtype.type(np.inf)), energy, float(number(peak)), 0


@compiled
def weigh_one(R: float, s2: float, var: float, parameters: Array, out: Array) -> None:
    """The precision ω of an entry, and what it adds to the sums, in ``out``: ω, 1 − P, three parts, P, log density."""
    gross, broad, nu, zeta = parameters[3], parameters[4], parameters[5], parameters[6]
    square = R * R
    if zeta < np.inf:
        w = 1.0 if abs(R) <= zeta else 0.0
        out[0], out[1], out[2], out[3], out[4], out[5], out[6] = w / s2, w, w, 0.0, 0.0, 1.0 - w, 0.0
    elif nu < np.inf:
        relative = (square + var) / s2
        out[0], out[1], out[2], out[3], out[4], out[5] = (nu + 1) / (nu + relative) / s2, 1.0, 1.0, 0.0, 0.0, 0.0
        constant = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * np.log(np.pi * nu)
        out[6] = constant - 0.5 * np.log(s2) - 0.5 * (nu + 1) * np.log1p(relative / nu)
    else:
        total = gross * np.exp(-0.5 * square / (broad * broad)) / broad + TINY
        wrong, w = total, 0.0
        for k in range(3):
            variance = COMPONENTS[k] * COMPONENTS[k] * s2 + var
            exponent = 0.5 * square / variance
            density = 0.0
            if exponent < 700.0:
                density = (1 - gross) * parameters[k] * np.exp(-exponent) / np.sqrt(variance)
            out[2 + k] = density
            total += density
            w += density / (COMPONENTS[k] * COMPONENTS[k])
        out[0] = w / total / s2
        P = wrong / total
        out[1], out[5] = 1.0 - P, P
        for k in range(3):
            out[2 + k] /= total
        out[6] = np.log(total) - 0.5 * LOG_2PI


@compiled
def weigh_tile(M: Array, P: Array, W: Array, noise: Any, sums: Any) -> None:
    rows, cols, row_spread, col_spread, parameters = noise
    row_sums, col_sums, totals = sums
    one, all_of = np.empty(7), np.zeros(6)
    for p in range(P.shape[0]):
        m, t, w = M[p], P[p], W[p]
        a, first, second = rows[p], row_spread[p, 0], row_spread[p, 1]
        energy, trust = 0.0, 0.0
        for q in range(P.shape[1]):
            if np.isnan(m[q]):
                t[q] = 0.0
                w[q] = 0.0
                continue
            R = np.float64(m[q]) - t[q]
            s2 = a * cols[q]
            var = min(first * col_spread[q, 0] + second * col_spread[q, 1], MOST_SPREAD * s2)
            weigh_one(R, s2, var, parameters, one)
            omega = one[0]
            w[q] = omega
            t[q] = omega * R
            e = omega * (R * R + var)
            energy += e
            trust += one[1]
            col_sums[q, 0] += e
            col_sums[q, 1] += one[1]
            for k in range(4):
                all_of[k] += one[2 + k]
            all_of[4] += one[5] * R * R
            all_of[5] += one[6]
        row_sums[p, 0] += energy
        row_sums[p, 1] += trust
    for k in range(6):
        totals[k] += all_of[k]


@compiled
def weigh_list(starts: Array, indices: Array, values: Array, P: Array, W: Array, noise: Any, sums: Any) -> None:
    rows, cols, row_spread, col_spread, parameters = noise
    row_sums, col_sums, totals = sums
    one = np.empty(7)
    for i in range(len(starts) - 1):
        for k in range(starts[i], starts[i + 1]):
            j = indices[k]
            R = np.float64(values[k]) - P[k]
            s2 = rows[i] * cols[j]
            var = row_spread[i, 0] * col_spread[j, 0] + row_spread[i, 1] * col_spread[j, 1]
            var = min(var, MOST_SPREAD * s2)
            weigh_one(R, s2, var, parameters, one)
            omega = one[0]
            W[k] = omega
            P[k] = omega * R
            e = omega * (R * R + var)
            row_sums[i, 0] += e
            row_sums[i, 1] += one[1]
            col_sums[j, 0] += e
            col_sums[j, 1] += one[1]
            for c in range(4):
                totals[c] += one[2 + c]
            totals[4] += one[5] * R * R
            totals[5] += one[6]


@compiled
def sum_along(
    starts: Array, indices: Array, T: Array, W: Array, V: Array, spread: Array, H: Array, g: Array, kappa: Array
) -> None:
    K = V.shape[1]
    for i in range(len(starts) - 1):
        h = H[i]
        for k in range(starts[i], starts[i + 1]):
            v, omega = V[indices[k]], W[k]
            kappa[i] += omega * spread[indices[k]]
            at = 0
            for a in range(K):
                g[i, a] += T[k] * v[a]
                scaled = omega * v[a]
                for b in range(a, K):
                    h[at + b - a] += scaled * v[b]
                at += K - a


@compiled
def sum_across(
    starts: Array, indices: Array, T: Array, W: Array, U: Array, spread: Array, H: Array, g: Array, kappa: Array
) -> None:
    K = U.shape[1]
    for i in range(len(starts) - 1):
        u = U[i]
        for k in range(starts[i], starts[i + 1]):
            j, omega = indices[k], W[k]
            h = H[j]
            kappa[j] += omega * spread[i]
            at = 0
            for a in range(K):
                g[j, a] += T[k] * u[a]
                scaled = omega * u[a]
                for b in range(a, K):
                    h[at + b - a] += scaled * u[b]
                at += K - a


@compiled
def prepare(
    upper: Array, g: Array, kappa: Array, mean: Array, covariance: Array, D: Array, H: Array, factor: Array, b: Array
) -> None:
    n, K = mean.shape
    for i in range(n):
        h, f, d = H[i], factor[i], D[i]
        at = 0
        for p in range(K):
            for q in range(p, K):
                h[p, q] = upper[i, at]
                h[q, p] = upper[i, at]
                at += 1
        for p in range(K):
            total = g[i, p]
            for q in range(K):
                total += h[p, q] * mean[i, q]
            b[i, p] = total
        for p in range(K):
            for q in range(K):
                h[p, q] += kappa[i] * covariance[p, q]
        for p in range(K):
            for q in range(p + 1):
                f[p, q] = d[p] * h[p, q] * d[q]
            f[p, p] += 1.0
        for p in range(K):  # Cholesky, row by row
            for q in range(p + 1):
                total = f[p, q]
                for r in range(q):
                    total -= f[p, r] * f[q, r]
                # With next to no noise, rounding may leave less than the prior's 1, or less than rounding itself.
                f[p, q] = np.sqrt(max(total, 1.0, 1e-13 * f[p, p])) if p == q else total / f[q, q]
            for q in range(p + 1, K):
                f[p, q] = 0.0


@compiled
def within(f: Array, d: Array, x: Array) -> None:
    """``C x`` in place, for one line."""
    K = len(d)
    for p in range(K):
        total = d[p] * x[p]
        for q in range(p):
            total -= f[p, q] * x[q]
        x[p] = total / f[p, p]
    for p in range(K - 1, -1, -1):
        x[p] /= f[p, p]
        for q in range(p):
            x[q] -= f[p, q] * x[p]
    for p in range(K):
        x[p] *= d[p]


@compiled
def reduce(H: Array, factor: Array, D: Array, X: Array, out: Array) -> None:
    n, K = X.shape
    y = np.empty(K)
    for i in range(n):
        h, o = H[i], out[i]
        for p in range(K):
            total = 0.0
            for q in range(K):
                total += h[p, q] * X[i, q]
            y[p] = total
        within(factor[i], D[i], y)
        for p in range(K):
            o[p] = y[p] / (D[i, p] * D[i, p])


@compiled
def reduce_target(H: Array, factor: Array, D: Array, b: Array, out: Array) -> None:
    n, K = b.shape
    y = np.empty(K)
    for i in range(n):
        o = out[i]
        for p in range(K):
            y[p] = b[i, p]
        within(factor[i], D[i], y)
        for p in range(K):
            o[p] = y[p] / (D[i, p] * D[i, p])


@compiled
def posterior(
    H: Array,
    factor: Array,
    b: Array,
    D: Array,
    expected: Array,
    weigh: Array,
    mean: Array,
    variance: Array,
    spread: Array,
    covariance: Array,
) -> None:
    n, K = b.shape
    y, inverse, C = np.empty(K), np.empty((K, K)), np.empty((K, K))
    for i in range(n):
        h, f, d = H[i], factor[i], D[i]
        for p in range(K):
            total = b[i, p]
            for q in range(K):
                total -= h[p, q] * expected[i, q]
            y[p] = total
        within(f, d, y)
        for p in range(K):
            mean[i, p] = expected[i, p] + y[p]
        for q in range(K):  # the inverse of the triangle, transposed: its rows are contiguous below
            for p in range(K):
                inverse[q, p] = 0.0
            inverse[q, q] = 1.0 / f[q, q]
            for p in range(q + 1, K):
                total = 0.0
                for r in range(q, p):
                    total -= f[p, r] * inverse[q, r]
                inverse[q, p] = total / f[p, p]
        trace = 0.0
        for p in range(K):
            for q in range(p + 1):
                total = 0.0
                for r in range(p, K):
                    total += inverse[p, r] * inverse[q, r]
                total *= d[p] * d[q]
                C[p, q] = total
                trace += total * weigh[p, q] * (1.0 if p == q else 2.0)
                covariance[p, q] += total
                if p != q:
                    covariance[q, p] += total
            variance[i, p] = C[p, p]
        spread[i] = trace
