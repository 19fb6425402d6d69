"""The model of noisy data: units, the finest noise, components beyond the features, how sweeps end."""

from dataclasses import replace

import numpy as np
import pytest
from solvers.field import to_solve

import irpca
from irpca import Status, constants
from irpca.datasets import make_problem
from irpca.model.columns import Columns, find_spreads, find_units

# Units


def spread_of(x):
    return find_spreads(np.asarray(x, float), np.zeros(len(x), int), 1)[0]


def test_the_spread_is_the_standard_deviation_of_gaussian_values_and_robust():
    x = np.random.default_rng(0).standard_normal(20_000)
    assert spread_of(5 + 3 * x) == pytest.approx(3, rel=0.02)
    x[:1000] = 1e9
    assert spread_of(x) == pytest.approx(1, rel=0.1)
    few = np.r_[np.zeros(90), np.full(10, 4.0)]
    assert spread_of(few) == pytest.approx(few.std())
    assert np.isnan(spread_of(np.full(50, 3.0)))


def test_every_column_has_the_unit_of_its_own_spread():
    rng = np.random.default_rng(0)
    M = np.array([1.0, 100.0, 1.0, 1.0, 10.0]) * rng.standard_normal((4000, 5))
    M[19:, 2], M[:, 3], M[20:, 4] = np.nan, np.nan, np.nan
    unit, typical = find_units(to_solve(M))
    assert unit[1] / unit[0] == pytest.approx(100, rel=0.05)
    assert unit[2] == unit[3] == 1.0  # too few entries, or none
    assert unit[4] != 1.0
    assert np.prod(unit[[0, 1, 4]]) == pytest.approx(1.0)
    assert typical == pytest.approx(unit[0] ** -1, rel=0.05)
    unit, typical = find_units(to_solve(M[:10]))
    np.testing.assert_array_equal(unit, np.ones(5))


def test_every_column_of_a_wide_table_gets_a_unit():
    """Of 4,000 columns 8 entries each are in the sample: too few, so that more are drawn."""
    scale = np.tile([1.0, 100.0], 2000)
    unit, _ = find_units(to_solve(scale * np.random.default_rng(0).standard_normal((200, 4000))))
    assert unit[1::2].min() > 10 * unit[::2].max()


@pytest.mark.parametrize(("ratio", "one"), [(50.0, True), (200.0, False)])
def test_columns_with_features_share_one_unit_unless_they_cannot_be_alike(ratio, one):
    M = np.tile([1.0, ratio], 5) * np.random.default_rng(0).standard_normal((2000, 10))
    unit, _ = find_units(to_solve(M, F2=np.vander(np.arange(10.0), 2)))
    assert (unit == 1).all() == one


def test_the_finest_noise_is_rounding_of_what_was_stored():
    X = np.array([1.0, 4.0]) * np.random.default_rng(0).standard_normal((2000, 2))
    plain, steps, single, one = (
        to_solve(M) for M in (X, 0.1 * np.round(10 * X), (1e3 + X).astype(np.float32), np.full((20, 5), 3.0))
    )
    unit, typical = find_units(plain)
    assert unit[1] > 3 * unit[0]
    np.testing.assert_allclose(Columns.of(plain).least, 1e-5 * typical)
    found = Columns.of(steps)
    np.testing.assert_allclose(found.least, 0.1 / np.sqrt(12) / found.unit, rtol=1e-6)
    rounding, found = np.finfo(np.float32).eps * np.quantile(1e3 + X, 0.9), Columns.of(single)
    np.testing.assert_allclose(found.least, np.maximum(rounding / found.unit, 1e-5 * typical), rtol=1e-2)
    np.testing.assert_allclose(Columns.of(one).least, 3e-5)


# Exact answers


def test_a_table_of_one_number():
    """Nineteen of twenty entries; zeros may be no measurements, so all."""
    M = np.full((20, 15), 5.0)
    M[3, 4], M[7, 1] = 8.0, -2.0
    result = irpca.solve(M)
    np.testing.assert_allclose(result.L.dense(), 5.0, rtol=1e-14)
    assert result.noise == 0 and result.S.nnz == 2


@pytest.mark.parametrize(
    ("rank", "reason"), [(2, "after the first 2 are rounding"), (4, "all singular values are larger")]
)
def test_why_an_exact_fit_has_its_rank(rank, reason):
    p = make_problem(100, 90, d1=4, d2=4, rank=rank, corruption=0.1)
    result = irpca.solve(p.M, p.F1, p.F2)
    (choice,) = (choice for choice in result.choices if choice.name == "rank")
    assert choice.value == rank and reason in choice.reason and result.noise == 0


