"""Features from frames: what each kind of column becomes, on the fitted rows and on new ones."""

import datetime
import itertools
import json
import re
import subprocess
import sys

import hypothesis.extra.numpy as hnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irpca.encode import Encoder, from_index, needs_encoding, numbers
from irpca.features import Features, FeatureWarning

RNG = np.random.default_rng(12)
NUMBERS = RNG.standard_normal(60)
SOILS = np.array(["clay", "peat", "sand"] * 20)


def fitted(frame):
    encoder = Encoder("row_features")
    return encoder, encoder.fit_transform(frame)


def names(encoder):
    return encoder.get_feature_names_out().tolist()


def made(encoder, F, name):
    return F[:, names(encoder).index(name)]


def beside(values):
    """The values in a frame with a column of numbers."""
    return {"x": NUMBERS[: len(values)], "v": values}


def unexplained(F, y):
    """The largest residual of a least squares fit."""
    return np.abs(y - F @ np.linalg.lstsq(F, y, rcond=None)[0]).max()


def days(start, count):
    return np.datetime64(start) + np.arange(count)


# One column of each kind


def test_numbers_are_kept_and_a_constant_is_added():
    encoder, F = fitted({"x": NUMBERS, "count": np.arange(60)})
    assert names(encoder) == ["constant", "x", "count"]
    np.testing.assert_array_equal(F, np.column_stack([np.ones(60), NUMBERS, np.arange(60)]))


def test_missing_numbers_get_the_median_and_a_mark():
    values = np.arange(60.0)
    values[:6] = np.nan
    encoder, F = fitted(beside(values))
    assert (made(encoder, F, "v")[:6] == np.median(values[6:])).all()
    np.testing.assert_array_equal(made(encoder, F, "v is missing"), np.isnan(values))
    assert "6 missing values" in encoder.notes_[1]


def test_a_few_missing_numbers_get_no_column_of_their_own():
    values = np.arange(60.0)
    values[7] = np.nan
    encoder, F = fitted(beside(values))
    assert names(encoder) == ["constant", "x", "v"]
    assert F[7, 2] == np.nanmedian(values)
    assert "1 missing value was filled in with the median; too few" in encoder.notes_[1]


def test_booleans_are_zero_and_one():
    values = [True, False, None] * 20
    encoder, F = fitted(beside(values))
    np.testing.assert_array_equal(made(encoder, F, "v"), [1.0, 0.0, 0.5] * 20)
    np.testing.assert_array_equal(made(encoder, F, "v is missing"), [0, 0, 1] * 20)


def test_text_becomes_a_column_for_each_level_but_one():
    encoder, F = fitted(beside(SOILS))
    assert names(encoder) == ["constant", "x", "v = clay", "v = peat"]
    assert encoder.dropped_ == ("v = sand",)
    assert any("'v = sand'" in note for note in encoder.notes_)
    np.testing.assert_array_equal(made(encoder, F, "v = peat"), SOILS == "peat")


def test_missing_text_is_a_level():
    encoder, F = fitted(beside(["a", "b", None] * 20))
    assert encoder.dropped_ == ("v = (missing)",)
    np.testing.assert_array_equal(made(encoder, F, "v = a"), [1, 0, 0] * 20)


def test_rare_levels_are_merged():
    values = ["a"] * 25 + ["b"] * 25 + ["c"] * 4 + ["d"] * 4 + ["e"] * 2
    encoder, _ = fitted(beside(values))
    assert encoder.dropped_ == ("v = (other)",)
    assert "3 rarer ones ('c', 'd', 'e') merged as '(other)'" in encoder.notes_[1]


def test_a_single_rare_row_counts_as_the_average():
    encoder, F = fitted(beside(["a"] * 20 + ["b"] * 39 + ["c"]))
    assert made(encoder, F, "v = a")[-1] == 20 / 59
    assert "'c'), in too few rows for a column, as the average" in encoder.notes_[1]


