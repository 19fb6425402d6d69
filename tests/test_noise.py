"""The noise model: scales of lines, the mixture looked for afresh, lines that are broken."""

import numpy as np
import pytest

from irpca import constants
from irpca.engines.base import Sums
from irpca.noise import NoiseModel, refit_mixture, scales, widened, with_piles


def model(s=1.0, n1=4, n2=5, **parameters):
    return NoiseModel(s, np.full(n2, 1e-9), np.ones(n1), np.ones(n2), broad=30.0, **parameters)


def test_equal_lines_share_one_scale_and_unequal_ones_have_their_own():
    rng = np.random.default_rng(3)
    entries = 200
    equal = (rng.standard_normal((60, entries)) ** 2).sum(axis=1)
    found = scales(equal, np.full(60, float(entries)))
    assert np.ptp(np.log(found)) < 0.5 * np.ptp(np.log(equal / entries))
    true = np.logspace(-2, 2, 60)
    found = scales(true * equal, np.full(60, float(entries)))
    np.testing.assert_allclose(found, true, rtol=0.5)


def test_a_line_of_few_entries_stays_with_the_others():
    energy, trust = np.array([100.0, 100.0, 100.0, 100.0, 40.0]), np.array([100.0, 100.0, 100.0, 100.0, 2.0])
    assert scales(energy, trust)[4] < 10  # its own would be 20


@pytest.mark.parametrize(("k", "factor"), [(1, 2.0), (2, 4.0)])
def test_a_scale_that_stopped_at_a_fraction_of_the_noise_is_corrected(k, factor):
    """Most of the noise was in a wider component then; what is in the narrowest stays as it is."""
    z = np.random.default_rng(7).standard_normal(4000)
    stuck = model(s=1 / factor, shares=np.where(np.arange(3) == k, 0.8, 0.1), gross=1e-4)
    found = widened(stuck, z)
    assert found.s == pytest.approx(1.0, rel=0.06) and found.shares[0] > 0.85
    right = model(s=1.0, shares=np.array([0.6, 0.3, 0.1]))
    assert widened(right, z) is right
    student = model(s=1.0, shares=np.array([0.1, 0.1, 0.8]), nu=2.0)
    assert widened(student, z) is student


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_the_narrow_core_is_found_beside_many_gross_errors(share):
    rng = np.random.default_rng(7)
    z = 0.1 * rng.standard_normal(4000)
    wrong = rng.random(4000) < share
    z[wrong] += rng.uniform(2, 6, wrong.sum())
    found = refit_mixture(model(s=3.0), z)
    assert found is not None
    assert found.s == pytest.approx(0.1, rel=0.2)
    assert found.gross == pytest.approx(wrong.mean(), abs=0.03)


def test_nothing_is_found_where_the_model_is_right_already():
    rng = np.random.default_rng(8)
    right = model(s=0.1, gross=1e-4, shares=np.array([0.98, 0.015, 0.005]))
    assert refit_mixture(right, 0.1 * rng.standard_normal(4000)) is None


def test_s_falls_by_a_limited_factor_and_not_below_rounding():
    sums = Sums(np.array([[1e-6, 10.0]] * 4), np.array([[1e-6, 8.0]] * 5), np.array([40.0, 0, 0, 0, 0, 0]))
    noise = model()
    noise.learn(sums)
    assert noise.s == pytest.approx(1 / constants.MAX_SCALE_DECREASE)
    noise.least = np.full(5, 0.9)
    noise.learn(sums)
    assert noise.s == 0.9


def test_the_noise_that_is_given_is_kept():
    noise = model(target=0.25)
    sums = Sums(np.array([[10.0, 10.0]] * 4), np.array([[8.0, 8.0]] * 5), np.array([40.0, 0, 0, 0, 0, 0]))
    for _ in range(30):
        noise.learn(sums)
    assert noise.deviation == 0.25
    assert noise.s * np.sqrt(noise.shares @ np.array([1, 4, 16])) == pytest.approx(0.25)


def test_one_line_far_noisier_than_equal_others_is_broken():
    rng = np.random.default_rng(1)
    noise = model(n1=60)
    noise.rows = np.exp(0.1 * rng.standard_normal(60))
    noise.rows[7] = 1e4
    assert noise.capped(np.ones(len(noise.cols))).rows[7] < 20
    np.testing.assert_array_equal(np.delete(noise.capped(np.ones(len(noise.cols))).rows, 7), np.delete(noise.rows, 7))


def test_where_lines_differ_much_none_is_broken():
    noise = model(n1=60)
    noise.rows = np.logspace(-2, 2, 60)
    np.testing.assert_array_equal(noise.capped(np.ones(len(noise.cols))).rows, noise.rows)


def test_what_was_left_out_counts_as_gross_errors():
    found = with_piles(model(gross=0.1), np.full(100, 50.0), 100)
    assert found.gross == pytest.approx(0.55)
    assert found.broad > 30
