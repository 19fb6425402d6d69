"""The tables that come with the package are as they were packed, and labelled."""

import gzip
import hashlib
import sys
from importlib.resources import files

import numpy as np
import pytest

import irpca
from irpca.datasets import load_life_expectancy, load_weather

DIGESTS = {  # as in data/README.md
    "life_expectancy": "91aa413fa6153a814bff693df9d2b14c8dcce48ede44be7136931f1d2c6abf8d",
    "weather": "ab77f9af323752dd43672228d093644b2c0455a15236026568d827720d537738",
}


@pytest.fixture(scope="module")
def data():
    return load_life_expectancy()


@pytest.mark.parametrize("name", DIGESTS)
def test_the_table_is_as_it_was_packed(name):
    table = gzip.decompress((files("irpca.datasets") / "data" / f"{name}.csv.gz").read_bytes())
    assert hashlib.sha256(table).hexdigest() == DIGESTS[name]


def test_life_expectancy_is_read_and_labelled(data):
    assert data.M.shape == (202, 50) and data.M.dtype == np.float64
    assert len(set(data.countries)) == len(data.regions) == 202
    np.testing.assert_array_equal(data.years, np.arange(1964, 2014))
    assert repr(data) == "LifeExpectancy(202 countries × 1964–2013)"
    frame = data.frame()
    np.testing.assert_array_equal(frame.to_numpy(), data.M)
    assert (frame.index.name, frame.columns.name) == ("country", "year")
    assert frame.loc["Afghanistan", 1964] == 33.639 and frame.loc["Cambodia", 1977] == 16.1
    assert frame.loc["Rwanda", 1994] == data.M.min() == 6.0
    assert frame.loc["Korea, Rep.", 2013] > 80  # a name with a comma in it


def test_col_features_are_legendre_polynomials_of_the_year(data):
    F = data.col_features(3)
    x = np.linspace(-1, 1, 50)
    expected = np.stack([np.ones(50), x, (3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2], axis=1)
    np.testing.assert_allclose(F, expected, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(F, data.col_features())
    with pytest.raises(ValueError, match="degree must be a whole number, at least 0 and below 50; got 50"):
        data.col_features(50)


def test_the_docstring_says_what_the_degree_does(data):
    results = {degree: irpca.solve(data.M, None, data.col_features(degree), extra_rank=0) for degree in (2, 3, 6)}
    years, noise = list(data.years), [result.noise for result in results.values()]
    assert noise == sorted(noise, reverse=True) and noise[0] < 0.5 and noise[-1] == pytest.approx(0.13, abs=0.02)
    for result in results.values():
        assert result.status is irpca.Status.CONVERGED
        assert result.usable == "use with care"
        assert 0.003 <= result.corruption < 0.02
        assert 36 < -result.S[data.countries.index("Rwanda"), years.index(1994)] < 46
        assert 26 < -result.S[data.countries.index("Cambodia"), years.index(1977)] < 34


def test_row_features_are_region_indicators(data):
    F = data.row_features()
    regions = sorted(set(data.regions))
    assert F.shape == (202, 6)
    np.testing.assert_array_equal(F.sum(axis=1), 1)
    assert [regions[j] for j in F.argmax(axis=1)] == data.regions
    assert data.regions[data.countries.index("Rwanda")] == "Sub-Saharan Africa"


def test_weather_is_read_and_labelled(tmp_path):
    data = load_weather()
    frame = data.frame()
    np.testing.assert_array_equal(frame.to_numpy(), data.M)
    assert data.M.shape == (2157, 15) and np.isnan(data.M).sum() == 759
    assert frame.loc["2013-02-12 08:00", "EWR wind"] == 1048.4
    assert frame.index.name == "time" and frame.index.is_monotonic_increasing and frame.index.is_unique
    digest = hashlib.sha256(data.to_csv(tmp_path / "weather.csv").read_bytes()).hexdigest()
    assert digest == DIGESTS["weather"]


@pytest.mark.parametrize("load", [load_weather, load_life_expectancy])
def test_frame_without_pandas_says_what_to_do(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"frame\(\) needs pandas: pip install \"irpca\[pandas\]\", or use M"):
        load().frame()
