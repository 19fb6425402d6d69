"""Whether the columns of M are fitted as they are or mapped: held-out cells decide, by their density in units of M."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .. import constants
from ..constants import KINDS
from ..engines.base import Look
from ..lowrank import Array
from ..model.columns import find_spreads
from ..model.kinds import AS_IT_IS, AUTO, CHOICES, LOGARITHM, NUMBER, SQUARE_ROOT, ColumnError, kind_of
from ..model.maps import ColumnMaps, Kind
from ..problem import Problem
from ..result import State
from ..sample import scattered
from .part import Part, Setup
from .race import Race
from .recipes import Recipe, Tied

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
    return scattered(n1, most), np.arange(n2)


def looks(problem: Problem, columns: Columns) -> list[Look]:
    return [] if columns == AS_THEY_ARE else [Look(lines=lines_for_kinds(problem))]


def choose_maps(
    setup: Setup, part: Part, race: Race, wanted: list[str], now: State
) -> Generator[State, None, Chosen | None]:
    """Return the maps with which unseen cells are predicted better than by fits to M as it is; None: there are none.

    Columns that are alike, as one quantity at several places, stay as they are unless maps are clearly better: one for
    all, or one for each. Those that have features are alike by that, and share one map if any: what features say of a
    column compares it with others. Columns of different quantities are mapped unless that predicts worse: in what
    relation they are nobody has said, and noise that is not that of the map is taken for mistakes. Where most cells are
    wrong, so are the kinds that are found from them: then maps must predict better by far.

    Cells are held out fold by fold until it is clear what is better, or each of them was. Before every fold, what there
    is ``now`` is yielded: the best fit to M as it is.
    """
    fit = race.best_candidate.fit
    assert race.winner is not None
    asked = any(kind not in (AUTO, AS_IT_IS) for kind in wanted)
    determined = any(fit.tied) and part.predicts(fit)  # features determine cells in units of M
    if not asked and (part.held.nearly_exact(fit) or determined):
        return None
    tied = fit.tied if determined else part.setup.ties[-1]
    values = setup.problem.engine.block(*lines_for_kinds(setup.problem))
    spreads = _spreads(values)
    near = _near(values, spreads)
    alike, shared = bool(near.mean() >= KINDS.bulk), setup.problem.F2.given
    finest = 0.0 if alike else KINDS.finest * float(np.nanmedian(spreads / part.columns.unit))
    rivals = [
        _Rival.of(setup, part, ColumnMaps.of(kinds), tied)
        for kinds in _candidates(values, wanted, near if alike else np.zeros_like(near), shared)
    ]
    mostly_wrong = fit.noise.gross > constants.MAJORITY
    threshold = KINDS.better if alike or shared else KINDS.far_better if mostly_wrong else 0.0
    for k in range(constants.FOLDS):
        if not rivals or (k and _settled(rivals, threshold)):
            break
        yield now
        for rival in rivals:
            rival.meet(k, part, race.winner, finest)
        rivals = [rival for rival in rivals if not any(other.beats(rival) for other in rivals)]
    if not rivals:
        return None
    best = max(rivals, key=lambda rival: rival.gain.mean + KINDS.better * (rival is rivals[0]))  # the simpler one
    gain, maps = best.gain, best.maps
    sure = gain.least(constants.TIE_STANDARD_ERRORS * (1 if alike or shared or mostly_wrong else -1))
    if not asked and sure <= threshold:
        return None
    how = "better" if gain.mean > 0 else "worse"
    predicted = f"held-out cells are predicted {how} by {abs(gain.mean):.2f} nats each than as they are"
    return Chosen(maps, ("as asked; " if asked else "") + predicted)


def _settled(rivals: Sequence[_Rival], threshold: float) -> bool:
    """Whether it is clear that no maps are good enough, or which."""
    errors = constants.SIGNIFICANT_STANDARD_ERRORS
    if all(rival.gain.least(-errors) < threshold for rival in rivals):
        return True
    return len(rivals) == 1 and rivals[0].gain.least(errors) > threshold


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
        maps = _common(usual, kind_of(usual, NUMBER)) if of_numbers else []
        return [[one] * len(wanted) for one in maps if not one.plain]
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
        maps = _common(usual, together)
        candidates[:0] = [[one if here else kind for here, kind in zip(near, kinds, strict=True)] for one in maps]
    return [kinds for kinds in candidates if not all(kind.plain for kind in kinds)]


def _common(values: Array, found: Kind) -> list[Kind]:
    """Maps that columns of the same quantity may share: the one that was found, and those of amounts and of counts.

    A few values that are far apart hide which power it is.
    """
    seen = values[np.isfinite(values)]
    if found.plain or (found.low < found.high).all() or (seen < 0).any():
        return [found]
    counts = [SQUARE_ROOT] if (seen == np.round(seen)).all() else []
    others = [kind_of(values, kind) for kind in (LOGARITHM, *counts)]
    return [found, *(kind for kind in others if kind.name != found.name)]


def _spreads(values: Array) -> Array:
    """The spread of every column; NaN where all of its values are the same."""
    rows, cols = np.nonzero(np.isfinite(values))
    return find_spreads(values[rows, cols].astype(float), cols, values.shape[1])


def _near(values: Array, spreads: Array) -> Array:
    """Which columns hold the same kind of quantity as most: of about the same spread, and within its reach."""
    seen, some = np.isfinite(values), np.isfinite(spreads)
    near = np.zeros(len(some), bool)
    if not some.any():
        return near
    middles = np.array([np.median(values[seen[:, j], j]) for j in np.flatnonzero(some)])
    usual = float(np.median(spreads[some]))
    near[some] = np.abs(middles - np.median(middles)) <= KINDS.reach * usual
    near[some] &= (spreads[some] < KINDS.alike * usual) & (spreads[some] > usual / KINDS.alike)
    near[~seen.any(axis=0)] = bool(near[some].mean() >= KINDS.bulk)  # of an empty column nothing else is known
    return near


@dataclass(frozen=True)
class Gain:
    """The mean gain in log density at held-out cells, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, gains: Array) -> Gain:
        return cls(float(gains.mean()), float(gains.std()) / np.sqrt(len(gains)))

    def least(self, errors: float) -> float:
        """The least that it is, within so many standard errors; the most, if these are negative."""
        return self.mean - errors * self.error