# Tables too large to be held in memory


@pytest.fixture
def large(monkeypatch):
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=14_000, race=4_000))


def test_where_features_determine_L_two_steps_of_least_squares_are_enough(large):
    p = make_problem(200, 150, d1=3, d2=4, rank=3, corruption=0.1, noise=0.01, features="conditioned")
    result = irpca.solve(p.M, p.F1, p.F2)
    Q1, Q2 = np.linalg.qr(p.F1)[0], np.linalg.qr(p.F2)[0]
    clean = ~p.corrupted
    K = np.einsum("ia,jb->ijab", Q1, Q2)[clean].reshape(clean.sum(), -1)
    C = np.linalg.lstsq(K, p.M[clean], rcond=None)[0].reshape(Q1.shape[1], -1)
    assert result.rank == 3 and result.usable == "usable"
    assert p.relative_error(result.L) <= 1.05 * p.relative_error(Q1 @ C @ Q2.T)
    assert result.noise == pytest.approx(0.01, rel=0.05)
    assert result.n_iter == 1  # no sweep over all of M


def test_without_features_lines_outside_the_part_are_placed(large):
    rng = np.random.default_rng(0)
    L = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 150))
    wrong = rng.random(L.shape) < 0.05
    result = irpca.solve(L + 0.1 * rng.standard_normal(L.shape) + 20 * wrong)
    assert result.rank == 2 and result.usable == "usable"
    assert np.abs(result.L.dense() - L).mean() < 0.03
    assert result.noise == pytest.approx(0.1, rel=0.1)
    np.testing.assert_array_equal((np.abs(result.S.toarray()) > 10), wrong)


# Components beyond the features


@pytest.mark.parametrize("wrong", [8, -1])
def test_extra_components_are_as_many_as_a_table_can_have(wrong):
    with pytest.raises(ValueError, match=f"extra_rank={wrong} is out of range for a 9 × 8 table.*0 to 7, or 'auto'"):
        irpca.solve(np.random.default_rng(0).standard_normal((9, 8)), np.ones((9, 1)), extra_rank=wrong)


@pytest.mark.parametrize("extra_rank", [0, 1, "auto"])
def test_components_that_features_do_not_explain(extra_rank):
    rng = np.random.default_rng(0)
    F1, F2 = rng.standard_normal((80, 2)), rng.standard_normal((60, 2))
    inside = F1 @ np.diag([3.0, 2.0]) @ F2.T
    outside = 1.5 * np.outer(rng.standard_normal(80), rng.standard_normal(60))
    M = inside + outside + 0.1 * rng.standard_normal(inside.shape)
    result = irpca.solve(M, F1, F2, extra_rank=extra_rank)
    chosen = {choice.name: choice.value for choice in result.choices}
    if extra_rank == 0:
        assert result.rank == 2 and "extra_rank" not in chosen
        return
    assert result.rank == 3
    assert np.abs(result.L.dense() - inside - outside).mean() < 0.05
    assert chosen.get("extra_rank") == (1 if extra_rank == "auto" else None)
    if extra_rank == "auto":  # the default of solve and of the estimator
        default = irpca.solve(M, F1, F2).L.dense()
        np.testing.assert_array_equal(default, result.L.dense())
        model = irpca.InductiveRobustPCA().fit(M, row_features=F1, col_features=F2)
        np.testing.assert_array_equal(default, model.low_rank_.dense())
    share = np.sum(outside**2) / np.sum((inside + outside) ** 2)
    assert result.shares["free"] == pytest.approx(share, rel=0.2)
    assert result.shares["features"] + result.shares["free"] == pytest.approx(1.0)


def test_features_that_explain_all_need_no_more_components():
    rng = np.random.default_rng(0)
    F1, F2 = rng.standard_normal((80, 2)), rng.standard_normal((60, 2))
    M = F1 @ np.diag([3.0, 2.0]) @ F2.T + 0.1 * rng.standard_normal((80, 60))
    result = irpca.solve(M, F1, F2, extra_rank="auto")
    assert result.rank == 2
    assert [choice.value for choice in result.choices if choice.name == "extra_rank"] == [0]


