"""P(gross error) of a residual: right in size under several kinds of noise, and a rule for what to report."""

import numpy as np
import pytest
from scipy import stats

from irpca import constants
from irpca.model.calibration import Calibration, discoveries

N = 40_000
NOISE = {
    "Gaussian": lambda rng, n: rng.standard_normal(n),
    "Laplace": lambda rng, n: rng.laplace(size=n),
    "Student 5": lambda rng, n: rng.standard_t(5, n),
    "uniform": lambda rng, n: rng.uniform(-1, 1, n),
    "gamma": lambda rng, n: rng.gamma(2, size=n) - 1.68,
    "unequal": lambda rng, n: rng.standard_normal(n) * np.exp(0.5 * rng.standard_normal(n)),
}


def mixed(kind, share, seed=1, n=N):
    """Residuals of which a share is wrong, by 8 to 20 clean standard deviations."""
    rng = np.random.default_rng(seed)
    z = NOISE[kind](rng, n)
    wrong = rng.random(n) < share
    z[wrong] += rng.choice([-1, 1], wrong.sum()) * rng.uniform(8, 20, wrong.sum()) * z.std()
    return z, wrong


def test_where_nothing_was_seen_the_nearer_is_the_cleaner():
    """A new residual near the largest clean one, 3.9, may be clean, whatever is far beyond."""
    z = np.random.default_rng(0).standard_normal(700)
    z[0] = 2000.0
    calibration = Calibration(z, fence=2.7)
    P = calibration([2.8, 3.4, 4.0, 5.0, 8.0, 2000.0])
    assert P[1] < 0.2 < P[2] < 0.8 < P[3] and (np.diff(P) > 0).all() and P[4] > 0.99


@pytest.mark.parametrize(("kind", "share"), [*zip(NOISE, (0.01, 0.1, 0.3, 0.01, 0.1, 0.1), strict=True)])
def test_the_share_of_gross_errors(kind, share):
    z, wrong = mixed(kind, share)
    calibration = Calibration(z)
    assert calibration.share == pytest.approx(wrong.mean(), abs=0.004)
    P = calibration(z)
    assert P[wrong].mean() > 0.95 and P[~wrong].mean() < 0.005
    low, high = calibration.limits_at(0.5)
    np.testing.assert_array_equal((z < low) | (z > high), P > 0.5)
    assert calibration.limit == min(-low, high)


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


@pytest.mark.parametrize("z", [np.zeros(0), np.zeros(100), np.full(10, np.nan)])
def test_of_nothing_nothing_is_wrong(z):
    calibration = Calibration(z)
    assert calibration.limit == np.inf and calibration.share == calibration.scale == calibration.sd == 0
    np.testing.assert_array_equal(calibration([0.0, 1e9, np.nan]), [0.0, 0.0, np.nan])


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


def test_beyond_all_that_was_seen_the_heaviest_tail_decides():
    """A clean entry k times the largest is rarer by k to the power of the fewest degrees of freedom, 1.5."""
    calibration = Calibration(mixed("Gaussian", 0.0)[0])
    largest = calibration.edges[-1]
    tail = stats.t(1 / constants.STUDENT_TAILS[1]).sf
    for k in (1.6, 3.0, 100.0):
        rarer = tail(1e6 * k) / tail(1e6)
        assert calibration([k * largest])[0] >= 1 / (1 + rarer) - 1e-3


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


def test_within_the_fence_nothing_is_wrong_and_beyond_it_all_that_was():
    """Bins end at 2^13 medians: where all but one residual are tiny, that one is beyond the last of them."""
    z = mixed("Gaussian", 0.1)[0]
    plain, fenced = Calibration(z), Calibration(z, 0.0, 11.0)
    assert plain.limit < 8 and (fenced(np.linspace(0, 10, 99)) == 0).all()
    np.testing.assert_array_equal(fenced([15.0, 20.0]), plain([15.0, 20.0]))
    tiny = np.r_[1e-7 * NOISE["Gaussian"](np.random.default_rng(0), 400), 1e5]
    assert Calibration(tiny, 0.0, 2.7).limit < 1e5


# The tail of clean residuals, by which cells that stand for intervals are judged


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_the_share_of_clean_residuals_beyond_a_size(share):
    calibration = Calibration(mixed("Gaussian", share, n=1_000_000)[0])
    sizes = np.array([0.1, 0.5, 1.0, 2.0, 3.0])
    np.testing.assert_allclose(calibration.below(-sizes), stats.norm.sf(sizes), rtol=0.1)
    np.testing.assert_allclose(calibration.below(sizes), 1 - calibration.below(-sizes), rtol=0, atol=1e-15)
    every = -np.r_[0.0, np.geomspace(1e-3, 1e4 * calibration.edges[-1], 2000)]
    found = calibration.below(every)
    assert found[0] == pytest.approx(0.5, abs=1e-9) and (np.diff(found) <= 1e-15).all() and found[-1] > 0
    assert (np.diff(found[every < calibration.edges[0]]) < 0).all()
    np.testing.assert_array_equal(Calibration(np.zeros(0)).below(np.array([-1.0, 1.0])), [0.0, 1.0])


@pytest.mark.parametrize("kind", ["Gaussian", "gamma"])
def test_the_size_of_a_tail_is_a_lower_bound(kind):
    calibration = Calibration(mixed(kind, 0.1)[0])
    for share in (1e-11, 1e-4, 0.01, 0.3, 0.499, 0.5):
        size = calibration.size_of_tail(share)
        tails = [min(calibration.below(-z), 1 - calibration.below(z)) for z in np.array([0.999, 1.1]) * size]
        assert tails[0] >= share or size == 0
        assert tails[1] < share or share < 1e-10 or size < 0.02
    assert Calibration(np.zeros(0)).size_of_tail(0.1) == 0


@pytest.mark.parametrize("sign", [1, -1])
def test_skewed_noise_is_judged_on_either_side_by_itself(sign):
    """A long tail on one side is noise; as large a residual on the other side is a gross error."""
    z, wrong = mixed("gamma", 0.05)
    calibration = Calibration(sign * z)
    low, high = sorted(sign * np.array(calibration.limits_at(0.5)))
    assert calibration.skewed and -low < 2 / 3 * high
    listed = discoveries(calibration(sign * z), 0.05, z)
    assert (listed & ~wrong).sum() < 0.08 * listed.sum() and (listed & wrong).sum() > 0.9 * wrong.sum()
    assert not Calibration(mixed("Laplace", 0.1)[0]).skewed
