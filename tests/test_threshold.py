"""The threshold rules: formulas against numerical integration, estimates against what was planted."""

from itertools import islice, pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from irpca.features import Features
from irpca.threshold import (
    LAGGING,
    consensus,
    core_scale,
    coverage,
    efficient_cut,
    has_core,
    has_valley,
    level,
    paper_schedule,
    paper_start,
    rounding_floor,
    stray_lines,
    truncated_variance,
    valley,
)

N = 1 << 15  # as many as a Judge looks at
MOST = float(np.sqrt(2 * np.log(1e6)))


def residuals(corruption, sigma=1.0, nearest=8.0, farthest=50.0, n=N, seed=0):
    """Sizes of Gaussian noise, some of it replaced by outliers of ``nearest`` to ``farthest`` σ; sorted."""
    rng = np.random.default_rng(seed)
    r = rng.standard_normal(n)
    bad = round(corruption * n)
    r[:bad] = rng.uniform(nearest, farthest, bad) * rng.choice([-1, 1], bad)
    return np.sort(np.abs(sigma * r))


def exact_residuals(corruption, lagging=0.0, n=10_000):
    """Rounding of 1e-16, outliers of 1 to 2, and a share of the clean entries that still are at 1e-8; sorted."""
    rng = np.random.default_rng(0)
    sizes = 1e-16 * rng.random(n)
    bad = round(corruption * n)
    late = round(lagging * (n - bad))
    sizes[:bad] += rng.uniform(1, 2, bad)
    sizes[bad : bad + late] += rng.uniform(0.5e-8, 1e-8, late)
    return np.sort(sizes)


# The paper's rules


def test_paper_start_is_the_formula_of_algorithm_1():
    rng = np.random.default_rng(0)
    F1, F2 = rng.standard_normal((40, 3)), 10 * rng.standard_normal((70, 5))
    mu, sigma = [], []
    for F in (F1, F2):
        n, d = F.shape
        projector = F @ np.linalg.pinv(F)
        mu.append(np.sqrt(projector.diagonal().max() * n / d))
        sigma.append(np.linalg.norm(F, 2))
    expected = mu[0] * mu[1] * sigma[0] * sigma[1] * np.sqrt(3 * 5 / (40 * 70)) * 0.7
    assert paper_start(Features.of(F1, 40), Features.of(F2, 70), 0.7) == pytest.approx(expected, rel=1e-12)


def test_paper_start_bounds_the_entries_of_L():
    rng = np.random.default_rng(1)
    F1, F2, W = (rng.standard_normal(shape) for shape in [(40, 3), (70, 5), (3, 5)])
    bound = paper_start(Features.of(F1, 40), Features.of(F2, 70), np.linalg.norm(W, 2))
    assert np.abs(F1 @ W @ F2.T).max() <= bound
    # Flat features and one direction meet it with equality.
    flat = Features.of(np.ones((9, 1)), 9)
    assert paper_start(flat, flat, 2.5) == pytest.approx(2.5, rel=1e-12)


@pytest.mark.parametrize("decay", [5.0, 2.0])
def test_paper_schedule_falls_to_nu(decay):
    zetas = list(islice(paper_schedule(3.0, 0.25, decay), 30))
    np.testing.assert_allclose(zetas, [3.0 / decay**t + 0.25 for t in range(30)], rtol=1e-12, atol=0)
    assert next(paper_schedule(3.0, 0.25)) == 3.25


def test_paper_schedule_falls_by_five_unless_told():
    assert [a / b for a, b in pairwise(islice(paper_schedule(1.0, 0.0), 4))] == pytest.approx([5, 5, 5], rel=1e-12)


@pytest.mark.parametrize("dtype, eps", [(np.float64, 2.0**-52), (np.float32, 2.0**-23)])
def test_rounding_floor_follows_precision_and_size(dtype, eps):
    assert rounding_floor(np.dtype(dtype), 3.0) == 64 * eps * 3.0
    assert rounding_floor(np.dtype(dtype), 0.0) == 0.0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rounding_stays_below_the_floor(dtype):
    rng = np.random.default_rng(0)
    U, V = rng.standard_normal((200, 20)), rng.standard_normal((300, 20))
    L = U @ V.T
    rounding = np.abs(U.astype(dtype) @ V.astype(dtype).T - L)
    assert rounding.max() < rounding_floor(np.dtype(dtype), np.abs(L).max())


# The Gaussian core


