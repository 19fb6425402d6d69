"""Observations as a long table: what it holds, how frames become one, and what strangers are told."""

import pickle
import sys
from datetime import date

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from irpca.labels import Labels
from irpca.longtable import LongTable

properties = settings(max_examples=60)


def ratings(**changes):
    columns = {"user": ["bo", "al", "bo", "cy"], "item": [7, 7, 3, 5], "rating": [5.0, 4.0, 1.0, 2.0]}
    return pd.DataFrame({**columns, **changes})


# What a table holds


def test_positions_and_values():
    table = LongTable([0, 0, 2], [1, 0, 1], [5, 3, 4])
    assert table.shape == (3, 2) and len(table) == 3
    assert_array_equal(table.dense(), [[3, 5], [np.nan, np.nan], [np.nan, 4]])
    rows, cols, values, shape = table.__irpca_observed__()
    assert rows is table.rows and cols is table.cols and values is table.values and shape == (3, 2)
    assert rows.dtype == cols.dtype == np.intp
    assert table.row_labels is None and table.col_labels is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([1, 2], np.float32), np.float32),
        (np.array([1, 2], ">f4"), np.float32),
        (np.array([1, 2], np.int8), np.float64),
        (np.array([True, False]), np.float64),
        (np.array([1, 2.5], object), np.float64),
        (pd.Series([1, 2], dtype="Int64"), np.float64),
        ([1, 2], np.float64),
    ],
)
def test_kinds_of_values(values, expected):
    table = LongTable([0, 1], [0, 0], values)
    assert table.values.dtype == expected and table.values.dtype.isnative
    assert_array_equal(table.values, np.array(values, dtype=float))
    frame = LongTable.from_frame({"user": [0, 1], "item": [0, 0], "rating": values})
    assert frame.values.dtype == expected


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int32, np.uint64, ">i8"])
def test_kinds_of_positions(kind):
    table = LongTable(np.array([0, 120], kind), np.array([3, 1], kind), [1.0, 2.0])
    assert table.shape == (121, 4) and table.rows.dtype == np.intp and table.rows.dtype.isnative


def test_arrays_that_fit_are_not_copied():
    rows, cols, values = np.arange(3), np.arange(3), np.ones(3, np.float32)
    table = LongTable(rows, cols, values)
    assert table.rows is rows and table.cols is cols and table.values is values


def test_a_table_does_not_change_and_travels():
    table = LongTable.from_frame(ratings())
    with pytest.raises(AttributeError):
        table.values = np.ones(4)
    back = pickle.loads(pickle.dumps(table))
    assert_array_equal(back.dense(), table.dense())
    assert back.row_labels.equals(table.row_labels)
    assert repr(back) == "LongTable(3 × 3, 4 observations)"


# Some of the observations


@pytest.mark.parametrize(
    "index", [[True, False, True, True], [3, 0, 2], np.array([0, 2, 3], np.uint8), slice(1, None), [-1]]
)
def test_some_of_the_observations(index):
    table = LongTable.from_frame(ratings())
    part = table.take(index)
    picked = index if isinstance(index, slice) else np.array(index)
    assert_array_equal(part.values, table.values[picked])
    assert part.shape == table.shape and part.row_labels is table.row_labels and part.col_labels is table.col_labels
    known = ~np.isnan(part.dense())
    assert known.sum() == len(part)
    assert_array_equal(part.dense()[known], table.dense()[known])


@properties
@given(st.data())
def test_a_split_is_a_partition(data):
    table = data.draw(tables())
    held_out = np.array(data.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table))))
    if held_out.all() or not held_out.any():
        return
    train, test = table.take(~held_out), table.take(held_out)
    assert len(train) + len(test) == len(table)
    both = np.where(np.isnan(train.dense()), test.dense(), train.dense())
    assert_array_equal(both, table.dense())
    assert not (~np.isnan(train.dense()) & ~np.isnan(test.dense())).any()


