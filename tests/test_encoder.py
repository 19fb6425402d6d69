"""Features from frames: what each kind of column becomes, on the fitted rows and on new ones."""

import datetime
import re
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irpca.features import Encoder, Features, FeatureWarning
from irpca.features.frames import as_array, index_column, needs_encoding

RNG = np.random.default_rng(12)
NUMBERS = RNG.standard_normal(60)
SOILS = np.array(["clay", "peat", "sand"] * 20)
CLOCK = [datetime.time(hour) for hour in range(24)] * 3


def fit(frame):
    encoder = Encoder("row_features")
    return encoder, encoder.fit_transform(frame)


def beside(values):
    """The values in a frame with a column of numbers."""
    return {"x": NUMBERS[: len(values)], "v": values}


def unexplained(F, y):
    """The largest residual of a least squares fit."""
    return np.abs(y - F @ np.linalg.lstsq(F, y, rcond=None)[0]).max()


def column(encoder, F, name):
    return F[:, encoder.names_.index(name)]


def days(start, count):
    return np.datetime64(start) + np.arange(count)


DAYS = days("2013-01-01", 60)


@pytest.mark.parametrize(
    "values, note, names",
    [
        (SOILS, "one column for each of 3 levels.", ["v = clay", "v = peat", "v = sand"]),
        (["a"] * 25 + ["b"] * 25 + list("ccccddddee"), "3 rarer ones ('c', 'd', 'e') merged as '(other)'.", None),
        (["a"] * 20 + ["b"] * 39 + ["c"], "1 rarer one ('c'), in too few rows for a column, as the average.", None),
        ([f"{k % 12}" for k in range(60)], "one column for each of 6 levels; 6 rarer ones", None),
        ([f"id{k}" for k in range(60)], "left out: it has 60 different values in 60 rows, too many to group", []),
        ([None] * 60, "'v' was left out: all its values are missing.", []),
        (NUMBERS > 0, "true is 1, false is 0.", ["v"]),
        (np.arange(60) * np.timedelta64(1500, "ms"), "lengths of time, in seconds.", ["v"]),
        (CLOCK[:60], "times of day, as a cycle of the day (3 harmonics).", None),
        (
            pd.Series([1, 2, None] * 20, dtype="category"),
            "marked by 'v is missing'",
            ["v = 1", "v is missing", "v = 2"],
        ),
        (pd.Series(pd.cut(NUMBERS, [-10, -0.4, 10])), "2 levels", ["v = (-10.0, -0.4]", "v = (-0.4, 10.0]"]),
        (pl.Series(["b", "a"] * 30, dtype=pl.Enum(["b", "a"])), "2 levels", ["v = b", "v = a"]),
    ],
)
def test_what_a_column_becomes(values, note, names):
    encoder, F = fit(beside(values))
    assert note in encoder.notes_[1] and F.shape == (60, len(encoder.names_))
    assert names is None or [*encoder.names_[2:], *encoder.dropped_] == names
    if not names:  # what was left out is not needed for new rows
        assert names is None or encoder.transform({"x": NUMBERS}).shape == F.shape


def test_levels_are_zeros_and_ones_and_the_last_is_left_out():
    encoder, F = fit(beside(SOILS))
    assert encoder.dropped_ == ("v = sand",) and len(encoder.notes_) == 3
    assert encoder.notes_[2] == "Left out, because columns before them determine them: 'v = sand'."
    np.testing.assert_array_equal(F[:, 2:], np.column_stack([SOILS == "clay", SOILS == "peat"]))
    encoder, F = fit(beside(["a"] * 20 + ["b"] * 39 + ["c"]))
    assert column(encoder, F, "v = a")[-1] == 20 / 59  # a level of one row is the average of the others


