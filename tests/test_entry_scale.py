"""One scale and one criterion for every entry: NumPy as torch, files as lists, whatever the size and the storage."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

import irpca
from irpca import constants
from irpca.datasets import load_weather, make_problem
from irpca.engines import MemoryEngine
from irpca.engines.base import MOST_SPREAD
from irpca.lowrank import LowRank
from irpca.model.calibration import Calibration
from irpca.model.entry_scale import EntryScale, Judge
from irpca.outliers import standardised


def a_scale(n1=7, n2=5, seed=0, tail=1.2):
    """Rows and columns of unequal noise; of the first row next to nothing is known."""
    rng = np.random.default_rng(seed)
    spread = 0.1 * rng.random((n1, 3)), 0.1 * rng.random((n2, 3))
    spread[0][0] = 1e4
    return EntryScale(rng.uniform(0.5, 2, n1), rng.uniform(0.5, 2, n2), *spread, tail)


def a_judge(scale, limit=4.0, **more):
    z = np.random.default_rng(1).standard_normal(20_000)
    z[:1000] += 20
    return Judge(limit, scale, Calibration(z), **more)


def all_of(shape):
    return tuple(index.ravel() for index in np.indices(shape))


# The formulas


def test_residuals_are_measured_by_the_noise_and_by_the_error_of_L():
    scale, (rows, cols) = a_scale(), all_of((7, 5))
    s2, var = np.outer(scale.rows, scale.cols), scale.row_spread @ scale.col_spread.T
    used, left_out = np.full((7, 5), 0.1), np.full((7, 5), -1e3)
    assert_allclose(scale.unit_table(used), np.sqrt(s2 + np.minimum(var, MOST_SPREAD * s2)))
    assert_allclose(scale.unit_table(left_out), np.sqrt(s2 + var))
    edge = 6 * 1.2 * np.sqrt(s2)  # six standard deviations of the noise
    assert_allclose(scale.unit_table(0.999 * edge), scale.unit_table(used))
    assert_allclose(scale.unit_table(1.001 * edge), scale.unit_table(left_out))
    assert_allclose(scale.std_table(), np.sqrt(1.2**2 * s2 + var))
    for R in (used, left_out):
        assert_allclose(scale.unit_at(R.ravel(), rows, cols), scale.unit_table(R).ravel())
    assert_allclose(scale.std_at(rows, cols), scale.std_table().ravel())
    some = np.array([4, 1]), np.array([3, 0, 2])
    assert_allclose(scale.unit_table(used[np.ix_(*some)], *some), scale.unit_table(used)[np.ix_(*some)])


def test_what_was_left_out_where_little_is_known_is_no_outlier():
    judge, R = a_judge(a_scale()), np.full((7, 5), 100.0)
    S = judge.outliers(csr_array(R))
    assert_array_equal(S.toarray() != 0, np.arange(7)[:, None] > np.zeros(5))
    probability = judge.probability(R.ravel(), *all_of(R.shape)).reshape(R.shape)
    assert (probability[0] < 0.01).all() and (probability[1:] > 0.99).all()


def test_candidates_hold_all_outliers():
    rng = np.random.default_rng(2)
    scale = a_scale(60, 40)
    M = 4 * rng.standard_normal((60, 40)) * np.sqrt(np.outer(scale.rows, scale.cols))
    judge, engine = a_judge(scale), MemoryEngine(M)
    candidates = engine.corruption(LowRank.zero(M.shape), judge.candidates)[0].toarray() != 0
    outliers = judge.is_outlier(M.ravel(), *all_of(M.shape)).reshape(M.shape)
    assert (candidates | ~outliers).all() and candidates.sum() > outliers.sum() > 100
    assert_array_equal(judge.outliers(csr_array(np.where(candidates, M, 0))).toarray() != 0, outliers)
    known = np.arange(60) % 2 == 0, np.arange(40) < 30
    partly = replace(judge, known=known).outliers(csr_array(np.where(candidates, M, 0)))
    assert_array_equal(partly.toarray() != 0, outliers & np.outer(*known))


def test_probabilities():
    R, at = np.array([25.0, 0.5, np.nan]), (np.array([3, 3, 3]), np.array([0, 1, 2]))
    judge = a_judge(a_scale())
    z = judge.standardised(R, *at)
    assert_array_equal(judge.probability(R, *at), judge.calibration(z))
    assert_array_equal(judge.probability(R, *at) > 0.5, [True, False, False])
    assert_array_equal(replace(judge, exact=True).probability(R, *at)[:2], 1)
    assert np.isnan(Judge(2.0).probability(R, *at)).all()
    S = csr_array(np.array([[0, 6.0, 0, 0, 0], [-3.0, 0, 9.0, 0, 0]]))
    assert_array_equal(standardised(S, judge).data, judge.standardised(S.data, [0, 1, 1], [1, 0, 2]))


def test_tensors_are_judged_as_arrays_are():
    torch = pytest.importorskip("torch")
    scale, (rows, cols) = a_scale(), all_of((7, 5))
    judge = a_judge(scale, known=(np.arange(7) != 3, np.ones(5, bool)))
    R = 8 * np.random.default_rng(3).standard_normal(35)
    R[4] = np.nan
    there, tensors = judge.converted(torch.as_tensor), tuple(map(torch.as_tensor, (R, rows, cols)))
    for name in ("standardised", "probability", "is_outlier"):
        found = getattr(there, name)(*tensors)
        assert isinstance(found, torch.Tensor)
        assert_allclose(found.numpy(), getattr(judge, name)(R, rows, cols), rtol=1e-14, err_msg=name)
    table = R.reshape(7, 5)
    assert_allclose(there.scale.unit_table(torch.as_tensor(table)).numpy(), scale.unit_table(table), rtol=1e-14)
    assert_allclose(there.scale.std_table().numpy(), scale.std_table(), rtol=1e-14)


def test_a_gross_error_does_not_make_outliers_of_its_neighbours():
    """The hour of the wind of 1048 miles per hour: its three pressures were called wrong, as nothing else told them."""
    data = load_weather()
    row = int(np.flatnonzero(data.times == np.datetime64("2013-02-12T08:00:00"))[0])
    result = irpca.solve(data.M)
    assert [data.columns[j] for j in result.S[[row]].indices] == ["EWR wind"]


# Whole fits


def noisy(n1=150, n2=80, seed=0, features=False):
    """Columns in units of 0.01 to 100, with holes, and of one row little is observed."""
    rng = np.random.default_rng(seed)
    unit = 10.0 ** rng.uniform(-2, 2, n2)
    F2 = rng.standard_normal((n2, 4))
    V = F2 @ rng.standard_normal((4, 3)) if features else rng.standard_normal((n2, 3))
    M = rng.standard_normal((n1, 3)) @ V.T + 0.3 * rng.standard_normal((n1, n2))
    wrong = rng.random(M.shape) < 0.02
    M[wrong] += (rng.choice([-1, 1], M.shape) * rng.uniform(2, 20, M.shape))[wrong]
    M[rng.random(M.shape) < 0.1] = np.nan
    M[3, 5:] = np.nan
    return M * unit, F2 * unit[:, None] if features else None, wrong & np.isfinite(M)


def larger_than_the_budget(monkeypatch):
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=4000))


@pytest.mark.parametrize(
    ("kind", "chunks", "large"), [("noisy", None, False), ("noisy", (40, 80), True), ("exact", (40, 80), False)]
)
def test_probabilities_in_files_are_those_of_the_list(tmp_path, monkeypatch, kind, chunks, large):
    if large:
        larger_than_the_budget(monkeypatch)
    M = noisy()[0] if kind == "noisy" else make_problem(150, 80, d1=4, d2=3, rank=2, corruption=0.1).M
    given = M if chunks is None else da.from_array(M, chunks=chunks)
    result = irpca.solve(given, rank=3 if kind == "noisy" else 2, outliers_to=tmp_path / "S.parquet")
    assert (result.S is None) == large and (result.noise == 0) == (kind == "exact")
    model = irpca.InductiveRobustPCA(result.rank).fit(given)
    listed = pd.DataFrame(model.outliers()).sort_values(["row", "column"], ignore_index=True)
    written = pd.read_parquet(tmp_path / "S.parquet").sort_values(["row", "column"], ignore_index=True)
    assert len(written) > 100
    for name in ("row", "column", "observed", "expected", "probability"):
        assert_allclose(written[name], listed[name], rtol=1e-12, err_msg=name)
    assert (written["probability"] == 1).all() == (kind == "exact")


def same(result, right):
    L, expected = result.L.dense(), right.L.dense()
    assert result.rank == right.rank
    assert_array_equal(result.S.toarray() != 0, right.S.toarray() != 0)
    assert np.linalg.norm(L - expected) <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("features", [False, True])
def test_neither_size_nor_storage_makes_a_difference(tmp_path, monkeypatch, features):
    """Just below and just above the memory budget; as an array, in chunks of dask, and in those of a zarr array."""
    M, F2, _ = noisy(300, 200, features=features)  # larger than the part on which fits are compared
    stored = zarr.create_array(tmp_path / "M.zarr", shape=M.shape, dtype=M.dtype, chunks=(150, 100))
    stored[:] = M
    right = irpca.solve(M, None, F2)
    assert right.rank == 3 and right.S.nnz > 100
    given = {M.size: [da.from_array(M, chunks=(170, 133))], M.size - 1: [np.asfortranarray(M), stored]}
    for most, tables in given.items():
        monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=most))
        for table in tables:
            same(irpca.solve(table, None, F2), right)


@pytest.mark.parametrize(("features", "large"), [(False, True), (True, False)])
def test_columns_in_units_of_their_own(features, large, monkeypatch):
    """So many columns that the sample has eleven entries of each."""
    if large:
        larger_than_the_budget(monkeypatch)
    M, F2, wrong = noisy(150, 3000, seed=1, features=features)
    result = irpca.solve(M, None, F2)
    found = result.S.toarray() != 0
    assert result.rank == 3 and result.converged
    assert (found & wrong).sum() >= 0.99 * found.sum() and (found & wrong).sum() >= 0.97 * wrong.sum()
