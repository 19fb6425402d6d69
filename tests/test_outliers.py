"""Which entries are outliers, how sure that is, and which lines are worse than others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from scipy.stats import binom

from irpca.model.entry_scale import Judge
from irpca.outliers import score_lines, standardised

properties = settings(max_examples=30)
seeds = st.integers(0, 2**32 - 1)


# Single entries


@pytest.mark.parametrize("zeta", [0.0, np.inf])
def test_without_a_noise_model_the_threshold_is_the_unit(zeta):
    S = csr_array(np.array([[0, 3.0, 0], [12.0, 0, -6.0]]))
    assert_allclose(standardised(S, Judge(2.0)).data, [1.5, 6, -3])
    assert_allclose(standardised(S, Judge(zeta)).data, [3, 12, -6])  # there is no threshold either
    assert_array_equal(S.data, [3, 12, -6])  # left alone


# Lines


def test_exact_values_of_lines():
    residuals = np.zeros((40, 20))
    residuals[:, 3] = 8.0  # one gross error in each row, so that no row differs by more than chance
    residuals[5, 10:] = [-4.0, -6.0] * 5
    lines = score_lines(csr_array(residuals / 2), axis=0)
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


def lines_of(k, n):
    """Lines of which k of n entries are flagged."""
    n = np.broadcast_to(n, k.shape)
    return score_lines(csr_array((np.arange(n.max()) < k[:, None]) * 5.0), 0, observed=n)


@pytest.mark.parametrize(("count", "share"), [(10, 0.5), (40, 0.8)])
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
    [(100, 60, 0.05, None), (1000, 100, 0.001, None), (5, 20, 0.1, None), (300, 500, 0.05, 30)],
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
        lines = score_lines(S, axis)
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
    with pytest.raises(ValueError, match="axis must be 0 for rows or 1 for columns, got 2"):
        score_lines(S, 2)
    with pytest.raises(ValueError, match="observed must have one count for each of the 2 rows, got shape"):
        score_lines(S, 0, observed=np.ones(3))
    with pytest.raises(ValueError, match=r"row 1 has 1 entry among the outliers \(S\), but observed is 0: give the"):
        score_lines(S, 0, observed=np.array([1, 0]))