@pytest.mark.parametrize("gaps, marked", [(1, False), (6, True)])
@pytest.mark.parametrize("values", [np.arange(60.0), SOILS, DAYS, CLOCK[:60]], ids=lambda v: type(v[0]))
def test_missing_values_are_filled_in_and_marked(values, gaps, marked):
    values = np.array(values, object)
    values[:gaps] = None
    encoder, F = fit(beside(values.tolist()))
    made = [j for j, name in enumerate(encoder.names_) if name.startswith("v") and name != "v is missing"]
    known = F[gaps:, made]
    average = np.median(known, axis=0) if encoder.terms_[1].is_number else known.mean(axis=0)
    np.testing.assert_allclose(F[:gaps, made], np.tile(average, (gaps, 1)), atol=1e-12)
    assert ("v is missing" in encoder.names_) == marked
    end = "marked by 'v is missing'." if marked else "; too few for a column that marks them."
    assert f"{gaps} missing value" in encoder.notes_[1] and encoder.notes_[1].endswith(end)
    np.testing.assert_array_equal(encoder.transform({"x": NUMBERS[:gaps], "v": [None] * gaps}), F[:gaps])


def test_weekday_season_and_trend_of_two_years_are_in_the_span():
    encoder, F = fit({"date": days("2013-01-01", 730)})
    day = np.arange(730)
    phase, weekday = 2 * np.pi * (day % 365) / 365, np.array([3.0, 1, 4, 1, 5, 9, 2])[day % 7]
    for y in (weekday, np.sin(phase + 1), np.cos(3 * phase), day / 730, 7 + weekday * 2 + np.sin(phase)):
        assert unexplained(F, y) < 1e-9
    assert unexplained(F, np.sin(day / 180)) < 0.1
    assert "cycle of the year (3 harmonics), days of the week" in encoder.notes_[0]
    assert F.shape[1] < 25 and encoder.dropped_ == ("date: Sunday",)


@pytest.mark.parametrize(
    "dates, absent",
    [
        (days("2013-01-01", 729), "of the year"),
        (days("2013-01-01", 13), "Tuesday"),
        (np.datetime64("2013-01-07") + 7 * np.arange(150), "Monday"),
        (np.datetime64("1990") + np.arange(60), "of the year"),
        (DAYS + np.timedelta64(6, "h"), "of the day"),
    ],
    ids=["under two years", "under two weeks", "weekly", "yearly", "daily"],
)
def test_cycles_that_dates_cannot_show_are_not_made(dates, absent):
    assert not any(absent in name for name in fit({"date": dates})[0].names_)


def test_dates_beyond_the_fit_continue_in_a_straight_line():
    encoder, _ = fit({"date": days("2013-01-01", 300)})
    trend = [j for j, name in enumerate(encoder.names_) if "since" in name or "curve" in name]
    assert len(trend) == 4
    for start, step in (("2014-01-01", 70), ("1900-01-02", 7)):
        beyond = encoder.transform({"date": np.datetime64(start) + step * np.arange(100)})
        assert np.abs(np.diff(beyond[:, trend], n=2, axis=0)).max() < 1e-9
    assert np.isfinite(encoder.transform({"date": np.array(["0001-01-01", "9999-12-31"], "datetime64[D]")})).all()
    encoder, _ = fit(index_column(np.linspace(0, 1, 200), "t"))
    F = encoder.transform(index_column(np.linspace(0.9, 1.1, 2001), "t"))
    assert np.abs(np.diff(F, n=2, axis=0)).max() < 1e-6  # smooth at the last knot, too: steps are 1e-4


def test_the_clock_of_the_time_zone_counts():
    zoned = pd.date_range("2013-03-29", periods=24 * 5, freq="h", tz="Europe/Berlin")  # summer time begins
    encoder, F = fit(pd.DataFrame({"date": zoned}))
    for same in (
        {"date": zoned.tz_localize(None).to_numpy()},
        {"date": zoned},
        pl.from_pandas(zoned.to_frame(name="date")),
    ):
        np.testing.assert_array_equal(fit(same)[1], F)
    assert len(np.unique(column(encoder, F, "date: cosine 1 of the day")[zoned.hour == 12])) == 1