@dataclass(eq=False)
class _Rival:
    """Maps of all columns, and what quick fits to mapped columns gain over fits to M as it is.

    Attributes
    ----------
    maps : ColumnMaps
    part : the same part, mapped
    recipe : of the quick fits: as free as the others, since whole columns may be wrong
    gains : at every cell held out so far, in nats
    """

    maps: ColumnMaps
    part: Part
    recipe: Recipe
    gains: list[Array] = field(default_factory=list)

    @classmethod
    def of(cls, setup: Setup, part: Part, maps: ColumnMaps, tied: Tied) -> _Rival:
        mapped = replace(setup, problem=setup.problem.seen_through(maps))
        return cls(maps, mapped.part(part.table.offered, None, part.table), Recipe(tied))

    @property
    def gain(self) -> Gain:
        return Gain.of(np.concatenate(self.gains))

    def beats(self, other: _Rival) -> bool:
        """Whether these maps are clearly better than others."""
        ahead = Gain.of(np.concatenate(self.gains) - np.concatenate(other.gains))
        return ahead.least(constants.SIGNIFICANT_STANDARD_ERRORS) > KINDS.better

    def meet(self, k: int, part: Part, recipe: Recipe, finest: float) -> None:
        """Compare a fit to mapped columns with one to M as it is, at the cells of a fold that neither has seen.

        Noise below ``finest`` counts for no less: of columns of different quantities no map can tell a finer relation.
        """
        table, here = part.folds.tables[k], part.folds.held[k]
        mapped, there = self.part.folds.tables[k], self.part.folds.held[k]
        cols = part.table.lines[1][here.cols]
        unit = part.columns.unit[cols]
        low, high = self.maps.ranges(here.values * unit, cols)
        least = np.maximum(here.least, finest)
        here = replace(here, least=least, slope=-np.log(unit), bounds=(low / unit, high / unit))
        gain = there.score(mapped.fit(self.recipe)).density - here.score(table.fit(recipe)).density
        self.gains.append(np.clip(gain, -KINDS.most_gain, KINDS.most_gain))
