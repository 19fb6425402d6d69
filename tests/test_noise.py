"""The noise model: scales of lines, the mixture looked for afresh, lines that are broken."""

import numpy as np
import pytest

from irpca import constants
from irpca.engines.base import Sums
from irpca.model.noise import NoiseModel, _converged, _step, refit_mixture, scales, widened, with_piles


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


def test_a_scale_that_stopped_at_a_fraction_of_the_noise_is_corrected():
    """Most of the noise was in a wider component then; what is in the narrowest stays as it is."""
    z = np.random.default_rng(7).standard_normal(4000)
    stuck = model(s=0.25, shares=np.array([0.1, 0.1, 0.8]), gross=1e-4)
    found = widened(stuck, z)
    assert found.s == pytest.approx(1.0, rel=0.06) and found.shares[0] > 0.85
    right = model(s=1.0, shares=np.array([0.6, 0.3, 0.1]))
    assert widened(right, z) is right


def test_the_narrow_core_is_found_beside_many_gross_errors():
    rng = np.random.default_rng(7)
    z = 0.1 * rng.standard_normal(4000)
    wrong = rng.random(4000) < 0.3
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


# The density, and what follows from it


def test_the_density_is_one():
    """Its integral, with gross errors of both kinds; their tails beyond 1e6 hold 2e-5."""
    noise = model(s=1.0, gross=0.3, heavy=0.5)
    R = np.r_[0.0, np.logspace(-4, 6, 40_000)]
    density = np.exp(noise.log_density(R, 0.25, 0.7))
    assert 2 * np.trapezoid(density, R) == pytest.approx(1.0, abs=2e-4)


def test_the_shares_of_the_density():
    """Far out there are gross errors alone; half of the Gaussian ones and half of the Cauchy ones are within MEDIAN."""
    noise = model(s=1.0, gross=0.2, heavy=1.0)
    R = np.r_[0.0, np.logspace(-4, 6, 40_000)]
    density = np.exp(noise.log_density(R, 1.0))
    within = 0.6745 * noise.broad >= R
    assert 2 * np.trapezoid(density[within], R[within]) == pytest.approx(0.8 + 0.1, abs=2e-3)
    clean = np.exp(model(s=1.0, gross=1e-300).log_density(R, 4.0))
    assert 2 * np.trapezoid(clean * R**2, R) == pytest.approx(4 * (0.8 + 0.15 * 4 + 0.05 * 16), rel=1e-3)


def test_the_deviation_is_that_of_the_components():
    noise = model(s=0.5, shares=np.array([0.6, 0.3, 0.1]))
    assert noise.tail == pytest.approx(np.sqrt(0.6 + 0.3 * 4 + 0.1 * 16))
    assert noise.deviation == pytest.approx(0.5 * noise.tail)
    noise.least = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert noise.deviation == pytest.approx(3.0 * noise.tail) and noise.lowest == 1.0


def test_scales_of_entries_are_not_below_rounding():
    noise = model(s=0.5)
    noise.least = np.array([0.1, 0.5, 1.0, 0.1, 0.1])
    noise.rows = np.array([1.0, 4.0, 1e-9, 1.0])
    weights = noise.for_engine(np.ones((4, 2)), np.ones((5, 2)))
    np.testing.assert_allclose(weights.rows, [0.25, 1.0, 0.01, 0.25])
    np.testing.assert_allclose(weights.cols, [1.0, 1.0, 4.0, 1.0, 1.0])


# What is learned from sums


def sums_of(totals, rows=(10.0, 10.0)):
    return Sums(np.array([rows] * 4), np.array([[8.0, 8.0]] * 5), np.array(totals, float))


def test_shares_are_those_of_the_sums_with_a_weak_prior():
    noise = model()
    noise.learn_shares(sums_of([50, 20, 10, 20, 20 * 40.0**2, 0, 5]))
    assert noise.gross == pytest.approx(0.2) and noise.broad == pytest.approx(40.0)
    parts = np.array([50, 20, 10]) + 0.02 * 100 * np.array([0.8, 0.15, 0.05])
    np.testing.assert_allclose(noise.shares, parts / parts.sum())
    assert noise.heavy == pytest.approx((5 + 0.5 * 0.02 * 20) / (20 * 1.02))


@pytest.mark.parametrize(("rise", "energy", "expected"), [(True, 4.0, 2.0), (False, 4.0, 1 / 1.3), (True, 1e6, 30.0)])
def test_s_rises_to_its_estimate_or_must_decrease(rise, energy, expected):
    noise = model()
    noise.learn(sums_of([80, 0, 0, 0, 0, 0, 0], rows=(10 * energy, 10.0)), rise)
    assert noise.s == pytest.approx(expected)
    assert noise.estimate == pytest.approx(np.sqrt(energy))


def test_scales_of_lines_have_the_geometric_mean_of_s():
    noise = model(s=2.0, n1=4)
    lines = np.array([[100.0, 1000.0], [1000.0, 1000.0], [1000.0, 1000.0], [10000.0, 1000.0]])
    noise.learn_scales(Sums(lines, np.ones((5, 2)), np.zeros(7)), 0)
    assert np.exp(np.log(noise.rows).mean()) == pytest.approx(1.0)
    assert noise.rows[3] / noise.rows[1] == pytest.approx(10, rel=0.01)
    assert noise.s == pytest.approx(2.0 * np.sqrt(1 / (12100 / 4000)), rel=0.01)  # beside the sum over all, which is s
    np.testing.assert_array_equal(noise.cols, np.ones(5))
    given = model(s=2.0, target=2.0)
    given.learn_scales(Sums(lines, np.ones((5, 2)), np.zeros(7)), 0)
    assert given.s == 2.0
    empty = model(s=2.0)
    empty.learn_scales(Sums(0 * lines, np.ones((5, 2)), np.zeros(7)), 0)
    assert empty.s == 2.0 and (empty.rows == 1).all()