def test_text_in_iso_format_and_periods_are_read_as_dates():
    encoder, F = fit({"date": DAYS.astype(str)})
    np.testing.assert_array_equal(F, fit({"date": DAYS})[1])
    assert "'date' is text, but all of it in ISO format: it was read as dates." in encoder.notes_
    np.testing.assert_array_equal(encoder.transform({"date": DAYS[:3]}), F[:3])
    periods = pd.period_range("2000-01", periods=60, freq="M")
    np.testing.assert_array_equal(fit({"v": periods})[1], fit({"v": periods.to_timestamp().to_numpy()})[1])


def test_years_of_an_index_become_a_curve():
    encoder, F = fit(index_column(np.arange(1964, 2014), "year"))
    assert encoder.names_ == ("constant", "year", "year: curve 1", "year: curve 2")
    np.testing.assert_array_equal(F[:, 1], np.arange(1964, 2014))
    assert "smooth curve (natural cubic spline, 4 knots)" in encoder.notes_[0]
    assert fit({"year": np.arange(1964, 2014)})[1].shape == (50, 2)  # in a frame numbers count linearly
    assert index_column(["1964", "1965"], "year")["year"].values.tolist() == [1964.0, 1965.0]


@pytest.mark.parametrize(
    "labels", [["Oslo", "Rome"], [True, False], [("a", 1), ("a", 2)], [None, None], ["2013-02-30", "2013-01-01"]]
)
def test_labels_that_are_no_times_are_refused(labels):
    values = np.empty(2, dtype=object)
    values[:] = labels
    with pytest.raises(ValueError, match="index"):
        index_column(values, "town")


@pytest.mark.parametrize(
    "values, taken",
    [(["a"] * 20 + ["b"] * 20 + list("cdefghijklmnopqrstuv"), r"'\(other\)'"), (SOILS, "the average of the levels")],
)
def test_unseen_levels(values, taken):
    encoder, F = fit(beside(values))
    expected = rf"column 'v' of row_features has levels that the fit did not have \('zebra'\); .* taken for {taken}"
    with pytest.warns(FeatureWarning, match=expected) as seen:
        new = encoder.transform({"x": [0.0], "v": ["zebra"]})
    assert seen[0].filename == __file__
    alike = F[40, 2:] if "other" in taken else F[:, 2:].mean(axis=0)
    np.testing.assert_allclose(new[0, 2:], alike)
    assert encoder.vague({"x": [0, 0], "v": ["zebra", values[0]]}).tolist() == [True, False]


def test_an_unseen_weekday_is_an_average_day():
    dates = days("2013-01-07", 70)
    encoder, _ = fit({"date": dates[np.is_busday(dates)]})
    with pytest.warns(FeatureWarning, match="'Saturday', 'Sunday'.*; they are taken for an average day"):
        new = encoder.transform({"date": dates[5:7]})
    np.testing.assert_allclose(column(encoder, new, "date: Monday"), 0.2)


@pytest.mark.parametrize("values", [NUMBERS, SOILS])
def test_values_missing_for_the_first_time_are_refused(values):
    encoder, _ = fit(beside(values))
    with pytest.raises(ValueError, match="column 'v' of row_features has 2 missing values, but had none"):
        encoder.transform({"x": NUMBERS[:4], "v": [None, None, *np.array(values[2:4], object)]})


def test_columns_are_found_by_name():
    encoder, F = fit(beside(SOILS))
    np.testing.assert_array_equal(encoder.transform(dict(reversed(beside(SOILS).items()))), F)
    assert encoder.transform(pd.DataFrame(beside(SOILS))[:0]).shape == (0, F.shape[1])
    encoder, F = fit(beside(NUMBERS > 0))
    np.testing.assert_array_equal(encoder.transform(beside((NUMBERS > 0).astype(int))), F)
    np.testing.assert_array_equal(fit(beside(np.arange(60.0)))[0].transform(beside(NUMBERS > 0)), F)
    with pytest.raises(ValueError, match="row_features has no column 'v'"):
        encoder.transform({"x": NUMBERS})
    with pytest.raises(ValueError, match="not fitted with: 'y', 'z'; leave them out"):
        encoder.transform({**beside(SOILS), "y": NUMBERS, "z": NUMBERS})