@st.composite
def tables(draw):
    n1, n2 = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    cells = draw(st.lists(st.integers(0, n1 * n2 - 1), min_size=1, unique=True))
    values = draw(st.lists(st.floats(-1e6, 1e6), min_size=len(cells), max_size=len(cells)))
    rows, cols = np.divmod(np.array(cells), n2)
    return LongTable(rows, cols, values, shape=(n1, n2))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([True, False], r"index must be a mask, .* of 4 observations: boolean index did not match .*axis is 2"),
        ([], "index takes none of the 4 observations"),
        ([2, 0, 2], "index takes observation 2 more than once; a table has every cell once"),
        (2, r"index must be a mask, positions or a slice; got an array of shape \(\)"),
        ([4], "index must be .* of 4 observations: index 4 is out of bounds"),
    ],
)
def test_parts_that_are_refused(index, message):
    with pytest.raises(ValueError, match=message):
        LongTable.from_frame(ratings()).take(index)


def test_other_values_in_the_same_cells():
    table = LongTable.from_frame(ratings())
    other = table.with_values([1, 2, 3, 4])
    assert other.rows is table.rows and other.row_labels is table.row_labels
    assert_array_equal(other.values, [1.0, 2, 3, 4])
    with pytest.raises(ValueError, match="the table has 4, values has 2"):
        table.with_values([1, 2])
    with pytest.raises(ValueError, match=r"values: 1 value of 4 is NaN or infinite, .*row 'al', column 7"):
        table.with_values([1, np.inf, 3, 4])


# Frames


# What pandas 2 holds in nanoseconds.
days = st.dates(date(1678, 1, 1), date(2262, 1, 1))
labels = st.one_of(
    st.lists(st.integers(-5, 5), min_size=1, max_size=20),
    st.lists(st.text("ab", max_size=2), min_size=1, max_size=20),
    st.lists(st.sampled_from([0.5, -1.0, 2.5]), min_size=1, max_size=20),
    st.lists(days, min_size=1, max_size=20).map(lambda some: list(pd.to_datetime(pd.Series(some)))),
)


@st.composite
def long_frames(draw):
    users, items = draw(labels), draw(labels)
    m = min(len(users), len(items))
    values = draw(st.lists(st.floats(-1e6, 1e6), min_size=m, max_size=m))
    frame = pd.DataFrame({"user": users[:m], "item": items[:m], "rating": values})
    return frame.drop_duplicates(["user", "item"]).reset_index(drop=True)


@properties
@given(long_frames())
def test_a_frame_is_its_pivot_table(frame):
    table = LongTable.from_frame(frame)
    pivot = frame.pivot(index="user", columns="item", values="rating")
    assert_array_equal(table.dense(), pivot.to_numpy())
    assert list(table.row_labels) == list(pivot.index) and list(table.col_labels) == list(pivot.columns)


@properties
@given(st.data())
def test_labels_in_the_order_wanted_are_a_reindexed_pivot_table(data):
    frame = data.draw(long_frames())
    pivot = frame.pivot(index="user", columns="item", values="rating")
    rows = data.draw(st.permutations(list(pivot.index)))
    columns = data.draw(st.permutations(list(pivot.columns)))
    table = LongTable.from_frame(frame, rows=rows, columns=columns)
    assert_array_equal(table.dense(), pivot.loc[rows, columns].to_numpy())
    assert list(table.row_labels) == rows


def test_labels_without_pandas_say_what_to_install(monkeypatch):
    frame = ratings()
    monkeypatch.setitem(sys.modules, "pandas", None)
    for make in (lambda: LongTable.from_frame(frame), lambda: LongTable([0], [0], [1.0], row_labels=["al"])):
        with pytest.raises(ImportError, match=r'pip install "irpca\[pandas\]", or use LongTable\(rows, cols, values\)'):
            make()
    assert LongTable([0], [1], [1.0]).shape == (1, 2)


def test_users_that_rated_nothing_line_up_with_their_features():
    users = pd.DataFrame({"age": [30, 40, 50, 60]}, index=pd.Index(["cy", "di", "al", "bo"], name="user"))
    for rows in (users.index, Labels.of(users.index)):  # the latter is what a fitted model has
        table = LongTable.from_frame(ratings(), rows=rows)
        assert table.row_labels.identical(users.index) and table.shape == (4, 3)
        assert_array_equal(np.isnan(table.dense()).all(axis=1), [False, True, False, False])


