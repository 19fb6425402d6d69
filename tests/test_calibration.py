"""P(gross error) of a residual: right in size under several kinds of noise, and a rule for what to report."""

import numpy as np
import pytest
from scipy import stats

from irpca import constants
from irpca.model.calibration import Calibration, _bins, _misfit, _probabilities, _shapes, _tables, discoveries

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
    assert calibration.limit == np.inf and calibration.share == calibration.scale == calibration.sd == 0
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


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_discoveries_are_the_largest_set_within_the_rate(kind):
    made = np.asarray if kind == "array" else pytest.importorskip("torch").as_tensor
    P, same = made(np.array([0.2, 0.99, 0.93, np.nan, 0.9, 0.5])), made(np.ones(6))
    for fdr, expected in ((0.0, []), (0.01, [1]), (0.04, [1, 2]), (0.06, [1, 2, 4]), (0.17, [1, 2, 4, 5])):
        np.testing.assert_array_equal(np.flatnonzero(discoveries(P, fdr + 1e-12, same)), expected)
    assert discoveries(P, 1.0, same).sum() == 5  # not what is NaN
    assert discoveries(P[:0], 0.05, same[:0]).shape == (0,)
    P, sizes = made(np.array([0.9, 0.9, 0.9, 1.0])), made(np.array([3.0, -5.0, 4.0, 9.0]))
    assert discoveries(P, 0.051, sizes).tolist() == [False, True, False, True]  # of equal ones the larger is first


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


# Its parts, against what they mean


def test_beyond_all_that_was_seen_the_heaviest_tail_decides():
    """A clean entry k times the largest is rarer by k to the power of the fewest degrees of freedom, 1.5."""
    calibration = Calibration(mixed("Gaussian", 0.0)[0])
    largest = calibration.edges[-1]
    tail = stats.t(1 / constants.STUDENT_TAILS[1]).sf
    for k in (1.6, 3.0, 100.0):
        rarer = tail(1e6 * k) / tail(1e6)
        assert calibration._unseen(np.array([k * largest]))[0] == pytest.approx(1 / (1 + rarer), rel=1e-3)
        assert calibration([k * largest])[0] >= 1 / (1 + rarer) - 1e-3
    assert not calibration._unseen(largest * np.array([0.0, 0.5, 1.0, 1.45])).any()


def test_shapes_of_noise():
    """In the unit in which Gaussian noise has the variance 1 / 2."""
    x, shapes = np.linspace(0.01, 3, 50), iter(_shapes())
    for p in np.geomspace(*constants.POWER_EXPONENTS):
        np.testing.assert_allclose(next(shapes)(x), 2 * stats.gennorm(p).sf(x), rtol=1e-9)
    for t in np.linspace(*constants.STUDENT_TAILS):
        np.testing.assert_allclose(next(shapes)(x), 2 * stats.t(1 / t).sf(np.sqrt(2) * x), rtol=1e-9)
    rng = np.random.default_rng(0)
    for s in np.linspace(*constants.LOG_NORMAL_SPREADS):
        size = np.abs(rng.standard_normal(50_000) * np.exp(s * rng.standard_normal(50_000))) / np.sqrt(2)
        np.testing.assert_allclose(next(shapes)(x[::10]), [(size > one).mean() for one in x[::10]], atol=0.01)
    assert next(shapes, None) is None


def test_tables_are_in_units_of_the_median():
    grid, table = _tables()
    steps = constants.STEPS_PER_DOUBLING
    assert grid[1] - grid[0] == pytest.approx(1 / steps)
    assert (grid[0], grid[-1]) == constants.TABLE_RANGE
    for row, survival in zip(table, _shapes(), strict=True):
        assert np.interp(0.0, grid, row) == pytest.approx(np.log(0.5), abs=1e-4)
        x = np.exp(np.linspace(-9, 9, 4001))
        median = np.interp(-0.5, -survival(x), x)
        np.testing.assert_allclose(
            np.exp(row[np.searchsorted(grid, 1.0)]), survival(2 * median * np.ones(1))[0], rtol=5e-3
        )


