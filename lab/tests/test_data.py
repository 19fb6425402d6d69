"""Loaders on miniatures in the format of the real files, on the real ones where IRPCA_DATA is set, and OptSpace."""

import gzip
import hashlib
import os
import zipfile

import numpy as np
import pytest
from scipy.sparse import bsr_array, coo_array, csr_array

from lab.datasets import load_i94_traffic, load_movielens_100k, sources
from lab.optspace import optspace

HEADER = "holiday,temp,rain_1h,snow_1h,clouds_all,weather_main,weather_description,date_time,traffic_volume"
# A Monday of two hours, one of them recorded twice; no Tuesday; a holiday of three hours, one with impossible weather
# and one with two kinds of it; a Thursday of 24 hours on which no weather was measured.
HOURS = [
    "None,290,0.0,0.0,40,Clouds,few clouds,2016-07-04 22:00:00,100",
    "None,280,2.0,0.0,90,Rain,light rain,2016-07-04 23:00:00,200",
    "None,284,4.0,0.0,50,Mist,mist,2016-07-04 23:00:00,200",
    "Independence Day,270,0.0,0.0,90,Snow,light snow,2016-07-06 00:00:00,300",
    "None,0.0,9831.3,0.0,90,Rain,very heavy rain,2016-07-06 01:00:00,400",
    "None,272,1.0,0.0,90,Mist,mist,2016-07-06 02:00:00,500",
    "None,272,1.0,0.0,90,Snow,snow,2016-07-06 02:00:00,500",
    *(f",0.0,9999,0.0,nan,,,2016-07-07 {hour:02}:00:00,{hour}" for hour in range(24)),
]
needs_data = pytest.mark.skipif("IRPCA_DATA" not in os.environ, reason="IRPCA_DATA is not set")


