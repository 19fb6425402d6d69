"""Candidate fits: where they start, what they leave out, which are tried."""

from dataclasses import replace

import numpy as np
import pytest

from irpca import constants
from irpca.model.choice import Score
from irpca.model.peaks import find_mode
from irpca.solvers.part import scale_of
from irpca.solvers.race import Race
from irpca.solvers.recipes import Folds, Recipe, Table, find_piles

FREE = (False, False)


def test_the_shortest_interval_with_a_share_of_the_residuals():
    R = np.array([[5.2, 0.0, np.nan, 9.0], [1.0, 5.0, 20.0, 5.1]])
    assert find_mode(R, 0.5) == (5.1, pytest.approx(0.1))  # three of seven
    assert find_mode(R, 0.8) == (5.0, 2.6)  # five: 0 to 5.2
    assert find_mode(np.array([3.0, 4.0]), 0.1) == (3.5, 0.5)  # at least two
    assert find_mode(np.array([np.nan, 4.0]), 0.5) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("counts", "seen"),
    [
        ([1] * 970 + [30], True),
        ([1] * 990 + [10], False),  # fewer than two of a hundred
        ([3] * 300 + [45], False),  # fewer than twenty times as often as the value of a typical entry
        ([20] * 10, False),  # all are frequent, as ratings are
    ],
)
def test_a_value_that_occurs_far_more_often_than_others(counts, seen):
    X = np.r_[np.repeat(np.arange(len(counts)), counts).astype(float), np.nan, np.nan]
    X = X.reshape(2, -1) if len(X) % 2 == 0 else np.r_[X, np.nan].reshape(2, -1)
    expected = (len(counts) - 1.0 == X) if seen else np.zeros(X.shape, bool)
    np.testing.assert_array_equal(find_piles(X), expected)


