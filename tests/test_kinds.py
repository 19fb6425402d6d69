"""What columns hold, found from how often values occur, and the maps of their values to latent ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import ndtr, ndtri
from scipy.stats import gamma, truncnorm

from irpca.model.kinds import AS_IT_IS, LOGARITHM, NUMBER, ORDERED, kind_of, truncated_moments
from irpca.model.maps import FAR, SAME, ColumnMaps

NORMAL = ndtri(np.linspace(0.001, 0.999, 999))
SKEWED, SCORES = np.exp(NORMAL), np.clip(np.round(3 + NORMAL), 1, 5)
ORDER = np.arange(999)
SAMPLES = {
    "normal": (NORMAL, "as it is"),
    "log-normal": (SKEWED, "logarithm"),
    "gamma": (gamma(2).ppf(ndtr(NORMAL)), "power 0.3"),
    "years": (np.round(1980 + 12 * NORMAL), "as it is"),
    "scores": (SCORES, "5 ordered values"),
    "months": (ORDER % 12, "12 ordered values"),
    "yes or no": (1.0 * (NORMAL > 1), "yes or no"),
    "two values": (np.where(NORMAL > 1, 7.0, 3.0), "2 ordered values"),
    "zeros": (np.where(ORDER % 2, SKEWED, 0.0), "logarithm, 50% at 0"),
    "full scores": (np.where(ORDER % 4, 50 + 8 * NORMAL, 100.0), "as it is, 25% at 100"),
    "both ends": (np.select([ORDER % 4 == 0, ORDER % 4 == 1], [0.0, 100.0], 50 + 8 * NORMAL), None),
    "constant": (np.full(99, 4.0), "constant"),
    "nothing": (np.full(99, np.nan), "constant"),
}
MAPS = ColumnMaps.of([kind_of(values) for values, _ in SAMPLES.values()])
FEW = np.array([name.endswith(("values", "yes or no")) for name in MAPS.names])
PLACES = {name: j for j, name in enumerate(SAMPLES)}


def known(sample):
    """Values of a column, increasing."""
    values = np.unique(SAMPLES[sample][0])
    return values[np.isfinite(values)]


def at(sample, values):
    return np.full(np.shape(values), PLACES[sample])


# Kinds


@pytest.mark.parametrize("sample", SAMPLES)
def test_kinds(sample):
    values, name = SAMPLES[sample]
    assert kind_of(values).name == (name or "as it is, 25% at 0, 25% at 100")
    assert kind_of(values).plain == (name in ("as it is", "constant"))


@pytest.mark.parametrize("power", [-20, -7, 13, 20])
@pytest.mark.parametrize("sample", ["normal", "log-normal", "gamma", "years", "zeros", "full scores", "scores"])
def test_the_kind_is_the_same_in_any_unit(sample, power):
    values, name = SAMPLES[sample]
    unit = 2.0**power
    there = ColumnMaps.of([kind_of(unit * values)])
    assert there.names[0].split(" at ")[0] == name.split(" at ")[0]
    assert_allclose(there.latent(unit * values[:, None])[:, 0], MAPS.latent(values, at(sample, values)), atol=1e-9)


def test_typing_errors_are_no_scores():
    """What is off the grid, or far away, is none of the values; as is a value that few cells hold."""
    values = SCORES.copy()
    values[[10, 500, 800]] = [3.7, 40.0, -999.0]
    kind = kind_of(values)
    assert kind.name == "5 ordered values" and kind.limits == (1, 5)
    assert_array_equal(kind.x, [1, 2, 3, 4, 5])


def test_few_values_have_their_shares_of_a_Gaussian():
    kind, shares = kind_of(SCORES), np.unique(SCORES, return_counts=True)[1] / 999
    assert_allclose(ndtr(kind.high) - ndtr(kind.low), shares, atol=1e-3)
    assert_allclose(shares @ kind.z, 0, atol=1e-2)
    assert kind_of(np.array([1.0, 2.0] * 50)).least == pytest.approx(np.sqrt(1 - 2 / np.pi))


@pytest.mark.parametrize(("ends"), [(-np.inf, -1.0), (-0.5, 2.0), (6.0, np.inf), (-9.0, -8.5), (0.0, 0.0 + 1e-3)])
def test_truncated_moments(ends):
    found = truncated_moments(*(np.array([end]) for end in ends))
    assert_allclose(np.ravel(found), truncnorm(*ends).stats(), rtol=1e-4, atol=1e-7)


def test_kinds_that_are_asked_for():
    assert kind_of(SCORES, NUMBER).name == "as it is" and len(kind_of(SCORES, NUMBER).x) > 5
    assert kind_of(SKEWED, AS_IT_IS).plain and kind_of(SAMPLES["zeros"][0], AS_IT_IS).plain
    assert kind_of(np.round(3 * NORMAL), ORDERED).name == "19 ordered values"
    assert kind_of(NORMAL + 9, LOGARITHM).name == "logarithm"
    assert kind_of(np.full(9, 4.0), LOGARITHM).name == "constant"
    with pytest.raises(ValueError, match="999 different values; a column of ordered values has at most 32"):
        kind_of(NORMAL, ORDERED)
    with pytest.raises(ValueError, match=r"smallest value is -3\.09"):
        kind_of(NORMAL, LOGARITHM)


def test_what_is_not_finite_does_not_count():
    some = np.r_[SKEWED, np.nan, np.inf, -np.inf]
    assert_array_equal(kind_of(some).x, kind_of(SKEWED).x)


# Maps


@pytest.mark.parametrize("sample", SAMPLES)
@given(far=st.floats(-1e9, 1e9, allow_subnormal=False))
def test_observed_is_the_inverse_of_latent(sample, far):
    """Of values of the table, of any others, and of those that no cell of a column of few values holds."""
    values = np.r_[known(sample), far]
    cols = at(sample, values)
    assert_allclose(MAPS.observed(MAPS.latent(values, cols), cols), values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sample", SAMPLES)
def test_maps_are_increasing(sample):
    inner = known(sample)
    low, high = (inner[0], inner[-1]) if len(inner) else (0.0, 0.0)
    values = np.r_[low - np.geomspace(1e6, 0.01, 50), inner, high + np.geomspace(0.01, 1e6, 50)]
    if not FEW[PLACES[sample]]:
        values = np.unique(np.r_[values, np.linspace(low - 1, high + 1, 999)])
    assert (np.diff(MAPS.latent(values, at(sample, values))) > 0).all()
    Z = np.linspace(-9, 9, 999)
    for held in (False, True):
        assert (np.diff(MAPS.expected(Z, at(sample, Z), held)) >= 0).all()


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_is_expected_can_be_held(sample):
    Z = np.r_[np.linspace(-6, 6, 500), -1e9, 1e9]
    cols, (low, high) = at(sample, Z), MAPS.limits[PLACES[sample]]
    for held in (False, True):
        found = MAPS.expected(Z, cols, held)
        assert (found >= low).all() and (found <= high).all() and np.isfinite(found).all()
    if FEW[PLACES[sample]]:
        assert_array_equal(np.unique(MAPS.expected(Z, cols, held=True)), known(sample))
        assert len(np.unique(MAPS.expected(Z, cols))) > len(known(sample))
    assert (low >= 0) == (sample not in ("normal",))


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_interval_of_a_cell_is_that_of_the_values_it_stands_for(sample):
    """What is expected is within the range of a cell if the latent value is within its interval, and only then."""
    Z = np.linspace(-5, 5, 2001)[:, None]
    X = known(sample)[None]
    cols = at(sample, X)
    low, high = MAPS.interval(MAPS.latent(X, cols), cols)
    least, most = MAPS.ranges(X, cols)
    assert_array_equal(low < high, least < most)
    clear = (abs(Z - low) > 1e-6) & (abs(Z - high) > 1e-6) & (low < high)
    found = MAPS.expected(Z, at(sample, Z), held=True)
    assert_array_equal(((found > least) & (found < most))[clear], ((low < Z) & (high > Z))[clear])
    assert_allclose(low[low == high], MAPS.latent(X, cols)[low == high], atol=SAME)
    assert (low < high).any() == (FEW[PLACES[sample]] or " at " in MAPS.names[PLACES[sample]])


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_slope_is_that_of_the_map(sample):
    kind = MAPS.knots[PLACES[sample], 0]
    inner = kind[np.isfinite(kind)]
    values = np.r_[inner[0] - [1.3, 20.0], inner[:-1] + 0.37 * np.diff(inner), inner[-1] + [1.3, 20.0]]
    cols, step = at(sample, values), 1e-6 * (inner[-1] - inner[0])
    slope = (MAPS.latent(values + step, cols) - MAPS.latent(values - step, cols)) / (2 * step)
    assert_allclose(MAPS.log_slope(values, cols), np.log(slope), atol=1e-4)


def table():
    """Some values of every column, with cells that are empty, infinite, far away or off the grid."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.choice(np.r_[known(sample), 1.0], 40) for sample in SAMPLES])
    X[:5] = np.array([np.nan, np.inf, -np.inf, 1e5, 3.7])[:, None]
    return X


