"""P(gross error) of a residual: right in size under several kinds of noise, and a rule for what to report."""

import numpy as np
import pytest

from irpca.calibration import Calibration, discoveries

N = 40_000
NOISE = {
    "Gaussian": lambda rng, n: rng.standard_normal(n),
    "Laplace": lambda rng, n: rng.laplace(size=n),
    "Student 5": lambda rng, n: rng.standard_t(5, n),
    "uniform": lambda rng, n: rng.uniform(-1, 1, n),
    "unequal": lambda rng, n: rng.standard_normal(n) * np.exp(0.5 * rng.standard_normal(n)),
}


def mixed(kind, share, seed=1, n=N):
    """Residuals of which a share is wrong, by 8 to 20 clean standard deviations."""
    rng = np.random.default_rng(seed)
    z = NOISE[kind](rng, n)
    wrong = rng.random(n) < share
    z[wrong] += rng.choice([-1, 1], wrong.sum()) * rng.uniform(8, 20, wrong.sum()) * z.std()
    return z, wrong


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("kind", NOISE)
def test_the_share_of_gross_errors(kind, share):
    z, wrong = mixed(kind, share)
    calibration = Calibration(z)
    assert calibration.share == pytest.approx(wrong.mean(), abs=0.004)
    P = calibration(z)
    assert P[wrong].mean() > 0.95 and P[~wrong].mean() < 0.005


@pytest.mark.parametrize("kind", NOISE)
def test_without_gross_errors_hardly_any_is_said_to_be_one(kind):
    z, _ = mixed(kind, 0.0)
    calibration = Calibration(z)
    assert calibration.share < 0.001
    assert (calibration(z) > 0.5).sum() <= 0.0005 * N


def test_the_probability_never_falls_with_the_size_and_does_not_see_the_sign():
    z, _ = mixed("Laplace", 0.1)
    sizes = np.linspace(0, 100, 1000)
    P = Calibration(z)(sizes)
    assert (np.diff(P) >= 0).all() and P[0] >= 0 and P[-1] <= 1
    np.testing.assert_array_equal(Calibration(-z)(-sizes), P)


@pytest.mark.parametrize("kind", ["Gaussian", "Student 5"])
def test_the_limit_is_where_the_probability_passes_one_half(kind):
    z, _ = mixed(kind, 0.1)
    calibration = Calibration(z)
    assert 2 < calibration.limit < 20
    np.testing.assert_array_equal(np.abs(z) > calibration.limit, calibration(z) > 0.5)


@pytest.mark.parametrize("z", [np.zeros(0), np.zeros(100), np.full(10, np.nan)])
def test_of_nothing_nothing_is_wrong(z):
    calibration = Calibration(z)
    assert calibration.limit == np.inf and calibration.share == 0
    np.testing.assert_array_equal(calibration([0.0, 1e9, np.nan]), [0.0, 0.0, np.nan])


def test_the_scales_are_those_of_the_clean_residuals():
    z, _ = mixed("Gaussian", 0.2)
    calibration = Calibration(7 * z)
    assert calibration.scale == pytest.approx(7, rel=0.03)
    assert calibration.sd == pytest.approx(7, rel=0.03)


def test_a_scale_of_all_residuals_changes_nothing_but_the_unit():
    z, _ = mixed("Laplace", 0.1)
    one, other = Calibration(z), Calibration(2.0**20 * z)
    np.testing.assert_allclose(other(2.0**20 * z), one(z), rtol=0, atol=1e-12)
    assert other.limit == pytest.approx(2.0**20 * one.limit, rel=1e-12)


def test_rounded_residuals():
    z, wrong = mixed("Gaussian", 0.1)
    calibration = Calibration(np.round(2 * z) / 2)
    assert calibration.share == pytest.approx(wrong.mean(), abs=0.005)


def test_what_is_not_finite_is_left_out():
    z, _ = mixed("Gaussian", 0.1)
    one, other = Calibration(z), Calibration(np.r_[z, np.nan, np.inf, -np.inf])
    assert one.limit == other.limit and one.share == other.share


# What to report


def test_discoveries_are_the_largest_set_within_the_rate():
    P = np.array([0.2, 0.99, 0.93, np.nan, 0.9, 0.5])
    for fdr, expected in ((0.0, []), (0.01, [1]), (0.04, [1, 2]), (0.06, [1, 2, 4]), (0.17, [1, 2, 4, 5])):
        np.testing.assert_array_equal(np.flatnonzero(discoveries(P, fdr + 1e-12)), expected)
    assert discoveries(P, 1.0).sum() == 5  # not what is NaN
    assert discoveries(P.reshape(2, 3), 0.05).shape == (2, 3)
    assert discoveries(np.zeros(0), 0.05).shape == (0,)


def test_of_equal_probabilities_the_larger_is_first():
    P = np.array([0.9, 0.9, 0.9, 1.0])
    np.testing.assert_array_equal(discoveries(P, 0.051, np.array([3.0, -5.0, 4.0, 9.0])), [False, True, False, True])


@pytest.mark.parametrize("kind", ["Gaussian", "Laplace", "Student 5", "unequal"])
def test_the_false_share_is_what_was_asked(kind):
    false, found = [], []
    for seed in range(5):
        z, wrong = mixed(kind, 0.05, seed)
        reported = discoveries(Calibration(z)(z), 0.05, z)
        false.append((reported & ~wrong).sum() / reported.sum())
        found.append((reported & wrong).sum() / wrong.sum())
    assert np.mean(false) < 0.08
    assert np.mean(found) > 0.9