def test_levels_are_at_most_a_tenth_of_the_rows():
    encoder, _ = fitted(beside([f"level {k % 12}" for k in range(60)]))
    assert sum(name.startswith("v = ") for name in [*names(encoder), *encoder.dropped_]) == 7  # six and (other)


def test_text_that_names_rows_is_left_out():
    encoder, F = fitted(beside([f"id{k}" for k in range(60)]))
    assert names(encoder) == ["constant", "x"]
    assert "'v' was left out: it has 60 different values in 60 rows" in encoder.notes_[1]
    np.testing.assert_array_equal(encoder.transform({"x": NUMBERS}), F)  # nobody needs it for new rows


def test_a_column_without_any_value_is_left_out():
    encoder, _ = fitted(beside([None] * 60))
    assert encoder.notes_[1] == "'v' was left out: all its values are missing."


def test_categories_keep_their_order():
    values = pd.Categorical(["low", "high", "mid"] * 20, categories=["low", "mid", "high"], ordered=True)
    encoder, _ = fitted(pd.DataFrame(beside(values)))
    assert [*names(encoder)[2:], *encoder.dropped_] == ["v = low", "v = mid", "v = high"]


def test_integer_categories_with_missing_values_stay_integers():
    encoder, _ = fitted(pd.DataFrame(beside(pd.Categorical([1, 2, None] * 20))))
    assert [*names(encoder)[2:], *encoder.dropped_] == ["v = 1", "v = 2", "v = (missing)"]


def test_intervals_of_cut_are_categories():
    encoder, _ = fitted(pd.DataFrame({"v": pd.cut(NUMBERS, [-10, -0.4, 0.4, 10])}))
    assert names(encoder) == ["constant", "v = (-10.0, -0.4]", "v = (-0.4, 0.4]"]


def test_lengths_of_time_are_seconds():
    encoder, F = fitted({"v": NUMBERS.astype("timedelta64[ms]") + np.arange(60) * np.timedelta64(1500, "ms")})
    np.testing.assert_allclose(made(encoder, F, "v"), np.arange(60) * 1.5, atol=0.003)
    assert "in seconds" in encoder.notes_[0]


def test_times_of_day_are_a_cycle():
    times = [datetime.time(hour) for hour in range(24)] * 3
    _, F = fitted({"v": times})
    assert unexplained(F, np.sin(np.arange(72) / 24 * 2 * np.pi + 1)) < 1e-10
    np.testing.assert_array_equal(fitted(pl.DataFrame({"v": times}))[1], F)


# Dates


def test_weekday_and_season_of_two_years_are_in_the_span():
    dates = days("2013-01-01", 730)
    encoder, F = fitted({"date": dates})
    day = np.arange(730)
    phase = 2 * np.pi * (day % 365) / 365
    weekday = np.array([3.0, 1, 4, 1, 5, 9, 2])[day % 7]
    for y in (weekday, np.sin(phase + 1), np.cos(3 * phase), day / 730, 7 + weekday * 2 + np.sin(phase)):
        assert unexplained(F, y) < 1e-9
    assert F.shape[1] < 25
    assert "cycle of the year (3 harmonics), days of the week" in encoder.notes_[0]
    assert encoder.dropped_ == ("date: Sunday",)


def test_hours_of_the_day_are_in_the_span():
    dates = np.datetime64("2013-01-01T00") + np.arange(24 * 4)
    encoder, F = fitted({"date": dates})
    assert unexplained(F, np.cos(2 * np.pi * np.arange(96) / 24 * 2 + 1)) < 1e-9
    assert not any("Monday" in name or "of the year" in name for name in names(encoder))  # four days show neither


def test_a_smooth_trend_is_nearly_in_the_span():
    F = fitted({"date": days("2013-01-01", 300)})[1]
    assert unexplained(F, np.sin(np.linspace(0, 4, 300))) < 0.05


