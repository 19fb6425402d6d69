"""Mistakes that have a name."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import irpca
from irpca import InductiveRobustPCA
from irpca.engines import choose
from irpca.mistakes import OutlierCells, Scatter, kinds_of

SHAPE = (200, 16)
GROUPS = {"stuck", "code", "other-unit", "swapped", "copied-row"}


def table(digits=2):
    """What is expected, and what is observed: sensors of different size that follow two waves, and vary together."""
    rng, t = np.random.default_rng(0), np.arange(SHAPE[0])
    waves = np.column_stack([np.sin(t / 9), np.cos(t / 23), rng.standard_normal(SHAPE[0])])
    L = 2 * waves @ rng.choice([-1.5, -1, 1, 1.5], (3, SHAPE[1])) + np.linspace(20, 90, SHAPE[1])
    return L, (L + 0.05 * rng.standard_normal(SHAPE)).round(digits)


def cells_at(rows, cols, observed, expected, std, shape, table=None):
    """Outliers of which clean values are Gaussian."""
    std, sizes = np.full(len(rows), std), np.abs(observed - expected)
    scatter = Scatter(
        expected, std, np.full(len(rows), np.median(sizes) if len(rows) else 1.0), np.ones(len(rows)), cols
    )
    return OutlierCells(rows, cols, observed, expected, std, shape, scatter, table)


def look(L, M, limit=0.2, std=0.05, at_hand=True):
    """The outliers of M, their names as a table, and the doubts."""
    rows, cols = np.nonzero(np.abs(M - L) > limit)
    place = np.random.default_rng(0).permutation(len(rows))  # no order is asked for
    rows, cols = rows[place], cols[place]
    cells = cells_at(rows, cols, M[rows, cols], L[rows, cols], std, M.shape, choose(M) if at_hand else None)
    mistakes, doubts = kinds_of(cells)
    kinds = np.full(M.shape, "", object)
    kinds[rows, cols] = mistakes.texts
    return kinds, doubts


@pytest.mark.parametrize(
    ("observed", "expected", "std", "kind"),
    [
        (520.0, 51.6, 0.5, "× 10"),
        (5.2, 51.6, 0.5, ": 10"),
        (-52.0, 51.6, 0.5, "sign"),
        (51600.0, 51.6, 0.5, "× 1000"),
        (0.52, 51.6, 0.5, ": 100"),
        (132.0, 51.6, 0.5, "× 2.54"),
        (490.0, 51.6, 0.5, ""),  # 49 is five standard deviations off
        (520.0, 51.6, 20.0, ""),  # too many wrong values would be as near
        (77.0, 51.6, 0.5, ""),
        (15.6, 51.6, 0.5, "digits swapped"),
        (0.0, 0.4, 0.1, ""),  # ten times nothing is nothing
    ],
)
def test_a_single_cell(observed, expected, std, kind):
    cell = np.zeros(1, int)
    mistakes, doubts = kinds_of(cells_at(cell, cell, np.array([observed]), np.array([expected]), std, SHAPE))
    assert mistakes.texts.tolist() == [kind] and doubts == ()


@pytest.mark.parametrize("code", [-999.0, 9999.0, 0.0])
def test_a_code(code):
    L, M = table()
    at = ([3, 50, 51, 120, 199], [4, 4, 4, 4, 4])
    M[at] = code
    kinds, (doubt,) = look(L, M)
    assert_array_equal(
        kinds == f"code {code:g}", np.isin(np.arange(M.size), np.ravel_multi_index(at, SHAPE)).reshape(SHAPE)
    )
    assert doubt.kind == "code" and doubt.columns == (4,) and doubt.rows == (3, 50, 51, 120, 199)


def test_no_code_among_other_wrong_values_or_few_ordered_values():
    L, M = table()
    M[::20, 4] = np.linspace(300, 400, 10)
    M[[5, 6, 8], 4] = 350
    M[:, 2] = L[:, 2] = np.arange(200) % 5  # a scale to 5, and an answer that is rarely given
    M[[20, 70, 90], 2] = 20
    kinds, doubts = look(L, M)
    assert not doubts and not np.any([kind.startswith("code") for kind in kinds.ravel()])


def test_a_stuck_sensor():
    L, M = table()
    M[80:110, 1] = M[80, 1]
    kinds, (doubt,) = look(L, M)
    off = np.abs(M - L) > 0.2
    assert set(kinds[off]) == {"stuck"} and 15 < off.sum() < 30
    assert doubt.kind == "stuck" and doubt.rows == tuple(range(80, 110)) and doubt.columns == (1,)


def test_values_that_are_often_repeated_are_not_stuck():
    L, M = table()
    M[:, 1] = np.where(np.arange(200) % 10 < 6, L[:, 1].mean().round(), M[:, 1])
    M[80:100, 3], L[80:100, 3] = 40.0, 41.0  # nothing else is expected there: a step
    assert not {"stuck", "copied from above"} & set(look(L, M)[0].ravel())


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda x: 2.54 * x, "× 2.54"),
        (lambda x: x / 1000, ": 1000"),
        (lambda x: 0.3048 * x, ": 3.281"),
        (lambda x: 1.8 * x + 32, "× 1.8 + 32"),
        (lambda x: 1.37 * x, "× 1.37"),
    ],
)
def test_a_block_in_another_unit(change, kind):
    L, M = table()
    M[40:70, 5] = change(M[40:70, 5])
    kinds, (doubt,) = look(L, M)
    found = np.count_nonzero(kinds[40:70, 5] == kind)
    assert found == np.count_nonzero(kinds) and found >= (27 if kind == "× 1.37" else 30)
    assert doubt.kind == "other-unit" and doubt.columns == (5,) and set(doubt.rows) <= set(range(40, 70))
    assert f"{found} outliers equal the expected value {kind} within the noise" in doubt.text


def test_a_row_in_another_unit():
    L, M = table()
    M[9] /= 100
    kinds, (doubt,) = look(L, M)
    assert (kinds[9] == ": 100").all() and doubt.rows == (9,) and doubt.columns == tuple(range(16))


def test_outliers_of_all_sizes_have_no_common_factor():
    L, M = table()
    M[100:160, 6] *= np.linspace(1.05, 1.65, 60)  # the tail of a skewed noise reaches 1.609
    assert look(L, M, limit=4.0, std=1.0)[1] == ()


def test_what_a_constant_explains_as_well_is_no_factor():
    """About a million no factor that is told as 1 is one, nor any that adds the same to all cells."""
    rng = np.random.default_rng(0)
    L = 1e6 + 20 * rng.standard_normal((300, 8))
    for factor in (1 + 2e-5, 1.001):
        M = L + rng.standard_normal(L.shape)
        M[40:80, 2] *= factor
        assert look(L, M, limit=5.0, std=1.0)[1] == ()


@pytest.mark.parametrize("at_hand", [True, False])
def test_swapped_neighbours(at_hand):
    L, M = table()
    M[30:36, [2, 3]] = M[30:36, [3, 2]]
    M[100, [5, 6]] = M[100, [6, 5]]
    kinds, (doubt,) = look(L, M, at_hand=at_hand)
    assert (kinds[30:36, 2:4] == "swapped").all() and (kinds[100, 5:7] == "swapped").all()
    assert (kinds != "").sum() == 14
    assert doubt.kind == "swapped" and doubt.rows == tuple(range(30, 36)) and doubt.columns == (2, 3)


def test_copies_of_other_cells():
    L, M = table()
    M[30, 2], M[31, 7], M[120, 1] = M[30, 1], M[31, 6], M[119, 1] + 30
    M[121, 1] = M[120, 1]
    kinds, doubts = look(L, M)
    assert (kinds[30, 2], kinds[31, 7], kinds[120, 1]) == ("neighbour's value", "neighbour's value", "")
    assert not doubts and (kinds != "").sum() <= 3
    M[:, 1] = M[:, 2]  # where columns are equal anyway
    assert look(L, M)[0][30, 2] == ""


def test_copied_rows_are_found_with_and_without_outliers():
    L, M = table(digits=4)
    M[60] = M[10]
    kinds, (doubt,) = look(L, M)
    assert doubt.kind == "copied-row" and doubt.rows == (10, 60) and set(kinds[60]) <= {"copied row", ""}
    assert (kinds[60] == "copied row").sum() > 3 and (kinds != "").sum() == (kinds[60] != "").sum()
    assert look(M, M)[1][0].rows == (10, 60)
    assert look(M.round(), M.round())[1] == ()  # whole numbers are equal by chance


# In a fit


def frame():
    import pandas as pd

    _, M = table()
    M[80:110, 1], M[[20, 50, 70], 4], M[130, 6] = M[80, 1], -999, 10 * M[130, 6]
    return pd.DataFrame(M, pd.date_range("2024-01-01", periods=200), [f"sensor {k}" for k in range(16)])


@pytest.fixture(scope="module")
def model():
    return InductiveRobustPCA(columns="as they are").fit(frame())


def test_a_fit_names_mistakes_and_says_where(model, tmp_path):
    found = model.outliers()
    assert list(found)[-1] == "kind" and set(found["kind"]) == {"stuck", "code -999", "× 10"}
    assert found[found["kind"] == "× 10"]["column"].tolist() == ["sensor 6"]
    texts = {doubt.kind: doubt.text for doubt in model.result_.doubts}
    assert model.result_.usable == "usable"  # they are found, and nothing else is wrong
    assert texts["stuck"].startswith("column sensor 1 holds the same value, ")
    assert "in 30 rows in a row, from 2024-03-21 on" in texts["stuck"]
    assert "3 outliers are exactly -999, far from all other values (columns sensor 4)" in texts["code"]
    assert texts["stuck"] in model.summary()
    assert model.outliers(most=5)["kind"].tolist() == found["kind"][:5].tolist()
    assert (model.outliers(probability=0.01)["kind"] != "").sum() == len(found)
    model.save(tmp_path / "m.irpca")
    assert irpca.load(tmp_path / "m.irpca").outliers()["kind"].tolist() == found["kind"].tolist()


def test_new_rows(model):
    new = frame().iloc[40:]
    assert set(model.outliers(new)["kind"]) == {"stuck", "", "× 10"}  # of the code two are left
    (doubt,) = (doubt for doubt in model.decompose(new).doubts if doubt.kind == "stuck")
    assert "from 2024-03-21 on" in doubt.text


def test_chunks_are_not_read_for_it():
    da = pytest.importorskip("dask.array")
    M = frame().to_numpy()
    model = InductiveRobustPCA(columns="as they are").fit(da.from_array(M, chunks=(50, 16)))
    reads = model.result_.reads
    found = model.outliers()
    assert set(found["kind"]) == {"", "× 10"} and model.result_.mistakes is None
    assert GROUPS.isdisjoint({doubt.kind for doubt in model.result_.doubts}) and model.result_.reads == reads


@pytest.mark.parametrize("load", ["load_weather", "load_life_expectancy"])
def test_tables_as_they_are_have_none(load):
    doubts = InductiveRobustPCA(rank=3).fit(getattr(irpca.datasets, load)().M).result_.doubts
    assert GROUPS.isdisjoint({doubt.kind for doubt in doubts})


def test_columns_that_are_mapped():
    rng = np.random.default_rng(3)
    M = np.exp(
        np.outer(rng.standard_normal(400), np.linspace(0.3, 0.6, 12)) + 5 + 0.01 * rng.standard_normal((400, 12))
    )
    M[7, 0] *= 10
    M[100:110, 3] /= 1000
    model = InductiveRobustPCA(columns=dict.fromkeys(range(12), "logarithm")).fit(M)
    found = model.outliers()
    kinds = {(row, col): kind for row, col, kind in zip(found["row"], found["column"], found["kind"], strict=True)}
    assert model.result_.maps is not None and kinds[7, 0] == "× 10"
    assert [kinds[i, 3] for i in range(100, 110)] == [": 1000"] * 10
