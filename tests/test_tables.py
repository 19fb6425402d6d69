"""What people read of a fit: expected and repaired values, outliers by one of three numbers, and how sure they are."""

import dataclasses
import functools
import itertools
import pickle

import numpy as np
import pytest
from mixed_columns import KINDS, mixed
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from scipy.special import ndtr

import irpca
from irpca import DoNotUseWarning, InductiveRobustPCA, LongTable, Status
from irpca.datasets import make_problem
from irpca.engines.sparse_part import places
from irpca.solvers import SOLVERS
from irpca.tables import Criterion, bounds_at

KNOBS = [{}, {"fdr": 0.2}, {"probability": 0.01}, {"probability": 0.99}, {"threshold": 1.0}]


def noisy(n1, n2, seed, features=False, gross=0.03):
    """A table of rank 2 with Gaussian noise, clean and with gross errors and holes, and features that tell all of L."""
    rng = np.random.default_rng(seed)
    F1, F2 = rng.standard_normal((n1, 5)), rng.standard_normal((n2, 4))
    sides = [
        F @ rng.standard_normal((F.shape[1], 2)) if features else rng.standard_normal((len(F), 2)) for F in (F1, F2)
    ]
    clean = sides[0] @ sides[1].T + 0.3 * rng.standard_normal((n1, n2))
    wrong, holes = rng.random((n1, n2)) < gross, rng.random((n1, n2)) < 0.15
    M = clean + np.where(wrong, rng.choice([-1, 1], (n1, n2)) * (20 + 20 * rng.random((n1, n2))), 0)
    M[holes] = np.nan
    return M, clean, holes, wrong & ~holes, ({"row_features": F1, "col_features": F2} if features else {})


def cells(found):
    return set(zip(found["row"].tolist(), found["column"].tolist(), strict=True))


def where(mask):
    """The cells where a mask is set."""
    return set(zip(*map(np.ndarray.tolist, np.nonzero(mask)), strict=True))


@pytest.fixture(scope="module")
def overlapping():
    """Errors of all sizes, so that many are neither surely outliers nor surely noise; and a few holes."""
    rng = np.random.default_rng(1)
    M = rng.standard_normal((80, 2)) @ rng.standard_normal((2, 40)) + 0.3 * rng.standard_normal((80, 40))
    wrong = rng.random(M.shape) < 0.05
    M[wrong] += 3 * rng.standard_normal(wrong.sum())
    M[rng.random(M.shape) < 0.05] = np.nan
    return M


@pytest.fixture(scope="module")
def model(overlapping):
    return InductiveRobustPCA(2).fit(overlapping)


@pytest.fixture(scope="module")
def exact_problem():
    return make_problem(60, 40, d1=4, d2=3, rank=2, corruption=0.05, features="conditioned")


# The cut


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fdr": 0.1, "threshold": 2}, "give one of fdr, probability and threshold, got fdr, threshold"),
        ({"probability": 0}, "probability must be a number, positive and at most 1; got 0"),
        ({"fdr": 5}, "fdr \\(a share of false alarms, such as 0.05\\) must be a number, positive and below 1; got 5"),
        ({"threshold": -1}, "threshold \\(a size in units of M\\) must be a number, at least 0 and finite; got -1"),
    ],
)
def test_numbers_that_are_no_cut(model, given, message):
    for asked in (Criterion, model.outliers, model.repaired):
        with pytest.raises(ValueError, match=message):
            asked(**given)


def test_the_more_false_alarms_are_allowed_the_more_is_listed(model):
    fewer, more, most = lists = [model.outliers(fdr=fdr) for fdr in (0.001, 0.05, 0.5)]
    assert cells(fewer) < cells(model.outliers()) < cells(most) and cells(fewer) < cells(more) < cells(most)
    for fdr, found in zip((0.001, 0.05, 0.5), lists, strict=True):
        assert (1 - found["probability"]).mean() <= fdr


def test_a_lower_probability_lists_more(model):
    for p, more in ((0.99, {}), (0.5, {"probability": 0.0001})):
        found = model.outliers(probability=p)
        assert cells(found) < cells(model.outliers(**more)) and found["probability"].min() >= p
    assert cells(found) == cells(model.outliers())  # no probability is one half to the bit
    assert len(model.outliers(probability=1)) == 0


@pytest.mark.parametrize("threshold", [0.0, 1.0, 1e9])
def test_a_threshold_lists_what_is_further_off(model, overlapping, threshold):
    found = model.outliers(threshold=threshold)
    off = np.abs(overlapping - model.expected())
    assert cells(found) == where(off > threshold)
    assert_allclose(np.abs(found["difference"]), off[found["row"], found["column"]])


