"""On a miniature in the same format, made here; and on the real data wherever IRPCA_DATA is set."""

import gzip
import os
import sys
import urllib.request

import numpy as np
import pytest

import irpca
from irpca.datasets import load_i94_traffic, sources

HEADER = "holiday,temp,rain_1h,snow_1h,clouds_all,weather_main,weather_description,date_time,traffic_volume"
FILE = "metro_interstate_traffic_volume.csv.gz"

# A Monday of two hours, one of them recorded twice; no Tuesday; a holiday of three hours, one with impossible weather
# and one with two kinds of it; a Thursday of 24 hours on which no weather was measured.
LINES = [
    "None,290,0.0,0.0,40,Clouds,few clouds,2016-07-04 22:00:00,100",
    "None,280,2.0,0.0,90,Rain,light rain,2016-07-04 23:00:00,200",
    "None,284,4.0,0.0,50,Mist,mist,2016-07-04 23:00:00,200",
    "Independence Day,270,0.0,0.0,90,Snow,light snow,2016-07-06 00:00:00,300",
    "None,0.0,9831.3,0.0,90,Rain,very heavy rain,2016-07-06 01:00:00,400",
    "None,272,1.0,0.0,90,Mist,mist,2016-07-06 02:00:00,500",
    "None,272,1.0,0.0,90,Snow,snow,2016-07-06 02:00:00,500",
    *(f",0.0,9999,0.0,nan,,,2016-07-07 {hour:02}:00:00,{hour}" for hour in range(24)),
]


def write(folder, lines, header=HEADER):
    folder.mkdir(exist_ok=True)
    with gzip.open(folder / FILE, "wt", encoding="utf-8") as file:
        file.write("\n".join([header, *lines]) + "\n")
    return folder


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "i94-traffic", LINES)


@pytest.fixture(scope="module")
def small(miniature):
    return load_i94_traffic(miniature)


def test_days_and_hours(small):
    assert small.days.dtype == "datetime64[D]"
    assert list(small.days.astype(str)) == ["2016-07-04", "2016-07-06", "2016-07-07"]
    expected = np.full((3, 24), np.nan)
    expected[0, 22:] = 100, 200
    expected[1, :3] = 300, 400, 500
    expected[2] = np.arange(24)
    np.testing.assert_array_equal(small.volume, expected)
    np.testing.assert_array_equal(small.complete_days, [False, False, True])
    assert repr(small) == "I94Traffic(3 days × 24 hours, 2016-07-04 to 2016-07-07)"


def test_a_holiday_is_spread_over_its_day(small):
    assert small.holidays == ["", "Independence Day", ""]


def test_the_weather_is_a_mean_over_hours_of_what_can_have_been_measured(small):
    np.testing.assert_allclose(small.temperature + 273.15, [286, 271, np.nan], rtol=1e-12)
    np.testing.assert_allclose(small.rain, [1.5, 0.5, np.nan], rtol=1e-12)
    np.testing.assert_allclose(small.snow, [0, 2 / 3, 0], rtol=1e-12)
    np.testing.assert_allclose(small.clouds, [55, 90, np.nan], rtol=1e-12)


