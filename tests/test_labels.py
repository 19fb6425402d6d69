"""Labels of rows and columns: kept, compared, matched with those of features, and put back."""

import datetime

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from pandas.testing import assert_index_equal

from irpca.labels import Labels, match, texts

DAYS = pd.date_range("2020-01-30", periods=4, freq="D", name="day")
NESTED = pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1), ("b", 2)], names=["group", "member"])
INDEXES = {
    "text": pd.Index(["a", "b", "c", "d"], name="letter"),
    "objects": pd.Index(["a", 1, 2.5, "d"], dtype=object),
    "integers": pd.Index([1, 2, 3, 5]),
    "range": pd.RangeIndex(4),
    "floats": pd.Index([0.5, 1.5, 2.5, 3.5]),
    "dates": DAYS,
    "zone": DAYS.tz_localize("Europe/Berlin"),
    "periods": DAYS.to_period("M"),
    "durations": pd.timedelta_range("1h", periods=4),
    "nested": NESTED,
    "booleans": pd.Index([True, False, True, False]),
}


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_an_index_becomes_labels_and_is_put_back(index):
    labels = Labels.of(index)
    assert len(labels) == 4 and labels.names == tuple(index.names)
    assert list(labels) == list(index)
    assert_index_equal(labels.pandas(), index, exact=True)
    assert labels.equals(Labels.of(index.copy()))
    assert not labels.equals(Labels.of(index[:3]))
    if index.is_unique:
        assert not labels.equals(Labels.of(index[::-1]))


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_some_labels_in_another_order(index):
    at = np.array([2, 0, 0])
    made = Labels.of(index).take(at).pandas()
    assert list(made) == [index[i] for i in at]
    assert list(made.names) == list(index.names)
    if index.nlevels == 1:
        assert made.dtype == index.dtype


def test_labels_of_lists_and_arrays():
    for given in (["a", "b"], np.array(["a", "b"]), np.array(["a", "b"], object), pd.Series(["a", "b"])):
        labels = Labels.of(given, "letter")
        assert list(labels) == ["a", "b"] and labels.dtypes == ("str",) and labels.names == ("letter",)
        assert labels.levels[0].dtype == object
    assert Labels.of([1, 2]).dtypes == ("int64",) and Labels.of([1, 2])[0] == 1
    assert Labels.of(labels) is labels
    with pytest.raises(ValueError, match=r"labels must be one list, got an array of shape \(2, 2\)"):
        Labels.of(np.zeros((2, 2)))


def test_labels_are_python_objects():
    """So that they compare and print as people write them."""
    assert type(Labels.of([1, 2])[0]) is int and type(Labels.of([0.5])[0]) is float
    assert type(Labels.of(NESTED)[0]) is tuple and Labels.of(NESTED)[3] == ("b", 2)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["a", "b"], ["a", "b"]),
        ([1, 2], ["1", "2"]),
        ([0.5, 1.0], ["0.5", "1.0"]),
        (DAYS[:2], ["2020-01-30", "2020-01-31"]),
        (DAYS[:2] + pd.Timedelta("90min"), ["2020-01-30 01:30", "2020-01-31 01:30"]),
        (pd.period_range("2020-01", periods=2, freq="M"), ["2020-01", "2020-02"]),
        ([datetime.date(2020, 1, 1)], ["2020-01-01"]),
        (np.array(["2020-01-01"], "datetime64[D]"), ["2020-01-01"]),
        (NESTED[:2], ["a, 1", "a, 2"]),
        ([True, False], ["True", "False"]),
        (["Köln", "zwei\nZeilen"], ["Köln", "zwei\nZeilen"]),
    ],
)
def test_labels_as_people_read_them(given, text):
    assert Labels.of(given).texts() == texts(Labels.of(given), len(text)) == text


def test_positions_where_there_are_no_labels():
    assert texts(None, 3) == ["0", "1", "2"]


def test_nested_labels_as_one_column():
    column = Labels.of(NESTED).column()
    assert column.dtype == object and column[1] == ("a", 2)
    assert_array_equal(Labels.of([3, 4]).column(), [3, 4])


def test_where_labels_are():
    labels = Labels.of(["a", "b", "c"])
    assert_array_equal(labels.positions(Labels.of(["c", "a", "a"])), [2, 0, 0])
    assert labels.positions(Labels.of(["a", "x"])) is None
    assert Labels.of(["a", "a"]).positions(Labels.of(["a"])) is None  # which of the two?


def test_dates_of_pandas_and_of_numpy_are_the_same():
    assert Labels.of(DAYS).equals(Labels.of(DAYS.to_numpy()))
    assert Labels.of(DAYS.as_unit("s")).equals(Labels.of(DAYS))
    assert Labels.of([1, 2]).equals(Labels.of(np.array([1, 2], np.int8)))
    assert Labels.of(["a"]).equals(Labels.of(pd.Index(["a"], dtype="category")))


# Those of features


def test_labels_that_match():
    labels = Labels.of(["a", "b"])
    for others in (None, Labels.of(["a", "b"]), Labels.of(["a", "b", "c"])):  # another number is for others to refuse
        match(labels, others, "row_features", "rows")
    match(None, labels, "row_features", "rows")


@pytest.mark.parametrize(
    ("others", "side", "message"),
    [
        (["b", "a"], "rows", r"'b', 'a' against 'a', 'b'; .* another order: pass row_features.loc\[M.index\]"),
        (["b", "a"], "columns", r"does not match the columns of M.* pass row_features.loc\[M.columns\]"),
        (["x", "y"], "rows", r"if they belong together as they stand, pass row_features.set_axis\(M.index\)"),
        (["a", "a"], "rows", r"pass row_features.set_axis\(M.index\)"),
        ([0, 1], "rows", r"0, 1 against 'a', 'b'; .*set_axis"),
    ],
)
def test_labels_that_do_not_match_are_refused(others, side, message):
    with pytest.raises(ValueError, match=message):
        match(Labels.of(["a", "b"]), Labels.of(others), "row_features", side)