@pytest.mark.parametrize(
    "frame",
    [
        {"user": [1, 2], "item": ["b", "a"], "rating": [3, 4]},
        np.array([(1, "b", 3), (2, "a", 4)], dtype=[("user", int), ("item", "U1"), ("rating", float)]),
        pd.DataFrame({"user": [1, 2], "item": pd.Categorical(["b", "a"], ["a", "b", "c"]), "rating": [3, 4]}),
        pd.DataFrame({"user": [1, 2], "item": ["b", "a"], "rating": [3, 4]}, index=[9, 9]),
        pd.DataFrame({"user": [1, 2], "item": ["b", "a"], "rating": [3, 4]}).astype(
            {"user": "Int64", "rating": "Int64"}
        ),
    ],
    ids=["dict", "structured array", "categories", "index of its own", "nullable"],
)
def test_anything_with_columns(frame):
    table = LongTable.from_frame(frame)
    assert_array_equal(table.dense(), [[np.nan, 3], [4, np.nan]])
    assert list(table.row_labels) == [1, 2] and list(table.col_labels) == ["a", "b"]


# What strangers are told. Each message names what was given, what is wrong with it, and what to do.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0], [1.0, 2.0]), "one entry for each observation, but rows has 2, cols has 1, values has 2"),
        (([], [], []), "there are no observations: rows and cols and values are empty"),
        (([[0, 1]], [0], [1.0]), r"rows must be one list of numbers, .*got shape \(1, 2\)$"),
        ((ratings(), [0], [0]), r"rows must be one list of numbers, .*use LongTable\.from_frame$"),
        (([0.0, 2.0], [0, 1], [1, 2]), r"rows must be .*got float64\. .*if they are whole numbers, pass rows\.astype"),
        ((["al", "bo"], [0, 1], [1, 2]), r"rows must be integers, .*got text\. For labels use LongTable\.from_frame"),
        (([0, 3, -2], [0, 1, 2], [1, 2, 3]), r"rows\[2\] is -2, but positions count from 0 and are never negative"),
        (([0, 1], [0, 9], [1, 2], (2, 5)), r"cols\[1\] is 9, but positions of 5 columns run from 0 to 4\. Give a lar"),
        (([1, 2, 3], [0, 1, 1], [1, 2, 3], (3, 2)), r"rows\[2\] is 3, .* 3 rows .*count from 1: pass rows - 1"),
        (([2**40], [2**40], [1.0]), r"M would be 1099511627777 × 1099511627777, .*use LongTable\.from_frame"),
        ((np.array([2**63], np.uint64), [0], [1.0]), r"rows\[0\] is 9223372036854775808, but positions"),
        (([0, 1], [0, 0], [1, 2], 5), r"shape must be two positive integers, .*got 5"),
        (
            ([0, 1, 1], [0, 0, 1], [1.0, np.nan, np.inf]),
            r"values: 2 values of 3 are NaN or infinite, .* 1 \(row 1, column 0\)\. .*keep = np\.isfinite\(values\)",
        ),
        (([0, 1], [0, 0], ["3", "4"]), r"values must be numbers, got text; .*pd\.to_numeric"),
        (([0, 1], [0, 0], np.array([3, "4"], object)), r"values must be numbers, but at position 1 there is '4'"),
        (([0, 1], [0, 0], np.ma.array([1, 2], mask=[0, 1])), r"values is a masked array: .*values\.compressed\(\)"),
        (
            ([2, 0, 2, 2], [1, 1, 1, 0], [3.0, 4.0, 5.0, 1.0]),
            r"row 2, column 1 is there 2 times, with values 3\.0, 5\.0; 1 cell is repeated, .*frame = pd\.DataFrame",
        ),
    ],
)
def test_bad_arrays(arguments, message):
    with pytest.raises(ValueError, match=message):
        LongTable(*arguments)


