"""The work on a dense slab in Triton: residual, limit, counts, sums and projection in one read of device memory.

Low-rank matrices are products on tensor cores with all digits of float32: a factor is the sum of two numbers of 11 bits
each, and three products of those are summed. Products with T have 16 bits: their errors are random, and a solver that
needs more digits asks again with a smaller T. float64 is computed as such, and so are weights.

Rows of a tile belong to one program, which goes along its columns; where a matrix has few rows, several programs share
them and their sums are added in a fixed order. So the same question has the same answer, to the bit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..arithmetic import LOG_2PI, TINY
from ..base import CAUCHY, COMPONENTS, MEDIAN, MOST_SPREAD, Standardised
from ..questions import Listing, Masked, Regression, Trimmed
from .slabs import DenseSlab, Known, in_units, precise, summed_along
from .sparse import DeviceSparse, ends_of

NAME = "triton"
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"  # it knows no products of bfloat16
# Sizes of tiles and the numbers below were tried on an H200, with 80,000 × 80,000 entries.
LARGE = 1 << 28  # entries, from which on it pays to try several shapes of tiles: compiling each takes about 2 s
WIDEST = 128  # columns of a block that one read multiplies with, half as many of float64: its sums stay in registers
CHUNK = 32  # columns of factors that are multiplied at a time
PROGRAMS = 1024  # at least so many keep every multiprocessor busy to the end
ALIGNED = 32 if INTERPRETED else 128  # every tile divides this
# Tiles whose outliers are listed, of float32 and of float64: rows, columns, warps, stages
LISTED = [(16, 32, 4, 1)] * 2 if INTERPRETED else [(64, 32, 4, 3), (64, 32, 4, 1)]
WEIGHED = (16, 32) if INTERPRETED else (16, 128)  # rows and columns of a tile of weights
USUAL = (2.0**-40, 2.0**40)  # sizes whose squares float32 can sum


def _configs() -> list[triton.Config]:
    """The first fits on any GPU; the others are tried where M is large."""
    shapes = [(64, 32, 4, 2), (64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (128, 32, 4, 4)]
    shapes = [(16, 32, 4, 1)] if INTERPRETED else shapes
    return [triton.Config({"BM": m, "BN": n}, num_warps=w, num_stages=s) for m, n, w, s in shapes]


def _worth_trying(configs: list[triton.Config], named: dict[str, Any], **_: Any) -> list[triton.Config]:
    return configs if named["n1"] * named["n2"] >= LARGE else configs[:1]


@triton.jit
def _product(a_hi, a_lo, b_hi, b_lo, P, DOUBLE: tl.constexpr):
    """P + a @ b.T; the smallest terms first."""
    if DOUBLE:
        P = tl.dot(a_hi, tl.trans(b_hi), P, input_precision="ieee", out_dtype=tl.float64)
    else:
        P = tl.dot(a_lo, tl.trans(b_hi), P, input_precision="tf32")
        P = tl.dot(a_hi, tl.trans(b_lo), P, input_precision="tf32")
        P = tl.dot(a_hi, tl.trans(b_hi), P, input_precision="tf32")
    return P


@triton.jit
def _lines(A, lines, n, k, K: tl.constexpr, CHUNK: tl.constexpr, FULL: tl.constexpr):
    """Some columns of some rows of a factor."""
    at = lines.to(tl.int64)[:, None] * K + (k + tl.arange(0, CHUNK))[None, :]
    if FULL:
        return tl.load(A + at)
    else:
        return tl.load(A + at, mask=(lines < n)[:, None], other=0.0)


@triton.jit
def _entries(base, down, cols, stride1, inside, other, FULL: tl.constexpr):
    """A tile of M; FULL: all of it is inside, and places in it are short numbers."""
    if FULL:
        return tl.load(base + (down[:, None] + cols[None, :] * stride1))
    else:
        return tl.load(base + (down[:, None] + (cols.to(tl.int64) * stride1)[None, :]), mask=inside, other=other)


@triton.jit
def _halves(
    A_hi, A_lo, lines, n, k, K: tl.constexpr, CHUNK: tl.constexpr, DOUBLE: tl.constexpr, FULL: tl.constexpr
):  # fmt: skip
    """The same of both halves of a factor; float64 has one."""
    hi = _lines(A_hi, lines, n, k, K, CHUNK, FULL)
    if DOUBLE:
        return hi, hi
    else:
        return hi, _lines(A_lo, lines, n, k, K, CHUNK, FULL)


@triton.jit
def _low_rank(
    a_hi, a_lo, A_hi, A_lo, B_hi, B_lo, rows, cols, n1, n2, K: tl.constexpr, CHUNK: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, DOUBLE: tl.constexpr, FULL: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """A tile of a low-rank matrix. HELD: the first factor has one chunk of columns, which is at hand as a."""
    P = tl.zeros((BM, BN), tl.float64 if DOUBLE else tl.float32)
    for k in tl.static_range(0, K, CHUNK):
        if not HELD:
            a_hi, a_lo = _halves(A_hi, A_lo, rows, n1, k, K, CHUNK, DOUBLE, FULL)
        b_hi, b_lo = _halves(B_hi, B_lo, cols, n2, k, K, CHUNK, DOUBLE, FULL)
        P = _product(a_hi, a_lo, b_hi, b_lo, P, DOUBLE)
    return P


@triton.jit
def _store_along(ALONG, to, n1, there, kept, missing, beyond, energy, largest, bad):
    """What rides along on some rows; ``bad`` is 0, or NaN where M − L is not finite, and then so is the first."""
    step = tl.num_programs(1).to(tl.int64) * n1
    tl.store(ALONG + to, kept.to(tl.float64) + bad.to(tl.float64), mask=there)
    tl.store(ALONG + step + to, missing.to(tl.float64), mask=there)
    tl.store(ALONG + 2 * step + to, beyond.to(tl.float64), mask=there)
    tl.store(ALONG + 3 * step + to, energy, mask=there)
    tl.store(ALONG + 4 * step + to, largest.to(tl.float64), mask=there)


@triton.autotune(
    _configs(),
    key=["K", "D", "FROZEN", "DOUBLE", "FULL", "HOLES", "STORED"],
    prune_configs_by={"early_config_prune": _worth_trying},
)
@triton.jit(do_not_specialize=["n1", "n2", "share"])
def _trim_kernel(
    M, stride0, stride1, A_hi, A_lo, B_hi, B_lo, F_hi, F_lo, G_hi, G_lo, numbers, X_hi, X_lo, OUT, ALONG, n1, n2, share,
    K: tl.constexpr, KF: tl.constexpr, CHUNK: tl.constexpr, CHUNK_F: tl.constexpr, D: tl.constexpr,
    FROZEN: tl.constexpr, ONES: tl.constexpr, DOUBLE: tl.constexpr, FULL: tl.constexpr, HOLES: tl.constexpr,
    SCALED: tl.constexpr, STORED: tl.constexpr, WIDENED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """T of some rows times a block, and what rides ALONG: five numbers of each of those rows.

    Without HOLES only what is kept is counted, which is NaN if M − L is not finite somewhere.
    """
    strip, part = tl.program_id(0), tl.program_id(1)
    rows = strip * BM + tl.arange(0, BM)
    there = rows < n1
    zeta, scale = tl.load(numbers), tl.load(numbers + 1)
    base = M + strip.to(tl.int64) * BM * stride0
    if FULL:
        down = tl.arange(0, BM) * stride0
    else:
        down = tl.arange(0, BM).to(tl.int64) * stride0
    wide = tl.float64 if DOUBLE else tl.float32
    a_hi, a_lo = _halves(A_hi, A_lo, rows, n1, 0, K, CHUNK, DOUBLE, FULL)
    if D > 0:
        acc = tl.zeros((BM, D), wide)
    counts = tl.zeros((BM,), tl.int32)
    beyond_counts = tl.zeros((BM,), tl.int32)
    missing_counts = tl.zeros((BM,), tl.int32)
    bad = tl.zeros((BM,), wide)
    energy = tl.zeros((BM,), tl.float64)
    largest = tl.zeros((BM,), wide)
    last = tl.minimum(part * share + share, n2)
    for first in range(part * share, last, BN):
        cols = first + tl.arange(0, BN)
        inside = there[:, None] & (cols < last)[None, :]
        m = _entries(base, down, cols, stride1, inside, 0.0, FULL).to(wide)
        P = _low_rank(
            a_hi, a_lo, A_hi, A_lo, B_hi, B_lo, rows, cols, n1, n2, K, CHUNK, BM, BN, DOUBLE, FULL, K <= CHUNK
        )
        if FROZEN:
            R = m - _low_rank(
                a_hi, a_lo, F_hi, F_lo, G_hi, G_lo, rows, cols, n1, n2, KF, CHUNK_F, BM, BN, DOUBLE, FULL, False
            )
        else:
            R = m - P
        size = tl.abs(R)
        kept = size <= zeta
        if not FULL:
            kept = kept & inside
        T = tl.where(kept, R, 0.0)
        counts += tl.sum(kept.to(tl.int32), 1)
        if HOLES:
            missing = m != m
            beyond = (kept == 0) & (size < float("inf"))
            if not FULL:
                beyond = beyond & inside
            missing_counts += tl.sum(missing.to(tl.int32), 1)
            beyond_counts += tl.sum(beyond.to(tl.int32), 1)
        else:
            bad += tl.sum(R * 0.0, 1)
        if SCALED:
            scaled = T * scale
            energy += tl.sum(scaled * scaled, 1).to(tl.float64)
        else:
            energy += tl.sum(T * T, 1).to(tl.float64)
        largest = tl.maximum(largest, tl.max(tl.abs(T), 1))
        if D > 0:
            if ONES:
                T = kept.to(wide)
            elif FROZEN:
                T = tl.where(kept, P, 0.0)
            x_hi, x_lo = _halves(X_hi, X_lo, cols, last, 0, D, D, DOUBLE, FULL)
            if DOUBLE:
                acc = tl.dot(T, x_hi, acc, input_precision="ieee", out_dtype=tl.float64)
            else:
                high = T.to(tl.bfloat16)
                low = (T - high.to(tl.float32)).to(tl.bfloat16)
                if WIDENED:
                    x_hi, x_lo, high, low = x_hi.to(wide), x_lo.to(wide), high.to(wide), low.to(wide)
                # Sums within a tile are truncated by tensor cores, not rounded; those of tiles are added as usual.
                product = tl.dot(high, x_lo)
                if not ONES:
                    product = tl.dot(low, x_hi, product)
                acc += tl.dot(high, x_hi, product)
    to = part.to(tl.int64) * n1 + rows
    if D > 0:
        tl.store(OUT + to[:, None] * D + tl.arange(0, D)[None, :], acc, mask=there[:, None])
    if not HOLES:
        beyond_counts = last - part * share - counts
    _store_along(ALONG, to, n1, there, counts, missing_counts, beyond_counts, energy, largest, bad)


@triton.jit(do_not_specialize=["n1", "n2", "share"])
def _list_kernel(
    M, stride0, stride1, A_hi, A_lo, B_hi, B_lo, numbers, row_scales, col_scales, STARTS,
    ENDS, COLS, VALUES, FOUND, ACROSS, ALONG, n1, n2, share,
    K: tl.constexpr, CHUNK: tl.constexpr, STANDARDISED: tl.constexpr, DOUBLE: tl.constexpr, FULL: tl.constexpr,
    HOLES: tl.constexpr, WRITE: tl.constexpr, WIDENED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Count the entries beyond the limit, of rows and of columns; or, in a second read, WRITE each to its place.

    Those of a row and part go from STARTS on. How many come before an entry of the tile is a product with a triangle of
    ones. Both reads do the same arithmetic in the same order, so they find the same entries. Without HOLES, what is not
    beyond the limit is kept, and the number of these is NaN if M − L is not finite somewhere.
    """
    strip, part = tl.program_id(0), tl.program_id(1)
    parts = tl.num_programs(1)
    rows = strip * BM + tl.arange(0, BM)
    there = rows < n1
    zeta, scale = tl.load(numbers), tl.load(numbers + 1)
    base = M + strip.to(tl.int64) * BM * stride0
    if FULL:
        down = tl.arange(0, BM) * stride0
    else:
        down = tl.arange(0, BM).to(tl.int64) * stride0
    wide = tl.float64 if DOUBLE else tl.float32
    to = rows.to(tl.int64) * parts + part
    a_hi, a_lo = _halves(A_hi, A_lo, rows, n1, 0, K, CHUNK, DOUBLE, FULL)
    if STANDARDISED:
        row_scale = tl.load(row_scales + rows, mask=there, other=0.0)
    within = tl.arange(0, BN)
    if WRITE:
        begin = tl.load(STARTS + strip.to(tl.int64) * BM * parts)  # of the strip: the rest is counted from there
        at = (tl.load(STARTS + to, mask=there, other=0) - begin).to(tl.int32)
        end = (tl.load(ENDS + to, mask=there, other=0) - begin).to(tl.int32)
        to_cols, to_values = COLS + begin, VALUES + begin
        triangle = (within[:, None] <= within[None, :]).to(tl.float32)
        if not WIDENED:
            triangle = triangle.to(tl.bfloat16)
    else:
        found = tl.zeros((BM,), tl.int32)
        counts = tl.zeros((BM,), tl.int32)
        missing = tl.zeros((BM,), tl.int32)
        bad = tl.zeros((BM,), wide)
        energy = tl.zeros((BM,), tl.float64)
        largest = tl.zeros((BM,), wide)
    last = tl.minimum(part * share + share, n2)
    for first in range(part * share, last, BN):
        cols = first + within
        inside = there[:, None] & (cols < last)[None, :]
        m = _entries(base, down, cols, stride1, inside, float("nan"), FULL).to(wide)
        P = _low_rank(
            a_hi, a_lo, A_hi, A_lo, B_hi, B_lo, rows, cols, n1, n2, K, CHUNK, BM, BN, DOUBLE, FULL, K <= CHUNK
        )
        R = m - P
        size = tl.abs(R)
        if STANDARDISED:
            col_scale = tl.load(col_scales + cols, mask=cols < n2, other=0.0)
            beyond = size > zeta * tl.sqrt(row_scale[:, None] * col_scale[None, :])
        else:
            beyond = size > zeta
        if HOLES:
            beyond = beyond & (size < float("inf"))
        if WRITE:
            ones = beyond.to(tl.float32)
            if not WIDENED:
                ones = ones.to(tl.bfloat16)
            before = tl.dot(ones, triangle).to(tl.int32)
            place = at[:, None] + (before - 1)
            fits = beyond & (place < end[:, None])  # in vain, unless M changed in between
            tl.store(to_cols + place, tl.broadcast_to(cols[None, :], (BM, BN)), mask=fits)
            tl.store(to_values + place, R, mask=fits)
            at += tl.max(before, 1)
        else:
            if not FULL:
                beyond = beyond & inside
            ones = beyond.to(tl.int32)
            found += tl.sum(ones, 1)
            tl.atomic_add(ACROSS + cols, tl.sum(ones, 0), mask=cols < last, sem="relaxed")
            kept = beyond == 0
            if HOLES:
                gone = m != m
                if not FULL:
                    gone = gone & inside
                missing += tl.sum(gone.to(tl.int32), 1)
                kept = kept & (size < float("inf"))
                counts += tl.sum(kept.to(tl.int32), 1)
            else:
                if not FULL:
                    R = tl.where(inside, R, 0.0)
                bad += tl.sum(R * 0.0, 1)
            T = tl.where(kept, R, 0.0)
            largest = tl.maximum(largest, tl.max(tl.abs(T), 1))
            T *= scale
            energy += tl.sum(T * T, 1).to(tl.float64)
    if not WRITE:
        tl.store(FOUND + to, found.to(tl.int64), mask=there)
        if not HOLES:
            counts = last - part * share - found
        _store_along(ALONG, to, n1, there, counts, missing, found, energy, largest, bad)