@pytest.mark.parametrize(
    ("dates", "absent"),
    [
        (days("2013-01-01", 729), "of the year"),
        (days("2013-01-01", 13), "Tuesday"),
        (np.datetime64("2013-01-07") + 7 * np.arange(150), "Monday"),
        (np.datetime64("1990") + np.arange(60), "of the year"),
        (days("2013-01-01", 60) + np.timedelta64(6, "h"), "of the day"),
    ],
    ids=["under two years", "under two weeks", "weekly", "yearly", "daily"],
)
def test_cycles_that_dates_cannot_show_are_not_made(dates, absent):
    assert not any(absent in name for name in names(fitted({"date": dates})[0]))


def test_dates_beyond_the_fit_continue_in_a_straight_line():
    encoder, _ = fitted({"date": days("2013-01-01", 300)})
    later = encoder.transform({"date": np.datetime64("2014-01-01") + 7 * np.arange(100) * 10})
    trend = [j for j, name in enumerate(names(encoder)) if "since" in name or "curve" in name]
    assert len(trend) == 4
    assert np.abs(np.diff(later[:, trend], n=2, axis=0)).max() < 1e-9
    earlier = encoder.transform({"date": np.datetime64("1900-01-02") + 7 * np.arange(100)})
    assert np.abs(np.diff(earlier[:, trend], n=2, axis=0)).max() < 1e-9
    assert np.isfinite(encoder.transform({"date": np.array(["0001-01-01", "9999-12-31"], "datetime64[D]")})).all()


def test_the_curve_is_smooth_at_its_last_knot():
    encoder, _ = fitted(from_index(np.linspace(0, 1, 200), "t"))
    F = encoder.transform(from_index(np.linspace(0.9, 1.1, 2001), "t"))
    assert np.abs(np.diff(F, n=2, axis=0)).max() < 1e-6  # the step is 1e-4: second derivatives stay below 100


def test_missing_dates_get_the_average_and_a_mark():
    dates = days("2013-01-01", 60)
    dates[:6] = "NaT"
    encoder, F = fitted({"date": dates})
    np.testing.assert_array_equal(made(encoder, F, "date is missing"), np.isnat(dates))
    np.testing.assert_allclose(F[0, 1:-1], F[6:, 1:-1].mean(axis=0))
    assert np.isfinite(F).all()


def test_the_clock_of_the_time_zone_counts():
    zoned = pd.date_range("2013-03-29", periods=24 * 5, freq="h", tz="Europe/Berlin")  # summer time begins
    encoder, F = fitted(pd.DataFrame({"date": zoned}))
    np.testing.assert_array_equal(fitted({"date": zoned.tz_localize(None).to_numpy()})[1], F)
    np.testing.assert_array_equal(fitted({"date": zoned})[1], F)
    np.testing.assert_array_equal(fitted(pl.from_pandas(pd.DataFrame({"date": zoned})))[1], F)
    noon = zoned.hour == 12
    assert len(np.unique(made(encoder, F, "date: cosine 1 of the day")[noon])) == 1


def test_periods_are_dates():
    periods = pd.period_range("2000-01", periods=60, freq="M")
    F = fitted(pd.DataFrame({"v": periods}))[1]
    np.testing.assert_array_equal(F, fitted({"v": periods.to_timestamp().to_numpy()})[1])


def test_text_in_iso_format_is_read_as_dates():
    dates = days("2013-01-01", 60)
    encoder, F = fitted({"date": dates.astype(str)})
    np.testing.assert_array_equal(F, fitted({"date": dates})[1])
    assert "'date' is text, but all of it in ISO format: it was read as dates." in encoder.notes_
    np.testing.assert_array_equal(encoder.transform({"date": dates[:3]}), F[:3])


def test_an_index_of_other_text_is_refused():
    with pytest.raises(ValueError, match="neither"):
        from_index(["2013-02-30", "2013-01-01"], "t")


# An index as features


def test_years_of_an_index_become_a_curve():
    encoder, F = fitted(from_index(np.arange(1964, 2014), "year"))
    assert names(encoder) == ["constant", "year", "year: curve 1", "year: curve 2"]
    np.testing.assert_array_equal(F[:, 1], np.arange(1964, 2014))
    assert fitted({"year": np.arange(1964, 2014)})[1].shape == (50, 2)  # in a frame numbers count linearly
    later = encoder.transform(from_index(np.arange(2014, 2100), "year"))
    assert np.abs(np.diff(later, n=2, axis=0)).max() < 1e-9