@pytest.mark.parametrize("knob", KNOBS)
def test_a_list_is_in_order_and_adds_up(model, overlapping, knob):
    found = model.outliers(**knob)
    assert_array_equal(np.lexsort((-found["score"], -found["probability"])), np.arange(len(found)))
    assert_array_equal(found["observed"], overlapping[found["row"], found["column"]])
    assert_allclose(found["observed"] - found["expected"], found["difference"], atol=1e-12)
    expected, std = model.expected(return_std=True)
    assert_allclose(found["std"], std[found["row"], found["column"]])
    assert_allclose(found["expected"], expected[found["row"], found["column"]])
    assert_allclose(found["score"], np.abs(found["difference"]) / found["std"])
    for name, away in (("lower", -1.96), ("upper", 1.96)):
        assert_allclose(found[name], found["expected"] + away * found["std"], atol=1e-12)
    assert_array_equal(model.outliers(**knob, most=5), found[:5])


def test_more_outliers_need_the_table(model, overlapping, tmp_path):
    model.save(tmp_path / "m.irpca")
    for again in (pickle.loads(pickle.dumps(model)), irpca.load(tmp_path / "m.irpca")):
        assert again._M is None
        for knob in ({}, {"probability": 0.9}):
            assert_array_equal(again.outliers(**knob), model.outliers(**knob))
        for name, knob in (("repaired", {}), ("outliers", {"fdr": 0.2}), ("outliers", {"threshold": 1.0})):
            with pytest.raises(ValueError, match=r"table.* as M$"):
                getattr(again, name)(**knob)
        for knob in ({"fdr": 0.2}, {"threshold": 1.0}):
            assert_array_equal(again.outliers(overlapping, **knob), model.outliers(**knob))
        for ours, theirs in zip(again.expected(return_std=True), model.expected(return_std=True), strict=True):
            assert_array_equal(ours, theirs)


def test_new_rows_come_first(model):
    for given, message in (
        ({"M": 5}, "for the first 5 outliers, say most=5"),
        ({"most": -1}, "most must be a whole number, at least 0; got -1"),
        ({"row_features": np.ones((3, 2))}, "row_features was given without M"),
    ):
        with pytest.raises(ValueError, match=message):
            model.outliers(**given)


# Values as given, and the repaired table


def kinds():
    """Tables of numbers that do not survive a detour over L, in several kinds, and the same as an array."""
    rng = np.random.default_rng(3)
    full = 1000 * (rng.standard_normal((60, 2)) @ rng.standard_normal((2, 30)) + 0.1 * rng.standard_normal((60, 30)))
    full[rng.random(full.shape) < 0.03] += 1e7 / 3
    holes = rng.random(full.shape) < 0.1
    partial = np.where(holes, np.nan, full)
    rows, cols = np.nonzero(~holes)
    yield pytest.param(full, full, id="float64")
    yield pytest.param(partial.astype(np.float32), partial.astype(np.float32), id="float32 with holes")
    yield pytest.param(full.astype(int), full.astype(int).astype(float), id="integers")
    yield pytest.param(csr_array((full[rows, cols], (rows, cols)), full.shape), partial, id="sparse")
    yield pytest.param(
        LongTable(rows[::-1], cols[::-1], full[rows, cols][::-1].astype(np.float32), full.shape),
        partial.astype(np.float32),
        id="long float32 in another order",
    )


@pytest.mark.parametrize(("M", "values"), [*kinds()])
def test_observed_values_are_as_given_to_the_bit(M, values):
    model = InductiveRobustPCA(2).fit(M)
    found, stored = model.outliers(), pickle.loads(pickle.dumps(model)).outliers()
    assert 10 < len(found) < 200
    assert found["observed"].dtype == values.dtype
    assert_array_equal(found["observed"], values[found["row"], found["column"]])
    assert_array_equal(stored["observed"], found["observed"])
    more = model.outliers(threshold=100.0)
    assert len(more) > len(found)
    assert_array_equal(more["observed"], values[more["row"], more["column"]])

    repaired, std, marks = model.repaired(return_std=True, return_marks=True)
    assert repaired.dtype == values.dtype
    kept, wrong = marks == "", np.zeros(values.shape, bool)
    wrong[found["row"], found["column"]] = True
    assert_array_equal(marks, np.where(np.isnan(values), "missing", np.where(wrong, "outlier", "")))
    assert_array_equal(repaired[kept], values[kept])
    assert_allclose(repaired[~kept], model.expected()[~kept], rtol=1e-6, atol=1e-2)
    assert_array_equal(std == 0, kept)