def test_lines_are_shrunk_by_what_chance_does_to_them():
    """Of log variances with sampling variance 3 / t: two groups of lines, e^a apart, a² / 4 between them."""
    for t, apart in ((30.0, 1.0), (30.0, 2.0), (300.0, 1.0)):
        own = apart * np.tile([-0.5, 0.5], 50)
        between = apart**2 / 4 - 3 / t
        expected = own * between / (between + 3 / t)
        np.testing.assert_allclose(np.log(scales(7 * t * np.exp(own), np.full(100, t)) / 7), expected, rtol=1e-9)
    alike = scales(30 * np.exp(0.1 * np.tile([-0.5, 0.5], 50)), np.full(100, 30.0))
    np.testing.assert_allclose(alike, 1.0)


def test_lines_without_entries_have_the_common_scale():
    trust = np.array([100.0, 100.0, 100.0, 0.9, 0.0])
    np.testing.assert_allclose(scales(np.array([300.0, 300.0, 300.0, 9.0, 0.0]), trust), 3.0)
    np.testing.assert_array_equal(scales(np.array([300.0, 300.0, 9.0]), np.array([100.0, 100.0, 0.5])), 1.0)


def test_a_column_is_broken_only_in_both_units():
    noise = model(n2=60)
    noise.cols = np.ones(60)
    noise.cols[5] = 1e4
    assert noise.capped(np.ones(60)).cols[5] < 10
    units = np.ones(60)
    units[5] = 1e-4
    assert noise.capped(units).cols[5] == pytest.approx(1e4)


# The mixture in one dimension


def test_steps_raise_the_density_until_they_hardly_do():
    rng = np.random.default_rng(3)
    z = np.r_[rng.standard_normal(3000), 20 * rng.standard_normal(500)]
    start, scores = model(s=4.0), []
    for _ in range(15):
        start, score = _step(start, z)
        scores.append(score)
    assert np.diff(scores).min() > -2e-3  # a weak prior of the shares may cost that
    end, score = _converged(model(s=4.0), z)
    assert end.s == pytest.approx(1.0, rel=0.1) and end.gross == pytest.approx(1 / 7, abs=0.03)
    direct = end.log_density(z, end.s**2).mean()
    assert _step(end, z)[1] == pytest.approx(direct, rel=1e-6)
    assert score <= direct + 1e-3


def test_gross_errors_of_one_size_and_of_all_sizes_are_told_apart():
    rng = np.random.default_rng(3)
    for draw, low, high in ((rng.standard_normal, 0.0, 0.3), (rng.standard_cauchy, 0.7, 1.0)):
        z = np.r_[rng.standard_normal(4000), 30 * draw(2000)]
        assert low <= _converged(model(), z)[0].heavy <= high


def test_what_was_left_out_adds_up():
    found = with_piles(model(gross=0.2), np.full(60, 40.0), 200)
    assert found.gross == pytest.approx((40 + 60) / 260)
    assert found.broad == pytest.approx(np.sqrt((40 * 30.0**2 + 60 * 40.0**2) / 100))
    assert with_piles(model(gross=0.2), np.full(60, 1.0), 200).broad == 30.0
    assert with_piles(model(gross=0.9), np.full(10_000, 1.0), 200).gross == constants.GROSS_LIMITS[1]


def test_rows_far_noisier_than_rows_differ_otherwise():
    """More than a tenth of them, so that no scale is capped."""
    rng = np.random.default_rng(0)
    noise = model(n1=50, n2=40)
    noise.rows = np.exp(0.3 * rng.standard_normal(50))
    noise.rows[:6] *= 50.0
    np.testing.assert_array_equal(noise.noisy_rows, range(6))
    np.testing.assert_array_equal(noise.capped(np.ones(40)).rows, noise.rows)


def test_the_mass_between_bounds_is_the_integral_of_the_density():
    noise, s2, var = model(gross=0.2, heavy=0.6), 0.5, 0.7
    low, high = np.array([-0.5, 1.0, -40.0, 3.0, -np.inf, 5.0]), np.array([0.3, 2.5, 40.0, 200.0, 1.0, np.inf])
    found = np.exp(noise.log_mass(low, high, np.full(6, s2), np.full(6, var)))
    R = np.sinh(np.linspace(-25, 25, 200_001))  # beyond 3e10 the tails hold 1e-10
    density = np.exp(noise.log_density(R, s2, var))
    upto = np.r_[0.0, np.cumsum(np.diff(R) * (density[1:] + density[:-1]) / 2)]
    wanted = [np.diff(np.interp(np.clip(ends, R[0], R[-1]), R, upto))[0] for ends in zip(low, high, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_rows_of_equal_noise_keep_it():
    lines = (np.c_[np.logspace(1, 3, n), np.full(n, 100.0)] for n in (4, 5))
    sums, noise = Sums(*lines, np.zeros(7)), model(equal_rows=True)
    noise.learn_scales(sums, 0)
    assert (noise.rows == 1).all() and noise.s == 1.0
    noise.learn_scales(sums, 1)
    assert np.ptp(np.log(noise.cols)) > 1