@pytest.mark.parametrize(
    "first, then, words",
    [
        (NUMBERS, SOILS, "holds text, but held numbers"),
        (SOILS, NUMBERS, "holds numbers, but held text"),
        (DAYS, SOILS, "holds 'clay', but held dates"),
        (NUMBERS > 0, NUMBERS, "holds numbers, but held true or false"),
    ],
)
def test_another_kind_in_new_rows_is_refused(first, then, words):
    encoder, _ = fit(beside(first))
    with pytest.raises(ValueError, match=f"column 'v' of row_features {words} when the model was fitted; convert it"):
        encoder.transform(beside(then))


def test_repeated_columns_are_named_whatever_their_units():
    encoder, _ = fit({"x": NUMBERS, "feet": NUMBERS * 3.28 + 7, "same": np.full(60, 4.2), "soil": SOILS})
    assert encoder.dropped_ == ("feet", "same", "soil = sand")
    for size in (1e-300, 1e-12, 1e12, 1e300):
        encoder, _ = fit({"x": NUMBERS * size, "y": NUMBERS[::-1] / size, "soil": SOILS})
        assert encoder.dropped_ == ("soil = sand",)
    encoder, F = fit({"time": 1.6e18 + NUMBERS * 1e10, "soil": SOILS})  # far from zero, and no constant
    assert encoder.dropped_ == ("soil = sand",) and Features.of(F, 60).d == 4


def test_few_rows_get_few_features():
    frame = {"date": days("2013-01-01", 24), "a": list("pqrs") * 6, "b": list("uvwwvu") * 4}
    encoder, F = fit(frame)
    assert F.shape[1] <= 8
    assert "Fewer levels, knots or cycles than usual were made, because there are only 24 rows." in encoder.notes_
    encoder, _ = fit({f"x{k}": RNG.standard_normal(12) for k in range(6)} | {"a": ["p", "q"] * 6})
    assert "8 features for 12 rows are many" in encoder.notes_[-2]


def test_names_are_unique_and_many_levels_affordable():
    frame = {"constant": NUMBERS, "v": SOILS, "v = clay": NUMBERS**2}
    assert fit(frame)[0].names_ == ("constant", "constant (2)", "v = clay", "v = peat", "v = clay (2)")
    encoder, F = fit({"v": [f"level {k % 3000}" for k in range(30_000)]})
    assert F.shape == (30_000, 101) and "2,900 rarer ones" in encoder.notes_[0]


def mixed(n=90):
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


def test_every_container_gives_the_same_to_the_bit():
    frame = mixed()
    encoder, F = fit(frame)
    assert np.isfinite(F).all() and F.shape[1] > 15
    polars = pl.DataFrame(frame)
    pandas = pd.DataFrame(frame).astype({"number": "Float64", "flag": "boolean", "soil": "category"})
    categorical = polars.with_columns(pl.col("soil").cast(pl.Categorical))
    records = [dict(zip(frame, row, strict=True)) for row in zip(*frame.values(), strict=True)]
    columns = {key: np.array(values, dtype=object) for key, values in frame.items()}
    series = {key: polars[key] for key in frame}
    for other in (pandas, polars, categorical, polars.lazy(), polars.to_arrow(), records, columns, series):
        again, G = fit(other)
        assert (again.names_, again.notes_) == (encoder.names_, encoder.notes_)
        np.testing.assert_array_equal(G, F)
        np.testing.assert_array_equal(encoder.transform(other), F)
        assert needs_encoding(other)
    amounts = pa.table({"v": pa.array([None] * 6 + [Decimal(k) for k in range(54)], pa.decimal128(5, 2))})
    np.testing.assert_array_equal(fit(amounts)[1], fit({"v": [None] * 6 + list(range(54))})[1])
    mask = np.arange(60) < 6
    masked = fit({"v": np.ma.masked_array(NUMBERS, mask)})[1]
    np.testing.assert_array_equal(masked, fit({"v": np.where(mask, np.nan, NUMBERS)})[1])
    np.testing.assert_array_equal(fit(pd.Series(SOILS, name="v"))[1], fit({"v": SOILS})[1])