def test_row_features(small):
    F = small.row_features(harmonics=1)
    assert F.shape == (3, 16)
    np.testing.assert_array_equal(F[:, 0], 1)
    np.testing.assert_array_equal(F[:, 1:7], np.eye(7)[[0, 2, 3], 1:])  # Monday, Wednesday, Thursday
    np.testing.assert_array_equal(F[:, 7:9], [[0, 0], [1, 0], [0, 0]])
    np.testing.assert_allclose(F[:, 9], [-1, 1 / 3, 1], rtol=0, atol=1e-12)
    angle = np.arctan2(F[:, 11], F[:, 10])
    np.testing.assert_allclose(np.diff(angle), 2 * np.pi * np.array([2, 1]) / 365.2425, rtol=1e-9)
    np.testing.assert_allclose(F[:, 12], [1, -1, 0], rtol=0, atol=1e-12)  # temperature; unknown on Thursday
    np.testing.assert_allclose(F[:, 13], [1, -1, 0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(F[:, 14], np.array([-1, 2, -1]) / np.sqrt(2), rtol=0, atol=1e-12)
    np.testing.assert_allclose(F[:, 15], [-1, 1, 0], rtol=0, atol=1e-12)


def test_other_holidays_have_a_column_of_their_own(tmp_path):
    data = load_i94_traffic(write(tmp_path / "other", [line.replace("Independence", "Columbus") for line in LINES]))
    np.testing.assert_array_equal(data.row_features()[:, 7:9], [[0, 0], [0, 1], [0, 0]])


def test_features_of_a_single_day_are_finite(tmp_path):
    data = load_i94_traffic(write(tmp_path / "single", LINES[-24:]))
    np.testing.assert_array_equal(np.isfinite(data.row_features()), True)


@pytest.mark.parametrize("harmonics", [0, 1, 5, 11])
def test_col_features_are_orthogonal_waves(small, harmonics):
    F = small.col_features(harmonics)
    assert F.shape == (24, 1 + 2 * harmonics)
    np.testing.assert_allclose(F.T @ F, np.diag([24] + [12] * (2 * harmonics)), rtol=0, atol=1e-12)
    if harmonics:
        np.testing.assert_allclose(F[6, 1:3], [0, 1], rtol=0, atol=1e-12)  # cosine and sine at six in the morning


@pytest.mark.parametrize("harmonics", [-1, 12])
def test_harmonics_out_of_range(small, harmonics):
    with pytest.raises(ValueError, match=f"harmonics must be between 0 and 11, got {harmonics}"):
        small.col_features(harmonics)
    with pytest.raises(ValueError, match="harmonics must not be negative, got -2"):
        small.row_features(-2)


def test_frame_is_labelled(small):
    frame = small.frame()
    assert frame.loc["2016-07-06", 2] == 500
    assert (frame.index.name, frame.columns.name) == ("day", "hour")
    np.testing.assert_array_equal(frame.to_numpy(), small.volume)


def test_frame_without_pandas_says_what_to_do(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'pip install "irpca\[pandas\]"'):
        small.frame()


# Broken files, and none.

BROKEN = {
    "a column too few": (HEADER.replace("clouds_all", "sky"), LINES, "has no column clouds_all; its first line is"),
    "a field too few": (HEADER, [*LINES, "None,290"], "line 33: 9 fields are expected, got 2"),
    "no records": (HEADER, [], "has no records"),
    "a word for a number": (HEADER, [LINES[0].replace("290", "warm")], "column temp: .*'warm'"),
    "no date": (HEADER, [LINES[0].replace("2016-07-04 22", "noon")], "column date_time: .*noon"),
    "half an hour": (HEADER, [LINES[0].replace("22:00", "22:30")], "line 2: 2016-07-04 22:30:00 is not a full hour"),
    "two volumes": (HEADER, [LINES[0], LINES[0].replace(",100", ",101")], "line 2: another record of the same hour"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(tmp_path, name):
    header, lines, sentence = BROKEN[name]
    with pytest.raises(ValueError, match=f"{FILE}.*{sentence}"):
        load_i94_traffic(write(tmp_path / "broken", lines, header))


def test_it_is_found_under_irpca_data(miniature, monkeypatch):
    monkeypatch.setenv("IRPCA_DATA", str(miniature.parent))
    assert load_i94_traffic().volume.shape == (3, 24)


def test_without_the_file_it_says_where_to_get_it(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("nothing may be fetched")

    monkeypatch.delenv("IRPCA_DATA", raising=False)
    monkeypatch.setattr(sources, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(FileNotFoundError, match=r"Get it from https://archive\.ics\.uci\.edu.*, name it") as caught:
        load_i94_traffic()
    assert "download=True" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match=rf"empty' is not a folder: give the folder that holds {FILE}"):
        load_i94_traffic(tmp_path / "empty")


# The real data.


@pytest.fixture(scope="module")
def real():
    if not os.environ.get("IRPCA_DATA"):
        pytest.skip("IRPCA_DATA is not set")
    return load_i94_traffic()


def left_by_least_squares(M, F1, F2):
    Q1, Q2 = np.linalg.qr(F1)[0], np.linalg.qr(F2)[0]
    return M - Q1 @ (Q1.T @ M @ Q2) @ Q2.T


def root_mean_square(values):
    return np.sqrt(np.mean(values**2))


def test_what_the_docstring_says_of_the_table(real):
    assert real.volume.shape == (1860, 24)
    assert np.isnan(real.volume).mean() == pytest.approx(0.091, abs=0.001)
    assert real.complete_days.sum() == 1214
    assert (str(real.days[0]), str(real.days[-1])) == ("2012-10-02", "2018-09-30")
    missing = np.setdiff1d(np.arange(real.days[0], real.days[-1]), real.days)
    gap = np.arange("2014-08-09", "2015-06-11", dtype="datetime64[D]")
    assert np.isin(gap, missing).all()
    assert missing.size - gap.size == 24
    assert (np.nanmin(real.volume), np.nanmax(real.volume)) == (0, 7280)


def test_what_the_docstring_says_of_the_holidays(real):
    holiday = dict(zip(real.days.astype(str), real.holidays, strict=True))
    assert sum(name != "" for name in real.holidays) == 53
    assert holiday["2016-12-26"] == "Christmas Day"  # the 25th was a Sunday
    assert [holiday[day] for day in ("2013-01-21", "2014-07-04", "2016-01-18")] == ["", "", ""]
    assert set(real.holidays) > irpca.datasets.i94_traffic.CLOSED


def test_the_weather_is_that_of_minnesota(real):
    assert -30 < real.temperature.min() < -20
    assert 25 < real.temperature.max() < 35
    assert 4 < real.rain.max() < 5
    winter = np.isin(real.days.astype("datetime64[M]").astype(int) % 12, [11, 0, 1, 2])
    assert real.snow[winter].mean() > 5 * real.snow[~winter].mean()
    assert (real.clouds.min(), real.clouds.max()) == (0, 93)


def test_what_the_docstrings_say_of_the_features(real):
    F1, F2 = real.row_features(), real.col_features()
    assert F1.shape == (1860, 20)
    assert F2.shape == (24, 11)
    complete = real.complete_days
    M, F1 = real.volume[complete], F1[complete]
    assert np.linalg.matrix_rank(F1) == 20
    left = left_by_least_squares(M, F1, F2)
    assert root_mean_square(left) == pytest.approx(399.5, abs=0.5)
    assert 1 - np.sum(left**2) / np.sum((M - M.mean()) ** 2) == pytest.approx(0.959, abs=0.0005)
    for harmonics, cars in [(3, 502), (4, 482), (6, 394), (8, 387), (11, 384)]:
        left = left_by_least_squares(M, F1, real.col_features(harmonics))
        assert root_mean_square(left) == pytest.approx(cars, abs=0.6)
    named = np.array(real.holidays)[complete]
    others = np.delete(F1, [7, 8], axis=1)
    each = [named == name for name in set(named) - {""}]
    assert root_mean_square(left_by_least_squares(M, np.column_stack([others, named != ""]), F2)) == pytest.approx(
        426, abs=0.6
    )
    assert root_mean_square(left_by_least_squares(M, np.column_stack([others, *each]), F2)) == pytest.approx(
        396, abs=0.6
    )
    assert root_mean_square(left_by_least_squares(M, F1[:, :-4], F2)) == pytest.approx(409, abs=0.6)


@pytest.mark.parametrize(("share", "least_squares"), [(0.05, 470), (0.3, 1400)])
def test_a_robust_fit_sees_through_dead_detectors(real, share, least_squares):
    complete = real.complete_days
    M, F1, F2 = real.volume[complete], real.row_features()[complete], real.col_features()
    rng = np.random.default_rng(0)
    broken = rng.random(M.shape) < share
    seen = np.where(broken, rng.choice([0.0, 15_000.0], M.shape), M)
    found = irpca.solve(seen, F1, F2).L.dense()
    assert root_mean_square((found - M)[broken]) < 460
    fitted = seen - left_by_least_squares(seen, F1, F2)
    assert root_mean_square((fitted - M)[broken]) > least_squares
