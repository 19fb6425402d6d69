"""Whether the columns of M are fitted as they are or mapped: held-out cells decide, by their density in units of M."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .. import constants
from ..constants import KINDS
from ..engines.base import Look
from ..lowrank import Array
from ..model.columns import find_spreads
from ..model.factors import Fit
from ..model.kinds import AS_IT_IS, AUTO, CHOICES, NUMBER, ColumnError, kind_of
from ..model.maps import ColumnMaps, Kind
from ..problem import Problem
from .part import Part, Setup
from .race import Recipe

AS_THEY_ARE = "as they are"
Columns = str | Sequence[str]


@dataclass(frozen=True, eq=False)
class Chosen:
    """Maps that were chosen, and why."""

    maps: ColumnMaps
    why: str


def check_columns(columns: Columns, n2: int, noise: float | None) -> list[str] | None:
    """The kind that each column shall have; None if all stay as they are."""
    if isinstance(columns, str):
        if columns not in (AUTO, AS_THEY_ARE):
            raise ValueError(
                f"columns must be {AUTO!r}, {AS_THEY_ARE!r}, or a kind for every column of M, got {columns!r}"
            )
        return None if columns == AS_THEY_ARE or noise is not None else [AUTO] * n2
    wanted = list(columns)
    if len(wanted) != n2:
        raise ValueError(f"columns has {len(wanted)} kinds, and M has {n2} columns: give one for each")
    for kind in wanted:
        if kind not in CHOICES:
            raise ValueError(f"columns holds {kind!r}; the kinds are {', '.join(map(repr, CHOICES))}")
    if noise is not None and any(kind not in (AUTO, AS_IT_IS) for kind in wanted):
        raise ValueError("noise is in units of M, and columns asks for maps of it: give one of the two")
    return None if noise is not None else wanted


def lines_for_kinds(problem: Problem) -> tuple[Array, Array]:
    """Rows from which the kinds of all columns are found."""
    n1, n2 = problem.shape
    most = max(1, min(n1, KINDS.columns, constants.BUDGET.block // n2))
    rows = np.sort(problem.rng("kinds").choice(n1, most, replace=False))
    return rows, np.arange(n2)


def looks(problem: Problem, columns: Columns) -> list[Look]:
    return [] if columns == AS_THEY_ARE else [Look(lines=lines_for_kinds(problem))]


def choose_maps(setup: Setup, part: Part, fit: Fit, wanted: list[str]) -> Chosen | None:
    """Return the maps with which held-out cells are predicted better than by a fit to M as it is; None: there are none.

    Columns that are alike, as one quantity at several places, stay as they are unless maps are clearly better: one map
    for all, or one for each. Those that have features are alike by that, and share one map if any: what features say
    of a column compares it with others. Columns of different quantities are mapped unless that is clearly worse: in
    what relation they are nobody has said, and noise that is not that of the map is taken for mistakes.
    """
    asked = any(kind not in (AUTO, AS_IT_IS) for kind in wanted)
    if not asked and (part.held.nearly_exact(fit) or any(fit.tied)):  # features determine it in units of M
        return None
    values = setup.problem.engine.block(*lines_for_kinds(setup.problem))
    spreads = _spreads(values)
    near = _near(values, spreads)
    alike, shared = bool(near.mean() >= KINDS.bulk), setup.problem.F2.given
    finest = 0.0 if alike else KINDS.finest * float(np.nanmedian(spreads / part.columns.unit))
    best: tuple[float, Gain, ColumnMaps] | None = None
    for kinds in _candidates(values, wanted, near if alike else np.zeros_like(near), shared):
        maps = ColumnMaps.of(kinds)
        gain = _gain(setup, part, fit, maps, finest)
        sure = gain.least if alike or shared else gain.most
        if (asked or sure > 0) and (best is None or sure > best[0] + KINDS.better):  # the simpler one comes first
            best = sure, gain, maps
    if best is None:
        return None
    _, gain, maps = best
    how = "better" if gain.mean > 0 else "worse"
    predicted = f"held-out cells are predicted {how} by {abs(gain.mean):.2f} nats each than as they are"
    reason = "as asked; " if asked else "" if gain.mean > 0 else "the columns hold different quantities; "
    return Chosen(maps, reason + predicted)


def _candidates(values: Array, wanted: list[str], near: Array, shared: bool) -> list[list[Kind]]:
    """Kinds of all columns: one for all that are near each other, and one by one; nothing if they stay as they are.

    ``shared``: the only candidate is one map for all columns, even those that are not near the others; none if they
    hold few ordered values, which features explain better as numbers.
    """
    auto = all(kind == AUTO for kind in wanted)
    usual = values[:, near] if near.any() else values
    together = kind_of(usual)
    if auto and shared:
        of_numbers = not (together.low < together.high).all()
        together = kind_of(usual, NUMBER)
        return [[together] * len(wanted)] if of_numbers and not together.plain else []
    kinds: list[Kind] = []
    for j, (kind, here, counts) in enumerate(zip(wanted, near, np.isfinite(values).sum(axis=0), strict=True)):
        if kind == AUTO and here and not counts:
            kinds.append(together)
            continue
        few = counts < constants.BUDGET.fewest
        try:
            kinds.append(kind_of(values[:, j], AS_IT_IS if few and kind == AUTO else kind))
        except ValueError as error:
            raise ColumnError(j, kind, str(error)) from None
    candidates = [kinds]
    if auto and near.any():
        candidates.insert(0, [together if here else kind for here, kind in zip(near, kinds, strict=True)])
    return [kinds for kinds in candidates if not all(kind.plain for kind in kinds)]


def _spreads(values: Array) -> Array:
    """The spread of every column; NaN where all of its values are the same."""
    rows, cols = np.nonzero(np.isfinite(values))
    return find_spreads(values[rows, cols].astype(float), cols, values.shape[1])


def _near(values: Array, spreads: Array) -> Array:
    """Which columns hold the same kind of quantity as most: of about the same middle and spread."""
    seen, some = np.isfinite(values), np.isfinite(spreads)
    near = np.zeros(len(some), bool)
    if not some.any():
        return near
    middles = np.array([np.median(values[seen[:, j], j]) for j in np.flatnonzero(some)])
    low, high = np.quantile(values[seen], (0.5 * (1 - KINDS.bulk), 0.5 * (1 + KINDS.bulk)))
    usual = float(np.median(spreads[some]))
    near[some] = (middles >= low) & (middles <= high)
    near[some] &= (spreads[some] < KINDS.alike * usual) & (spreads[some] > usual / KINDS.alike)
    near[~seen.any(axis=0)] = bool(near[some].mean() >= KINDS.bulk)  # of an empty column nothing else is known
    return near


@dataclass(frozen=True)
class Gain:
    """The mean gain in log density at held-out cells, and its standard error."""

    mean: float
    error: float

    @property
    def least(self) -> float:
        return self.mean - constants.TIE_STANDARD_ERRORS * self.error

    @property
    def most(self) -> float:
        return self.mean + constants.TIE_STANDARD_ERRORS * self.error


def _gain(setup: Setup, part: Part, fit: Fit, maps: ColumnMaps, finest: float) -> Gain:
    """Return what a quick fit to mapped columns gains over one to M as it is, in density per unit of M.

    Noise below ``finest`` counts for no less: of columns of different quantities no map can tell a finer relation.
    """
    there = replace(setup, problem=setup.problem.seen_through(maps)).part(part.table.offered, None)
    mapped = there.nine_tenths.fit(Recipe(fit.tied, "principal"))  # as free as the other: whole columns may be wrong
    held, cols = part.held, part.table.lines[1][part.held.cols]
    unit = part.columns.unit[cols]
    low, high = maps.ranges(held.values * unit, cols)
    as_it_is = replace(
        held, least=np.maximum(held.least, finest), slope=-np.log(unit), bounds=(low / unit, high / unit)
    )
    gain = there.held.score(mapped).density - as_it_is.score(fit).density
    gain = np.clip(gain, -KINDS.most_gain, KINDS.most_gain)
    return Gain(float(gain.mean()), float(gain.std()) / np.sqrt(len(gain)))
