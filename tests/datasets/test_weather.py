import hashlib
import sys

import numpy as np
import pytest

from irpca.datasets import load_life_expectancy, load_weather


def test_the_table_is_as_it_was_packed(tmp_path):
    data = load_weather()
    assert data.M.shape == (2157, 15) and np.isnan(data.M).sum() == 759
    digest = hashlib.sha256(data.to_csv(tmp_path / "weather.csv").read_bytes()).hexdigest()
    assert digest == "ab77f9af323752dd43672228d093644b2c0455a15236026568d827720d537738"


def test_the_frame_is_labelled():
    data = load_weather()
    frame = data.frame()
    assert frame.loc["2013-02-12 08:00", "EWR wind"] == 1048.4
    np.testing.assert_array_equal(frame.to_numpy(), data.M)
    assert frame.index.is_monotonic_increasing and frame.index.is_unique


@pytest.mark.parametrize("load", [load_weather, load_life_expectancy])
def test_frame_without_pandas_says_what_to_do(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"frame\(\) needs pandas: pip install \"irpca\[pandas\]\", or use M"):
        load().frame()
