"""Where new rows lie among those of a fit, and how uncertain that is."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from irpca import DoNotUseWarning, InductiveRobustPCA
from irpca.datasets import make_problem
from irpca.model.placement import Placed


def table(n1=150, n2=30, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    L = rng.standard_normal((n1, 2)) @ rng.standard_normal((2, n2))
    return L + noise * rng.standard_normal(L.shape), L


@pytest.fixture(scope="module")
def model():
    return InductiveRobustPCA(2).fit(table()[0][:120])


def test_rows_of_the_fit_are_placed_where_they_were(model):
    M = table()[0][:120]
    placed = model._placement.place(M, None)
    assert_allclose(placed.scores @ model.components_, model.low_rank_.dense(), atol=0.02)
    assert isinstance(placed, Placed) and placed.variances.shape == (120, 2) and placed.scale.shape == (120,)


def test_new_rows_are_nearer_to_the_truth_than_their_entries(model):
    M, L = table()
    placed = model._placement.place(M[120:], None)
    error = np.sqrt(np.mean((placed.scores @ model.components_ - L[120:]) ** 2))
    assert error < 0.3 / 2


def test_a_row_is_placed_by_itself(model):
    """Whatever other rows come along with it."""
    M = table()[0][120:]
    together = model._placement.place(M, None)
    for i in (0, 7):
        alone = model._placement.place(M[i : i + 1], None)
        assert_allclose(alone.scores[0], together.scores[i], rtol=1e-6, atol=1e-8)
        assert_allclose(alone.variances[0], together.variances[i], rtol=1e-5)


def test_some_columns_place_a_row_too(model):
    M, L = table()
    kept = np.arange(0, 30, 2)
    placed = model._placement.place(M[120:, kept], None, kept)
    same = model._placement.place(np.where(np.arange(30) % 2 == 0, M[120:], np.nan), None)
    assert_allclose(placed.scores, same.scores, atol=1e-3)
    assert np.sqrt(np.mean((placed.scores @ model.components_ - L[120:]) ** 2)) < 0.2


def test_the_fewer_entries_the_more_uncertain(model):
    M = table()[0][120:]
    spreads = []
    for count in (30, 10, 3):
        few = M.copy()
        few[:, count:] = np.nan
        placed = model._placement.place(few, None)
        spreads.append(np.median(placed.variances[:, 0]))
    assert spreads == sorted(spreads) and spreads[-1] > 3 * spreads[0]


def test_a_row_without_entries_is_an_average_one(model):
    M = table()[0][120:122].copy()
    M[0] = np.nan
    placed = model._placement.place(M, None)
    assert_allclose(placed.scores[0], model._placement.average @ model._placement.turn, atol=1e-10)


def test_a_gross_error_does_not_move_a_row(model):
    M = table()[0][120:].copy()
    before = model._placement.place(M, None).scores
    M[:, 5] += 1e3
    assert np.abs(model._placement.place(M, None).scores - before).max() < 0.5


def test_what_features_say_counts_where_data_are_few():
    rng = np.random.default_rng(1)
    F = rng.standard_normal((200, 3))
    left = F @ rng.standard_normal((3, 2)) + 0.3 * rng.standard_normal((200, 2))
    L = left @ rng.standard_normal((2, 30))
    M = L + 0.3 * rng.standard_normal(L.shape)
    model = InductiveRobustPCA(2).fit(M[:150], row_features=F[:150])
    few = M[150:].copy()
    few[:, 2:] = np.nan
    errors = [np.mean((model.decompose(few, row_features=given).L.dense() - L[150:]) ** 2) for given in (F[150:], None)]
    by_features = np.mean((model.predict(F[150:]) - L[150:]) ** 2)
    assert errors[0] < 0.7 * errors[1] and errors[0] < by_features


def test_rows_of_an_exact_fit_are_placed_to_rounding():
    problem = make_problem(80, 40, d1=4, d2=3, rank=2, corruption=0.1, features="conditioned")
    model = InductiveRobustPCA(2).fit(problem.M[:60])
    assert model.noise_ == 0
    placed = model._placement.place(problem.M[60:], None)
    assert np.abs(placed.scores @ model.components_ - problem.L[60:]).max() < 1e-10 * np.abs(problem.L).max()


def test_a_model_without_components_places_every_row_at_nothing():
    M = np.random.default_rng(0).standard_normal((40, 30))
    with pytest.warns(DoNotUseWarning, match="no pattern is stronger than the noise"):
        model = InductiveRobustPCA().fit(M)
    assert model.rank_ == 0
    placed = model._placement.place(M[:5], None)
    assert placed.scores.shape == (5, 0) and placed.variances.shape == (5, 0)


# The variance of expected values


def test_a_row_with_holes_is_less_certain():
    M = table()[0]
    M[::10, ::2] = np.nan
    std = InductiveRobustPCA(2).fit(M).expected(return_std=True)[1]
    rows = np.isnan(M).any(axis=1)
    assert np.median(std[rows].mean(axis=1)) > 1.02 * np.median(std[~rows].mean(axis=1))


def test_a_batch_of_rows_without_entries_is_placed_as_well(model, monkeypatch):
    """As they are in the company of other rows."""
    M = table()[0][120:130].copy()
    M[::2] = np.nan
    together = model.transform(M)
    monkeypatch.setattr("irpca.estimator.CHUNK_ENTRIES", 30)  # one row at a time
    assert_allclose(model.transform(M), together, atol=1e-6)


@pytest.mark.parametrize("new", [False, True], ids=["fitted", "new"])
def test_a_row_is_certain_where_its_entries_tell_something(new):
    """Two groups of columns, each with a factor of its own; of the first row only some of one group is observed.

    The uncertainty of L is told by the variances of principal factors, without their covariances. One group is larger,
    so that each of these is nearly a group's own; where both are alike, all columns of the row are called uncertain.
    """
    rng = np.random.default_rng(6)
    groups = np.repeat(np.eye(2), [10, 20], axis=1) * (1 + rng.random(30))
    M = rng.standard_normal((201, 2)) @ groups + 0.1 * rng.standard_normal((201, 30))
    M[0, 5:] = np.nan
    model = InductiveRobustPCA(2).fit(M[1:] if new else M)
    std = model.repaired(M[:1], return_std=True)[1][0] if new else model.expected(return_std=True)[1][0]
    told, untold = std[5:10] / groups[0, 5:10], std[10:] / groups[1, 10:]
    assert told.max() < untold.min() / 2
    assert (untold > 0.7).all() and (untold < 1.4).all()  # the standard deviation of a factor is 1
