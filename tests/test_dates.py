"""Dates in ISO format mean the same on the command line and in Python."""

import io
from datetime import datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from irpca.dates import has_offset, parse_dates
from irpca.features import Encoder
from irpca.features.frames import index_column
from irpca.readers import Options
from irpca.readers.csvfiles import from_csv
from irpca.readers.matrices import as_labels

MEANT = {
    "2020-01-01T12:00+02:00": "2020-01-01T10:00",
    "2020-01-01 12:00:30-0530": "2020-01-01T17:30:30",
    "2020-01-01T00:30+02": "2019-12-31T22:30",
    "2020-01-01T12:00:00.123456789Z": "2020-01-01T12:00:00.123456",
    "2020-01-01T12:00": "2020-01-01T12:00",
    "2020-01-01 12:00:01.5": "2020-01-01T12:00:01.5",
    "2020-01-01": "2020-01-01",
    "2020-02": "2020-02-01",
}
OTHERS = ["2020-02-30", "0000-01-01", "0001-01-01T00:00+02:00", "20200101", "2020-1-1", "2020", "2020-01T12:00"]
OTHERS += ["2020-01-01T12:345", "1/2/2020", "12:30", "٢٠٢٠-٠١-٠١", "2020-01-01 noon", ""]


@pytest.mark.parametrize("text", MEANT)
def test_the_command_line_and_python_read_the_same_date(text):
    meant = np.datetime64(MEANT[text], "us")
    from_file = from_csv("data.csv", f"when,x\n{text},1\n".encode(), Options()).columns["when"]
    assert from_file.tolist() == [meant.item()]
    assert index_column([text], "when")["when"].values.tolist() == [meant.item()]


def test_an_offset_counts_in_pandas_arrow_and_objects_as_in_text():
    text = [f"2020-01-{day:02}T{day % 24:02}:00+02:00" for day in range(1, 31)]
    meant = Encoder().fit_transform({"when": parse_dates(text)})
    frame = pd.read_csv(io.StringIO("\n".join(["when", *text])), parse_dates=["when"])
    zone = timezone(timedelta(hours=2))
    objects = [datetime.fromisoformat(when) for when in text]
    table = pa.table({"when": pa.array(objects, pa.timestamp("us", "+02:00"))})
    for given in ({"when": text}, frame, {"when": objects}, table, index_column(frame["when"].array, "when")):
        np.testing.assert_array_equal(Encoder().fit_transform(given), meant)
    assert str(frame["when"].dt.tz) == str(zone)  # pandas keeps the offset


@pytest.mark.parametrize("text", OTHERS)
def test_other_text_is_no_date(text):
    assert parse_dates([text]) is None and parse_dates(["2020-01-01", text]) is None and not has_offset(text)


def test_missing_dates():
    found = parse_dates([None, "2020-01-01"])
    assert np.isnat(found).tolist() == [True, False] and found.dtype == "datetime64[us]"
    assert parse_dates([]) is None and parse_dates([None]) is None


def test_dates_with_and_without_an_offset_are_refused_by_name():
    text = ["2020-01-01", "2020-01-02T00:00+01:00", "2020-01-03"]
    both = r"'2020-01-02T00:00\+01:00' has an offset from UTC and '2020-01-01' has none; write them alike"
    with pytest.raises(ValueError, match=rf"data.csv, column 'when': {both}, or pass --text when"):
        from_csv("data.csv", "\n".join(["when", *text]).encode(), Options())
    with pytest.raises(ValueError, match=f"column 'when' of features: {both}"):
        Encoder().fit({"when": text})
    with pytest.raises(ValueError, match=f"the index 'when': {both}"):
        index_column(text, "when")
    assert as_labels(text, "when").dtypes == ("str",)
    kept = from_csv("data.csv", "\n".join(["when", *text]).encode(), Options(text=("when",)))
    assert kept.columns["when"].tolist() == text


def test_new_rows_without_a_date_are_refused_by_value():
    encoder = Encoder().fit({"when": [f"2020-01-{day:02}" for day in range(1, 31)]})
    with pytest.raises(ValueError, match=r"column 'when' of features holds '2020-02-30', but held dates.*; convert it"):
        encoder.transform({"when": ["2020-02-01", "2020-02-30"]})
