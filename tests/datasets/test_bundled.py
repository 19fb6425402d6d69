import gzip
import hashlib
from importlib.resources import files

import numpy as np
import pytest

import irpca
from irpca.datasets import load_life_expectancy


@pytest.fixture(scope="module")
def data():
    return load_life_expectancy()


def at(data, country, year):
    return data.M[data.countries.index(country), list(data.years).index(year)]


def test_shape_and_labels(data):
    assert data.M.shape == (202, 50)
    assert data.M.dtype == np.float64
    assert len(set(data.countries)) == len(data.regions) == 202
    np.testing.assert_array_equal(data.years, np.arange(1964, 2014))
    assert repr(data) == "LifeExpectancy(202 countries × 1964–2013)"


def test_values_are_those_of_gapminder(data):
    assert at(data, "Afghanistan", 1964) == 33.639
    assert at(data, "Rwanda", 1994) == data.M.min() == 6.0
    assert at(data, "Korea, Rep.", 2013) > 80  # a name with a comma in it
    table = gzip.decompress((files("irpca.datasets") / "data" / "life_expectancy.csv.gz").read_bytes())
    assert (
        hashlib.sha256(table).hexdigest()
        == "91aa413fa6153a814bff693df9d2b14c8dcce48ede44be7136931f1d2c6abf8d"  # as in data/README.md
    )


def test_col_features_are_legendre_polynomials_of_the_year(data):
    F = data.col_features(3)
    x = np.linspace(-1, 1, 50)
    expected = np.stack([np.ones(50), x, (3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2], axis=1)
    np.testing.assert_allclose(F, expected, rtol=0, atol=1e-14)


def test_the_default_degree_explains_the_table(data):
    F = data.col_features()
    assert F.shape == (50, 4)
    Q, _ = np.linalg.qr(F)
    left = data.M - data.M @ Q @ Q.T
    centred = data.M - data.M.mean()
    assert 0.98 < 1 - np.linalg.norm(left) ** 2 / np.linalg.norm(centred) ** 2 < 1


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


@pytest.mark.parametrize("degree", [-1, 50])
def test_degree_out_of_range(data, degree):
    with pytest.raises(ValueError, match=f"degree must be a whole number, at least 0 and below 50; got {degree}"):
        data.col_features(degree)


def test_row_features_are_region_indicators(data):
    F = data.row_features()
    regions = sorted(set(data.regions))
    assert F.shape == (202, 6)
    np.testing.assert_array_equal(F.sum(axis=1), 1)
    assert [regions[j] for j in F.argmax(axis=1)] == data.regions
    assert data.regions[data.countries.index("Rwanda")] == "Sub-Saharan Africa"


def test_frame_is_labelled(data):
    frame = data.frame()
    assert frame.loc["Cambodia", 1977] == at(data, "Cambodia", 1977) == 16.1
    assert (frame.index.name, frame.columns.name) == ("country", "year")
    np.testing.assert_array_equal(frame.to_numpy(), data.M)
