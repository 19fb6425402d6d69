"""Kinds of columns, found from how often each value occurs: numbers with a map, few ordered values, yes and no.

A column of numbers has a map of two parameters, a power and an origin (Yeo and Johnson 2000), for which its bulk is
nearly Gaussian; or none, where that gains little. A value at an end of the bulk that many cells share (zeros, a limit
of detection, a full score) says only that the latent value is beyond a bound, as in a tobit model. Few ordered values
lie between thresholds that give each its share of a Gaussian, as in an ordered probit model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from ..constants import KINDS
from ..lowrank import Array
from .maps import KNOTS, Kind

AS_IT_IS, LOGARITHM, SQUARE_ROOT = "as it is", "logarithm", "square root"
NUMBER, ORDERED, AUTO = "number", "ordered", "auto"
CHOICES = (AUTO, AS_IT_IS, LOGARITHM, SQUARE_ROOT, NUMBER, ORDERED)
COUNTS = 0.5, 0.0, 3 / 8  # power, origin and unit: sqrt(x + 3/8), of Poisson counts as uncertain everywhere (Anscombe)
POWERS = np.linspace(-1.0, 2.5, 36)
QUANTILES = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
NORMAL = ndtri(QUANTILES)
TINY = 1e-300
NONE = np.zeros(0)
PILE = tuple[float, float]  # a value, and the share of the cells that are there or beyond


class ColumnError(ValueError):
    """A column cannot be what was asked for; ``column`` is its position or label."""

    def __init__(self, column: Any, wanted: str, why: str) -> None:
        super().__init__(f"column {column!r} cannot be {wanted!r}: {why}")
        self.column, self.wanted, self.why = column, wanted, why


def kind_of(values: Array, wanted: str = AUTO) -> Kind:
    """Return the kind of a column that holds these values; ``wanted`` is one of CHOICES.

    Examples
    --------
    >>> normal = ndtri(np.linspace(0.001, 0.999, 999))
    >>> kind_of(normal).name, kind_of(np.exp(normal)).name, kind_of(np.clip(np.round(normal), -2, 2)).name
    ('as it is', 'logarithm', '5 ordered values')
    >>> kind_of(np.where(np.arange(999) % 2, np.exp(normal), 0.0)).name
    'logarithm, 50% at 0'
    """
    distinct, counts = np.unique(values[np.isfinite(values)].astype(float), return_counts=True)
    if len(distinct) < 2:
        return _constant(distinct[0] if len(distinct) else 0.0)
    if wanted == ORDERED and len(distinct) > KINDS.most:
        many = f"it has {len(distinct)} different values"
        raise ValueError(f"{many}; a column of ordered values has at most {KINDS.most}")
    if wanted in (LOGARITHM, SQUARE_ROOT) and distinct[0] < 0:
        least = f"its smallest value is {distinct[0]:g}"
        raise ValueError(f"{least}; a column of which a {wanted} is taken has none below 0")
    if wanted in (AUTO, ORDERED) and (few := _few_values(distinct, counts, wanted == ORDERED)) is not None:
        return _ordered(*few)
    return _numbers(distinct, counts, wanted)


def _constant(value: float) -> Kind:
    unit = np.array([-1.0, 0.0, 1.0])
    return Kind("constant", value + unit * (abs(value) or 1.0), unit, unit, unit, (value, value), 1.0, True)


# Few ordered values


def _few_values(distinct: Array, counts: Array, wanted: bool) -> tuple[Array, Array] | None:
    """The values of a column that holds few, each with its count; None if it holds numbers.

    Most of its cells hold few values, each of which is frequent. Others belong to them that are on the same grid and
    between them, that are repeated and not far away, or that follow as the tail of counts does: 3.7, 40 or one 9 among
    scores from 1 to 5 do not.
    """
    if wanted:
        return distinct, counts
    n, often = counts.sum(), np.argsort(-counts, kind="stable")
    most = int(np.searchsorted(np.cumsum(counts[often]), KINDS.bulk * n)) + 1
    frequent = most <= KINDS.few and counts[often[most - 1]] >= KINDS.frequent * n
    if not frequent and len(distinct) > KINDS.few:
        return None
    bulk = np.sort(distinct[often[: max(most, 2)]])
    step = np.diff(bulk).min()
    away = (distinct - distinct[often[0]]) / step
    room = bulk[-1] - bulk[0] + 2 * step
    inside, near = (distinct >= bulk[0]) & (distinct <= bulk[-1]), abs(distinct - np.median(bulk)) <= room
    on_grid, often_enough = abs(away - np.round(away)) < 1e-6, counts >= KINDS.rare * n
    known = np.where(on_grid, inside | often_enough, often_enough & (counts >= KINDS.repeated)) & near
    for outwards in (range(1, len(distinct)), range(len(distinct) - 2, -1, -1)):
        for k in outwards:
            before = k - outwards.step
            beside = on_grid[k] and known[before] and abs(distinct[k] - distinct[before]) < 1.5 * step
            known[k] |= beside and counts[k] >= KINDS.tail * counts[before]
    if not 2 <= known.sum() <= KINDS.most or counts[known].sum() < KINDS.bulk * n:
        return None
    return distinct[known], counts[known]


def _ordered(values: Array, counts: Array) -> Kind:
    shares = (counts + 0.5) / (counts + 0.5).sum()
    edges = np.r_[-np.inf, ndtri(np.cumsum(shares)[:-1]), np.inf]
    z, variance = truncated_moments(edges[:-1], edges[1:])
    name = "yes or no" if np.array_equal(values, [0, 1]) else f"{len(values)} ordered values"
    least = float(np.sqrt(shares @ variance))
    return Kind(name, values, z, edges[:-1], edges[1:], (values[0], values[-1]), least, False)


# Numbers


def _numbers(distinct: Array, counts: Array, wanted: str) -> Kind:
    low, high = _piles(distinct, counts) if wanted == AUTO else (None, None)
    inner = np.ones(len(distinct), bool)
    if low is not None:
        inner &= distinct > low[0]
    if high is not None:
        inner &= distinct < high[0]
    power, origin, unit = _power(distinct[inner], counts[inner], wanted)
    below, above = (0.0 if pile is None else pile[1] for pile in (low, high))

    def forward(x: Array) -> Array:
        return (_yeo_johnson((x - origin) / unit, power) - middle) / spread

    middle, spread = 0.0, 1.0
    y = _quantiles(forward(distinct[inner]), counts[inner])
    middle, spread = (
        float(y[2]),
        float(y[3] - y[1]) / float(NORMAL[3] - NORMAL[1]) or _deviation(forward(distinct[inner]), counts[inner]),
    )

    def fill(t: Array) -> Array:
        """What the piles leave of a Gaussian, for the numbers between them."""
        filled: Array = ndtri(np.clip(below + (1 - below - above) * ndtr(t), 1e-12, 1 - 1e-12))
        return filled if below or above else t

    values = distinct[inner]
    span = values[-1] - values[0]
    t = np.sinh(np.linspace(-1, 1, KNOTS - 4) * np.arcsinh(KINDS.reach))  # closer where more cells are
    x = _yeo_johnson_inverse(t * spread + middle, power) * unit + origin
    there = (x >= max(values[0] - span, 0.0 if distinct[0] >= 0 else -np.inf)) & (x <= values[-1] + span)
    there &= np.r_[True, np.diff(x) > 1e-9 * abs(x[1:])]
    if low is not None:
        there &= x > values[0]
    if high is not None:
        there &= x < values[-1]
    t, x = t[there], x[there]
    if len(t) < 2:  # hardly more than two values
        t, x = forward(values[[0, -1]]), values[[0, -1]]
    z = fill(t)
    knots, least = [x, z, z, z], max(_noise_of_ties(counts), KINDS.finest)
    ends = [0.0 if distinct[0] >= 0 else -np.inf, np.inf]
    if low is not None:
        knots, ends[0] = _with_pile(knots, low[0], float(values[0]), float(ndtri(below)), upper=False), low[0]
    if high is not None:
        knots, ends[1] = _with_pile(knots, high[0], float(values[-1]), float(ndtri(1 - above)), upper=True), high[0]
    increasing = np.r_[True, (np.diff(knots[0]) > 0) & (np.diff(knots[1]) > 0)]
    x, z, lower, upper = (part[increasing] for part in knots)
    name = _name(power, origin, counts.sum(), [(p, counts[distinct == p[0]].sum()) for p in (low, high) if p])
    plain = power == 1.0 and low is None and high is None
    return Kind(name, x, z, lower, upper, (ends[0], ends[1]), least, plain)


def _name(power: float, origin: float, n: int, piles: Sequence[tuple[PILE, int]]) -> str:
    how = AS_IT_IS if power == 1.0 else LOGARITHM if abs(power) < 0.05 and origin == 0 else f"power {power:.1f}"
    how = SQUARE_ROOT if (power, origin) == COUNTS[:2] else how
    return ", ".join([how, *(f"{count / n:.0%} at {pile[0]:g}" for pile, count in piles)])


def _piles(distinct: Array, counts: Array) -> tuple[PILE | None, PILE | None]:
    """The values at which cells are piled up at the lower and at the upper end of the bulk, if they are."""
    share = counts / counts.sum()
    upto = np.cumsum(share)
    gaps, span = np.diff(distinct), np.subtract(*distinct[np.searchsorted(upto, [1 - KINDS.beyond, KINDS.beyond])])
    near = np.r_[gaps, 0.0] <= span, np.r_[0.0, gaps] <= span  # farther away it is a code, such as -999
    often = (share >= KINDS.pile) & (counts >= KINDS.pile_ratio * np.median(counts))
    lows, highs = (
        np.flatnonzero(often & near[0] & (upto - share <= KINDS.beyond)),
        np.flatnonzero(often & near[1] & (1 - upto <= KINDS.beyond)),
    )
    low = None if not len(lows) else int(lows[-1])
    high = None if not len(highs) else int(highs[0])
    if low is not None and high is not None and high - low <= KINDS.few:  # there is nothing between them
        high = None
    found = (
        None if low is None or len(distinct) - low <= KINDS.few else (float(distinct[low]), float(upto[low])),
        None if high is None or high < KINDS.few else (float(distinct[high]), float(1 - upto[high] + share[high])),
    )
    return found


def _with_pile(knots: list[Array], value: float, nearest: float, bound: float, upper: bool) -> list[Array]:
    """Knots with one more for the value of a pile, and one half way to the nearest number, where the bound is."""
    x, z, low, high = knots
    half = 0.5 * (value + nearest)
    inside = (x > half) & (z > bound) if not upper else (x < half) & (z < bound)
    x, z, low, high = (part[inside] for part in (x, z, low, high))
    ends = (bound, np.inf) if upper else (-np.inf, bound)
    mean = float(truncated_moments(*(np.array([end]) for end in ends))[0][0])
    more = ([half, value], [bound, mean], [bound, ends[0]], [bound, ends[1]])
    return [np.r_[a, b] if upper else np.r_[b[::-1], a] for a, b in zip((x, z, low, high), more, strict=True)]


def _power(values: Array, counts: Array, wanted: str) -> tuple[float, float, float]:
    """The power, the origin and the unit of the map: 1 if no other one is clearly closer to a Gaussian."""
    q = _quantiles(values, counts)
    unit = float(q[3] - q[1]) / float(NORMAL[3] - NORMAL[1]) or _deviation(values, counts)
    plain = 1.0, float(q[2]), unit
    origins = [plain[1:]]
    if counts[values < 0].sum() <= KINDS.slips * counts.sum() and q[2] > 0:
        positive, of_them = values[values > 0], np.cumsum(counts[values > 0])
        smallest = float(positive[np.searchsorted(of_them, KINDS.slips * of_them[-1])])
        origins.append((0.0, smallest / KINDS.near_zero))  # close to a power of the value itself
    if wanted == AS_IT_IS or len(values) < 3:
        return plain
    if wanted == LOGARITHM:
        return 0.0, *origins[-1]
    if wanted == SQUARE_ROOT:
        return COUNTS
    values, counts = _thinned(values, counts)
    best, score = plain, _closeness(values, counts, np.ones(1), *plain[1:])[0]
    logarithm = [(np.zeros(1), origins[-1])] if origins[1:] else []
    for powers, origin in [*logarithm, *((POWERS, origin) for origin in origins)]:  # the simplest first
        scores = _closeness(values, counts, powers, *origin)
        k = int(scores.argmax())
        if scores[k] > score + (KINDS.gain if best in (plain, (0.0, *origins[-1])) else 0.0):
            best, score = (float(powers[k]), *origin), scores[k]
    return best


def _thinned(values: Array, counts: Array) -> tuple[Array, Array]:
    """Quantiles in the place of many values: as good to compare maps by, and sooner done."""
    if len(values) <= KINDS.thinned:
        return values, counts
    upto = np.cumsum(counts)
    at = np.searchsorted(upto, (np.arange(KINDS.thinned) + 0.5) / KINDS.thinned * upto[-1])
    return values[at], np.ones(KINDS.thinned)


def _closeness(values: Array, counts: Array, powers: Array, origin: float, unit: float) -> Array:
    """How close mapped values are to a Gaussian, for each power: the likelihood of their bulk, less how uneven it is.

    It is the mean over the bulk, so that another unit of the column adds the same to all maps.
    """
    w, powers = (values - origin) / unit, powers[:, None]
    y = _yeo_johnson(w, powers)
    q = _quantiles(y, counts)
    spread = (q[:, 3:4] - q[:, 1:2]) / (NORMAL[3] - NORMAL[1])
    usable = np.isfinite(y).all(axis=1) & (spread[:, 0] > 1e-12)
    spread[~usable] = 1.0
    t, q = (y - q[:, 2:3]) / spread, (q - q[:, 2:3]) / spread
    inner = (np.abs(t) <= 1.96) * counts
    logs = -0.5 * t**2 + (powers - 1) * np.sign(w) * np.log1p(np.abs(w)) - np.log(unit * spread)
    likelihood = (logs * inner).sum(axis=1) / np.maximum(inner.sum(axis=1), 1)
    return np.where(usable, likelihood - 0.5 * (abs(q[:, 0] + q[:, 4]) + abs(q[:, 1] + q[:, 3])), -np.inf)


def _noise_of_ties(counts: Array) -> float:
    """The standard deviation of a latent value about the mean of those that share a value of the column."""
    share = counts / counts.sum()
    edges = ndtri(np.clip(np.r_[0.0, np.cumsum(share)], 0.0, 1.0))
    return float(np.sqrt(share @ truncated_moments(edges[:-1], edges[1:])[1]))


def _quantiles(values: Array, counts: Array) -> Array:
    upto = np.cumsum(counts)
    found: Array = values[..., np.minimum(np.searchsorted(upto, QUANTILES * upto[-1]), len(upto) - 1)]
    return found


def _deviation(values: Array, counts: Array) -> float:
    return float(np.sqrt(np.cov(values, fweights=counts))) or 1.0


def _yeo_johnson(x: Array, power: Any) -> Array:
    logs, p = np.log1p(np.abs(x)), np.where(x >= 0, power, 2 - power)
    zero = np.abs(p) < 1e-9
    with np.errstate(over="ignore"):  # infinite where a number cannot be as large
        y: Array = np.copysign(np.where(zero, logs, np.expm1(p * logs) / np.where(zero, 1.0, p)), x)
    return y


def _yeo_johnson_inverse(y: Array, power: float) -> Array:
    """Where a power is negative, values have a bound: beyond it they are as large as numbers may be."""
    x, up, other = np.empty_like(y), y >= 0, 2 - power
    x[up] = np.expm1(y[up]) if abs(power) < 1e-9 else np.maximum(power * y[up] + 1, 1e-12) ** (1 / power) - 1
    x[~up] = -np.expm1(-y[~up]) if abs(other) < 1e-9 else 1 - np.maximum(1 - other * y[~up], 1e-12) ** (1 / other)
    return x


def truncated_moments(low: Array, high: Array) -> tuple[Array, Array]:
    """Mean and variance of a standard normal variable within intervals."""
    flip = low > 0  # in the upper tail differences of the distribution function lose their digits
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    mass = np.maximum(ndtr(b) - ndtr(a), TINY)
    at_a, at_b = (np.exp(-0.5 * end**2) / np.sqrt(2 * np.pi) for end in (a, b))
    mean = (at_a - at_b) / mass
    moved = [np.where(np.isfinite(end), end, 0.0) * density for end, density in ((a, at_a), (b, at_b))]
    variance: Array = np.clip(1 + (moved[0] - moved[1]) / mass - mean**2, 0.0, 1.0)
    return np.where(flip, -mean, mean), variance