def i94(folder, lines, header=HEADER):
    with gzip.open(folder / "metro_interstate_traffic_volume.csv.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join([header, *lines]) + "\n")
    return load_i94_traffic(folder)


def movielens(folder, **changed):
    """Twelve users and 26 films; user 7 rates 21 of them, the others all."""
    pairs = [(user, film) for user in range(1, 13) for film in range(1, 27) if user != 7 or film > 5]
    genres = ["unknown", *(f"genre {k}" for k in range(1, 19))]
    titles = [f"Film {k} (19{k + 70})" for k in range(1, 27)]
    titles[1:4] = "Contempt (Mépris, Le) (1963)", "unknown", "1984 (Nineteen) (1984) (1956) (V)"
    lines = {
        "u.data": [f"{user}\t{film}\t{1 + user % 2 + film % 4}\t{880_000_000 + user}" for user, film in pairs],
        "u.user": [f"{n}|{20 + n}|{'MF'[n % 2]}|{('writer', 'artist', 'other')[n % 3]}|55105" for n in range(1, 13)],
        "u.item": [f"{k}|{titles[k - 1]}|||{'|0' * (k % 19)}|1{'|0' * (18 - k % 19)}" for k in range(1, 27)],
        "u.genre": [f"{name}|{n}" for n, name in enumerate(genres)] + [""],
    }
    for file, content in (lines | changed).items():
        (folder / file).write_text("\n".join(content) + "\n", encoding="latin-1")
    return load_movielens_100k(folder)


# Interstate 94


def test_days_hours_and_weather(tmp_path):
    data = i94(tmp_path, HOURS)
    assert list(data.days.astype(str)) == ["2016-07-04", "2016-07-06", "2016-07-07"]
    expected = np.full((3, 24), np.nan)
    expected[0, 22:], expected[1, :3], expected[2] = (100, 200), (300, 400, 500), np.arange(24)
    np.testing.assert_array_equal(data.volume, expected)
    np.testing.assert_array_equal(data.frame().to_numpy(), expected)
    assert data.holidays == ["", "Independence Day", ""]
    np.testing.assert_allclose(data.temperature + 273.15, [286, 271, np.nan], rtol=1e-12)
    np.testing.assert_allclose(data.rain, [1.5, 0.5, np.nan], rtol=1e-12)
    np.testing.assert_allclose(data.snow, [0, 2 / 3, 0], rtol=1e-12)
    F1, F2 = data.row_features(harmonics=1), data.col_features(5)
    np.testing.assert_array_equal(F1[:, 1:7], np.eye(7)[[0, 2, 3], 1:])  # Monday, Wednesday, Thursday
    np.testing.assert_array_equal(F1[:, 7:9], [[0, 0], [1, 0], [0, 0]])
    assert np.isfinite(F1).all()
    np.testing.assert_allclose(F2.T @ F2, np.diag([24] + [12] * 10), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("header", "lines", "sentence"),
    [
        (HEADER.replace("clouds_all", "sky"), HOURS, "has no column clouds_all; its first line is"),
        (HEADER, [*HOURS, "None,290"], "line 33: 9 fields are expected, got 2"),
        (HEADER, [], "has no records"),
        (HEADER, [HOURS[0].replace("290", "warm")], "column temp: .*'warm'"),
        (HEADER, [HOURS[0].replace("22:00", "22:30")], "line 2: 2016-07-04 22:30:00 is not a full hour"),
        (HEADER, [HOURS[0], HOURS[0].replace(",100", ",101")], "line 2: another record of the same hour"),
    ],
)
def test_broken_traffic_is_named(tmp_path, header, lines, sentence):
    with pytest.raises(ValueError, match=sentence):
        i94(tmp_path, lines, header)


# MovieLens


def test_ratings_and_what_is_known(tmp_path):
    data = movielens(tmp_path)
    assert data.ratings.shape == (12, 26) and data.ratings.nnz == 307
    np.testing.assert_array_equal(data.ratings[data.users, data.items], data.stars)
    np.testing.assert_array_equal(data.years[:5], [1971, 1963, np.nan, 1956, 1975])
    F1, F2 = data.row_features(), data.col_features()
    np.testing.assert_array_equal(F1[:, 1], [sex == "F" for sex in data.sexes])
    np.testing.assert_allclose([F1[:, 0].mean(), F1[:, 0].std()], [0, 1], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(F2[:, 1:20], data.genres)
    assert F2[2, 20] == 0  # the year of the unknown film


def splits_are_right(data):
    everyone = np.arange(len(data.stars))
    tests = [data.fold(f"u{k}")[1] for k in range(1, 6)]
    np.testing.assert_array_equal(np.concatenate(tests), everyone)
    for name in ("u1", "ua", "ub"):
        np.testing.assert_array_equal(np.sort(np.concatenate(data.fold(name))), everyone)
    assert (np.bincount(data.users[data.fold("ua")[1]]) == 10).all()
    for kind, labels in (("users", data.users), ("items", data.items)):
        for fold in range(5):
            train, test = data.cold_split(kind, fold)
            assert not np.isin(labels[test], labels[train]).any()
    train, test = data.cold_split("both", 0)
    assert (
        not np.isin(data.users[test], data.users[train]).any()
        and not np.isin(data.items[test], data.items[train]).any()
    )


def test_splits(tmp_path):
    data = movielens(tmp_path)
    splits_are_right(data)
    with pytest.raises(ValueError, match=r"name must be one of u1, .* got 'u6'"):
        data.fold("u6")
    with pytest.raises(ValueError, match="kind must be one of users, items, both; got 'films'"):
        data.cold_split("films", 0)


@needs_data
def test_the_real_data():
    """What is known of them from their README and the splits that GroupLens published; and of the traffic."""
    data = load_movielens_100k()
    splits_are_right(data)
    assert data.ratings.shape == (943, 1682) and data.sexes.count("F") == 273
    assert len(np.unique(data.users[data.fold("u1")[1]])) == 459
    traffic = load_i94_traffic()
    assert traffic.volume.shape == (1860, 24) and traffic.complete_days.sum() == 1214
    assert np.isnan(traffic.volume).mean() == pytest.approx(0.09, abs=0.005)


@pytest.mark.parametrize(
    ("file", "lines", "sentence"),
    [
        ("u.user", ["1|25|M"], "u.user, line 1: 5 fields .* got 3, and '1'"),
        ("u.item", ["1|Toy (1995)"], "u.item, line 1: 24 fields .* got 2, and '1'"),
        ("u.data", ["13\t1\t3\t8", "1\t1\t3\t8"], "u.data, rating 1: user 13 is not in 1 … 12"),
        ("u.data", ["1\t2\t3\t8", "1\t2\t4\t9"], "u.data rates some film twice"),
    ],
)
def test_broken_ratings_are_named(tmp_path, file, lines, sentence):
    with pytest.raises(ValueError, match=sentence):
        movielens(tmp_path, **{file: lines})


# Where they are


def test_data_are_looked_for_and_downloaded_only_on_request(tmp_path, monkeypatch):
    file, cache = tmp_path / "tables.zip", tmp_path / "cache"
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("tables/a.csv", "1,2\n")
        packed.writestr("../evil.csv", "3\n")
    source = sources.Source("tables", ("a.csv",), file.as_uri(), hashlib.md5(file.read_bytes()).hexdigest())
    monkeypatch.delenv("IRPCA_DATA", raising=False)
    monkeypatch.setattr(sources, "cache_folder", lambda: cache)
    with pytest.raises(FileNotFoundError, match="tables was not found: IRPCA_DATA is not set"):
        sources.locate(source)
    with pytest.raises(ValueError, match="is not what was published"):
        sources.locate(sources.Source("tables", ("a.csv",), file.as_uri(), "0"), download=True)
    assert sources.locate(source, download=True) == cache / "tables"
    assert sorted(path.name for path in tmp_path.rglob("*.csv")) == ["a.csv"]
    monkeypatch.setenv("IRPCA_DATA", str(tmp_path / "given"))
    assert sources.locate(source) == cache / "tables"
    (tmp_path / "given" / "tables").mkdir(parents=True)
    (tmp_path / "given" / "tables" / "a.csv").write_text("1\n")
    assert sources.locate(source) == tmp_path / "given" / "tables"


# OptSpace


def stored(M, mask):
    """The entries of M where the mask is set, zeros too."""
    places = np.nonzero(mask)
    return coo_array((M[places], places), shape=M.shape)


def problem(n1, n2, rank=3, share=0.15, seed=0, noise=0.0, condition=1.0):
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal((n, rank)))[0] for n in (n1, n2))
    M = np.sqrt(n1 * n2) * (U * np.geomspace(1, 1 / condition, rank)) @ V.T
    return M, stored(M + noise * rng.standard_normal(M.shape), rng.random(M.shape) < share)


