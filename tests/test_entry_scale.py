"""One scale and one criterion for every entry: NumPy as torch, files as lists, whatever the size and the storage."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from scipy.special import ndtri
from scipy.stats import nbinom

import irpca
from irpca import constants
from irpca.constants import KINDS
from irpca.datasets import load_weather, make_problem
from irpca.engines import MemoryEngine
from irpca.engines.base import MOST_SPREAD
from irpca.lowrank import LowRank
from irpca.model.calibration import Calibration
from irpca.model.entry_scale import EntryScale, Judge, learn_confused, learn_slopes
from irpca.model.kinds import kind_of
from irpca.model.maps import ColumnMaps
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


def test_intervals_are_widened_and_units_are_not():
    scale, (rows, cols), widths = a_scale(), all_of((7, 5)), np.linspace(0.8, 1.6, 5)
    wider = replace(scale, widths=widths)
    assert_allclose(wider.std_table(), scale.std_table() * widths)
    assert_allclose(wider.std_at(rows, cols), wider.std_table().ravel())
    R = np.ones((7, 5))
    assert_array_equal(wider.unit_table(R), scale.unit_table(R))
    assert_allclose(wider.cut(slice(3), np.array([4, 0])).std_table(), wider.std_table()[:3][:, [4, 0]])


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


# Mapped columns


def a_mapped_judge(n=60, limit=4.0, level=0.5, seed=5, spread=0.1):
    """Latent values of rank one, at the middle of row 0; and columns of numbers, scores, yes and no, and zeros."""
    rng = np.random.default_rng(seed)
    z = ndtri(np.linspace(0.01, 0.99, 199))
    columns = [z, np.exp(z), np.clip(np.round(3 + z), 1, 5), 1.0 * (z > 1), np.maximum(z, 0)]
    maps = ColumnMaps.of([kind_of(x, "number" if j == 0 else "auto") for j, x in enumerate(columns)])
    left, right = np.r_[0.0, rng.standard_normal(n - 1)][:, None], np.ones((5, 1))
    L = LowRank.from_product(left, right)
    factors = spread * rng.random((n, 2)), rng.random((5, 2))
    scale = EntryScale(rng.uniform(0.05, 0.3, n), np.ones(5), *factors).mapped(L, maps)
    return a_judge(scale, limit, level=level), maps


def test_a_number_is_measured_without_its_own_share():
    """Then what is expected is farther away, but less sure: all in all at most 1.16 times as far."""
    judge, _ = a_mapped_judge()
    rows, cols = np.arange(1, 60), np.zeros(59, int)
    s = np.sqrt(judge.scale.rows[rows])
    for var in (0.0, 0.3, 1.0, 5.0):
        spread = np.c_[var * judge.scale.rows], np.ones((5, 1))
        scale = replace(judge.scale, row_spread=spread[0], col_spread=spread[1])
        far = np.sqrt(1 + var + var**2) / (1 + var)
        assert_allclose(scale.unit_at(0.5 * s, rows, cols), far * s, rtol=1e-3)
        assert far >= np.sqrt(0.75)
        assert_allclose(scale.unit_at(20 * s, rows, cols), np.sqrt(1 + var) * s, rtol=1e-3)  # L has not followed it
        plain = replace(scale, maps=None)
        assert_allclose(plain.unit_at(0.5 * s, rows, cols), np.sqrt(1 + var) * s)


def test_what_is_expected_is_of_no_size():
    """A score, a yes or a zero whose interval holds what is expected; beyond it, it is as far as its nearer end."""
    judge, maps = a_mapped_judge()
    X = np.array([[0.0, 1.0, 3.0, 0.0, 0.0]])
    R, cols, rows = maps.latent(X)[0], np.arange(5), np.zeros(5, int)  # 0 is expected
    assert_array_equal(judge.standardised(R, rows, cols)[2:4], 0)
    (low, high) = maps.interval(R, cols)
    assert ((low < 0) & (high > 0))[2:4].all()
    far = maps.latent(np.array([5.0, 1.0]), np.array([2, 3]))
    size = judge.standardised(far, rows[:2], np.array([2, 3]))
    nearest, unit = maps.interval(far, np.array([2, 3]))[0], np.sqrt(judge.scale.rows[0])
    assert (size > 0).all() and (size < far / unit).all() and (size > 0.5 * nearest / unit).all()


def test_the_surer_the_other_was_the_likelier_is_the_rarer_value_wrong():
    judge, maps = a_mapped_judge(n=200)
    order = np.argsort(judge.scale.latent_table()[:, 3])[::-1]
    shares = 0.04, 0.04, 0.04, 0.0, 0.0
    scale = replace(judge.scale, rows=np.full(200, 0.1), row_spread=np.zeros((200, 2)), confused=shares)
    for held, rows in ((1.0, order), (0.0, order[::-1])):
        cols = np.full(200, 3)
        R = maps.latent(np.full(200, held), cols) - scale.latent_at(rows, cols)
        P = replace(judge, scale=scale).probability(R, rows, cols)
        assert (np.diff(P) >= -1e-12).all() and P[0] < 0.05 and P[-1] > 0.99


def test_a_value_that_no_clean_cell_holds():
    """It is wrong by its odds, wherever it is."""
    judge, maps = a_mapped_judge()
    cols, rows, odds = np.full(3, 2), np.array([0, 5, 9]), np.array([9.0, 0.5, 0.5])  # 40 and -999 are on the grid
    judge = replace(judge, scale=replace(judge.scale, confused=(0.0, 0.0, 0.0, 0.5, 9.0)))
    R = maps.latent(np.array([3.7, 40.0, -999.0]), cols) - judge.scale.latent_at(rows, cols)
    assert_allclose(judge.probability(R, rows, cols), odds / (1 + odds))
    assert_allclose(np.abs(judge.standardised(R, rows, cols)), KINDS.unknown)
    assert_array_equal(judge.is_outlier(R, rows, cols), [True, False, False])
    assert not replace(judge, level=0.95).is_outlier(R, rows, cols).any()


@pytest.mark.parametrize("value", [3.7, 40.0])
def test_odds_of_such_values(value):
    """One of 300 may be a mistake; as many as mistakes are often, but next to no clean table has, are likely some."""
    odds = []
    for n, count in ((300, 1), (4_000, 200)):
        judge, maps = a_mapped_judge(n, spread=0.0)
        rows, cols, latent = np.arange(n), np.full(n, 2), judge.scale.latent_table()
        X = np.where(rows < count, value, maps.expected(latent, held=True)[:, 2])
        R = maps.latent(X, cols) - latent[:, 2]
        odds.append(learn_confused([(judge.scale, R, rows, cols)], Calibration(ndtri((rows + 0.5) / n)))[0][3:])
    at = 0 if value == 40 else 1
    shape, rate = (KINDS.on_grid, KINDS.off_grid)[at]
    clean = nbinom(shape, rate / (rate + np.array([300, 4_000]))).pmf([1, 200])
    low, high = constants.GROSS_LIMITS
    assert_allclose([found[at] for found in odds], 1 / (np.array([1, 200]) * np.log(high / low)) / clean)
    assert 1 < odds[0][at] < 5 < odds[1][at]


@given(
    seed=st.integers(0, 999),
    level=st.floats(0.5, 0.999),
    limit=st.floats(1.0, 8.0),
    spread=st.floats(0, 3),
    sharpness=st.none() | st.floats(0.3, 1.5),
)
@settings(max_examples=100)
def test_candidates_hold_all_outliers_of_mapped_columns(seed, level, limit, spread, sharpness):
    """But some scores that are about as likely mistakes as not, where L is less certain than they are far apart."""
    few = sharpness is not None
    rng, (judge, maps) = np.random.default_rng(seed), a_mapped_judge(40, limit, level, seed, 0.0 if few else spread)
    if few:
        mistaken = {"confused": (0.03, 0.05, 0.03, 2.0, 9.0), "sharpness": sharpness}
        judge = replace(judge, scale=replace(judge.scale, **mistaken))
    latent = judge.scale.latent_table()
    Z = latent + rng.standard_normal(latent.shape) * rng.choice([0.3, 1.0, 6.0], latent.shape)
    X = np.where(rng.random(Z.shape) < 0.05, 3.7, maps.expected(Z, held=True))
    R = maps.latent(X) - latent
    found = judge.is_outlier(R.ravel(), *all_of(R.shape)).reshape(R.shape)
    candidates = judge.candidates
    loose = np.abs(R) > candidates.limit * np.sqrt(np.multiply.outer(candidates.rows, candidates.cols))
    assert (loose | ~found).all()


def test_sizes_are_spread_within_intervals():
    """Of clean cells they are distributed as those of numbers; a number is itself."""
    rng, n = np.random.default_rng(0), 4000
    judge, maps = a_mapped_judge(n, spread=0.0)
    scale = replace(judge.scale, rows=np.full(n, 0.2))
    latent = scale.latent_table()
    X = maps.expected(latent + np.sqrt(0.2) * rng.standard_normal(latent.shape), held=True)
    X[:, 4] *= X[:, 4] > maps.knots[4, 0, 1]  # what is expected may be between zero and the least number
    R, (rows, cols) = maps.latent(X) - latent, all_of(X.shape)
    drawn = scale.spread_sizes(R.ravel(), rows, cols).reshape(R.shape)
    for sizes in drawn.T:
        assert_allclose(np.quantile(sizes, [0.1, 0.5, 0.9]), ndtri([0.1, 0.5, 0.9]), atol=0.1)
    assert_allclose(drawn[:, :2], R[:, :2] / np.sqrt(0.2), atol=1e-3)


@pytest.mark.parametrize(("wrong", "blunt"), [(0.01, 1.0), (0.1, 1.0), (0.3, 1.0), (0.1, 2.0)])
def test_how_often_scores_are_mistaken_is_learned(wrong, blunt):
    """Of mistakes among five scores a fifth is the lowest one, a fifth the highest; some hold what they should."""
    rng, n = np.random.default_rng(0), 20_000
    judge, maps = a_mapped_judge(n, spread=0.0)
    scale, rows, cols = replace(judge.scale, rows=np.full(n, 0.1)), np.arange(n), np.full(n, 2)
    latent = scale.latent_at(rows, cols)
    clean = maps.expected(latent + np.sqrt(0.1) * rng.standard_normal(n), cols, held=True)
    mistaken = rng.random(n) < wrong
    X = np.where(mistaken, rng.integers(1, 6, n), clean)
    R = maps.latent(X, cols) - latent
    calibration = Calibration(rng.standard_normal(20_000))
    scale = replace(scale, rows=blunt**2 * scale.rows)
    confused, sharpness = learn_confused([(scale, R, rows, cols)], calibration)
    scale = replace(scale, confused=confused, sharpness=sharpness)
    assert_allclose(sharpness, 1 / blunt, rtol=0.1)  # the noise may be less than the fit takes it for
    assert_allclose(scale.confused[:3], np.array([0.2, 0.6, 0.2]) * wrong, atol=0.15 * wrong + 0.005)
    P = replace(judge, scale=scale, calibration=calibration).probability(R, rows, cols)
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        some = np.abs(P - low - 0.1) < 0.1
        if some.sum() > 100:
            assert abs(P[some].mean() - mistaken[some].mean()) < 0.1


def test_scores_of_which_nothing_is_known_are_not_called_mistakes():
    """What is expected has nothing to do with them: mistakes would explain them a little better."""
    rng, n = np.random.default_rng(0), 60
    judge, maps = a_mapped_judge(n, spread=0.0)
    scale = replace(judge.scale, rows=np.full(n, 0.9), left=0.3 * judge.scale.left)
    rows, cols = np.arange(n), np.full(n, 2)
    R = maps.latent(np.clip(np.round(3 + rng.standard_normal(n)), 1, 5), cols) - scale.latent_at(rows, cols)
    confused, _ = learn_confused([(scale, R, rows, cols)], Calibration(rng.standard_normal(2_000)))
    assert_allclose(confused[:3], 1 / (3 * (n + 2)))


def test_mapped_tensors_are_judged_as_arrays_are():
    torch = pytest.importorskip("torch")
    judge, _ = a_mapped_judge()
    R = 2 * np.random.default_rng(3).standard_normal((60, 5))
    R[4, 2] = np.nan
    rows, cols = all_of(R.shape)
    there, tensors = judge.converted(torch.as_tensor), tuple(map(torch.as_tensor, (R.ravel(), rows, cols)))
    for name in ("standardised", "probability", "is_outlier"):
        wanted = getattr(judge, name)(R.ravel(), rows, cols)
        assert_allclose(getattr(there, name)(*tensors).numpy(), wanted, rtol=1e-10, err_msg=name)
    some = np.array([4, 1]), np.array([3, 0, 2])
    assert_allclose(judge.scale.unit_table(R[np.ix_(*some)], *some), judge.scale.unit_table(R)[np.ix_(*some)])
    assert_allclose(judge.scale.unit_table(R).ravel(), judge.scale.unit_at(R.ravel(), rows, cols))


@pytest.mark.parametrize("growth", [-0.4, 0.0, 0.3])
def test_noise_that_grows_with_what_is_expected(growth):
    rng, n = np.random.default_rng(1), 4000
    latent, cols = rng.standard_normal(n), rng.integers(0, 8, n)
    own = growth * np.linspace(0.7, 1.3, 8)
    z = np.exp(own[cols] * latent) * rng.standard_normal(n)
    z[::20] *= 30
    found = learn_slopes(z, latent, cols, 8)
    assert_allclose(found, own, atol=0.12)
    if growth == 0:
        assert_allclose(found, 0, atol=0.05)
    judge, maps = a_mapped_judge()
    scale = replace(judge.scale, slopes=np.linspace(-0.5, 0.5, 5))
    s2 = np.multiply.outer(scale.rows, scale.cols) * np.exp(2 * scale.slopes * np.clip(scale.latent_table(), -3, 3))
    assert_allclose(scale.std_table(), np.sqrt(scale.tail**2 * s2 + scale.row_spread @ scale.col_spread.T))
    assert_allclose(scale.std_at(*all_of((60, 5))), scale.std_table().ravel())
    R = maps.latent(np.full((60, 5), 40.0)) - scale.latent_table()
    assert_allclose(scale.unit_at(R.ravel(), *all_of(R.shape)), scale.unit_table(R).ravel())
    steep = replace(judge, scale=scale)
    found = steep.is_outlier(R.ravel(), *all_of(R.shape)).reshape(R.shape)
    given = steep.candidates
    assert (np.abs(R) > given.limit * np.sqrt(np.multiply.outer(given.rows, given.cols)))[found].all() and found.any()


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
    rank = 3 if kind == "noisy" else 2
    result = irpca.solve(given, rank=rank, columns="auto", outliers_to=tmp_path / "S.parquet")
    assert (result.S is None) == large and (result.noise == 0) == (kind == "exact")
    model = irpca.InductiveRobustPCA(result.rank).fit(given)
    listed = pd.DataFrame(model.outliers()).sort_values(["row", "column"], ignore_index=True)
    written = pd.read_parquet(tmp_path / "S.parquet").sort_values(["row", "column"], ignore_index=True)
    assert len(written) > 100
    for name in ("row", "column", "observed", "expected", "probability"):
        assert_allclose(written[name], listed[name], rtol=1e-12, err_msg=name)
    assert (written["probability"] == 1).all() == (kind == "exact")


def test_nothing_improbable_is_listed_where_noise_is_skewed():
    """With features of both sides, nothing is uncertain but the noise: 1,400 cells of the short side were listed."""
    rng = np.random.default_rng(0)
    F1, F2 = rng.standard_normal((300, 6)), rng.standard_normal((100, 6))
    M = F1 @ rng.standard_normal((6, 2)) @ rng.standard_normal((2, 6)) @ F2.T + 0.1 * (
        rng.gamma(2, 0.5, (300, 100)) - 1
    )
    wrong = rng.random(M.shape) < 0.01
    M[wrong] += 4
    model = irpca.InductiveRobustPCA().fit(M, row_features=F1, col_features=F2)
    found = model.outliers()
    assert model.result_.calibration.skewed and (found["probability"] > 0.5).all()
    assert len(found) < 1.1 * wrong.sum()


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
