"""Which entries are wrong, how sure that is, and which lines are worse than others: exact values and calibration."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from scipy.stats import binom, false_discovery_control, norm

import irpca
from irpca.outliers import discoveries, score_entries, score_lines

properties = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 2**32 - 1)


def flagged(residuals, zeta, sigma=1.0):
    """S of a matrix of residuals."""
    return csr_array(np.where(np.abs(residuals) > zeta * sigma, residuals, 0.0))


def mixture(seed, shape=(200, 250), share=0.05, spread=5.0, sigma=1.0):
    """Gaussian noise with gross errors that overlap it, and which these are."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(shape) < share
    residuals = sigma * (rng.standard_normal(shape) + wrong * spread * rng.standard_normal(shape))
    return residuals, wrong


# Single entries


def test_exact_values():
    residuals = np.zeros((10, 100))
    residuals[0, :3] = [3.0, -4.0, 5.0]
    entries = score_entries(csr_array(residuals), noise=2.0, zeta=2.0)
    assert_allclose(entries["score"], [1.5, 2.0, 2.5])
    # No more residuals beyond ζ = σ than noise has, far fewer: all of them may be noise.
    assert_array_equal(entries["confidence"], [0, 0, 0])
    assert_array_equal(entries["q_value"], [1, 1, 1])


def test_exact_values_of_few_that_stand_out():
    residuals = np.zeros((10, 100))
    residuals[0, :3] = [4.005, -4.505, 6.005]  # in the middle of bins
    entries = score_entries(csr_array(residuals), noise=1.0, zeta=3.5)
    inside = 1 - 2 * norm.sf(3.5)
    p_values = 2 * norm.sf([4.005, 4.505, 6.005])
    assert_allclose(entries["q_value"], 1000 * min(1, 998 / (1000 * inside)) * p_values / [3, 2, 1])
    # A step of f / f0 begins with the bin of a residual: three of one residual each, and before them what is kept.
    noise = 2 * (norm.sf([4.0, 4.5, 6.0]) - norm.sf([4.5, 6.0, np.inf]))
    kept = 997 / (1 - 2 * norm.sf(4.0))
    assert_allclose(1 - entries["confidence"], kept / (1 / noise), rtol=1e-6)


def test_q_values_are_those_of_benjamini_and_hochberg_over_all_entries():
    residuals, _ = mixture(0)
    p_values = 2 * norm.sf(np.abs(residuals))
    S = flagged(residuals, 3.0)
    everywhere = false_discovery_control(p_values.ravel()).reshape(residuals.shape)
    beyond = np.abs(residuals) > 3.0
    clean = ((~beyond).sum() + 1) / (residuals.size * (1 - 2 * norm.sf(3.0)))
    found = score_entries(S, 1.0, 3.0)["q_value"]
    known = found < found.max()  # from there on, those within ζ would have a say
    assert known.mean() > 0.5
    assert_allclose(found[known], clean * everywhere[beyond][known], rtol=1e-12)


def test_unobserved_entries_count_for_nothing():
    S = csr_array(np.array([[0, 4.0, 0], [0, 0, 5.0]]))
    few, many = score_entries(S, 1.0, 3.5, n_observed=3), score_entries(S, 1.0, 3.5, n_observed=10**6)
    assert_array_equal(score_entries(S, 1.0, 3.5), score_entries(S, 1.0, 3.5, n_observed=6))
    assert (few["confidence"] > many["confidence"]).all() and (few["q_value"] < many["q_value"]).all()
    assert_array_equal(few["score"], many["score"])


@properties
@given(seeds, st.floats(1.5, 6), st.floats(0.001, 0.5), st.floats(1, 1e4), st.sampled_from([1e-6, 1.0, 1e6]))
def test_larger_residuals_are_never_less_sure(seed, zeta, share, spread, sigma):
    residuals, _ = mixture(seed, (40, 50), share, spread, sigma)
    entries = np.sort(score_entries(flagged(residuals, zeta, sigma), sigma, zeta * sigma), order="score")
    assert (np.diff(entries["confidence"]) >= 0).all() and (np.diff(entries["q_value"]) <= 0).all()
    assert ((entries["confidence"] >= 0) & (entries["confidence"] <= 1)).all()
    assert ((entries["q_value"] >= 0) & (entries["q_value"] <= 1)).all()