@pytest.mark.parametrize("knob", KNOBS)
def test_what_is_listed_is_what_is_repaired(model, overlapping, knob):
    repaired, marks = model.repaired(**knob, return_marks=True)
    assert cells(model.outliers(**knob)) == where(marks == "outlier")
    assert_array_equal(marks == "missing", np.isnan(overlapping))
    assert_array_equal(np.isfinite(repaired), True)
    assert_array_equal(model.repaired(**knob), repaired)


def test_of_what_nothing_is_known_nothing_is_made(overlapping):
    M = overlapping.copy()
    M[7], M[:, 3] = np.nan, np.nan
    model = InductiveRobustPCA(2).fit(M)
    unknown = np.zeros(M.shape, bool)
    unknown[7], unknown[:, 3] = True, True
    expected, std = model.expected(return_std=True)
    repaired, marks = model.repaired(return_marks=True)
    assert_array_equal(np.isnan(expected), unknown)
    assert_array_equal(np.isnan(std), unknown)
    assert_array_equal(np.isnan(repaired), unknown)
    assert_array_equal(marks[unknown], "missing")
    assert_array_equal(np.isnan(model.repaired(M[5:9])), unknown[5:9])


# Standard deviations


@pytest.mark.parametrize("features", [False, True], ids=["without features", "features"])
@pytest.mark.parametrize("shape", [(200, 30), (12, 300)], ids=["tall", "wide"])
def test_95_percent_of_clean_cells_are_within_1_96_standard_deviations(shape, features):
    within = []
    for seed in (0, 1):
        M, clean, holes, wrong, given = noisy(*shape, seed, features)
        model = InductiveRobustPCA("auto" if seed == 0 else 2).fit(M, **given)
        repaired, std = model.repaired(return_std=True)
        within.append(np.abs(clean - repaired)[holes] < 1.96 * std[holes])
        assert cells(model.outliers()) == where(wrong)
        everywhere = model.expected(return_std=True)[1]
        assert_array_equal(std[holes], everywhere[holes])
        assert 0.28 < np.median(everywhere) < 0.4  # the noise, where L is known well
    assert 0.92 < np.concatenate(within).mean() < 0.98


def cold(seed):
    """Features that tell most of a row, and nothing of what is its own; columns that they tell all of."""
    rng = np.random.default_rng(seed)
    F1, F2 = rng.standard_normal((260, 5)), rng.standard_normal((30, 4))
    left = F1 @ rng.standard_normal((5, 2)) + 0.4 * rng.standard_normal((260, 2))
    clean = left @ (F2 @ rng.standard_normal((4, 2))).T + 0.3 * rng.standard_normal((260, 30))
    return np.where(rng.random(clean.shape) < 0.03, clean + 25, clean), clean, F1, F2


def test_95_percent_of_new_rows_and_columns_are_within_1_96_standard_deviations_of_predict():
    within = {"rows": [], "columns": [], "both": []}
    for seed in (0, 1):
        M, clean, F1, F2 = cold(seed)
        model = InductiveRobustPCA().fit(M[:200, :24], row_features=F1[:200], col_features=F2[:24])
        for name, rows, cols in (("rows", 1, 0), ("columns", 0, 1), ("both", 1, 1)):
            expected, std = model.predict(F1[200:] if rows else None, F2[24:] if cols else None, return_std=True)
            there = clean[200:] if rows else clean[:200]
            there = there[:, 24:] if cols else there[:, :24]
            within[name].append((np.abs(there - expected) < 1.96 * std).mean())
    for shares in within.values():
        assert 0.92 < np.mean(shares) < 0.98


def test_95_percent_of_the_holes_of_new_rows_are_within_1_96_standard_deviations():
    within = []
    for seed in (0, 1):
        M, clean, *_ = cold(seed)
        model = InductiveRobustPCA(2).fit(M[:200])
        holes = np.random.default_rng(seed).random((60, 30)) < 0.15
        new = np.where(holes, np.nan, M[200:])
        repaired, std, marks = model.repaired(new, return_std=True, return_marks=True)
        assert_array_equal(marks == "missing", holes)
        assert_array_equal(marks == "outlier", ~holes & (M[200:] != clean[200:]))
        assert_array_equal(repaired[marks == ""], new[marks == ""])
        within.append(np.abs(clean[200:] - repaired)[holes] < 1.96 * std[holes])
    assert 0.92 < np.concatenate(within).mean() < 0.98