@triton.jit(do_not_specialize=["n1", "n2"])
def _weigh_kernel(
    M, stride0, stride1, P, W, row_scales, col_scales, row_spreads, col_spreads, numbers, ROWS, COLS, TOTALS, n1, n2,
    MOST: tl.constexpr, MEDIAN: tl.constexpr, CAUCHY: tl.constexpr, LOG_2PI: tl.constexpr,
    C2: tl.constexpr, C3: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Turn P, the low-rank part, into ω (M − P) and W into ω; sums of the tile's rows, columns, and of all."""
    strip, part = tl.program_id(0), tl.program_id(1)
    rows, cols = strip * BM + tl.arange(0, BM), part * BN + tl.arange(0, BN)
    in_rows, in_cols = rows < n1, cols < n2
    inside = in_rows[:, None] & in_cols[None, :]
    far = rows.to(tl.int64)
    m = tl.load(
        M + (far * stride0)[:, None] + (cols.to(tl.int64) * stride1)[None, :], mask=inside, other=float("nan")
    ).to(tl.float64)
    at = far[:, None] * n2 + cols[None, :]
    seen = m == m
    R = tl.where(seen, m - tl.load(P + at, mask=inside, other=0.0), 0.0)
    row_scale, col_scale = tl.load(row_scales + rows, in_rows, 1.0), tl.load(col_scales + cols, in_cols, 1.0)
    s2 = row_scale[:, None] * col_scale[None, :]
    var = (
        tl.load(row_spreads + 2 * rows, in_rows, 0.0)[:, None] * tl.load(col_spreads + 2 * cols, in_cols, 0.0)[None, :]
    )
    var += (
        tl.load(row_spreads + 2 * rows + 1, in_rows, 0.0)[:, None]
        * tl.load(col_spreads + 2 * cols + 1, in_cols, 0.0)[None, :]
    )
    var = tl.minimum(var, MOST * s2)
    square = R * R
    total_at = TOTALS + (strip * tl.num_programs(1) + part) * 7
    gross, broad, heavy = tl.load(numbers + 3), tl.load(numbers + 4), tl.load(numbers + 5)
    t1, t2, t3 = s2 + var, C2 * s2 + var, C3 * s2 + var
    f1 = (1 - gross) * tl.load(numbers) * tl.exp(-0.5 * square / t1) / tl.sqrt(t1)
    f2 = (1 - gross) * tl.load(numbers + 1) * tl.exp(-0.5 * square / t2) / tl.sqrt(t2)
    f3 = (1 - gross) * tl.load(numbers + 2) * tl.exp(-0.5 * square / t3) / tl.sqrt(t3)
    inner = 1 / (1 + square / (MEDIAN * MEDIAN * broad * broad))
    light = (1 - heavy) * gross * tl.exp(-0.5 * square / (broad * broad)) / broad
    tails = heavy * gross * CAUCHY * inner / broad + tl.load(numbers + 6)
    inverse = 1 / (f1 + f2 + f3 + light + tails)
    f1, f2, f3 = f1 * inverse, f2 * inverse, f3 * inverse
    w = f1 + f2 / C2 + f3 / C3
    gross_part = (light + tails) * inverse
    trust = 1 - gross_part
    energies = (light + tails * 2 / (MEDIAN * MEDIAN) * inner) * square * inverse
    tl.store(total_at, tl.sum(tl.where(seen, f1, 0.0)))
    tl.store(total_at + 1, tl.sum(tl.where(seen, f2, 0.0)))
    tl.store(total_at + 2, tl.sum(tl.where(seen, f3, 0.0)))
    tl.store(total_at + 3, tl.sum(tl.where(seen, gross_part, 0.0)))
    tl.store(total_at + 4, tl.sum(tl.where(seen, energies, 0.0)))
    tl.store(total_at + 5, tl.sum(tl.where(seen, -tl.log(inverse) - 0.5 * LOG_2PI, 0.0)))
    tl.store(total_at + 6, tl.sum(tl.where(seen, tails * inverse, 0.0)))
    omega = tl.where(seen, w / s2, 0.0)
    tl.store(P + at, omega * R, mask=inside)
    tl.store(W + at, omega, mask=inside)
    energy, trust = omega * (square + var), tl.where(seen, trust, 0.0)
    of_rows = ROWS + (part.to(tl.int64) * n1 + far) * 2
    tl.store(of_rows, tl.sum(energy, 1), mask=in_rows)
    tl.store(of_rows + 1, tl.sum(trust, 1), mask=in_rows)
    of_cols = COLS + (strip.to(tl.int64) * n2 + cols) * 2
    tl.store(of_cols, tl.sum(energy, 0), mask=in_cols)
    tl.store(of_cols + 1, tl.sum(trust, 0), mask=in_cols)


# What the kernels are given


@dataclass(eq=False)
class Split:
    """A tall matrix as the sum of two that tensor cores multiply without rounding, its columns filled up with zeros."""

    hi: Tensor
    lo: Tensor
    columns: int
    chunk: int

    @classmethod
    def factor(cls, B: Tensor) -> Split:
        """Of 11 bits each; float64 as it is."""
        k = B.shape[1]
        chunk = min(CHUNK, _power_of_2(k))
        B = _filled_up(B, max(1, triton.cdiv(k, chunk)) * chunk)
        if B.dtype == torch.float64:
            return cls(B, B, B.shape[1], chunk)
        hi = (B.view(torch.int32) & -8192).view(torch.float32)  # without the last 13 bits of 23
        return cls(hi, B - hi, B.shape[1], chunk)

    @classmethod
    def block(cls, X: Tensor) -> Split:
        """Of 8 bits each."""
        X = _filled_up(X, _power_of_2(X.shape[1]))
        if X.dtype == torch.float64:
            return cls(X, X, X.shape[1], X.shape[1])
        hi = X.to(torch.bfloat16)
        return cls(hi, (X - hi.float()).to(torch.bfloat16), X.shape[1], X.shape[1])


def _filled_up(B: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(B, (0, width - B.shape[1])) if B.shape[1] < width else B.contiguous()


def _power_of_2(k: int) -> int:
    return max(16, int(triton.next_power_of_2(k)))


def _shares(n1: int, n2: int) -> tuple[int, int]:
    """In how many parts the columns are read, and how many columns each has but the last."""
    strips = triton.cdiv(n1, ALIGNED)
    parts = max(1, min(triton.cdiv(PROGRAMS, strips), triton.cdiv(n2, 8 * ALIGNED)))
    share = triton.cdiv(triton.cdiv(n2, parts), ALIGNED) * ALIGNED
    return triton.cdiv(n2, share), share


def _even(M: Tensor) -> bool:
    """Whether tiles fill M, and places in one are short numbers."""
    n1, n2 = M.shape
    return n1 % ALIGNED == 0 and n2 % ALIGNED == 0 and ALIGNED * M.stride(0) + n2 * M.stride(1) < 2**31


def _scale(bound: float, known: Known) -> float:
    """About the size of a T within a bound: in that unit float32 can sum its squares."""
    sizes = [size for size in (bound, known.typical) if 0 < size < math.inf]
    return 2.0 ** round(math.log2(min(sizes))) if sizes else 1.0


def _looked_for_holes(known: Known, ask: Callable[[bool], Any]) -> Any:
    """What a kernel answers that takes M as complete; if M is not, or not finite, what the one answers that can tell.

    What rides along comes last, and begins with NaN if M − L is not finite, and holes were not looked for.
    """
    answer = ask(known.holes)
    if not known.holes and bool(answer[-1][0].isnan()):
        answer = ask(True)
        known.holes = bool(answer[-1][1] > 0)
    return answer


# The three questions; see .slabs


def trim(slab: DenseSlab, asked: Trimmed | Masked, X: Tensor | None, Y: Tensor | None) -> Any:
    """One read along rows and, if there is a Y, one along columns."""
    scale = _scale((asked.by if isinstance(asked, Masked) else asked).zeta, slab.known)

    def ask(holes: bool) -> tuple[Tensor | None, Tensor | None, Tensor]:
        TX, TY, along = None, None, None
        if X is not None or Y is None:
            TX, along = _multiplied(slab.M, asked, X, scale, holes)
        if Y is not None:
            TY, other = _multiplied(slab.M.T, asked.T, Y, scale, holes)
            along = other if along is None else along
        assert along is not None
        return TX, TY, along

    return _looked_for_holes(slab.known, ask)


def _multiplied(
    M: Tensor, asked: Trimmed | Masked, B: Tensor | None, scale: float, holes: bool
) -> tuple[Tensor | None, Tensor]:
    """T times a block, as many columns at a time as a kernel takes, and what rides along."""
    if B is None or not B.shape[1]:
        _, along = _trim(M, asked, None, scale, holes)
        return None if B is None else B.new_zeros((len(M), 0)), along
    blocks = B.split(WIDEST // (B.dtype.itemsize // 4), 1)
    products, along = zip(*(_trim(M, asked, block, scale, holes) for block in blocks), strict=True)
    return products[0] if len(products) == 1 else torch.cat(products, 1), along[0]


def _trim(M: Tensor, asked: Trimmed | Masked, X: Tensor | None, scale: float, holes: bool) -> tuple[Any, Tensor]:
    (n1, n2), wide = M.shape, asked.U.dtype
    decides = asked.by if isinstance(asked, Masked) else asked
    A, B = Split.factor(asked.U), Split.factor(asked.V)
    F, G = (A, B) if decides is asked else (Split.factor(decides.U), Split.factor(decides.V))
    block = None if X is None else Split.block(X)
    parts, share = _shares(n1, n2)
    D = 0 if block is None else block.columns
    out, along = M.new_empty((parts, n1, D) if D else 1, dtype=wide), M.new_empty((5, parts * n1), dtype=torch.float64)
    numbers = torch.tensor([precise(decides.zeta, wide), 1 / scale], dtype=wide).to(M.device)
    scaled = wide == torch.float32 and not USUAL[0] < scale < USUAL[1]
    hi, lo = (A.hi, A.lo) if block is None else (block.hi, block.lo)
    _trim_kernel[lambda tile: (triton.cdiv(n1, tile["BM"]), parts)](
        M, M.stride(0), M.stride(1), A.hi, A.lo, B.hi, B.lo, F.hi, F.lo, G.hi, G.lo, numbers, hi, lo, out, along, n1,
        n2, share, K=A.columns, KF=F.columns, CHUNK=A.chunk, CHUNK_F=F.chunk, D=D,
        FROZEN=decides is not asked, ONES=decides.ones, DOUBLE=wide == torch.float64, FULL=_even(M), HOLES=holes,
        SCALED=scaled, STORED=str(M.dtype), WIDENED=INTERPRETED,
    )  # fmt: skip
    product = None if X is None else (out[0] if parts == 1 else out.sum(0))[:, : X.shape[1]]
    return product, summed_along(along.T, scale if scaled else 1.0)


def find(slab: DenseSlab, asked: Listing) -> Any:
    """S in two reads: one counts, so that the other knows where to write."""
    bound = math.inf if isinstance(asked.limit, Standardised) else asked.limit
    scale = _scale(bound, slab.known)
    return _looked_for_holes(slab.known, lambda holes: _find(slab.M, asked, scale, holes))


def _find(M: Tensor, asked: Listing, scale: float, holes: bool) -> tuple[DeviceSparse, Tensor]:
    (n1, n2), wide = M.shape, asked.U.dtype
    A, B = Split.factor(asked.U), Split.factor(asked.V)
    parts, share = _shares(n1, n2)
    if standardised := isinstance(asked.limit, Standardised):
        rows, columns, limit = asked.limit.rows, asked.limit.cols, asked.limit.limit
    else:
        rows, columns, limit = asked.U, asked.V, precise(asked.limit, wide)  # of the first two nothing is read
    numbers = torch.tensor([limit, 1 / scale], dtype=wide).to(M.device)
    along = M.new_empty((5, n1 * parts), dtype=torch.float64)
    counts, across = M.new_empty((n1, parts), dtype=torch.int64), M.new_zeros(n2, dtype=torch.int32)
    height, width, warps, stages = LISTED[int(wide == torch.float64)]

    def read(starts: Tensor, ends: Tensor, cols: Tensor, values: Tensor, write: bool) -> None:
        _list_kernel[(triton.cdiv(n1, height), parts)](
            M, M.stride(0), M.stride(1), A.hi, A.lo, B.hi, B.lo, numbers, rows, columns, starts,
            ends, cols, values, counts, across, along, n1, n2, share, K=A.columns, CHUNK=A.chunk,
            STANDARDISED=standardised, DOUBLE=wide == torch.float64, FULL=_even(M), HOLES=holes, WRITE=write,
            WIDENED=INTERPRETED, BM=height, BN=width, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    read(counts, counts, across, along, write=False)
    ends = counts.view(-1).cumsum(0)
    rode = summed_along(along.T, scale).cpu()
    lines = counts.sum(1).cpu().numpy(), across.long().cpu().numpy()  # now: who asks later waits for the second read
    n = int(rode[2]) if float(rode[:3].sum()) == n1 * n2 else 0  # else M − L is not finite
    index = torch.int32 if n2 < 2**31 else torch.int64
    cols, values = M.new_empty(n, dtype=index), M.new_empty(n, dtype=wide)
    if n:
        read(torch.cat([ends.new_zeros(1), ends[:-1]]), ends, cols, values, write=True)
    return DeviceSparse((n1, n2), ends_of(counts.sum(1)), cols, values, lines), rode


def weigh(slab: DenseSlab, asked: Regression) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """By a kernel that is given the low-rank part in double precision, and makes it ω (M − L)."""
    M, P, noise = in_units(slab, slab.M, asked), slab.low_rank(asked.U, asked.V), asked.noise
    n1, n2 = M.shape
    W = torch.empty_like(P)
    height, width = WEIGHED
    strips, parts = triton.cdiv(n1, height), triton.cdiv(n2, width)
    of_rows, of_cols = P.new_empty((parts, n1, 2)), P.new_empty((strips, n2, 2))
    totals = P.new_zeros((strips * parts, 7))
    numbers = torch.tensor([*noise.parameters, TINY], dtype=torch.float64).to(M.device)
    _weigh_kernel[(strips, parts)](
        M, M.stride(0), M.stride(1), P, W, noise.rows, noise.cols, noise.row_spread, noise.col_spread, numbers,
        of_rows, of_cols, totals, n1, n2,
        MOST=MOST_SPREAD, MEDIAN=MEDIAN, CAUCHY=CAUCHY, LOG_2PI=LOG_2PI,
        C2=COMPONENTS[1] ** 2, C3=COMPONENTS[2] ** 2, BM=height, BN=width,
    )  # fmt: skip
    return P, W, (of_rows.sum(0), of_cols.sum(0), totals.sum(0))