@properties
@given(seeds, st.sampled_from([2.0**-20, 2.0**10]))
def test_the_unit_of_M_and_its_orientation_do_not_matter(seed, scale):
    S = flagged(mixture(seed, (30, 40))[0], 2.5)
    entries = score_entries(S, 1.0, 2.5)
    assert_array_equal(score_entries(scale * S, scale, 2.5 * scale), entries)
    assert_array_equal(score_entries(csr_array(S.T), 1.0, 2.5), entries[np.argsort(S.indices, kind="stable")])
    columns, rows = score_lines(csr_array(S.T), 1, 1.0, 2.5), score_lines(S, 0, 1.0, 2.5)
    for name in rows.dtype.names:
        assert_array_equal(columns[name], rows[name])


def test_confidence_is_calibrated():
    """Of the entries of confidence 0.9, nine in ten are gross errors, and so on for others."""
    confidence, truth = [], []
    for seed in range(20):
        residuals, wrong = mixture(seed, (200, 500), share=0.05, spread=5.0)
        S = flagged(residuals, 3.0)
        confidence.append(score_entries(S, 1.0, 3.0)["confidence"])
        truth.append(wrong[np.abs(residuals) > 3.0])
    confidence, truth = np.concatenate(confidence), np.concatenate(truth)
    for low, high in [(0.4, 0.6), (0.6, 0.8), (0.85, 0.95), (0.95, 0.99), (0.99, 1.01)]:
        chosen = (low <= confidence) & (confidence < high)
        assert chosen.sum() > 1000
        # Three standard errors of a share of so many, and 0.02 for the estimate of the densities.
        allowed = 3 * np.sqrt(high * max(1 - high, 0.01) / chosen.sum()) + 0.02
        assert abs(truth[chosen].mean() - confidence[chosen].mean()) < allowed
    assert (confidence > 0.99).mean() > 0.5  # and most of them are sure


@pytest.mark.parametrize(("share", "spread", "zeta"), [(0.05, 5.0, 2.5), (0.02, 4.0, 2.0), (0.3, 6.0, 2.0)])
def test_false_discoveries_are_as_rare_as_promised(share, spread, zeta):
    target, wrongly, found = 0.05, [], []
    for seed in range(60):
        residuals, wrong = mixture(seed, (100, 100), share, spread)
        truth = wrong[np.abs(residuals) > zeta]
        chosen = discoveries(score_entries(flagged(residuals, zeta), 1.0, zeta), target)
        wrongly.append((chosen & ~truth).sum() / max(chosen.sum(), 1))
        found.append((chosen & truth).sum() / wrong.sum())
    error = np.std(wrongly) / np.sqrt(len(wrongly))
    assert np.mean(wrongly) < target + 3 * error
    assert np.mean(wrongly) > 0.5 * target  # not bought by finding little
    assert np.mean(found) > 0.35


def test_without_gross_errors_any_discovery_is_rare():
    runs, target = 400, 0.05
    alarms = 0
    for seed in range(runs):
        S = flagged(np.random.default_rng(seed).standard_normal((100, 100)), 2.5)
        alarms += discoveries(score_entries(S, 1.0, 2.5), target).any()
    assert alarms / runs < target + 3 * np.sqrt(target * (1 - target) / runs)


def test_nothing_flagged():
    S = csr_array((4, 5))
    for noise in (1.0, 0.0, None):
        assert len(score_entries(S, noise, 3.0)) == 0
        lines = score_lines(S, 0, noise, 3.0)
        assert_array_equal(lines["position"], range(4))
        assert not lines["broken"].any() and not lines["score"].any() and not lines["share"].any()
        assert np.isnan(lines["mean_size"]).all()
    assert len(discoveries(score_entries(S, 1.0, np.inf))) == 0


def test_an_exact_fit():
    S = csr_array(np.array([[0, 3e-9, 0], [2.0, 0, -1e-3]]))
    entries = score_entries(S, noise=0.0, zeta=1e-9)
    assert_allclose(entries["score"], [3, 2e9, 1e6])
    assert_array_equal(entries["confidence"], 1)
    assert discoveries(entries, 1e-6).all()
    assert np.isfinite(score_entries(S, 0.0, 0.0)["score"]).all()


def test_unknown_noise():
    entries = score_entries(csr_array(np.array([[0, 3.0, 0], [12.0, 0, -6.0]])), noise=None, zeta=2.0)
    assert_allclose(entries["score"], [1.5, 6, 3])
    assert np.isnan(entries["confidence"]).all() and np.isnan(entries["q_value"]).all()
    with pytest.raises(ValueError, match=r"fdr needs to know the noise, .*use solver='irpca', or choose by score"):
        discoveries(entries)