def test_text_of_numbers_in_an_index():
    np.testing.assert_array_equal(from_index(np.array(["1964", "1965"]), "year")["year"], [1964.0, 1965.0])


@pytest.mark.parametrize("labels", [["Oslo", "Rome"], [True, False], [("a", 1), ("a", 2)], [None, None]])
def test_labels_that_are_no_times_are_refused(labels):
    values = np.empty(2, dtype=object)
    values[:] = labels
    with pytest.raises(ValueError, match="index"):
        from_index(values, "town")


# New rows


def test_an_unseen_level_is_other_where_there_is_one():
    encoder, _ = fitted(beside(["a"] * 20 + ["b"] * 20 + list("cdefghijklmnopqrstuv")))
    with pytest.warns(
        FeatureWarning, match=r"column 'v' of row_features has levels .* \('zebra'\).* '\(other\)'"
    ) as seen:
        new = encoder.transform({"x": [0.0, 0.0], "v": ["zebra", "c"]})
    np.testing.assert_array_equal(new[0], new[1])
    assert seen[0].filename == __file__


def test_an_unseen_level_is_the_average_where_there_is_no_other():
    encoder, F = fitted(beside(SOILS))
    with pytest.warns(FeatureWarning, match="'zebra'.*the average of the levels"):
        new = encoder.transform({"x": [0.0], "v": ["zebra"]})
    np.testing.assert_allclose(new[0, 2:], F[:, 2:].mean(axis=0))


def test_an_unseen_weekday_is_an_average_day():
    dates = days("2013-01-07", 70)
    encoder, _ = fitted({"date": dates[np.is_busday(dates)]})
    with pytest.warns(FeatureWarning, match="Saturday, Sunday"):
        new = encoder.transform({"date": dates[5:7]})
    assert made(encoder, new, "date: Monday").tolist() == [0.2, 0.2]


@pytest.mark.parametrize("values", [NUMBERS, SOILS, days("2013-01-01", 60), NUMBERS > 0])
def test_values_missing_for_the_first_time_are_refused(values):
    encoder, _ = fitted(beside(values))
    new = np.array(values[:4], dtype=object)
    new[:2] = None
    with pytest.raises(ValueError, match="column 'v' of row_features has 2 missing values, but had none"):
        encoder.transform({"x": NUMBERS[:4], "v": new})
    with pytest.raises(ValueError, match="has 3 missing values"):
        encoder.transform({"x": NUMBERS[:3], "v": [None] * 3})


@pytest.mark.parametrize("values", [NUMBERS, SOILS, days("2013-01-01", 60), NUMBERS > 0])
def test_only_missing_values_in_new_rows(values):
    values = np.array(values, dtype=object)
    values[:6] = None
    encoder, F = fitted(beside(list(values)))
    np.testing.assert_array_equal(encoder.transform({"x": NUMBERS[:2], "v": [None, None]}), F[:2])


def test_columns_are_found_by_name():
    encoder, F = fitted(beside(SOILS))
    np.testing.assert_array_equal(encoder.transform(dict(reversed(beside(SOILS).items()))), F)
    with pytest.raises(ValueError, match="row_features has no column 'v'"):
        encoder.transform({"x": NUMBERS})
    with pytest.raises(ValueError, match="not fitted with: 'y', 'z'; leave them out"):
        encoder.transform({**beside(SOILS), "y": NUMBERS, "z": NUMBERS})


def test_no_new_rows():
    encoder, F = fitted(beside(SOILS))
    assert encoder.transform(pd.DataFrame(beside(SOILS))[:0]).shape == (0, F.shape[1])


@pytest.mark.parametrize(
    ("first", "then"),
    [(NUMBERS, SOILS), (SOILS, NUMBERS), (days("2013-01-01", 60), SOILS), (NUMBERS > 0, NUMBERS)],
)
def test_another_kind_in_new_rows_is_refused(first, then):
    encoder, _ = fitted(beside(first))
    with pytest.raises(ValueError, match=r"column 'v' of row_features holds .*, but held .*; convert it"):
        encoder.transform(beside(then))


