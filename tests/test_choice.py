"""The judge: what held-out entries say of several fits."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from irpca.lowrank import LowRank
from irpca.model.choice import Candidate, HeldOut, Score, choose, worse, worse_in_most
from irpca.model.noise import NoiseModel

ROWS, COLS = (index.ravel() for index in np.indices((40, 20)))
HELD = HeldOut(ROWS, COLS, np.zeros(len(ROWS)), np.full(len(ROWS), 1e-9))


def candidate(name, density, error, tied=(False, False), s=1.0):
    fit = SimpleNamespace(tied=tied, noise=SimpleNamespace(deviation=1.0, s=s))
    return Candidate(name, fit, Score(np.asarray(density, float), np.asarray(error, float)))


def around(value, seed, spread=0.1):
    return value + spread * np.random.default_rng(seed).standard_normal(len(ROWS))


def test_the_smaller_error_wins_within_one_nat():
    exact_on_a_part = candidate("density", around(1.0, 0), around(1.0, 1))
    right = candidate("error", around(0.5, 2), around(0.5, 3))
    assert choose(HELD, [exact_on_a_part, right])[0].name == "error"


def test_ties_go_to_the_higher_density():
    error = around(1.0, 1, spread=1.0)
    low, high = candidate("low", around(1.0, 0), error), candidate("high", around(1.5, 0), error)
    assert choose(HELD, [low, high])[0].name == "high"


def test_a_few_lines_do_not_cost_the_simpler_model_the_race():
    error = around(1.0, 1)
    spoilt = error + 5.0 * (ROWS < 3)
    simple = candidate("simple", around(0.0, 0), spoilt, tied=(True, True))
    free = candidate("free", around(0.5, 2), error)
    assert choose(HELD, [simple, free])[0].name == "simple"


def test_features_that_are_wrong_in_most_lines_are_given_up():
    error = around(1.0, 1)
    simple = candidate("simple", around(0.0, 0), error + 0.2, tied=(True, True))
    free = candidate("free", around(0.5, 2), error)
    assert choose(HELD, [simple, free])[0].name == "free"


# The limits, from both sides


def level(value, spread=0.0):
    """So much at every entry, or half as much more and less at every second."""
    return value + spread * np.tile([-1.0, 1.0], len(ROWS) // 2)


def chosen(*candidates):
    return choose(HELD, candidates)[0].name


def test_a_smaller_error_counts_before_a_higher_density():
    right = candidate("error", level(0.0), level(0.5))
    for density in (0.1, 5.0):
        assert chosen(candidate("density", level(density), level(1.0)), right) == "error"


@pytest.mark.parametrize(("more", "name"), [(0.019, "high"), (0.021, "low")])
def test_errors_within_two_per_cent_are_equal(more, name):
    """However sure the difference is."""
    low, high = candidate("low", level(0.0), level(1.0)), candidate("high", level(0.5), level(1.0 + more))
    assert chosen(low, high) == chosen(high, low) == name


@pytest.mark.parametrize(("standard_errors", "name"), [(1.95, "high"), (2.05, "low")])
def test_errors_within_two_standard_errors_are_equal(standard_errors, name):
    spread = 0.1 * np.sqrt(len(ROWS)) / standard_errors
    low, high = candidate("low", level(0.0), level(1.0)), candidate("high", level(0.5), level(1.1, spread))
    assert chosen(low, high) == name
    assert worse(high.score.error, low.score.error) == pytest.approx(standard_errors)


def test_by_how_much_one_is_worse():
    assert worse(level(1.0), level(1.0)) == 0.0
    assert worse(level(2.0), level(1.0)) == np.inf and worse(level(1.0), level(2.0)) == -np.inf


@pytest.mark.parametrize(("s", "name"), [(1.0, "high"), (4.0, "low")])
def test_an_error_beyond_six_times_the_noise_is_a_gross_error(s, name):
    """Then it counts for no more: 9 and 20 are alike, unless the noise is larger."""
    low, high = candidate("low", level(0.0), level(9.0), s=s), candidate("high", level(0.5), level(20.0))
    assert chosen(low, high) == name


def test_those_that_predict_equally_well():
    spread = 0.1 * np.sqrt(len(ROWS))
    best = candidate("best", level(0.5), level(1.0))
    near, far = (candidate("other", level(0.4, spread / k), level(1.0)) for k in (1.95, 2.05))
    assert [c.name for c in choose(HELD, [best, near])[1]] == ["best", "other"]
    assert [c.name for c in choose(HELD, [best, far])[1]] == ["best"]
    simple = candidate("simple", level(0.4, spread), level(1.0), tied=(True, False))
    first, tied = choose(HELD, [best, near, simple])
    assert first.name == "simple" and [c.name for c in tied] == ["simple"]
    assert first.complexity == 1 and best.complexity == 2


def test_of_densities_that_differ_by_rounding_the_first_wins():
    one, other = candidate("one", level(0.5), level(1.0)), candidate("other", level(0.50005), level(1.0))
    assert chosen(one, other) == "one" and chosen(other, one) == "other"
    assert chosen(one, candidate("other", level(0.5002), level(1.0))) == "other"


def rows_worse(number, by=1.0):
    """A fit that is worse in some rows, so in all columns a little."""
    a = candidate("a", level(0.0), level(1.0) + by * (number > ROWS), tied=(True, True))
    return worse_in_most(HELD, a, candidate("b", level(0.0), level(1.0)))


def test_a_tenth_of_the_rows_may_be_worse():
    assert not rows_worse(4)
    assert rows_worse(30)
    assert not rows_worse(30, by=-1.0)


@pytest.mark.parametrize(("standard_errors", "worse"), [(1.95, False), (2.05, True)])
def test_two_standard_errors_of_the_trimmed_mean(standard_errors, worse):
    """Row means of two values, of which no tenth is trimmed away: the error is that of all over 0.8 √40."""
    by = np.where(ROWS % 2, 1.0, -1.0) * 0.1
    mean = standard_errors * 0.1 / 0.8 / np.sqrt(40)
    a = candidate("a", level(0.0), 1.0 + by + mean, tied=(True, True))
    assert worse_in_most(HELD, a, candidate("b", level(0.0), level(1.0))) == worse


def test_rows_count_alike_however_many_entries_they_have():
    """A little worse in the rows of ten entries, better by more in as many rows of one; columns have eleven each."""
    rows, cols = np.r_[np.repeat(np.arange(20), 10), np.arange(20, 40)], np.arange(220) % 20
    held = HeldOut(rows, cols, np.zeros(220), np.full(220, 1e-9))
    b = candidate("b", np.zeros(220), np.ones(220))
    assert not worse_in_most(held, candidate("a", np.zeros(220), np.where(rows < 20, 1.1, 0.8)), b)
    assert worse_in_most(held, candidate("a", np.zeros(220), np.where(rows < 20, 1.1, 1.2)), b)


def test_one_wild_row_does_not_decide_for_the_columns():
    """Its differences count for six standard deviations at most: 6 / 40 in the mean of every column."""
    gain = np.where(ROWS == 0, 1e9, -0.2)
    a, b = candidate("a", level(0.0), 1e9 + gain), candidate("b", level(0.0), level(1e9))
    assert not worse_in_most(HELD, a, b)
    few = HeldOut(np.zeros(3, int), np.arange(3), np.zeros(3), np.full(3, 1e-9))
    short = [candidate(name, np.zeros(3), np.ones(3)) for name in "ab"]
    assert worse_in_most(few, *short)  # one row cannot tell


# Scores


def a_fit(noise=0.1, spread=0.0, nearly_exact=True, poor=()):
    model = NoiseModel(noise, np.full(20, 1e-9), np.full(40, 4.0), np.full(20, 9.0), broad=30.0)
    L = LowRank.from_product(np.arange(1.0, 41.0)[:, None], np.ones((20, 1)))
    return SimpleNamespace(
        L=L,
        noise=model,
        spreads=(np.full((40, 2), spread), np.full((20, 2), 1.0)),
        nearly_exact=nearly_exact,
        poorly_fitted=lambda axis: poor if axis else (),
    )


def test_the_score_of_a_held_out_entry():
    """Its scale is that of its row and column, 0.1 · 2 · 3, and L is uncertain by two terms."""
    fit = a_fit(spread=0.5)
    held = HeldOut(np.array([0, 3]), np.array([1, 1]), np.array([1.5, 2.0]), np.array([1e-9, 5.0]))
    score = held.score(fit)
    np.testing.assert_allclose(score.error, [0.5, 2.0])
    expected = [float(fit.noise.log_density(np.array([e]), s2, 1.0)[0]) for e, s2 in ((0.5, 0.36), (2.0, 25.0))]
    np.testing.assert_allclose(score.density, expected)


@pytest.mark.parametrize(("exact", "expected"), [(0.51, True), (0.5, False)])
def test_a_fit_that_meets_most_entries_exactly_is_the_best(exact, expected):
    L = a_fit().L.sampled(ROWS, COLS)
    values = np.where(np.arange(len(ROWS)) < exact * len(ROWS), L, L + 1.0)
    held = HeldOut(ROWS, COLS, values, np.full(len(ROWS), 1e-3))
    assert held.nearly_exact(a_fit()) == expected
    assert not held.nearly_exact(a_fit(nearly_exact=False))
    assert not held.nearly_exact(a_fit(poor=(3,)))


@pytest.mark.parametrize(("rounding", "expected"), [(0.0095, True), (0.0105, False)])
def test_rounding_as_large_as_L_tells_nothing(rounding, expected):
    """A hundredth of its spread."""
    L = a_fit().L.sampled(ROWS, COLS)
    held = HeldOut(ROWS, COLS, L, np.full(len(ROWS), rounding * L.std()))
    assert held.nearly_exact(a_fit()) == expected


def test_the_score_of_a_value_that_stands_for_an_interval():
    """It is the mass of the interval; of a number it is the density, per unit of M."""
    fit = a_fit(spread=0.5)
    i, j, values = np.array([0, 3, 5]), np.array([1, 1, 2]), np.array([1.5, 2.0, 6.5])
    bounds = np.array([1.2, 2.0, 6.0]), np.array([1.9, 2.0, np.inf])
    plain, held = (HeldOut(i, j, values, np.full(3, 1e-9), 0.25, given) for given in (None, bounds))
    before, found = plain.score(fit), held.score(fit)
    np.testing.assert_array_equal(found.error, before.error)
    np.testing.assert_allclose(before.density - HeldOut(i, j, values, np.full(3, 1e-9)).score(fit).density, 0.25)
    assert found.density[1] == before.density[1]
    L, s2 = np.array([1.0, 6.0]), np.full(2, 0.36)
    wanted = fit.noise.log_mass(bounds[0][[0, 2]] - L, bounds[1][[0, 2]] - L, s2, np.ones(2))
    np.testing.assert_allclose(found.density[[0, 2]], wanted)
    assert not replace(held, values=fit.L.sampled(i, j)).nearly_exact(fit)  # numbers alone are met exactly
    assert replace(plain, values=fit.L.sampled(i, j), least=np.full(3, 1e-3)).nearly_exact(fit)
