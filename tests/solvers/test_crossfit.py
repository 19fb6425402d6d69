"""Cells that a fit has not seen: how well they are predicted, and what that corrects."""

import numpy as np
import pytest

import irpca
from irpca.solvers.crossfit import _factors, _quantiles


def a_table(rng, noise, n=(400, 30)):
    """Four patterns, and noise of about a third of their size."""
    L = rng.standard_normal((n[0], 4)) @ rng.standard_normal((4, n[1]))
    return L, L + 0.6 * noise(n)


@pytest.mark.parametrize("noise", ["standard_normal", "laplace"])
def test_what_is_said_of_unseen_cells_is_true_of_cells_that_are_missing(noise):
    rng = np.random.default_rng(3)
    _, truth = a_table(rng, lambda n: getattr(rng, noise)(size=n))
    M, missing, wrong = truth.copy(), rng.random(truth.shape) < 0.1, rng.random(truth.shape) < 0.05
    M[wrong] += rng.choice([-1, 1], wrong.sum()) * rng.uniform(8, 20, wrong.sum())
    M[missing] = np.nan
    model = irpca.InductiveRobustPCA().fit(M)
    unseen, expected = model.result_.unseen, model.expected()
    error = np.abs(truth - expected)[missing].mean()
    plain = np.abs(truth - np.nanmedian(truth, axis=0))[missing].mean()
    assert unseen.skill == pytest.approx(1 - (error / plain) ** 2, abs=0.05)
    assert np.nanmean(unseen.errors) == pytest.approx(error, rel=0.1)
    assert unseen.agreement > 0.9 and model.result_.usable == "usable"
    for level, told in zip((0.5, 0.95), unseen.covered, strict=True):
        lower, upper = model.interval(level)
        held = ((lower <= truth) & (truth <= upper))[missing].mean()
        assert held == pytest.approx(level, abs=0.04) and told == pytest.approx(level, abs=0.02)


def test_a_column_keeps_a_factor_of_its_own_only_if_it_differs_beyond_chance():
    rng = np.random.default_rng(1)
    cols = np.repeat(np.arange(10), 1000)
    away = np.abs(rng.standard_normal(10_000))
    factors, middle = _factors(away, cols, np.ones(10_000), 10)
    assert np.abs(factors - 1).max() < 0.03 and middle == pytest.approx(1, abs=0.03)
    factors, _ = _factors(np.where(cols == 3, 2.5, 1.0) * away, cols, np.ones(10_000), 10)
    assert factors[3] == pytest.approx(2.5, rel=0.1) and np.abs(np.delete(factors, 3) - 1).max() < 0.1


def test_gross_errors_are_weighed_out():
    away = np.r_[np.linspace(0, 1, 101), np.full(50, 100.0)]
    clean = np.r_[np.ones(101), np.zeros(50)]
    assert _quantiles(away, np.zeros(151, int), clean, 2, 0.5).tolist() == [0.5, 1.0]


def test_columns_that_mostly_hold_one_value_are_predicted_all_the_same():
    """Of yes and no the median has the least absolute error, whatever is known; so squares are compared."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((600, 1))
    numbers = z + 0.3 * rng.standard_normal((600, 4))
    rare = (z + 0.3 * rng.standard_normal((600, 4)) > 1.2).astype(float)
    skills = irpca.InductiveRobustPCA().fit(np.hstack([numbers, rare])).result_.unseen.skills
    assert skills[:4].min() > 0.7 and skills[4:].min() > 0.25
    model = irpca.InductiveRobustPCA().fit(np.hstack([numbers, rng.permuted(rare, axis=0)]))
    assert np.abs(model.result_.unseen.skills[4:]).max() < 0.1
    assert not model.sparse_.nnz  # that nothing is known of a rare yes does not make it a mistake