# New rows


@pytest.mark.parametrize("features", [False, True], ids=["without features", "features"])
def test_the_rows_of_the_fit_have_the_same_outliers_as_new_rows(features):
    M, _, _, wrong, given = noisy(120, 30, 5, features)
    model = InductiveRobustPCA(2).fit(M, **given)
    fitted, new = model.outliers(), model.outliers(M, row_features=given.get("row_features"))
    assert cells(fitted) == cells(new) and len(new) == wrong.sum()
    assert set(new["observed"].tolist()) == set(fitted["observed"].tolist())


def test_new_rows_with_more_noise_are_no_alarms():
    rng = np.random.default_rng(10)
    scale = 0.3 * np.exp(0.7 * rng.standard_normal(260))
    M = rng.standard_normal((260, 2)) @ rng.standard_normal((2, 40)) + scale[:, None] * rng.standard_normal((260, 40))
    model = InductiveRobustPCA(2).fit(M[:200])
    assert len(model.outliers(M[200:])) <= 0.001 * M[200:].size
    new = M[200:].copy()
    new[3, 4] += 40
    first = model.outliers(new)[0]
    assert (first["row"], first["column"]) == (3, 4)


def test_what_is_listed_of_new_rows_is_likely_an_outlier():
    """Also by a model that has never seen one."""
    _, clean, *_ = noisy(200, 30, 2, gross=0.0)
    model = InductiveRobustPCA(2).fit(clean)
    assert len(model.outliers()) == 0
    new = clean[:50].copy()
    new[3, 4] += 40
    found = model.outliers(new)
    assert cells(found) == {(3, 4)}
    assert found["probability"][0] > 0.5


# Fits without a noise model, exact ones, failed ones, and such that explain nothing


def test_principal_components_have_no_outliers_but_what_is_far_off(exact_problem):
    model = InductiveRobustPCA(2, solver="pca").fit(exact_problem.M)
    assert len(model.outliers()) == 0
    for knob in ({"fdr": 0.1}, {"probability": 0.3}):
        with pytest.raises(ValueError, match=r"need a model of the noise, and this solver has none: .* or threshold"):
            model.outliers(**knob)
    off = np.abs(exact_problem.M - model.expected())
    found = model.outliers(threshold=0.2)
    assert len(found) == (off > 0.2).sum() > 0 and np.isnan(found["probability"]).all()


def test_std_of_a_solver_without_a_noise_model_is_that_of_its_residuals():
    _, clean, *_ = noisy(200, 30, 3)
    expected, std = InductiveRobustPCA(2, solver="pca").fit(clean).expected(return_std=True)
    assert 0.92 < (np.abs(clean - expected) < 1.96 * std).mean() < 0.98
    assert 0.28 < np.median(std) < 0.34


@pytest.mark.parametrize("solver", ["irpca", "trimmed", "irpca_iht", "pcp", "altproj"])
def test_exact_errors_are_found_by_every_solver(exact_problem, solver):
    uses, certain = SOLVERS[solver].features, solver in ("irpca", "trimmed")
    given = {"row_features": exact_problem.F1, "col_features": exact_problem.F2} if uses else {}
    model = InductiveRobustPCA(2, solver=solver).fit(exact_problem.M, **given)
    found = model.outliers()
    assert cells(found) == cells({"row": exact_problem.S.nonzero()[0], "column": exact_problem.S.nonzero()[1]})
    assert_array_equal(np.isnan(found["probability"]), not certain)
    assert (found["probability"] == 1).all() == certain
    repaired, std, marks = model.repaired(return_std=True, return_marks=True)
    assert_allclose(repaired, exact_problem.L, atol=1e-6)
    assert (marks == "outlier").sum() == len(found)
    assert std.max() < 1e-5 * np.abs(exact_problem.M).max()
    assert cells(model.outliers(threshold=0.3)) == {cell for cell in cells(found) if abs(exact_problem.S[cell]) > 0.3}
    new = model.outliers(exact_problem.M[:10])
    assert cells(new) == {cell for cell in cells(found) if cell[0] < 10}


@pytest.mark.parametrize("knob", [{"fdr": 0.1}, {"probability": 0.3}, {"probability": 1}])
def test_all_that_an_exact_fit_lists_is_certain(exact_problem, knob):
    model = InductiveRobustPCA(2).fit(exact_problem.M)
    assert model.noise_ == 0
    assert_array_equal(model.outliers(**knob), model.outliers())