def test_zero_and_one_serve_as_booleans():
    encoder, F = fitted(beside(NUMBERS > 0))
    np.testing.assert_array_equal(encoder.transform(beside((NUMBERS > 0).astype(int))), F)


# Columns that repeat others, and too many of them


def test_repeated_columns_are_named():
    encoder, _ = fitted({"x": NUMBERS, "feet": NUMBERS * 3.28 + 7, "same": np.full(60, 4.2), "soil": SOILS})
    assert encoder.dropped_ == ("feet", "same", "soil = sand")
    assert "determine them: 'feet', 'same', 'soil = sand'." in encoder.notes_[-1]


def test_numbers_far_from_zero_are_no_constant():
    encoder, F = fitted({"time": 1.6e18 + NUMBERS * 1e10, "soil": SOILS})
    assert encoder.dropped_ == ("soil = sand",)
    assert Features.of(F, 60).d == 4


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1e12, 1e300])
def test_units_do_not_matter(size):
    assert fitted({"x": NUMBERS * size, "y": NUMBERS[::-1] / size, "soil": SOILS})[0].dropped_ == ("soil = sand",)


def test_few_rows_get_few_features():
    frame = {"date": days("2013-01-01", 24), "a": list("pqrs") * 6, "b": list("uvwwvu") * 4}
    encoder, F = fitted(frame)
    assert F.shape[1] <= 8
    assert "Fewer levels, knots or cycles than usual were made, because there are only 24 rows." in encoder.notes_
    encoder, _ = fitted({f"x{k}": RNG.standard_normal(12) for k in range(6)} | {"a": ["p", "q"] * 6})
    assert "8 features for 12 rows are many" in encoder.notes_[-2]


def test_made_names_are_unique():
    frame = {"constant": NUMBERS, "v": SOILS, "v = clay": NUMBERS**2}
    assert names(fitted(frame)[0]) == ["constant", "constant (2)", "v = clay", "v = peat", "v = clay (2)"]


def test_many_levels_stay_affordable():
    encoder, F = fitted({"v": [f"level {k % 3000}" for k in range(30_000)]})
    assert F.shape == (30_000, 101)
    assert "2900 rarer ones" in encoder.notes_[0]


# Frames of all libraries


def mixed():
    n = 90
    gaps = np.arange(n) % 9 == 0
    return {
        "number": [None if gap else float(x) for gap, x in zip(gaps, RNG.standard_normal(n), strict=True)],
        "whole": list(range(n)),
        "flag": [None if k % 10 == 3 else k % 4 == 0 for k in range(n)],
        "soil": [None if k % 11 == 0 else ["clay", "peat", "sand", "loam"][k % 4] for k in range(n)],
        "day": [None if k % 12 == 0 else datetime.date(2013, 1, 1) + datetime.timedelta(k) for k in range(n)],
        "time": [datetime.datetime(2013, 1, 1) + datetime.timedelta(hours=5 * k) for k in range(n)],
        "took": [datetime.timedelta(seconds=k * k) for k in range(n)],
    }


def containers(frame):
    """The frame in each library, with the types that it would have there."""
    polars = pl.DataFrame(frame)
    pandas = pd.DataFrame(frame).astype({"number": "Float64", "flag": "boolean", "soil": "category"})
    keys = list(frame)
    return {
        "pandas": pd.DataFrame(frame),
        "pandas nullable": pandas,
        "polars": polars,
        "polars categorical": polars.with_columns(pl.col("soil").cast(pl.Categorical)),
        "lazy": polars.lazy(),
        "pyarrow": polars.to_arrow(),
        "pyarrow dictionary": pa.Table.from_pandas(pandas),
        "records": [dict(zip(keys, row, strict=True)) for row in zip(*frame.values(), strict=True)],
        "arrays": {key: np.array(values, dtype=object) for key, values in frame.items()},
        "series": {key: polars[key] for key in keys},
    }