@pytest.mark.parametrize("c", [0.5, 1.0, 2.0, 3.5])
def test_coverage_and_truncated_variance_are_integrals(c):
    share, _ = integrate.quad(stats.norm.pdf, -c, c, epsabs=1e-13)
    square, _ = integrate.quad(lambda x: x * x * stats.norm.pdf(x), -c, c, epsabs=1e-13)
    assert coverage(c) == pytest.approx(share, rel=1e-10)
    assert truncated_variance(c) == pytest.approx(square / share, rel=1e-10)


@pytest.mark.parametrize("corruption", [0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("seed", range(5))
def test_core_scale_finds_noise_and_clean_share_at_once(corruption, seed):
    sigma, clean = core_scale(residuals(corruption, sigma=0.3, seed=seed))
    assert sigma == pytest.approx(0.3, rel=0.03 if corruption < 0.75 else 0.06)
    assert clean == pytest.approx(1 - corruption, rel=0.02)


def test_core_scale_is_accurate_with_many_entries():
    sigma, clean = core_scale(residuals(0.6, n=1 << 20))
    assert sigma == pytest.approx(1.0, rel=0.005)
    assert clean == pytest.approx(0.4, rel=0.002)


@pytest.mark.parametrize("corruption", [0.3, 0.9])
def test_core_scale_does_not_mind_where_outliers_are(corruption):
    near, far = (core_scale(residuals(corruption, nearest=8, farthest=top)) for top in (10, 1e9))
    assert near == far


def test_core_scale_starts_from_below_and_finds_the_inner_of_two_crowds():
    rng = np.random.default_rng(0)
    inner, outer = rng.standard_normal(2_000), 100 * rng.standard_normal(18_000)
    sigma, clean = core_scale(np.sort(np.abs(np.concatenate([inner, outer]))))
    # 1.6 % of the outer crowd lie within ±2 of zero, a seventh of the inner one.
    assert sigma == pytest.approx(1.1, abs=0.1)
    assert clean == pytest.approx(0.1 + 0.9 * 0.016, rel=0.15)


def test_core_scale_of_exact_residuals_is_zero():
    assert core_scale(np.sort(np.r_[np.zeros(800), np.ones(200)]))[0] == 0.0


@pytest.mark.parametrize("n", [400, 1000])
@pytest.mark.parametrize("corruption", [0.0, 0.5])
def test_core_scale_is_not_caught_by_a_chance_crowd_of_few_entries(corruption, n):
    sigmas = [core_scale(residuals(corruption, n=n, seed=seed))[0] for seed in range(100)]
    assert min(sigmas) > 0.6 and max(sigmas) < 1.4


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_core_scale_of_few_entries_is_a_number_of_their_size(n):
    sizes = np.sort(np.abs(np.random.default_rng(n).standard_normal(n)))
    sigma, clean = core_scale(sizes)
    assert 0.3 * sizes[0] < sigma < 3 * sizes[-1]
    assert 0 <= clean <= 1 / coverage(2.0)


# level(): noise, clean share and threshold


@pytest.mark.parametrize("corruption", [0.0, 0.3, 0.9])
def test_level_of_an_exact_fit(corruption):
    found = level(exact_residuals(corruption), floor=1e-14, near=1e-5)
    assert found.exact and found.sigma == 0.0
    assert found.clean == pytest.approx(1 - corruption, abs=1e-12)
    assert found.zeta == found.floor == 1e-14


@pytest.mark.parametrize("lagging, exact", [(0.5 * LAGGING, True), (2 * LAGGING, False), (0.2, False)])
def test_level_waits_for_entries_that_lag_behind_an_exact_fit(lagging, exact):
    sizes = exact_residuals(0.3, lagging)
    close = sizes[sizes < 1e-5]
    found = level(sizes, floor=1e-14, near=1e-5)
    assert found.exact == exact
    if exact:  # beyond nearly all clean entries, and far below the gross errors
        assert found.zeta == max(1e-14, 8 * np.quantile(close, 0.999)) < 1e-3
        assert found.clean == np.mean(sizes <= found.zeta)
    else:  # keeps all of them, and no gross error
        assert found.zeta == close[-1]
        assert found.sigma == pytest.approx(np.sqrt(np.mean(close**2)), rel=1e-12)
        assert found.clean == pytest.approx(0.7, rel=1e-12)


def test_level_without_near_calls_lagging_entries_corrupted():
    found = level(exact_residuals(0.3, 0.2), floor=1e-14)
    assert found.exact
    assert found.clean == pytest.approx(0.56, rel=1e-12)


@pytest.mark.parametrize("corruption", [0.0, 0.3, 0.6, 0.9])
def test_level_with_noise_keeps_the_clean_and_flags_the_rest(corruption):
    sizes = residuals(corruption, sigma=2.0)
    found = level(sizes, floor=1e-12, most=MOST)
    assert not found.exact
    assert found.sigma == pytest.approx(2.0, rel=0.06)
    assert found.clean == pytest.approx(1 - corruption, rel=0.02)
    assert 2.9 < found.zeta / 2.0 < 8
    bad = round(corruption * N)
    assert bad <= np.count_nonzero(sizes > found.zeta) <= bad + 0.004 * (N - bad)


def test_level_takes_any_order():
    sizes = residuals(0.3)
    assert level(np.random.default_rng(0).permutation(sizes), 1e-12) == level(sizes, 1e-12)


def test_level_never_reports_more_than_all_entries_clean():
    clean = [level(residuals(0.0, n=2000, seed=seed), 1e-12).clean for seed in range(20)]
    assert max(clean) == 1.0
    assert min(clean) > 0.95


def test_level_is_never_below_rounding():
    sizes = residuals(0.0)
    assert level(sizes, floor=7.0).zeta == 7.0  # σ is above an eighth of it, 3σ below
    assert not level(sizes, floor=7.0).exact
    assert level(sizes, floor=9.0).exact


def test_level_with_noise_given():
    sizes = residuals(0.4)
    found = level(sizes, 1e-12, noise=1.0, most=MOST)
    assert found.sigma == 1.0
    assert found.clean == pytest.approx(0.6, rel=0.02)
    assert found.zeta == efficient_cut(sizes, 1.0, MOST)
    halved = level(sizes, 1e-12, noise=0.5, most=MOST)
    assert halved.sigma == 0.5
    assert halved.clean == pytest.approx(0.6 * coverage(1.0) / coverage(2.0), rel=0.03)
    assert halved.zeta <= MOST * 0.5 + 0.0625


def test_level_with_no_noise_given_as_zero_is_exact():
    found = level(residuals(0.4), 1e-12, noise=0.0)
    assert found.exact
    assert found.zeta == 1e-12


def test_level_of_the_majority_is_the_median():
    sizes = np.sort(np.abs(np.random.default_rng(0).standard_t(2, N)))
    found = level(sizes, 1e-12, most=5.0, majority=True)
    sigma = np.median(sizes) / stats.norm.ppf(0.75)
    assert found.sigma == pytest.approx(sigma, rel=1e-4)
    assert found.zeta == pytest.approx(5 * sigma, rel=1e-4)
    assert found.clean == pytest.approx(np.mean(sizes <= 5 * sigma), abs=1e-3)


def test_level_of_the_majority_can_be_exact():
    found = level(exact_residuals(0.4), 1e-14, majority=True)
    assert found.exact and found.zeta == 1e-14
    assert found.clean == pytest.approx(0.6, rel=1e-12)
    assert not level(exact_residuals(0.6), 1e-14, majority=True).exact


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize(
    "sizes, options",
    [
        (residuals(0.3), {}),
        (residuals(0.9), {}),
        (residuals(0.3), {"noise": 0.9}),
        (residuals(0.3), {"majority": True}),
        (exact_residuals(0.3), {"near": 1e-5}),
        (exact_residuals(0.3, 0.2), {"near": 1e-5}),
    ],
    ids=["core", "deep core", "noise given", "majority", "exact", "lagging"],
)
def test_level_moves_with_the_scale(sizes, options, scale):
    floor = 1e-14
    found = level(sizes, floor, **options)
    scaled = {k: v if k == "majority" else scale * v for k, v in options.items()}
    moved = level(scale * sizes, scale * floor, **scaled)
    assert moved.clean == pytest.approx(found.clean, rel=1e-9)
    for name in ("sigma", "zeta", "floor"):
        assert getattr(moved, name) == pytest.approx(scale * getattr(found, name), rel=1e-9)


# The most accurate cut


def trimming_variance(w, corruption, nearest, farthest):
    """E[r²; |r| <= w] / (P(|r| <= w) − w f(w))² of the mixture that ``residuals`` draws from, by integration."""
    clean, spread = 1 - corruption, farthest - nearest
    reach = np.clip(w, nearest, farthest)
    square = clean * coverage(w) * truncated_variance(w) + corruption * (reach**3 - nearest**3) / (3 * spread)
    inside = clean * coverage(w) + corruption * (reach - nearest) / spread
    density = clean * 2 * stats.norm.pdf(w) + corruption * (nearest <= w <= farthest) / spread
    return square / (inside - w * density) ** 2


@pytest.mark.parametrize("nearest, farthest", [(3, 6), (4, 9), (4, 30), (8, 50)])
@pytest.mark.parametrize("corruption", [0.05, 0.3, 0.6])
def test_efficient_cut_is_as_accurate_as_the_best(corruption, nearest, farthest):
    best = min(trimming_variance(w, corruption, nearest, farthest) for w in np.arange(2, 5.3, 0.01))
    for seed in range(3):
        cut = efficient_cut(residuals(corruption, 1.0, nearest, farthest, n=1 << 17, seed=seed), 1.0, MOST)
        assert trimming_variance(cut, corruption, nearest, farthest) <= 1.03 * best


def test_efficient_cut_falls_as_outliers_come_close():
    cuts = [efficient_cut(residuals(0.5, 1.0, nearest, 20, n=1 << 18), 1.0, MOST) for nearest in (2.5, 3.5, 8)]
    assert cuts == sorted(cuts)
    assert cuts[0] <= 2.75
    assert cuts[-1] >= 5


def test_efficient_cut_takes_the_highest_among_equals():
    gap = np.sort(np.r_[np.linspace(0, 1.5, 1000), np.full(10, 100.0)])  # anything from 2 to 99 keeps the same
    assert efficient_cut(gap, 1.0, 5.0) == 5.0
    assert efficient_cut(gap, 1.0, 3.0) == 3.0


def test_efficient_cut_works_where_nothing_is_small():
    assert 2.0 <= efficient_cut(np.full(100, 50.0), 1.0, 5.0) <= 5.0


def test_efficient_cut_has_room_even_if_little_is_expected():
    assert efficient_cut(np.linspace(0, 1.5, 1000), 1.0, most=0.5) == 2.5


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_efficient_cut_does_not_mind_the_scale(scale):
    sizes = residuals(0.5, nearest=4, farthest=10)
    assert efficient_cut(scale * sizes, scale, MOST) == efficient_cut(sizes, 1.0, MOST)


# Two crowds, one crowd, no crowd

ONE_CROWD = {
    "Gaussian": stats.norm(),
    "Laplace": stats.laplace(),
    "Student t3": stats.t(3),
    "Cauchy": stats.cauchy(),
}


@pytest.mark.parametrize("n", [1 << 13, N])
@pytest.mark.parametrize("kind", ONE_CROWD)
def test_one_crowd_has_no_valley_however_long_its_tail(kind, n):
    for seed in range(10):
        assert not has_valley(np.abs(ONE_CROWD[kind].rvs(n, random_state=seed)), 1e-12)


@pytest.mark.parametrize("nearest", [4, 8, 100])
@pytest.mark.parametrize("corruption", [0.02, 0.3, 0.6, 0.95])
def test_two_crowds_have_a_valley(corruption, nearest):
    for seed in range(3):
        assert has_valley(residuals(corruption, 1.0, nearest, 3 * nearest, seed=seed), 1e-12)


@pytest.mark.parametrize("corruption", [0.02, 0.5, 0.95])
def test_an_exact_fit_with_outliers_has_a_valley(corruption):
    assert has_valley(exact_residuals(corruption), 1e-14)


@pytest.mark.parametrize("sizes", [np.zeros(1000), np.ones(1000), 1e-20 * np.arange(1000.0), np.ones(1)])
def test_equal_sizes_have_no_valley(sizes):
    assert not has_valley(sizes, 1e-12)


@pytest.mark.parametrize("few, crowd", [(50, False), (1000, True)])
def test_a_handful_at_rounding_is_no_crowd(few, crowd):
    """A few zeros among the residuals say nothing about what is clean."""
    rest = np.abs(np.random.default_rng(0).standard_normal(20_000))
    assert has_valley(np.r_[np.zeros(few), rest], 1e-14) == crowd


@pytest.mark.parametrize("apart, valley", [(2.5, False), (4.0, True)])
def test_a_dip_is_no_valley_however_sure(apart, valley):
    """Between two equal Gaussians on the log scale, 2.5 σ apart, the density falls by an eighth only."""
    rng = np.random.default_rng(0)
    logs = rng.standard_normal(1 << 20) + apart * (rng.random(1 << 20) < 0.5)
    assert has_valley(np.exp(logs), 1e-14) == valley


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_a_valley_does_not_mind_the_scale(scale):
    for sizes, floor in [(residuals(0.05, 1.0, 4, 12), 1e-12), (np.abs(stats.t(3).rvs(N, random_state=0)), 1e-12)]:
        assert has_valley(scale * sizes, scale * floor) == has_valley(sizes, floor)


@pytest.mark.parametrize("kind", ONE_CROWD)
def test_noise_has_a_core(kind):
    sizes = np.sort(np.abs(ONE_CROWD[kind].rvs(N, random_state=0)))
    assert has_core(sizes, core_scale(sizes)[0])


@pytest.mark.parametrize("corruption", [0.3, 0.9])
def test_noise_has_a_core_beside_outliers(corruption):
    sizes = residuals(corruption)
    assert has_core(sizes, core_scale(sizes)[0])


def test_hollow_residuals_have_no_core():
    sizes = np.random.default_rng(0).uniform(1, 2, N)
    assert not has_core(sizes, core_scale(np.sort(sizes))[0])


def test_flat_residuals_are_those_of_rounded_values_and_have_one():
    sizes = np.random.default_rng(0).uniform(0, 1, N)
    assert has_core(sizes, core_scale(np.sort(sizes))[0])


def test_residuals_that_thin_out_towards_zero_have_no_core():
    sizes = np.random.default_rng(0).random(N) ** 0.75
    assert not has_core(sizes, core_scale(np.sort(sizes))[0])


# Consensus


def test_consensus_is_the_mean_log():
    assert consensus(np.array([1e-20, 1.0, np.e]), 1e-10) == pytest.approx((np.log(1e-10) + 1) / 3, rel=1e-12)
    assert np.isfinite(consensus(np.zeros(3), 0.0))


def test_consensus_prefers_an_exact_fit_to_part_over_a_middling_fit_to_all():
    exact_for_some = np.r_[np.full(30, 1e-15), np.full(70, 10.0)]
    assert consensus(exact_for_some, 1e-14) < consensus(np.full(100, 0.1), 1e-14)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_consensus_moves_by_the_log_of_the_scale(scale):
    sizes = residuals(0.3)
    moved = consensus(scale * sizes, scale * 1e-12) - consensus(sizes, 1e-12)
    assert moved == pytest.approx(np.log(scale), rel=1e-12)


# Crowds of their own


def test_a_dead_sensor_is_no_core():
    """Two per cent of zeros must not make all others seem far out."""
    rng = np.random.default_rng(0)
    sizes = np.sort(np.abs(np.where(np.arange(50_000) % 50 == 0, 1e-9, rng.standard_normal(50_000))))
    sigma, clean = core_scale(sizes)
    assert sigma == pytest.approx(1, abs=0.05) and clean > 0.9


def test_five_clean_entries_of_a_hundred_are_a_core():
    rng = np.random.default_rng(0)
    n, few = 50_000, rng.random(50_000) < 0.05
    sizes = np.sort(np.abs(np.where(few, rng.standard_normal(n), rng.uniform(20, 300, n))))
    sigma, clean = core_scale(sizes)
    assert sigma == pytest.approx(1, abs=0.1) and clean == pytest.approx(0.05, abs=0.005)


def test_a_valley_is_where_the_crowds_part():
    rng = np.random.default_rng(0)
    noise, errors = np.abs(rng.standard_normal(9000)), rng.uniform(50, 100, 1000)
    assert 4 < valley(np.concatenate([noise, errors]), 0.0) < 50
    assert valley(noise, 0.0) == 0.0
    far = rng.uniform(5000, 6000, 1000)
    assert 4 < valley(np.concatenate([noise, errors, far]), 0.0) < 50  # the first of two


def test_long_tails_before_a_gap_are_noise():
    """Entries that Student's noise has far out stay; without gross errors beyond, there is no telling."""
    rng = np.random.default_rng(0)
    noise, errors = np.abs(rng.standard_t(3, 40_000)), rng.uniform(1000, 2000, 4000)
    found = level(np.concatenate([noise, errors]), 0.0)
    flagged = (noise > found.zeta).mean()
    assert flagged < 0.015 and (errors > found.zeta).all()
    assert (noise > level(noise, 0.0).zeta).mean() > 2 * flagged


def test_lines_of_which_far_less_is_kept_than_of_others_are_stray():
    kept, observed = np.array([90, 80, 30, 4, 1, 0]), np.array([100, 100, 100, 5, 4, 0])
    np.testing.assert_array_equal(stray_lines(kept, observed), [2, 4])  # of what is observed, and none of nothing