@pytest.mark.parametrize("status", [Status.SATURATED, Status.DIVERGED])
@pytest.mark.parametrize("noise", ["exact", "noisy"])
def test_a_fit_that_failed_is_sure_of_nothing(exact_problem, overlapping, status, noise):
    M = exact_problem.M if noise == "exact" else overlapping
    model = InductiveRobustPCA(2).fit(M)
    model._keep(dataclasses.replace(model.result_, status=status))
    for found in (model.outliers(), model.outliers(threshold=0.1), model.outliers(M)):
        assert len(found) and np.isnan(found["probability"]).all()
    for knob in ({"fdr": 0.1}, {"probability": 0.9}):
        repaired = functools.partial(model.repaired, force=True)
        for asked, given in itertools.product((model.outliers, repaired), ((), (M,))):
            with pytest.raises(ValueError, match=f"no probabilities to choose by. {status.name}"):
                asked(*given, **knob)


def test_a_fit_that_explains_nothing():
    M = np.random.default_rng(0).standard_normal((40, 30))
    M[3, 4] = 50
    with pytest.warns(DoNotUseWarning):
        model = InductiveRobustPCA().fit(M)
    assert model.rank_ == 0
    expected, std = model.expected(return_std=True)
    assert_array_equal(expected, 0)
    assert 0.9 < np.median(std) < 1.1 and std.min() > 0.5 and std.max() < 2
    assert cells(model.outliers()) == cells(model.outliers(M)) == {(3, 4)}
    repaired, marks = model.repaired(return_marks=True, force=True)
    assert repaired[3, 4] == 0 and (marks == "outlier").sum() == 1
    assert cells(model.outliers(threshold=2.0)) == where(np.abs(M) > 2)


def test_tables_too_large_for_memory_are_refused(model, monkeypatch):
    monkeypatch.setattr("irpca.tables.MOST_CELLS", 1000)
    for table in (model.expected, model.interval, model.repaired):
        with pytest.raises(ValueError, match="a table of 80 × 40 values does not fit into memory"):
            table()


# Mapped columns


@pytest.fixture(scope="module")
def mapped(short_fits):
    return irpca.InductiveRobustPCA(3, columns=KINDS).fit(mixed())


@pytest.mark.parametrize("knob", [{}, {"fdr": 0.2}, {"probability": 0.01}, {"threshold": 50.0}])
def test_outliers_of_mapped_columns_have_the_interval_of_the_table(mapped, knob):
    found, M = mapped.outliers(**knob), mixed()
    at = M.index.get_indexer(found["row"]), M.columns.get_indexer(found["column"])
    assert len(found) >= 4
    assert_array_equal(found["observed"], M.to_numpy()[at])
    for name, table in zip(("lower", "upper"), mapped.interval(2 * ndtr(1.96) - 1), strict=True):
        assert_allclose(found[name], table.to_numpy()[at], rtol=1e-9)
    assert_allclose(found["expected"], mapped.expected().to_numpy()[at], rtol=1e-9)
    assert (found["lower"] <= found["expected"]).all() and (found["expected"] <= found["upper"]).all()
    assert (found["lower"] >= mapped.result_.maps.limits[at[1], 0]).all()


def test_intervals_are_the_same_for_tensors(mapped):
    torch = pytest.importorskip("torch")
    scale, at = mapped.result_.scale, places(mapped.sparse_)
    there = bounds_at(scale.converted(torch.as_tensor), *map(torch.as_tensor, at))
    for tensor, array in zip(there, bounds_at(scale, *at), strict=True):
        assert_allclose(tensor.numpy(), array, rtol=1e-12)


def test_the_summary_says_what_columns_hold_by_their_labels(mapped):
    assert "Columns: income: logarithm; rent: " in mapped.summary()
    assert "Columns: 0: logarithm; 1: " in mapped.result_.summary()
    assert "of mapped values" in mapped.summary()


def test_predictions_of_mapped_columns_are_as_uncertain_as_they_are_wrong(short_fits):
    rng = np.random.default_rng(0)
    F = rng.standard_normal((260, 3))
    M = np.exp(F @ rng.standard_normal((3, 8)) + 0.1 * rng.standard_normal((260, 8)))
    model = InductiveRobustPCA(columns=dict.fromkeys(range(8), "logarithm")).fit(M[:200], row_features=F[:200])
    expected, std = model.predict(F[200:], return_std=True)
    assert (np.abs(M[200:] - expected) < 1.96 * std).mean() > 0.9 and np.median(std / expected) < 0.4