def test_every_container_gives_the_same_to_the_bit():
    frame = mixed()
    encoder, F = fitted(frame)
    assert np.isfinite(F).all() and F.shape[1] > 15
    for name, other in containers(frame).items():
        again, G = fitted(other)
        assert (names(again), again.notes_) == (names(encoder), encoder.notes_), name
        np.testing.assert_array_equal(G, F, err_msg=name)
        np.testing.assert_array_equal(encoder.transform(other), F, err_msg=name)
        assert needs_encoding(other), name


def test_masked_arrays_and_polars_enums():
    mask = np.arange(60) < 6
    F = fitted({"v": np.ma.masked_array(NUMBERS, mask)})[1]
    np.testing.assert_array_equal(F, fitted({"v": np.where(mask, np.nan, NUMBERS)})[1])
    levels = pl.Series(SOILS.tolist(), dtype=pl.Enum(["sand", "peat", "clay"]))
    assert fitted(pl.DataFrame({"v": levels}))[0].dropped_ == ("v = clay",)


def test_a_series_is_a_frame_of_one_column():
    np.testing.assert_array_equal(fitted(pd.Series(SOILS, name="v"))[1], fitted({"v": SOILS})[1])


@pytest.mark.parametrize(
    "plain",
    [
        None,
        np.eye(3),
        np.array([["a"]]),
        [[1.0, 2.0]],
        [],
        pd.DataFrame({"a": [1, 2], "b": [True, False], 3: [0.5, 1.5]}),
        pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]),
        pd.DataFrame({"a": [np.inf, 1.0]}),
        pl.DataFrame({"a": [1, 2], "b": [True, False]}),
        pa.table({"a": [1, 2]}),
        {"a": [1, 2]},
    ],
)
def test_numbers_need_no_encoding(plain):
    assert not needs_encoding(plain)


def test_a_plain_frame_as_an_array():
    np.testing.assert_array_equal(numbers({"a": [1, 2], "b": [True, False]}), [[1.0, 1.0], [2.0, 0.0]])


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": [1.0, np.nan]}),
        pd.DataFrame({"a": ["x", "y"]}),
        pd.DataFrame({"a": [1, "y"]}),
        pl.DataFrame({"a": [1.0, float("nan")]}),
        pl.DataFrame({"a": [1, None]}),
        pa.table({"a": [datetime.date(2013, 1, 1)]}),
        {"a": days("2013-01-01", 3)},
        [{"a": 1}, {"b": 2}],
    ],
)
def test_all_else_needs_encoding(frame):
    assert needs_encoding(frame)


# Refusals


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"v": [[1], [2]]}, "column 'v' of row_features holds values of type list"),
        (pl.DataFrame({"v": [{"a": 1}, {"a": 2}]}), "column 'v' of row_features holds values of type dict"),
        ({"v": [1j, 2j]}, "column 'v' of row_features holds complex numbers"),
        ({"v": np.array([1j, 2j])}, "column 'v' of row_features holds complex numbers"),
        ({"v": [b"a", b"b"]}, "column 'v' of row_features holds bytes"),
        ({"v": [1.0, np.inf]}, "column 'v' of row_features has 1 infinite value;"),
        ({"v": [1, 10**400]}, "column 'v' of row_features has 1 infinite value;"),
        ({"v": [1, "a"]}, re.escape("column 'v' of row_features mixes numbers and text (1, 'a')")),
        ({"v": np.eye(2)}, "column 'v' of row_features must be one-dimensional"),
        ({"v": [1, 2], "w": [1]}, "columns of row_features differ in length"),
        ({"v": []}, "row_features is empty: it has 1 column and no rows"),
        ({}, "row_features is empty: it has 0 columns and no rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "row_features has more than one column named 'a'"),
        (pa.table([[1], [2]], names=["a", "a"]), "row_features has more than one column named 'a'"),
        (pd.DataFrame({1: [1], "1": [2]}), "row_features has more than one column named '1'"),
        (np.eye(2), "row_features must be a frame"),
        ({"v": [None, None]}, "row_features has no column that tells rows apart.*all its values are missing"),
        ({"v": np.array(["20000-01-01"], "datetime64[D]")}, "dates outside the years 1 to 9999: '20000-01-01'"),
    ],
)
def test_what_cannot_be_used_is_refused(frame, message):
    with pytest.raises(ValueError, match=message):
        Encoder("row_features").fit(frame)