def test_gross_errors_of_any_size_stay_finite_and_in_order():
    S = csr_array(np.array([[6.0, 50.0, 1e5, 1e300]]))
    for zeta in (5.0, 40.0):
        above = csr_array(np.where(S.toarray() > zeta, S.toarray(), 0))
        entries = score_entries(above, 1.0, zeta, n_observed=10**8)
        assert (np.diff(entries["score"]) > 0).all()
        assert np.isfinite(entries["confidence"]).all() and (entries["confidence"][1:] == 1).all()


def test_single_precision_is_scored_in_double():
    S = flagged(mixture(0, (50, 60))[0].astype(np.float32), 3.0).astype(np.float32)
    assert S.dtype == np.float32
    assert score_entries(S, 1.0, 3.0)["score"].dtype == score_lines(S, 1, 1.0, 3.0)["mean_size"].dtype == float


# Lines


def test_exact_values_of_lines():
    residuals = np.zeros((40, 20))
    residuals[:, 3] = 8.0  # one gross error in each row, so that no row differs by more than chance
    residuals[5, 10:] = [-4.0, -6.0] * 5
    lines = score_lines(csr_array(residuals), axis=0, noise=2.0, zeta=3.0)
    first = lines[0]
    usual = (39 + 0.5) / (39 * 20 + 1)
    assert (first["position"], first["observed"], first["flagged"], first["share"]) == (5, 20, 11, 0.55)
    assert_allclose(lines["expected"], usual)
    assert_allclose(first["score"], -binom.logsf(10, 20, usual) / np.log(10))
    assert_allclose(first["q_value"], 40 * binom.sf(10, 20, usual))
    assert_allclose([first["mean_size"], first["mean_signed"]], [(4 + 50 / 2) / 11, (4 - 50 / 2) / 11])
    assert_array_equal(lines["broken"], [True] + [False] * 39)
    assert_array_equal(lines["position"][1:], [i for i in range(40) if i != 5])  # ties in their own order
    assert_allclose(lines["score"][1:], -binom.logsf(0, 20, usual) / np.log(10))


def test_a_dead_sensor_a_drifting_one_and_an_attacker_come_first():
    problem = irpca.datasets.make_problem(300, 80, 6, 5, rank=2, corruption=0.05, features="conditioned")
    rng = np.random.default_rng(0)
    size = np.std(problem.L)
    M = problem.M + 0.02 * size * rng.standard_normal(problem.M.shape)
    M[:, 17] = 0.0
    M[:, 60] = problem.L[:, 60] + 0.3 * size
    M[33] = 2 * size * rng.standard_normal(80)
    result = irpca.solve(M, problem.F1, problem.F2, rank=2)
    columns = score_lines(result.S, 1, result.noise, result.zeta)
    rows = score_lines(result.S, 0, result.noise, result.zeta)
    assert set(columns["position"][:2]) == {17, 60} and rows["position"][0] == 33
    assert columns["broken"].sum() == 2 and rows["broken"].sum() == 1
    drifted = columns[columns["position"] == 60][0]
    dead = columns[columns["position"] == 17][0]
    assert drifted["mean_signed"] > 0.9 * drifted["mean_size"] and drifted["mean_size"] == pytest.approx(15, rel=0.2)
    assert abs(dead["mean_signed"]) < 0.5 * dead["mean_size"]
    assert rows["expected"][0] == pytest.approx(0.05 + 2 / 80, abs=0.01)


def lines_of(k, n):
    """Lines of which k of n entries are flagged."""
    n = np.broadcast_to(n, k.shape)
    return score_lines(csr_array((np.arange(n.max()) < k[:, None]) * 5.0), 0, 1.0, 3.0, observed=n)


@pytest.mark.parametrize(("count", "share"), [(10, 0.5), (30, 1.0), (40, 0.8)])
def test_broken_lines_do_not_hide_each_other(count, share):
    rng = np.random.default_rng(0)
    k = rng.binomial(60, 0.04, 100)
    k[:count] = rng.binomial(60, share, count)
    lines = lines_of(k, 60)
    assert set(lines["position"][:count]) == set(range(count))
    assert lines["broken"][:count].all() and lines["broken"][count:].sum() <= 0.1 * count
    assert lines["expected"][0] == pytest.approx(0.04, abs=0.01)