def test_an_answer_before_the_end():
    rng = np.random.default_rng(0)
    L = np.outer(1 + rng.random(60), 1 + rng.random(40))
    states = []
    irpca.solve(L + 0.01 * rng.standard_normal(L.shape), callbacks=lambda state, history: states.append(state))
    early = next(state for state in states if state.stage and state.stage.startswith("comparing fits, 1 made"))
    assert not early.settled and 0 < early.progress < 0.7
    assert np.abs(early.L.dense() - L).mean() < 0.02
    assert early.zeta == pytest.approx(4 * early.noise)
    progress = [state.progress for state in states if state.progress is not None]
    assert progress == sorted(progress)


def test_without_noise_an_exact_fit_is_looked_for():
    p = make_problem(100, 90, d1=4, d2=4, rank=2, corruption=0.1)
    result = irpca.solve(p.M, p.F1, p.F2, rank=2, noise=0)
    assert result.certificate is None and p.relative_error(result.L) < 1e-12  # no fits were compared


@pytest.mark.parametrize("noise", [-0.1, np.inf, np.nan, True])
def test_noise_is_a_standard_deviation(noise):
    with pytest.raises(
        ValueError, match=r"noise must be (a number|the standard deviation of the noise, a finite number)"
    ):
        irpca.solve(np.random.default_rng(0).standard_normal((20, 10)), noise=noise)


def test_the_scale_of_entries_is_in_units_of_M():
    """Columns in other units, by powers of two: everything about them is, too."""
    M = noisy_table()
    units = 2.0 ** np.random.default_rng(1).permutation(np.repeat([-3, 0, 3], 10))
    plain, scaled = (irpca.solve(table, rank=2).scale.std_table() for table in (M, M * units))
    np.testing.assert_allclose(scaled, plain * units, rtol=1e-6)


# How the sweeps over all of M end


def noisy_table():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 30)) + 0.1 * rng.standard_normal((60, 30))
    return np.where(rng.random(M.shape) < 0.3, np.nan, M)  # without gaps it takes two sweeps


def test_sweeps_end_when_L_changes_by_less_than_tol():
    rough, fine, finest = (irpca.solve(noisy_table(), tol=tol) for tol in (0.5, 1e-4, 1e-10))
    assert rough.n_iter < fine.n_iter and rough.converged and fine.converged
    np.testing.assert_array_equal(fine.L.dense(), finest.L.dense())  # noise hides what is below 1e-4


@pytest.mark.parametrize("solver", ["irpca", "bayes"])
def test_sweeps_end_after_max_iter(solver):
    """What is there then is in principal components, as at convergence: so many as noise does not hide."""
    M = noisy_table()
    result, converged = (irpca.solve(M, solver=solver, max_iter=most) for most in (2, 100))
    assert result.status is Status.MAX_ITER and result.n_iter == 2 < converged.n_iter
    assert result.rank == converged.rank == 2
    left, right = result.fit.rows.second / 60, result.fit.cols.second / 30
    np.testing.assert_allclose(left, np.diag(np.diag(left)), atol=1e-8 * left.max())
    np.testing.assert_allclose(right, left, atol=1e-8 * left.max())
    assert np.linalg.norm(result.L.dense() - converged.L.dense()) < 0.1 * np.linalg.norm(converged.L.dense())


# What is random


@pytest.mark.parametrize("kind", ["numbers", "scores"])
def test_neither_the_seed_nor_the_order_of_the_rows_decides(kind):
    """Cells are held out, and components begun, by what the table holds."""
    rng = np.random.default_rng(0)
    M = rng.standard_normal((120, 2)) @ rng.standard_normal((2, 12)) + 0.5 * rng.standard_normal((120, 12))
    M = np.exp(M) if kind == "numbers" else np.clip(np.round(3 + M), 1, 5)
    M[rng.random(M.shape) < 0.05] *= 1000
    first, other = (irpca.solve(M, columns="auto", random_state=seed) for seed in (0, 1))
    order = rng.permutation(len(M))
    shuffled = irpca.solve(M[order], columns="auto")
    assert first.S.nnz > 50 and [choice.value for choice in first.choices if choice.name == "columns"] == ["mapped"]
    np.testing.assert_array_equal(first.L.dense(), other.L.dense())
    np.testing.assert_array_equal(first.S.toarray() != 0, other.S.toarray() != 0)
    np.testing.assert_array_equal(first.S.toarray()[order] != 0, shuffled.S.toarray() != 0)
    np.testing.assert_allclose(first.unseen.skills, shuffled.unseen.skills, rtol=1e-6)
    for result in (other, shuffled):
        moved = np.abs(first.calibration.counts - result.calibration.counts).sum()
        assert moved <= 4  # rounding may take a residual across the edge of a bin