def test_what_is_empty_or_infinite_stays_so():
    Z = MAPS.latent(table())
    for made in (Z, MAPS.observed(Z)):
        assert np.isnan(made[0]).all() and (made[1] == np.inf).all() and (made[2] == -np.inf).all()
        assert np.isfinite(made[3:]).all()
    assert np.isnan(MAPS.expected(Z)[0]).all()
    assert np.isnan(MAPS.interval(Z)[0][0]).all()


def test_scattered_cells_are_mapped_as_a_table_is():
    X, kept = table(), np.array([7, 2, 5])
    rows, cols = (index.ravel() for index in np.indices(X.shape))
    Z = MAPS.latent(X)
    assert_array_equal(MAPS.cells(X.ravel(), cols), Z.ravel())
    assert_array_equal(MAPS.cut(slice(None), kept).table(X[:, kept]), Z[:, kept])
    assert_array_equal(MAPS.observed(Z.ravel(), cols), MAPS.observed(Z).ravel())
    assert_array_equal(MAPS.expected(Z[3:].ravel(), cols[rows > 2]), MAPS.expected(Z[3:]).ravel())


def test_single_precision():
    """Values keep their digits, and cells stand for the same intervals."""
    X = table()[3:]
    found = MAPS.table(X.astype(np.float32))
    assert found.dtype == np.float32 and MAPS.table(X.astype(np.float32), np.float64).dtype == np.float64
    assert_allclose(found, MAPS.latent(X), rtol=1e-4, atol=1e-5)
    for one, other in zip(MAPS.interval(found), MAPS.interval(MAPS.latent(X)), strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    one, other = (MAPS.expected(Z[1:], held=True)[:, FEW] for Z in (found, MAPS.latent(X)))
    assert_array_equal(one, other)


def test_values_off_the_grid_are_beyond_all_others():
    found = MAPS.latent(np.array([3.7, -999.0, 2.0]), at("scores", np.zeros(3)))
    assert found[0] > FAR and found[1] < -FAR and abs(found[2]) < 3
