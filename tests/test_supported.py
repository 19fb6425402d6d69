"""An entry is an outlier only if others contradict it."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array

from irpca import solve
from irpca.datasets import load_weather
from irpca.engines import MemoryEngine
from irpca.loop import _supported
from irpca.lowrank import LowRank

NOISE = 0.05


@pytest.fixture(scope="module")
def table():
    """Three columns alone tell the third component."""
    rng = np.random.default_rng(3)
    U, V = 3 * rng.standard_normal((200, 3)), np.zeros((15, 3))
    V[:12, :2], V[12:, 2] = rng.standard_normal((12, 2)), 1 + rng.random(3)
    return U @ V.T + NOISE * rng.standard_normal((200, 15)), U, V


@pytest.fixture(scope="module")
def fit(table):
    return solve(table[0], rank=3).fit


def in_a_trap(fit, row):
    """The fit with all that tells the third component of a row left out: it is where the prior has it."""
    fit = fit.copy()
    V = fit.cols.mean
    others, last = V[:12], np.linalg.svd(V[:12])[2][2]  # a direction that the first twelve columns do not see
    assert np.abs(others @ last).max() < 0.05 * np.abs(V[12:] @ last).max()
    fit.rows.mean[row] -= (fit.rows.mean[row] @ last) * last
    return fit


def test_a_line_whose_outliers_nothing_contradicts_is_seen(fit, table):
    row = int(np.argmax(np.abs(table[1][:, 2]) < 5)) if abs(table[1][0, 2]) > 5 else 0
    trapped = in_a_trap(fit, row)
    assert row in trapped.unsupported(0) and row not in fit.unsupported(0)
    assert not len(trapped.unsupported(1))


def test_it_is_fitted_again_and_finds_its_way_back(fit):
    trapped = in_a_trap(fit, 7)
    right = fit.L.dense()[7]
    assert np.abs(trapped.L.dense()[7] - right).max() > 20 * NOISE * 0.5
    assert trapped.refit_lines()
    assert np.abs(trapped.L.dense()[7] - right).max() < 5 * NOISE
    assert 7 not in trapped.unsupported(0)


def test_a_line_that_is_right_is_left_as_it_is(fit):
    again = fit.copy()
    again.refit_lines()
    assert np.abs(again.L.dense() - fit.L.dense()).max() < 5 * NOISE


def test_of_what_was_left_out_only_what_others_contradict_is_an_outlier(fit, table):
    trapped = in_a_trap(fit, 7)
    M = table[0].copy()
    M[50, 3] += 6.0
    state = SimpleNamespace(fit=trapped, weights=trapped.noise.weights(*trapped.spreads))
    unit = np.sqrt(solve(table[0], rank=3).weights.cols / fit.noise.weights(*fit.spreads).cols)
    R = np.zeros(M.shape)
    R[7, 12:] = (M / unit - trapped.L.dense())[7, 12:]
    R[50, 3] = 6.0 / unit[3]
    S, trim = csr_array(R), MemoryEngine(M).corruption(LowRank.zero(M.shape), np.inf)[1]
    assert (np.abs(R[7, 12:]) > 6 * NOISE).all()  # far beyond the noise
    kept, after, _ = _supported(S, trim, state, lambda z: (np.abs(z) > 4).astype(float), MemoryEngine(M).counts)
    assert list(zip(*kept.nonzero(), strict=True)) == [(50, 3)]
    assert after.kept == trim.kept + 3


def test_a_gross_error_does_not_make_outliers_of_its_neighbours():
    """The hour of the wind of 1048 miles per hour: its three pressures were called wrong, as nothing else told them."""
    data = load_weather()
    row = int(np.flatnonzero(data.times == np.datetime64("2013-02-12T08:00:00"))[0])
    result = solve(data.M)
    assert [data.columns[j] for j in result.S[[row]].indices] == ["EWR wind"]
    pressures = [data.columns.index(f"{airport} pressure") for airport in ("EWR", "JFK", "LGA")]
    np.testing.assert_allclose(result.L.dense()[row, pressures], data.M[row, pressures], atol=0.5)
