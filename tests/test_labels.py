"""Labels of rows and columns: kept, compared, matched with those of features, and put back."""

import datetime

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_index_equal

from irpca.labels import Labels, match

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
    some = labels.take(np.array([2, 0, 0])).pandas()
    assert list(some) == [index[i] for i in (2, 0, 0)] and list(some.names) == list(index.names)
    assert index.nlevels > 1 or some.dtype == index.dtype


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
    assert Labels.of(given).texts() == text


def test_dates_of_pandas_and_of_numpy_are_the_same():
    assert Labels.of(DAYS).equals(Labels.of(DAYS.to_numpy()))
    assert Labels.of(DAYS.as_unit("s")).equals(Labels.of(DAYS))
    assert Labels.of([1, 2]).equals(Labels.of(np.array([1, 2], np.int8)))
    assert Labels.of(["a"]).equals(Labels.of(pd.Index(["a"], dtype="category")))


def test_features_of_columns_that_do_not_match():
    message = r"'b', 'a' against 'a', 'b'; .* another order: pass col_features.loc\[M.columns\]"
    with pytest.raises(ValueError, match=message):
        match(Labels.of(["a", "b"]), Labels.of(["b", "a"]), "col_features", "columns")
