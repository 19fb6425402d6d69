"""Whether columns are mapped: as held-out cells say, or as was asked for."""

import numpy as np
import pytest
from mixed_columns import ASKED, mixed

import irpca
from irpca.model.kinds import ColumnError
from irpca.solvers.mapping import check_columns


def factors(n1=300, n2=12, noise=0.2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n1, 2)) @ rng.standard_normal((2, n2)) + noise * rng.standard_normal((n1, n2))


def test_alike_columns_stay_as_they_are():
    assert irpca.solve(5 + factors(), columns="auto").maps is None


def test_log_normal_columns_are_mapped():
    result = irpca.solve(np.exp(factors() + np.arange(12)), columns="auto")
    latent = result.maps.latent(np.exp(factors() + np.arange(12)))
    assert min(np.corrcoef(z, x)[0, 1] for z, x in zip(latent.T, factors().T, strict=True)) > 0.97
    assert len(result.maps.names) == 12 and "held-out cells are predicted better by" in result.summary()
    assert irpca.solve(np.exp(factors() + np.arange(12))).maps is None  # unless it is asked for


def test_noise_that_is_given_is_in_units_of_M():
    M = np.exp(factors() + np.arange(12))
    assert irpca.solve(M, columns="auto", noise=0.5).maps is None
    with pytest.raises(ValueError, match="noise is in units of M"):
        irpca.solve(M, columns=["logarithm", *11 * ["auto"]], noise=0.5)
    assert irpca.solve(M, columns=["as it is", *11 * ["auto"]], noise=0.5).maps is None


def test_what_is_exact_is_not_mapped():
    """Though its columns are skewed, and of different sizes."""
    rng = np.random.default_rng(0)
    M = np.exp(1.5 * rng.standard_normal((200, 2))) @ rng.random((2, 30)) * 10.0 ** (np.arange(30) % 5)
    wrong = rng.random(M.shape) < 0.05
    M[wrong] *= 10
    result = irpca.solve(M, columns="auto")
    assert result.maps is None and result.noise == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("numbers", "columns must be 'auto', 'as they are', or a kind for every column of M, got 'numbers'"),
        (["auto"] * 7, "columns has 7 kinds, and M has 8 columns"),
        (["auto"] * 7 + ["score"], "columns holds 'score'; the kinds are 'auto', 'as it is', 'logarithm'"),
    ],
)
def test_columns_that_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        check_columns(columns, 8, None)


@pytest.mark.parametrize(("place", "wanted"), [(3, "logarithm"), (0, "ordered")])
def test_a_column_that_cannot_be_what_was_asked_for_is_named(place, wanted):
    M, kinds = mixed().to_numpy(copy=True), ["auto"] * 8
    M[0, 3], kinds[place] = -1.0, wanted
    with pytest.raises(ColumnError) as caught:
        irpca.solve(M, columns=kinds)
    assert (caught.value.column, caught.value.wanted) == (place, wanted)


def test_what_is_asked_for_is_done():
    """Whatever held-out cells say; a column that shall stay as it is does, beside others that are mapped."""
    M = mixed().to_numpy()
    kinds = ["as it is", *ASKED[1:]]
    result = irpca.solve(M, columns=kinds, rank=3)
    assert result.maps.names[0] == "as it is" and result.maps.names[3] == "7 ordered values"
    assert irpca.solve(M, columns="as they are", rank=3).maps is None


def test_columns_stay_as_they_are_where_features_determine_them():
    """In single precision around a million a map seems to help: values are rounded to sixteenths."""
    rng = np.random.default_rng(0)
    F1, F2 = (np.column_stack([np.ones(n), rng.standard_normal((n, 4))]) for n in (120, 90))
    L = 1e6 + F1 @ (rng.standard_normal((5, 2)) @ rng.standard_normal((2, 5))) @ F2.T
    wrong = rng.random(L.shape) < 0.08
    M = (L + 0.1 * rng.standard_normal(L.shape) + 20 * wrong).astype(np.float32)
    model = irpca.InductiveRobustPCA().fit(M, row_features=F1, col_features=F2)
    assert model.rank_ == 3 and "columns" not in {choice.name for choice in model.result_.choices}


def test_features_that_say_nothing_do_not_keep_columns_as_they_are():
    """By column medians a table of mostly zeros is predicted as well as by any fit to it as it is."""
    M, rng = mixed(200).to_numpy(), np.random.default_rng(1)
    M = np.column_stack([M[:, 3:], rng.random((200, 6)) < 0.3])
    in_wrong_order = np.nan_to_num(rng.permutation(M[:, :2]))
    for features in (None, in_wrong_order):
        assert irpca.solve(M, features, columns="auto").maps is not None