@pytest.mark.parametrize(
    ("n_lines", "n", "share", "spread"),
    [(100, 60, 0.05, None), (1000, 100, 0.001, None), (20, 1000, 0.02, None), (5, 20, 0.1, None), (300, 500, 0.05, 30)],
)
def test_usual_lines_are_rarely_called_broken(n_lines, n, share, spread):
    """Also where gross errors are so rare that most lines have none, and where lines differ by more than chance."""
    runs, alarms = 100, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        shares = share if spread is None else rng.beta(share * spread, (1 - share) * spread, n_lines)
        lines = lines_of(rng.binomial(n, shares, n_lines), n)
        alarms += lines["broken"].any()
    assert lines["expected"][0] == pytest.approx(share, rel=0.5)
    assert alarms / runs < 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)


def test_an_attacker_among_lines_that_differ():
    rng = np.random.default_rng(0)
    k = rng.binomial(500, rng.beta(2.5, 47.5, 300))
    k[7] = 400
    lines = lines_of(k, 500)
    assert lines["position"][0] == 7 and lines["broken"][0] and lines["broken"].sum() <= 2


def test_lines_of_different_length():
    n = np.array([1000, 10, 1000, 1, 0, 500])
    k = np.array([20, 6, 25, 1, 0, 12])
    lines = lines_of(k, n)
    assert lines["position"][0] == 1 and lines["broken"][0]
    empty = lines[lines["position"] == 4][0]
    assert np.isnan(empty["share"]) and empty["score"] == 0 and empty["q_value"] == 1 and not empty["broken"]
    assert np.isfinite(lines["score"]).all()


@properties
@given(seeds, st.integers(1, 30), st.integers(1, 30), st.floats(0, 1))
def test_lines_whatever_they_hold(seed, n1, n2, share):
    S = csr_array((np.random.default_rng(seed).random((n1, n2)) < share) * 4.0)
    for axis in (0, 1):
        lines = score_lines(S, axis, 1.0, 3.0)
        assert_array_equal(np.sort(lines["position"]), np.arange(S.shape[axis]))
        assert lines["flagged"].sum() == S.nnz
        assert (np.diff(lines["score"]) <= 0).all() and (lines["score"] >= 0).all()
        assert np.isfinite(lines["score"]).all() and ((lines["expected"] > 0) & (lines["expected"] < 1)).all()
        assert (np.diff(lines["flagged"][np.argsort(lines["share"], kind="stable")]) >= 0).all()


def test_scores_stay_finite_where_probabilities_underflow():
    k = np.full(50, 30)
    k[:2] = 3000, 2000
    lines = lines_of(k, 3000)
    assert_array_equal(lines["position"][:2], [0, 1])
    assert np.isfinite(lines["score"]).all() and lines["score"][0] > lines["score"][1] > 300
    usual = lines["expected"][0]
    assert_allclose(lines["score"][0], -3000 * np.log10(usual), rtol=1e-10)  # P(X ≥ n) is the n-th power of the share


# What strangers are told


def test_bad_input():
    S = csr_array(np.array([[0, 4.0], [5.0, 0]]))
    with pytest.raises(ValueError, match="n_observed is 1, but S alone has 2 entries"):
        score_entries(S, 1.0, 3.0, n_observed=1)
    with pytest.raises(ValueError, match=r"noise must not be negative, got -1\.0; None if it is unknown"):
        score_entries(S, -1.0, 3.0)
    with pytest.raises(ValueError, match="noise must not be negative, got nan"):
        score_lines(S, 0, np.nan, 3.0)
    with pytest.raises(ValueError, match="axis must be 0 for rows or 1 for columns, got 2"):
        score_lines(S, 2, 1.0, 3.0)
    with pytest.raises(ValueError, match="observed must have one count for each of the 2 rows, got shape"):
        score_lines(S, 0, 1.0, 3.0, observed=np.ones(3))
    with pytest.raises(ValueError, match=r"row 1 has 1 entry in S, but observed says 0: .*observed does not belong"):
        score_lines(S, 0, 1.0, 3.0, observed=np.array([1, 0]))
    for fdr in (0, 1, 5, -0.1, np.nan):
        with pytest.raises(ValueError, match="fdr is the share of false alarms that is allowed, between 0 and 1"):
            discoveries(score_entries(S, 1.0, 3.0), fdr)