def error(found, M):
    return np.linalg.norm(found.L.dense() - M) / np.linalg.norm(M)


@pytest.mark.parametrize(("n1", "n2", "condition"), [(200, 200, 1), (400, 150, 1), (150, 400, 1), (200, 200, 100)])
def test_a_matrix_is_completed_from_few_entries(n1, n2, condition):
    M, observed = problem(n1, n2, condition=condition)
    found = optspace(observed, 3, tol=1e-8)
    assert found.converged and found.doubts == () and error(found, M) < 1e-6


def test_the_minimum_is_that_of_alternating_least_squares():
    M, observed = problem(40, 30, rank=2, share=0.5, noise=0.3)
    mask, values = csr_array((np.ones(observed.nnz), observed.coords), shape=M.shape).toarray() > 0, observed.toarray()
    V = np.linalg.svd(values)[2][:2].T
    for _ in range(300):
        U, V = _regress(values, mask, V), _regress(values.T, mask.T, _regress(values, mask, V))
    found = optspace(observed, 2, tol=1e-12)
    np.testing.assert_allclose(found.L.dense(), U @ V.T, rtol=0, atol=1e-5)
    assert found.rmse == pytest.approx(np.sqrt(np.mean((values - U @ V.T)[mask] ** 2)), rel=1e-9)


def _regress(values, mask, V):
    return np.array(
        [np.linalg.lstsq(V[seen], row[seen], rcond=None)[0] for row, seen in zip(values, mask, strict=True)]
    )


def test_a_stored_zero_is_observed_and_empty_lines_are_told():
    M = np.ones((20, 15))
    M[3, 4] = 0
    found = optspace(stored(M, np.ones(M.shape, bool)), 1, tol=1e-10)
    u, s, vt = np.linalg.svd(M)
    np.testing.assert_allclose(found.L.dense(), s[0] * np.outer(u[:, 0], vt[0]), rtol=0, atol=1e-6)
    mask = np.ones(M.shape, bool)
    mask[[0, 7]] = mask[:, 14] = False
    found = optspace(stored(M, mask), 1)
    assert not found.L.dense()[[0, 7]].any() and not found.L.dense()[:, 14].any()
    assert found.doubts[0].startswith("2 rows and 1 columns have no observed entry: L is zero there")


@pytest.mark.parametrize(
    ("observed", "rank", "error", "sentence"),
    [
        (np.ones((5, 5)), 1, TypeError, "observed must be a scipy sparse array"),
        (bsr_array(np.ones((5, 5))), 1, TypeError, "is in BSR format"),
        (
            coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(5, 5)),
            1,
            ValueError,
            "more than once, as at row 0, column 1",
        ),
        (coo_array(([np.nan], ([2], [1])), shape=(5, 5)), 1, ValueError, "observed holds nan at row 2, column 1"),
        (coo_array(np.ones((5, 5))), 5, ValueError, "rank=5 is out of range"),
        (coo_array(np.eye(5)), 2, ValueError, "rank=2 is too high for 5 observed entries"),
    ],
)
def test_what_cannot_be_completed_is_refused(observed, rank, error, sentence):
    with pytest.raises(error, match=sentence):
        optspace(observed, rank)
