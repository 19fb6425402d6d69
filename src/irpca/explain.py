"""Why a cell should hold what is expected there: what the other cells of its row say, and which mistake fits.

The factors u of a row are those of a regression of its cells on the pattern v of the columns,

    u = μ + C Σ_k b_k        b_k = ω_k (v_k (m_k − v_k · μ) − K_k μ)

μ is what the features of the row say or, without features, the average row; ω_k what the cell of column k weighs, K_k
the covariance of v_k, and C that of u given the cells. So what is expected in column j is a sum: what is usual in it,
``v_j · average``; what the features of the row say, ``v_j · (μ − average)``; and the share ``v_j · C b_k`` of every
other cell. The cell itself is left out of C and of the sum, the weights of the others stay. The pattern of the columns,
which all rows and the features of the columns tell, is taken as it is. Where the last step of the fit moved L beyond
this regression, shares are moved in proportion to their size, so that they add up. Where columns are mapped, all of
this is of latent values, and shares are turned into units of M in proportion.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .engines.arithmetic import weigh
from .engines.base import Engine
from .labels import text_of
from .lowrank import Array
from .mistakes import (
    ABOVE,
    BESIDE,
    DIGITS,
    NONE,
    SINGLE,
    SMALLEST_LISTED,
    SWAPPED,
    broad_of,
    cells_of,
    chances_of,
    kinds_of,
    outliers_of,
    too_many,
)
from .model.entry_scale import REACH, EntryScale
from .model.placement import Placement
from .result import Result
from .tables import bound
from .wording import as_given, count, measured, percent

TOLD, LISTED = 3, 10  # columns that a sentence names, and a list
SMALLEST_TOLD = 0.1  # of the sum of the sizes of all shares
AT_ONCE = 1 << 20  # cells of rows that are looked at together
FEATURES = "the features of the row"
UNEXPLAINED = "no common mistake explains it"
FITS = {
    "sign": "with the other sign it would fit",
    DIGITS: "with two of its digits swapped it would fit",
    BESIDE: "it is the value of the cell beside it",
    ABOVE: "it is the value of the cell above it",
    SWAPPED: "it and the cell beside it are swapped",
    "copied row": "the row is a copy of another one",
    "stuck": "the column holds this value many times in a row",
}


@dataclass(frozen=True)
class Explanation:
    """Why a cell is expected to hold something, and what may be wrong with it; as text, a sentence and a list.

    Attributes
    ----------
    row, column : labels, or positions where there are none
    observed : what the cell holds; None if it is missing
    expected : what it should hold, by all cells but itself
    lower, upper : between which values 95 % of the clean measurements lie
    probability : of an outlier; NaN if the cell is missing
    usual : what is expected in this column of an average row
    features : what the features of the row add to that
    shares : what every other cell of the row adds, by its column, the largest first; ``usual``, ``features`` and all
        shares add up to ``expected``
    kinds : the probability of every kind of mistake that would explain what is observed, the most probable first, and
        of "none of these", which includes that nothing is wrong; they add up to 1. Empty if the cell is missing
    values : what the other cells of the row hold, by their columns
    """

    row: Any
    column: Any
    observed: float | None
    expected: float
    lower: float
    upper: float
    probability: float
    usual: float
    features: float
    shares: dict[Any, float]
    kinds: dict[str, float]
    values: dict[Any, float] = field(repr=False)

    @property
    def why(self) -> str:
        """One sentence."""
        std = (self.upper - self.lower) / (2 * REACH)
        parts = [(_name(name), share) for name, share in self.shares.items()]
        if self.features:
            parts.append((FEATURES, self.features))
        text = f"{measured(self.expected, std)} ({measured(self.lower, std)} to {measured(self.upper, std)})"
        text += " is expected" + _reasons(self.usual, parts, std)
        if self.observed is None:
            return f"Missing; {text}."
        if not self.probability > 0.5:
            return f"{as_given(self.observed)} is an outlier with a probability of {percent(self.probability)}; {text}."
        kind, probability = next(iter(self.kinds.items()))
        same = [name for name, value in self.values.items() if value == self.observed]
        fits = f"it is the value of {_name(same[0])}" if kind == BESIDE and len(same) == 1 else _fits(kind)
        fits = f"{fits} ({percent(probability)})" if kind != NONE and probability > 0.5 else UNEXPLAINED
        return f"{as_given(self.observed)} where {text}; {fits}."

    def __str__(self) -> str:
        std, shares = (self.upper - self.lower) / (2 * REACH), [*self.shares.items()]
        parts = [(FEATURES, self.features)] if self.features else []
        parts += [(f"{_name(name)} ({as_given(self.values[name])})", share) for name, share in shares[:LISTED]]
        if rest := shares[LISTED:]:
            parts.append((count(len(rest), "other column"), sum(share for _, share in rest)))
        lines = [f"{text_of(self.row)}, {text_of(self.column)}: {self.why}"]
        lines.append(f"  {measured(self.usual, std)} is usual in the column")
        lines += [f"  {_signed(share, std)} from {name}" for name, share in parts]
        kinds = [f"{name} {percent(p)}" for name, p in self.kinds.items() if p >= SMALLEST_LISTED or name == NONE]
        return "\n".join(lines + ([f"  mistake: {', '.join(kinds)}"] if kinds else []))


def _name(column: Any) -> str:
    return f"column {column}" if isinstance(column, int) else text_of(column)


def _seen(value: float, std: float) -> bool:
    """Whether a number is more than zero as it is written."""
    return bool(measured(value, std).strip("−0.,"))


def _signed(value: float, std: float) -> str:
    return f"+{measured(value, std)}" if value > 0 and _seen(value, std) else measured(value, std)


def _reasons(usual: float, parts: list[tuple[Any, float]], std: float) -> str:
    """What a sentence says of the shares: the largest, and the sum of the others."""
    total = sum(abs(share) for _, share in parts)
    parts.sort(key=lambda part: -abs(part[1]))
    told = [part for part in parts[:TOLD] if abs(part[1]) > SMALLEST_TOLD * total and _seen(part[1], std)]
    if not told:
        return ", as is usual in this column"
    said = [f"{name} ({_signed(share, std)})" for name, share in told]
    others = [share for name, share in parts[len(told) :] if name != FEATURES]
    if _seen(sum(others), std):
        said.append(f"{count(len(others), 'other column')} ({_signed(sum(others), std)})")
    listed = said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"
    verb = "makes" if len(said) == 1 and told[0][0] != FEATURES else "make"
    return f": {measured(usual, std)} is usual, and {listed} {verb} the difference"


def _fits(kind: str) -> str:
    """What a name of a mistake says."""
    if kind.startswith("code "):
        return f"{kind[5:]} is a code here, no measurement"
    if found := re.fullmatch(r"([×:]) ([0-9.e+]+)", kind):
        return f"{'divided by' if found[1] == '×' else 'times'} {found[2]} it would fit"
    return FITS.get(kind, f"it would fit in another unit ({kind})")


class Explainer:
    """Explains cells of a result.

    Parameters
    ----------
    result : Result
    placement : Placement
        The regression of a row.
    scale : EntryScale
        Of the result.
    table : owner of M
    prior : scores that features say of the rows, or None
    """

    def __init__(
        self, result: Result, placement: Placement, scale: EntryScale, table: Engine, prior: Array | None
    ) -> None:
        self.result, self.placement, self.scale, self.table = result, placement, scale, table
        back = np.linalg.pinv(placement.turn)
        average = np.broadcast_to(placement.average, (result.L.shape[0], len(placement.average)))
        self.prior = (
            average if prior is None else np.where(np.isnan(prior).any(axis=1, keepdims=True), average, prior @ back)
        )
        w, R = np.linalg.eigh(placement.whole if prior is None else placement.own)
        self.root = R * np.sqrt(np.maximum(w, 0.0))
        side, noise = placement.columns, placement.noise
        self.V, self.spread, self.covariance = side.mean, side.spread, side.covariance
        squares = np.einsum("ja,jb->jab", self.V, self.V) + self.spread[:, None, None] * self.covariance
        self.squares = squares.reshape(len(squares), -1)
        self.noise = np.array([*noise.shares, noise.gross, noise.broad, noise.heavy])
        self.broad = broad_of(result)
        self.listed = outliers_of(result.in_host_memory("explanations"), table, self.broad)
        self.names = (result.mistakes or kinds_of(self.listed)[0]).texts.tolist()
        self.groups = Counter(self.names)
        self.nameless = 1.0 if too_many(result) else self.listed.chances[1]

    def explain(self, rows: Array, cols: Array, labels: tuple[Sequence[Any], Sequence[Any]]) -> Iterator[Explanation]:
        """Explanations of some cells; ``labels``: of their rows, and of all columns."""
        step = max(1, AT_ONCE // len(self.V))
        for first in range(0, len(rows), step):
            some = slice(first, first + step)
            yield from self._explain(rows[some], cols[some], labels[0][some], labels[1])

    def _explain(
        self, rows: Array, cols: Array, of_rows: Sequence[Any], of_columns: Sequence[Any]
    ) -> Iterator[Explanation]:
        maps, every, unit = self.result.maps, np.arange(len(rows)), self.placement.unit
        lines, at = np.unique(rows, return_inverse=True)
        M = self.table.block(lines, np.arange(len(unit))).astype(float)[at]
        Z = M if maps is None else maps.latent(M)
        L = self.result.factors.rows(rows)
        R, seen = (Z - L) / unit, np.isfinite(Z)
        s2 = np.multiply.outer(self.scale.rows[rows], self.scale.cols)
        var = self.scale.row_spread[rows] @ self.scale.col_spread.T
        omega = weigh(np.where(seen, R, 0.0), seen, s2 / unit**2, var / unit**2, self.noise)[0]
        others = omega.copy()
        others[every, cols] = 0.0

        V, mean, target, average = self.V, self.prior[rows], self.V[cols], self.placement.average
        away = np.where(seen, Z / unit - mean @ V.T, 0.0)

        def regressed(omega: Array) -> tuple[Array, Array]:
            """What every cell adds to what is expected of the target, and the variance of that."""
            H = (omega @ self.squares).reshape(len(omega), *self.covariance.shape)
            inner = np.eye(len(self.covariance)) + self.root.T @ H @ self.root
            half = target @ self.root
            q = np.linalg.solve(inner, half[:, :, None])[:, :, 0]
            weights = q @ self.root.T
            less = np.einsum("ik,ik->i", mean @ self.covariance, weights)
            return omega * ((weights @ V.T) * away - np.multiply.outer(less, self.spread)), (half * q).sum(axis=1)

        (shares, variance), (all_shares, full) = regressed(others), regressed(omega)
        usual, features = target @ average, np.einsum("ik,ik->i", mean - average, target)
        moved = L[every, cols] / unit[cols] - (usual + features + all_shares.sum(axis=1))
        size = np.abs(shares).sum(axis=1) + np.abs(features)
        moved = np.divide(moved, size, out=np.zeros_like(size), where=size > 0)[:, None]
        shares, features = shares + moved * np.abs(shares), features + moved[:, 0] * np.abs(features)

        usual, scale = usual * unit[cols], unit[cols]
        difference = (shares.sum(axis=1) + features) * scale
        expected = usual + difference
        std = np.sqrt(
            self.scale.tail**2 * self.scale.noise_at(rows, cols)
            + np.maximum(var[every, cols] + (variance - full) * scale**2, 0.0)
        )
        std = std if self.scale.widths is None else std * self.scale.widths[cols]
        lower, upper = (bound(expected, end * std, maps, cols) for end in (-REACH, REACH))
        if maps is not None:
            step, base = np.where(np.abs(difference) > 1e-9, difference, 1e-9), maps.expected(usual, cols)
            scale = scale * (maps.expected(usual + step, cols) - base) / step
            usual, expected = base, maps.expected(expected, cols)
        shares, features, observed = shares * scale[:, None], features * scale, M[every, cols]
        kinds, wrong = self._kinds(rows, cols, observed)
        numbers = zip(*(part.tolist() for part in (expected, lower, upper, wrong, usual, features)), strict=True)
        for k, (of_row, j, (value, low, high, p, base, said)) in enumerate(
            zip(of_rows, cols.tolist(), numbers, strict=True)
        ):
            there = np.flatnonzero(seen[k] & (np.arange(len(unit)) != j))
            there = there[np.argsort(-np.abs(shares[k, there]), kind="stable")]
            names = [of_columns[other] for other in there.tolist()]
            held = None if np.isnan(observed[k]) else float(observed[k])
            parts, values = (dict(zip(names, part[k, there].tolist(), strict=True)) for part in (shares, M))
            yield Explanation(of_row, of_columns[j], held, value, low, high, p, base, said, parts, kinds[k], values)

    def _kinds(self, rows: Array, cols: Array, observed: Array) -> tuple[list[dict[str, float]], Array]:
        """The probability of every kind of mistake, and of an outlier, of some cells."""
        chances, wrong = np.zeros((len(rows), len(SINGLE))), np.full(len(rows), np.nan)
        at = self.listed.find(rows, cols)
        new = np.flatnonzero((at < 0) & ~np.isnan(observed))
        more = cells_of(self.result, rows[new], cols[new], observed[new], self.listed.table, self.broad)
        for some, cells, which in ((at >= 0, self.listed, at[at >= 0]), (new, more, slice(None))):
            wrong[some] = cells.scatter.wrong[which]
            chances[some] = chances_of(cells.odds[which], wrong[some], self.nameless)
        if self.result.calibration is None:  # of an exact fit all outliers are listed
            wrong[new], chances[new] = 0.0, 0.0
        found = []
        for k, place in enumerate(at.tolist()):
            name = self.names[place] if place >= 0 else ""
            kinds = dict(zip(SINGLE, chances[k].tolist(), strict=True)) | {NONE: 1 - float(chances[k].sum())}
            if name and max(kinds, key=lambda kind: kinds[kind]) != name:  # of a group of n: by the rule of succession
                n, rest = self.groups[name], 1 - kinds.pop(name, 0.0)
                kinds = {kind: p / rest / (n + 2) for kind, p in kinds.items()} | {name: (n + 1) / (n + 2)}
            found.append({} if np.isnan(observed[k]) else dict(sorted(kinds.items(), key=lambda kind: -kind[1])))
        return found, wrong