def test_a_recipe_is_fitted_once_and_others_start_from_it():
    """One whose noise is not looked for afresh ends elsewhere, where that changes anything."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 40)) + 0.2 * rng.standard_normal((60, 40))
    X += np.where(rng.random(X.shape) < 0.2, 5 * rng.standard_normal(X.shape), 0)
    table, first = a_table(X), Recipe(FREE, few=True)
    fit = table.fit(first)
    assert table.fit(first) is fit and fit.refitted
    kept = table.fit(replace(first, afresh=False))
    assert not kept.refitted and kept.noise.s != fit.noise.s
    shifted = table._begin(Recipe(FREE, first, few=True, shifted=True))
    middle, width = find_mode(X - fit.L.dense(), constants.MODE_SHARE)
    assert np.mean(shifted.L.dense() - fit.L.dense()) == pytest.approx(middle, rel=1e-6)
    assert shifted.noise.s == pytest.approx(width)
    assert not table.hold_out(np.zeros(X.shape, bool)).fits


def test_names_say_how_a_fit_was_made():
    first = Recipe((True, False), few=True)
    assert first.name == "features only, few directions, from columns"
    last = Recipe(FREE, Recipe(FREE, "earlier"), shifted=True, piles=True, afresh=False)
    assert last.name == "from (from earlier), shifted, noise not looked for afresh, without piled-up values"
    assert [recipe.name for recipe in last.lineage] == ["from earlier", last.name]


def a_table(X, rank=None, extra=0, bases=None, noise=None):
    n1, n2 = X.shape
    bases = bases or {FREE: (np.ones((n1, 1)), np.ones((n2, 1)))}
    lines = np.arange(n1), np.arange(n2)
    return Table(X, lines, bases, np.full(n2, 1e-6), rank, extra, noise, 20, np.arange(n1), np.random.SeedSequence(3))


def rank_one(n1=60, n2=40, seed=0):
    rng = np.random.default_rng(seed)
    return np.outer(3 + rng.standard_normal(n1), 1 + rng.random(n2)) + 0.1 * rng.standard_normal((n1, n2)), rng


def compared(X, **options):
    table = a_table(X, **options)
    comparison = Race(Folds.of(table), list(table.bases))
    return comparison, len(list(comparison))


def test_every_entry_is_held_out_once():
    X, rng = rank_one()
    X[rng.random(X.shape) < 0.1] = np.nan
    folds = Folds.of(a_table(X))
    out = np.array([np.isnan(table.values) & ~np.isnan(X) for table in folds.tables])
    np.testing.assert_array_equal(out.sum(axis=0), np.isfinite(X))
    for fold, held in zip(out, folds.held, strict=True):
        assert fold[held.rows, held.cols].all() and fold.sum() == len(held.values)
        np.testing.assert_array_equal(held.values, X[held.rows, held.cols])
    assert folds.first == (folds.tables[0], folds.held[0])
    few = Folds.of(a_table(X[:10, :10]))
    assert few.first[0] is few.table and len(few.first[1].values) == len(few.rows)


def test_a_simple_fit_first_then_the_full_model_from_few_components():
    X, _ = rank_one()
    comparison, made = compared(X)
    names = [recipe.name for recipe in comparison.tried]
    assert names[:2] == ["from columns", "few directions, from columns"]
    assert any(name.startswith("from (few directions") for name in names)
    assert made <= len(names) <= comparison.about
    assert not any(recipe.piles for recipe in comparison.tried)
    fit = comparison.best_candidate.fit
    assert np.abs(fit.L.dense() - X).mean() < 0.1


@pytest.mark.parametrize(
    ("first", "others", "simplest", "folds"),
    [
        (0.0, 0.0, True, 1),  # as good: the one without random numbers
        (0.02, 0.0, True, 5),  # better by the first fold, by chance
        (0.02, 0.02, False, 2),  # better by little, until that is clear
        (0.5, 0.0, False, 1),  # far better: no other fold is asked
    ],
)
def test_which_of_the_best_fits_is_taken(monkeypatch, first, others, simplest, folds):
    """Gains in density are ± 0.1 about their mean: of 480 cells 0.02 is four standard errors, of 960 it is six."""
    X, _ = rank_one()
    race, _ = compared(X)
    simple, other = Recipe(FREE), next(recipe for recipe in race.tried if len(recipe.lineage) > 1)
    fits, asked = {recipe: race.tried[recipe].fit for recipe in (simple, other)}, set()

    def score(held, fit):
        gain = others if asked else first
        gains = gain + 0.1 * (-1.0) ** np.arange(len(held.values)) if fit is fits[other] else 0 * held.values
        return Score(gains, np.ones(len(gains)))

    race.tried = {recipe: replace(race.tried[recipe], score=score(race.held, fits[recipe])) for recipe in fits}
    monkeypatch.setattr(Table, "fit", lambda table, recipe: asked.add(id(table)) or fits[recipe])
    monkeypatch.setattr(type(race.held), "score", score)
    list(race._settle())
    assert (race.winner == simple) == simplest and 1 + len(asked) == folds


def test_of_a_given_rank_there_is_one_model():
    X, _ = rank_one()
    comparison, _ = compared(X, rank=1)
    assert not any(recipe.few for recipe in comparison.tried)
    assert all(candidate.fit.rank == 1 for candidate in comparison.tried.values())


def test_piled_up_values_are_left_out_once():
    X, rng = rank_one()
    X[rng.random(X.shape) < 0.2] = 50.0
    comparison, _ = compared(X, rank=1)
    assert comparison.winner.piles and comparison.about > 6
    assert comparison.tried[comparison.winner].fit.noise.gross > 0.15  # those left out are gross errors


def test_what_was_left_out_is_held_against_all_entries_that_were_fitted():
    """Of 12,000 entries 3,000 hold one value; noise is estimated from 5,000 of the others, which are 9,000."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 1)) @ rng.standard_normal((1, 100)) + 0.1 * rng.standard_normal((120, 100))
    X.ravel()[rng.choice(X.size, 3000, replace=False)] = 7.0
    fit = a_table(X).fit(Recipe(FREE, piles=True))
    assert len(fit.sample[0]) < 9000 == fit.engine.n_observed
    assert fit.noise.gross == pytest.approx(0.25, abs=0.01)


def test_noise_below_what_ties_leave_unknown_is_not_counted_twice():
    """Where a column is met exactly its noise is the least that can be told, and ``std`` is of that."""
    X, _ = rank_one()
    fit = a_table(X).fit(Recipe(FREE))
    least = np.where(np.arange(X.shape[1]) < 3, 0.1, 0.5)
    fit.noise = replace(fit.noise, s=0.1, least=least, rows=np.ones(len(X)), cols=np.ones(X.shape[1]))
    scale, _ = scale_of(fit, np.ones(X.shape[1]))
    np.testing.assert_allclose(np.sqrt(scale.rows[0] * scale.cols), least, rtol=1e-6)
    assert scale.tail == fit.noise.tail < 4
