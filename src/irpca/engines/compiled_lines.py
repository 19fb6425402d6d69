"""The kernels of the regressions of lines as loops for numba; see :mod:`irpca.engines.compiled`.

Lines are solved LANES at a time, side by side: the numbers at the same place of as many small matrices lie together in
memory, and a loop over them becomes vector instructions. Weights are made by loops without branches and without calls,
exponentials and logarithms included, for the same reason.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..lowrank import Array
from . import arithmetic
from .arithmetic import LOG_2PI, TINY
from .base import CAUCHY, MEDIAN, MOST_SPREAD
from .compiled import bits, compiled, exactly, number
from .kernels import LANES

LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
ROUNDING = 6755399441055744.0  # 1.5 · 2⁵²: added and taken away, it rounds; its last bits count in between
ROUNDING_BITS = int(np.float64(ROUNDING).view(np.int64))
BEYOND = 700.0  # exponents of which no power is left
MANTISSA, ONE = (1 << 52) - 1, 1023 << 52  # bits of a number's mantissa, and those of 1
AT_LEAST = 512  # entries that are weighed together, unless there are fewer
AT_ONCE = 1000  # mantissas, each below 2, whose product is a number


@exactly
def power(x: float) -> float:
    """``exp(-x)`` for x >= 0; 0 beyond BEYOND. By the power of two next to it and a polynomial of degree 12."""
    inside = min(x, BEYOND)
    shifted = inside * LOG2_E + ROUNDING
    k = shifted - ROUNDING
    r = (k * LN2_HIGH - inside) + k * LN2_LOW  # within ± log(2) / 2
    y = 1 / 479001600.0
    y = y * r + 1 / 39916800.0
    y = y * r + 1 / 3628800.0
    y = y * r + 1 / 362880.0
    y = y * r + 1 / 40320.0
    y = y * r + 1 / 5040.0
    y = y * r + 1 / 720.0
    y = y * r + 1 / 120.0
    y = y * r + 1 / 24.0
    y = y * r + 1 / 6.0
    y = y * r + 0.5
    y = y * r + 1.0
    y = y * r + 1.0
    two = number((1023 + ROUNDING_BITS - bits(shifted)) << 52)
    return y * two if x < BEYOND else 0.0


@compiled
def weigh_entries(
    m: Array, t: Array, w: Array, inverse: Array, var: Array, e: Array, trust: Array, parameters: Array, totals: Array
) -> None:
    """Of some entries m, L in t: ω R to t, ω to w, ω (R² + var L) to e, 1 − P to ``trust``; all 0 where m is NaN.

    ``inverse`` is 1 / s²: to divide and to take roots is what takes the time here. The logarithms of the densities are
    added up as one of the product of their mantissas, and their exponents.
    """
    gross, broad, heavy = parameters[3], parameters[4], parameters[5]
    first, second, third = (1 - gross) * parameters[0], (1 - gross) * parameters[1], (1 - gross) * parameters[2]
    wide, flat = 0.5 / (broad * broad), 1 / (MEDIAN * MEDIAN * broad * broad)
    peak, low = (1 - heavy) * gross / broad, CAUCHY * heavy * gross / broad
    p1, p2, p3, p0, pc, energy, count = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    mantissas, exponents = 1.0, 0
    for q in range(len(t)):
        seen = m[q] == m[q]
        one = 1.0 if seen else 0.0
        R = np.float64(m[q]) - t[q] if seen else 0.0
        square = R * R
        v = var[q] * inverse[q]
        x1, x2, x3 = 1.0 + v, 4.0 + v, 16.0 + v  # COMPONENTS², and below their inverses
        shared = inverse[q] / (x1 * x2 * x3)
        i1, i2, i3 = x2 * x3 * shared, x1 * x3 * shared, x1 * x2 * shared
        f1 = first * power(0.5 * square * i1) * math.sqrt(i1)
        f2 = second * power(0.5 * square * i2) * math.sqrt(i2)
        f3 = third * power(0.5 * square * i3) * math.sqrt(i3)
        inner = 1 / (1 + square * flat)
        g1, g2 = peak * power(square * wide), low * inner + TINY
        f0 = g1 + g2
        total = f0 + (f1 + (f2 + f3))
        share = one / total
        P = f0 * share
        omega = (f1 + 0.25 * f2 + 0.0625 * f3) * share * inverse[q]
        w[q] = omega
        t[q] = omega * R
        e[q] = omega * (square + var[q])
        trust[q] = one - P
        p1 += f1 * share
        p2 += f2 * share
        p3 += f3 * share
        p0 += P
        pc += g2 * share
        energy += (g1 + g2 * (2 / (MEDIAN * MEDIAN)) * inner) * square * share
        count += one
        whole = bits(total if seen else 1.0)
        mantissas *= number((whole & MANTISSA) | ONE)
        exponents += (whole >> 52) - 1023
    totals[0] += p1
    totals[1] += p2
    totals[2] += p3
    totals[3] += p0
    totals[4] += energy
    totals[5] += math.log(mantissas) + exponents * math.log(2.0) - 0.5 * LOG_2PI * count
    totals[6] += pc


@compiled
def weigh_some(
    m: Array, t: Array, w: Array, inverse: Array, var: Array, e: Array, trust: Array, parameters: Array, totals: Array
) -> None:
    """The same of any number of entries."""
    for first in range(0, len(t), AT_ONCE):
        at = slice(first, first + AT_ONCE)
        weigh_entries(m[at], t[at], w[at], inverse[at], var[at], e[at], trust[at], parameters, totals)


@compiled
def weigh_tile(M: Array, P: Array, W: Array, noise: Any, sums: Any) -> None:
    """Turn the tile P of L into ω (M − L), in place, and W into the precisions ω; both are 0 where M is NaN.

    ``noise`` is what :meth:`Noise.part` gives for the rows of the tile; ``sums``, from :meth:`Sums.part`, are added to.
    """
    rows, cols, row_spread, col_spread, parameters = noise
    row_sums, col_sums, totals = sums
    height, width = P.shape
    together = max(1, min(height, AT_LEAST // max(width, 1)))  # rows: what is left beside whole vectors is slow
    n = together * width
    inverse, var, e, trust = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    energies, trusts, inverses = np.zeros(width), np.zeros(width), 1 / cols
    first, second = col_spread[:, 0].copy(), col_spread[:, 1].copy()
    for top in range(0, height, together):
        some = min(together, height - top)
        for p in range(some):
            a, b, c = rows[top + p], row_spread[top + p, 0], row_spread[top + p, 1]
            under, at = 1 / a, slice(p * width, (p + 1) * width)
            i, v = inverse[at], var[at]
            for q in range(width):
                i[q] = under * inverses[q]
                v[q] = min(b * first[q] + c * second[q], MOST_SPREAD * a * cols[q])
        m, t, w = M[top : top + some].ravel(), P[top : top + some].ravel(), W[top : top + some].ravel()
        n = len(t)
        weigh_some(m, t, w, inverse[:n], var[:n], e[:n], trust[:n], parameters, totals)
        for p in range(some):
            at, energy, trusted = slice(p * width, (p + 1) * width), 0.0, 0.0
            x, y = e[at], trust[at]
            for q in range(width):
                energy += x[q]
                trusted += y[q]
                energies[q] += x[q]
                trusts[q] += y[q]
            row_sums[top + p, 0] += energy
            row_sums[top + p, 1] += trusted
    for q in range(width):
        col_sums[q, 0] += energies[q]
        col_sums[q, 1] += trusts[q]


@compiled
def weigh_list(starts: Array, indices: Array, values: Array, P: Array, W: Array, noise: Any, sums: Any) -> None:
    """The same of listed entries; see :mod:`irpca.engines.compiled`."""
    rows, cols, row_spread, col_spread, parameters = noise
    row_sums, col_sums, totals = sums
    n = len(P)
    inverse, var, e, trust = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for i in range(len(starts) - 1):
        for k in range(starts[i], starts[i + 1]):
            j = indices[k]
            s2 = rows[i] * cols[j]
            inverse[k] = 1 / s2
            var[k] = row_spread[i, 0] * col_spread[j, 0] + row_spread[i, 1] * col_spread[j, 1]
            var[k] = min(var[k], MOST_SPREAD * s2)
    weigh_some(values, P, W, inverse, var, e, trust, parameters, totals)
    for i in range(len(starts) - 1):
        energy, trusted = 0.0, 0.0
        for k in range(starts[i], starts[i + 1]):
            j = indices[k]
            energy += e[k]
            trusted += trust[k]
            col_sums[j, 0] += e[k]
            col_sums[j, 1] += trust[k]
        row_sums[i, 0] += energy
        row_sums[i, 1] += trusted


@compiled
def pairs(V: Array, out: Array) -> None:
    """The lower triangle of ``v vᵀ`` for every row v, diagonal included."""
    for i in range(len(V)):
        v, o, at = V[i], out[i], 0
        for a in range(len(v)):
            line = o[at : at + a + 1]
            for b in range(a + 1):
                line[b] = v[a] * v[b]
            at += a + 1


@compiled
def sum_along(
    starts: Array, indices: Array, T: Array, W: Array, V: Array, spread: Array, H: Array, g: Array, kappa: Array
) -> None:
    """Add the moments Σ ω v vᵀ (lower triangle), Σ T v and Σ ω κ of every row to H, g and kappa."""
    K = V.shape[1]
    for i in range(len(starts) - 1):
        h, own = H[i], g[i]
        for k in range(starts[i], starts[i + 1]):
            v, omega, t = V[indices[k]], W[k], T[k]
            kappa[i] += omega * spread[indices[k]]
            at = 0
            for a in range(K):
                own[a] += t * v[a]
                scaled, line = omega * v[a], h[at : at + a + 1]
                for b in range(a + 1):
                    line[b] += scaled * v[b]
                at += a + 1


@compiled
def sum_across(
    starts: Array, indices: Array, T: Array, W: Array, U: Array, spread: Array, H: Array, g: Array, kappa: Array
) -> None:
    """The same of every column."""
    K = U.shape[1]
    products = np.empty(K * (K + 1) // 2)
    for i in range(len(starts) - 1):
        u, at = U[i], 0
        for a in range(K):
            for b in range(a + 1):
                products[at] = u[a] * u[b]
                at += 1
        for k in range(starts[i], starts[i + 1]):
            j, omega, t = indices[k], W[k], T[k]
            h, own = H[j], g[j]
            kappa[j] += omega * spread[i]
            for a in range(K):
                own[a] += t * u[a]
            for at in range(len(products)):
                h[at] += omega * products[at]


# LANES lines at a time. Arrays have LANES columns; what follows works on their rows, which are vectors to LLVM.


@compiled
def add_products(out: Array, at: int, sign: float, F: Array, a: int, G: Array, b: int, n: int) -> None:
    """Add ``± Σ F[a + r] · G[b + r]``, for r from 0 to n − 1, to the row ``at`` of ``out``."""
    o = out[at]
    for r in range(n):
        f, g = F[a + r], G[b + r]
        for lane in range(LANES):
            o[lane] += sign * f[lane] * g[lane]


@compiled
def add_multiples(out: Array, sign: float, F: Array, a: int, G: Array, b: int, n: int) -> None:
    """Add ``± F[a + r] · G[b]`` to the row r of ``out``, for r from 0 to n − 1."""
    g = G[b]
    for r in range(n):
        o, f = out[r], F[a + r]
        for lane in range(LANES):
            o[lane] += sign * f[lane] * g[lane]


@compiled
def scale(out: Array, at: int, F: Array, a: int) -> None:
    """``out[at] *= F[a]``."""
    o, f = out[at], F[a]
    for lane in range(LANES):
        o[lane] *= f[lane]


@compiled
def side_by_side(X: Array, first: int, x: Array) -> None:
    """Some rows of X as columns; zeros beside the last."""
    lines = min(LANES, len(X) - first)
    for p in range(len(x)):
        row = x[p]
        for lane in range(lines):
            row[lane] = X[first + lane, p]
        row[lines:] = 0.0


@compiled
def one_by_one(x: Array, first: int, X: Array) -> None:
    """Back from columns to rows of X."""
    for lane in range(min(LANES, len(X) - first)):
        for p in range(len(x)):
            X[first + lane, p] = x[p, lane]


@compiled
def symmetric(h: Array, x: Array, y: Array) -> None:
    """``y += H x``, H given by its lower triangle."""
    at = 0
    for p in range(len(x)):
        add_products(y, p, 1.0, h, at, x, 0, p + 1)
        add_multiples(y, 1.0, h, at, x, p, p)
        at += p + 1


@compiled
def multiply(F: Array, X: Array, out: Array) -> None:
    """``F x`` of every line, each with its own F and x."""
    K = X.shape[1]
    x, y = np.empty((K, LANES)), np.empty((K, LANES))
    for block in range(len(F)):
        first = block * LANES
        side_by_side(X, first, x)
        y[:] = 0.0
        symmetric(F[block], x, y)
        one_by_one(y, first, out)


@compiled
def covariances(
    packed: Array, g: Array, kappa: Array, mean: Array, covariance: Array, D: Array, H: Array, C: Array, b: Array
) -> None:
    """H with the uncertainty of the other side, C = D (I + D H D)⁻¹ D as a triangle, and b = Σ ω m v, of every line.

    C, if it has no blocks, is not made.
    """
    n, K = mean.shape
    x, y, d = np.empty((K, LANES)), np.empty((K, LANES)), np.empty((K, LANES))
    f, inverse = np.empty((K * (K + 1) // 2, LANES)), np.empty((K * K, LANES))
    extra, uncertain = np.empty(LANES), np.empty(LANES)
    for block in range(len(H)):
        first, h = block * LANES, H[block]
        side_by_side(packed, first, h)
        side_by_side(g, first, y)
        side_by_side(mean, first, x)
        side_by_side(D, first, d)
        symmetric(h, x, y)
        one_by_one(y, first, b)
        for lane in range(LANES):
            uncertain[lane] = kappa[first + lane] if first + lane < n else 0.0
        at = 0
        for p in range(K):
            start = at
            for q in range(p + 1):
                shared, one = covariance[p, q], 1.0 if p == q else 0.0
                for lane in range(LANES):
                    h[at, lane] += shared * uncertain[lane]
                for lane in range(LANES):
                    f[at, lane] = one + d[p, lane] * h[at, lane] * d[q, lane]
                at += 1
            if len(C) == 0:
                continue
            for q in range(p + 1):  # Cholesky, row by row; the diagonal is inverted
                other = q * (q + 1) // 2
                if p > q:
                    add_products(f, start + q, -1.0, f, start, f, other, q)
                    scale(f, start + q, f, other + q)
                    continue
                extra[:] = f[start + p]
                add_products(f, start + p, -1.0, f, start, f, start, p)
                # With next to no noise, rounding may leave less than the prior's 1, or less than rounding itself.
                for lane in range(LANES):
                    least = max(1.0, 1e-13 * extra[lane])
                    f[start + p, lane] = 1.0 / math.sqrt(max(f[start + p, lane], least))
        if len(C) == 0:
            continue
        c = C[block]
        for q in range(K):  # the inverse of the triangle, transposed: its rows lie together
            inverse[q * K + q] = f[q * (q + 1) // 2 + q]
            for p in range(q + 1, K):
                at = p * (p + 1) // 2
                inverse[q * K + p] = 0.0
                add_products(inverse, q * K + p, -1.0, f, at + q, inverse, q * K + q, p - q)
                scale(inverse, q * K + p, f, at + p)
        at = 0
        for p in range(K):
            for q in range(p + 1):
                c[at] = 0.0
                add_products(c, at, 1.0, inverse, p * K + p, inverse, q * K + p, K - p)
                scale(c, at, d, p)
                scale(c, at, d, q)
                at += 1


# The coefficients of lines so few that calls would take longer than what is done in them.

precondition = compiled(arithmetic.precondition)


@compiled
def reduce(C: Array, variance: Array, X: Array) -> Array:
    """``x − H C x`` of every line, as ``Λ⁻¹ C x``; without C, which is next to nothing, x."""
    if len(C) == 0:
        return X
    CX = np.empty_like(X)
    multiply(C, X, CX)
    return CX / variance


@compiled
def reduce_spanned(lines: Any, A: Array) -> Array:
    """``Qᵀ T Q A`` with T x = H x − H C H x of every line."""
    H, C, variance, Q = lines
    X = Q @ A
    HX = np.empty_like(X)
    multiply(H, X, HX)
    return Q.T @ reduce(C, variance, HX)


solve_coefficients = compiled(arithmetic.conjugate_gradients(reduce_spanned))


@compiled
def coefficients(
    H: Array, C: Array, variance: Array, b: Array, Q: Array, ridge: Array, A: Array, steps: int, digits: float
) -> tuple[Array, Array]:
    """A of the prior mean Q A, from the last one, and how precisely each direction is known."""
    (n, K), at = b.shape, 0
    mean = np.empty((K, K))
    for p in range(K):
        for q in range(p + 1):
            mean[p, q] = mean[q, p] = H[:, at].sum() / n
            at += 1
    inverse, precision = precondition(mean, np.sqrt(variance.sum(axis=0) / n), (Q * Q).sum() / len(A), ridge)
    right = Q.T @ reduce(C, variance, b)
    A = solve_coefficients((H, C, variance, Q), right, A, ridge, inverse, steps, digits)
    return A, precision
