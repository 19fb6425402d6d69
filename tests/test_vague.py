"""Features that are missing, rare or were never seen: of such rows less is known, and it shows."""

import numpy as np
import pandas as pd
import pytest

import irpca
from irpca import InductiveRobustPCA
from irpca.features import FeatureWarning

NOISE = 0.5


@pytest.fixture(scope="module")
def stations():
    """Rows of four regions that differ far more than the noise."""
    rng = np.random.default_rng(0)
    region = rng.integers(0, 4, 250)
    means = 20 + rng.normal(0, 3, (4, 12))
    return pd.DataFrame(means[region] + rng.normal(0, NOISE, (250, 12))), [f"region {k}" for k in region]


def test_rows_without_features_are_judged_by_their_own_values(stations):
    table, regions = stations
    frame = pd.DataFrame({"region": regions})
    frame.iloc[:20] = None
    model = InductiveRobustPCA().fit(table, row_features=frame)
    assert len(model.outliers(fdr=0.05)) <= 2  # it was 84
    assert np.abs(model.expected().iloc[:20] - table.iloc[:20]).to_numpy().mean() < 1.5 * NOISE


def test_of_an_unknown_level_little_is_known(stations):
    """A prediction is as uncertain as regions differ, no row is an outlier, and without values nothing is expected."""
    table, regions = stations
    model = InductiveRobustPCA().fit(table, row_features=pd.DataFrame({"region": regions}))
    with pytest.warns(FeatureWarning, match="region 9"):
        _, std = model.predict(pd.DataFrame({"region": ["region 9", "region 1"]}), return_std=True)
    unknown, known = std.to_numpy()
    assert (known < 1.5 * NOISE).all() and (unknown > 2 * known).all()
    for known in (20, 10):  # from which row on
        told = pd.DataFrame({"region": ["region 9"] * known + regions[known:20]})
        with pytest.warns(FeatureWarning, match="region 9"):
            assert len(model.outliers(table.iloc[:20] + 0.0001, row_features=told)) <= 1
    rows = table.iloc[:3].copy()
    rows.iloc[0] = np.nan
    with pytest.warns(FeatureWarning, match="region 9"):
        result = model.decompose(rows, row_features=pd.DataFrame({"region": ["region 9", "region 9", regions[2]]}))
    assert result.known[0].tolist() == [False, True, True]


def test_the_fitted_table_is_recognised(tmp_path, stations):
    table, _ = stations
    table = table.copy()
    table.iloc[3, 4], table.iloc[5, 6] = 90.0, np.nan
    model = InductiveRobustPCA().fit(table)
    model.save(tmp_path / "m.irpca")
    loaded = irpca.load(tmp_path / "m.irpca")
    for answer in (model.repaired(table), loaded.repaired(table)):
        pd.testing.assert_frame_equal(answer, model.repaired())
    pd.testing.assert_frame_equal(loaded.outliers(table), model.outliers())
    pd.testing.assert_frame_equal(loaded.outliers(table, fdr=0.3), model.outliers(fdr=0.3))
    more = model.outliers(threshold=0.5)  # M is read again, and most of these are no outliers of the fit
    assert len(more) > 5 * len(model.outliers())
    pd.testing.assert_frame_equal(loaded.outliers(table, threshold=0.5), more)
    other = table.copy()
    other.iloc[7, 7] += 50.0
    assert (7, 7) in set(zip(loaded.outliers(other)["row"], loaded.outliers(other)["column"], strict=True))