def test_labels_that_are_too_few():
    with pytest.raises(ValueError, match="row_labels has 1 label, but shape asks for 2 rows; give one for each"):
        LongTable([0, 0], [0, 1], [1, 2], shape=(2, 2), row_labels=["a"])
    with pytest.raises(ValueError, match=r"cols\[1\] is 1, but positions of 1 column run from 0 to 0"):
        LongTable([0, 0], [0, 1], [1, 2], col_labels=["a"])


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (
            ratings(),
            {"row": "customer"},
            "no column 'customer'; it has 'user', 'item', 'rating'. Name the right one as row=",
        ),
        (ratings().set_index(["user", "item"]), {}, r"'user': it is in the index. Pass frame\.reset_index\(\)"),
        (ratings().to_numpy(), {}, r"'user': it is a ndarray\. .*for arrays, use LongTable\(rows, cols, values\)"),
        (ratings(), {"row": ["user"]}, r"row must be the name of one column of frame, got \['user'\]"),
        (ratings(), {"row": "item"}, "three different columns of frame, got row='item', column='item', value='rating'"),
        ({"user": [[1, 2]], "item": [1], "rating": [1]}, {}, r"frame\['user'\] is a block of shape \(1, 2\), not one"),
        (ratings(rating=pd.to_datetime(["2020"] * 4)), {}, r"must be numbers, got datetime64.*; convert them first$"),
        (ratings().iloc[:0], {}, r"there are no observations: frame\['user'\] and .* are empty"),
        (
            ratings(user=["bo", None, "bo", None]),
            {},
            r"frame\['user'\]: 2 labels of 4 are missing, .*position 1\. .*frame\.dropna\(subset=\['user'\]\)",
        ),
        (
            ratings(rating=[1, np.nan, 2, 3]),
            {},
            r"\['rating'\]: 1 value of 4 is .* 1 \(row 'al', column 7\)\. .*frame\.dropna\(subset=\['rating'\]\)",
        ),
        (ratings(rating=[1, -np.inf, 2, 3]), {}, r"drop it, with frame\[np\.isfinite\(frame\['rating'\]\)\]"),
        (ratings(rating=list("1234")), {}, r"frame\['rating'\] must be numbers, .*pd\.to_numeric"),
        (
            ratings(user=["bo", "al", "al", "cy"], item=[7, 7, 7, 5]),
            {},
            r"row 'al', column 7 is there 2 times, .*drop_duplicates\(\['user', 'item'\], keep='last'\) keeps .*"
            r"frame\.groupby\(\['user', 'item'\], as_index=False\)\['rating'\]\.mean\(\) the mean",
        ),
        (
            ratings(),
            {"rows": ["al", "bo"]},
            r"frame\['user'\] holds 'cy', at position 3, which is not in rows; 1 label is unknown there\. "
            r"Add it to rows, or leave these observations out: frame\[frame\['user'\]\.isin\(rows\)\]",
        ),
        (
            ratings(),
            {"columns": ["3", "5", "7"]},
            r"holds 7, at position 0, which is not in columns; 3 labels are unknown .*"
            r"int64, those in columns .*: convert one of them",
        ),
        (ratings(), {"rows": "user"}, r"rows takes all labels .*got 'user'\. The column of frame .* named by row= or"),
        (ratings(), {"rows": pd.DataFrame({"age": [1, 2]})}, r"rows takes labels, not a table: .*users\.index"),
        (ratings(), {"rows": Labels.of(["al", "bo", "al"])}, "rows must hold each label once, but 'al' is there 2"),
        (ratings(), {"rows": ["al", "bo", "cy", None]}, "rows holds a missing label, at position 3: drop it"),
        (
            ratings(user=["a", 1, 1j, ("b",)]),
            {},
            r"in frame\['user'\] cannot be sorted .*: give all of them, .*as rows=",
        ),
    ],
)
def test_bad_frames(frame, options, message):
    with pytest.raises(ValueError, match=message):
        LongTable.from_frame(frame, **options)


def test_many_cells_do_not_overflow():
    n = 2**31
    table = LongTable([n - 1, 0, n - 1], [n - 1, 0, 0], [1.0, 2.0, 3.0], shape=(n, n))
    assert table.shape == (n, n)
    with pytest.raises(ValueError, match=f"row {n - 1}, column {n - 1} is there 2 times"):
        LongTable([n - 1, 0, n - 1], [n - 1, 0, n - 1], [1.0, 2.0, 3.0], shape=(n, n))