def test_bins_are_an_eighth_of_a_doubling_about_the_clean_median():
    sizes = np.sort(np.abs(np.r_[np.linspace(0, 2, 6001)[1:], np.full(4000, 40.0)]))
    edges, counts, median = _bins(sizes, 0.4)
    assert median == pytest.approx(1.0, rel=1e-3)  # of the 6000; that of all is 5 / 3
    np.testing.assert_allclose(np.diff(np.log2(edges)), 1 / 8)
    assert edges[0] == pytest.approx(median / 8) and counts.sum() == 10_000
    assert edges[-1] >= 40 / 2 ** (1 / 8) and len(counts) == len(edges) + 1
    np.testing.assert_array_equal(counts[:10], np.diff(np.r_[0, np.searchsorted(sizes, edges[:10])]))
    assert _bins(0.1 * sizes, 0.4)[2] == pytest.approx(0.1, rel=1e-3)


def test_bins_of_rounded_sizes_lie_between_the_values():
    sizes = np.sort(np.round(np.abs(np.random.default_rng(0).standard_normal(5000)), 1))
    edges, counts, median = _bins(sizes, 0.0)
    np.testing.assert_allclose(10 * edges % 1, 0.5, atol=1e-6)
    assert median == pytest.approx(0.674, abs=0.05) and counts.sum() == 5000
    zeros = _bins(np.sort(np.r_[np.zeros(4000), 1 + np.random.default_rng(0).random(1000)]), 0.0)
    assert zeros[2] > 0 and zeros[1].sum() == 5000


def test_the_misfit_is_half_the_poisson_deviance():
    counts, expected = np.array([7.0, 3.0, 0.0, 20.0]), np.array([5.0, 5.0, 2.0, 20.0])
    best = stats.poisson.logpmf(counts, np.maximum(counts, 1e-12))
    np.testing.assert_allclose(_misfit(counts, expected), best - stats.poisson.logpmf(counts, expected), atol=1e-6)


def test_probabilities_are_the_share_that_clean_noise_does_not_explain():
    counts, clean = np.array([1000.0, 500.0, 0.0, 100.0, 80.0]), np.array([1010.0, 495.0, 1.0, 25.0, 0.01])
    found = _probabilities(counts, clean)
    np.testing.assert_allclose(found[[0, 3, 4]], [0.0, 0.75, 1.0], atol=2e-3)
    assert (np.diff(found) >= 0).all() and found[1] < 0.01 and found[2] == found[3]


@pytest.mark.parametrize(("counts", "clean"), [(3.0, 1.5), (6.0, 1.0), (40.0, 20.0)])
def test_an_excess_counts_by_the_odds_that_it_is_real(counts, clean):
    """Against one bin of all that has an excess of unknown size: exp(misfit) / (bins · √(1 + counts))."""
    found = _probabilities(np.array([1e4, counts]), np.array([1e4, clean]))[1]
    odds = np.exp(_misfit(np.array([counts]), np.array([clean]))[0]) / 2 / np.sqrt(1 + counts)
    assert found == pytest.approx((1 - clean / counts) * odds / (1 + odds))


def test_the_size_at_which_a_probability_is_passed():
    calibration = Calibration(mixed("Gaussian", 0.1)[0])
    for probability in (0.1, 0.5, 0.9):
        size = calibration.size_at(probability)
        assert calibration([0.999 * size])[0] <= probability < calibration([1.001 * size])[0]
    assert calibration.size_at(1.0) == np.inf and calibration.limit == calibration.size_at(0.5)
    assert calibration.counts.sum() == N and calibration.clean.sum() == pytest.approx(0.9 * N, rel=0.01)


def test_many_gross_errors_need_a_first_estimate_of_their_share():
    z, wrong = mixed("Gaussian", 0.6)
    found = Calibration(z, 0.6)
    assert found.share == pytest.approx(wrong.mean(), abs=0.01)
    assert found.scale == pytest.approx(1.0, rel=0.03) and found.sd == pytest.approx(1.0, rel=0.03)