def test_numbers_without_gaps_need_no_encoding():
    for plain in (None, np.eye(3), np.array([["a"]]), [[1.0, 2.0]], [], {"a": [1, 2]}, pa.table({"a": [1, 2]})):
        assert not needs_encoding(plain)
    assert not needs_encoding(pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]))
    frames = {"a": [1, 2], "b": [True, False]}, {"a": [np.inf, 1.0]}, {"a": [1.0, np.nan]}, {"a": ["x"]}
    for library in (pd, pl):
        assert [needs_encoding(library.DataFrame(frame)) for frame in frames] == [False, False, True, True]
    assert needs_encoding([{"a": 1}, {"b": 2}]) and needs_encoding(pa.table({"a": [datetime.date(2013, 1, 1)]}))
    np.testing.assert_array_equal(as_array({"a": [1, 2], "b": [True, False]}), [[1.0, 1.0], [2.0, 0.0]])


@pytest.mark.parametrize(
    "frame, message",
    [
        ({"v": [[1], [2]]}, "column 'v' of row_features holds values of type list"),
        ({"v": np.array([1j, 2j])}, "column 'v' of row_features holds complex numbers"),
        ({"v": [b"a", b"b"]}, "column 'v' of row_features holds bytes"),
        ({"v": [1.0, 10**400]}, "column 'v' of row_features has 1 infinite value;"),
        ({"v": [1, "a"]}, "column 'v' of row_features mixes numbers and text (1, 'a')"),
        ({"v": np.eye(2)}, "column 'v' of row_features must be one-dimensional"),
        ({"v": [1, 2], "w": [1]}, "columns of row_features differ in length ('v' 2, 'w' 1)"),
        ({"v": []}, "row_features is empty: it has 1 column and no rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "row_features has more than one column named 'a'"),
        (pa.table([[1], [2]], names=["a", "a"]), "row_features has more than one column named 'a'"),
        (np.eye(2), "row_features must be a frame"),
        ({"v": [None, None]}, "row_features has no column that tells rows apart"),
        ({"v": np.array(["20000-01-01"], "datetime64[D]")}, "dates outside the years 1 to 9999: '20000-01-01'"),
    ],
)
def test_what_cannot_be_used_is_refused(frame, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Encoder("row_features").fit(frame)


def test_an_encoder_that_is_not_fitted_says_so():
    with pytest.raises(ValueError, match="call fit first"):
        Encoder().transform({"x": [1.0]})


def columns_of(n):
    dates = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31))
    cells = [st.floats(allow_infinity=False), st.integers(), st.booleans(), st.text(max_size=2), st.sampled_from("abc")]
    cells += [dates, st.dates(), st.timedeltas(), st.times()]
    return st.one_of(*(st.lists(st.none() | cell, min_size=n, max_size=n) for cell in cells))


@settings(max_examples=150)
@given(
    st.integers(1, 40).flatmap(lambda n: st.dictionaries(st.text(max_size=3), columns_of(n), min_size=1, max_size=4))
)
def test_any_frame_becomes_finite_numbers_or_is_refused(frame):
    encoder = Encoder()
    try:
        F = encoder.fit_transform(frame)
    except ValueError as error:
        assert "no column that tells rows apart" in str(error) or "infinite" in str(error)
        return
    assert np.isfinite(F).all()
    assert F.shape == (len(next(iter(frame.values()))), len(set(encoder.names_)))
    assert F.shape[1] <= len(F)
    np.testing.assert_array_equal(encoder.transform(frame), F)
    assert len(encoder.notes_) >= len(frame)