def test_an_encoder_must_be_fitted():
    with pytest.raises(ValueError, match="call fit first"):
        Encoder().transform({"x": [1.0]})


# Saving


def equal_after_json(encoder, frame):
    again = Encoder.from_state(json.loads(json.dumps(encoder.state(), allow_nan=False)))
    np.testing.assert_array_equal(again.transform(frame), encoder.transform(frame))
    assert again.state() == encoder.state()
    assert (again.name, again.columns_, again.dropped_, again.notes_) == (
        encoder.name,
        encoder.columns_,
        encoder.dropped_,
        encoder.notes_,
    )
    np.testing.assert_array_equal(again.get_feature_names_out(), encoder.get_feature_names_out())


def test_state_survives_json_to_the_bit():
    frame = mixed() | {"clock": [datetime.time(k % 24, k % 7) for k in range(90)]}
    equal_after_json(fitted(frame)[0], frame)
    equal_after_json(fitted(from_index(NUMBERS, "t"))[0], from_index(NUMBERS * 3, "t"))


def test_nothing_heavy_is_imported_with_the_module():
    code = (
        "import sys, irpca.encode; print([m for m in ('pandas', 'polars', 'pyarrow', 'narwhals') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    plain = subprocess.run(
        [sys.executable, "-c", code.replace("irpca.encode", "irpca")], capture_output=True, text=True, check=True
    ).stdout
    assert found == plain


# Anything


def columns_of(n):
    floats = st.floats(allow_infinity=False)
    dates = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31))
    cells = [floats, st.integers(), st.booleans(), st.text(max_size=2), st.sampled_from("abc"), dates, st.dates()]
    cells += [st.timedeltas(), st.times()]
    lists = [st.lists(st.none() | cell, min_size=n, max_size=n) for cell in cells]
    arrays = [hnp.arrays(dtype, n) for dtype in (np.int32, np.bool_, "<U2")]
    return st.one_of(*lists, *arrays)


frames = st.integers(1, 40).flatmap(
    lambda n: st.dictionaries(st.text(max_size=3), columns_of(n), min_size=1, max_size=4)
)


@settings(max_examples=150, deadline=None)
@given(frames)
def test_any_frame_becomes_finite_numbers_or_is_refused(frame):
    encoder = Encoder()
    try:
        F = encoder.fit_transform(frame)
    except ValueError as error:
        assert "no column that tells rows apart" in str(error) or "infinite" in str(error)
        return
    assert np.isfinite(F).all()
    assert F.shape == (len(next(iter(frame.values()))), len(set(names(encoder))))
    assert F.shape[1] <= len(F)
    np.testing.assert_array_equal(encoder.transform(frame), F)
    equal_after_json(encoder, frame)
    assert len(encoder.notes_) >= len(frame)


def test_the_order_of_columns_changes_nothing_else():
    frame = {"x": NUMBERS, "soil": SOILS, "flag": NUMBERS > 0.5}
    shapes = {fitted({key: frame[key] for key in order})[1].shape for order in itertools.permutations(frame)}
    assert shapes == {(60, 5)}


@pytest.mark.parametrize(
    "then, words",
    [
        (SOILS, "text"),
        (days("2013-01-01", 60), "dates"),
        (days("2013-01-01", 60) - days("2012-01-01", 60), "lengths of time"),
        ([datetime.time(k % 24) for k in range(60)], "times of day"),
    ],
)
def test_kinds_of_columns_have_names(then, words):
    encoder, _ = fitted(beside(NUMBERS))
    with pytest.raises(ValueError, match=f"column 'v' of row_features holds {words}, but held numbers .*; convert it"):
        encoder.transform(beside(then))
