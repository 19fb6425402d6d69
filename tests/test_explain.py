"""Why a cell should hold what is expected there, and which mistake would explain what it holds."""

import json

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import irpca
from irpca import DoNotUseWarning, InductiveRobustPCA, cli
from irpca.mistakes import NONE, digit_swaps
from irpca.plots.fitted import Fitted
from irpca.report.payload import payload
from irpca.wording import percent


def table(n=300, seed=0, mapped=True):
    """Flats whose columns depend on size and place; as logarithms, if they are not to be mapped."""
    rng = np.random.default_rng(seed)
    size, place = rng.normal(size=(2, n))
    columns = {}
    for name, usual, by_size, by_place in (
        ("area", 4.3, 0.35, 0.0),
        ("price", 12.3, 0.35, 0.5),
        ("rent", 6.8, 0.3, 0.4),
        ("costs", 5.2, 0.35, 0.1),
        ("distance", 1.5, 0.0, -0.8),
        ("income", 8.0, 0.2, 0.6),
    ):
        column = usual + by_size * size + by_place * place + 0.05 * rng.normal(size=n)
        columns[name] = np.exp(column).round(2) if mapped else column
    frame = pd.DataFrame(columns).rename("flat {}".format)
    frame.iloc[5, 3] = np.nan
    return frame, pd.DataFrame({"size": size}, index=frame.index)


@pytest.fixture(scope="module")
def flats():
    frame, _ = table()
    frame.loc["flat 7", "price"] *= 10
    frame.loc["flat 20", "rent"] *= -1
    frame.loc["flat 33", "costs"] = frame.loc["flat 33", "rent"]
    frame.loc["flat 50", "area"] = 3000.0
    return frame


@pytest.fixture(scope="module")
def model(flats):
    return InductiveRobustPCA().fit(flats)


def total(found):
    return found.usual + found.features + sum(found.shares.values())


def test_a_sentence_and_a_list(model):
    found = model.explain("flat 7", "price")
    assert found.why.startswith(f"{found.observed:,.0f} where ") and " is usual, and area (+" in found.why
    assert found.why.endswith(f"; divided by 10 it would fit ({percent(found.kinds['× 10'])}).")
    assert str(found).startswith("flat 7, price: ") and "mistake: × 10" in str(found)
    assert next(iter(found.shares)) == "area" and "price" not in found.shares


def test_what_each_kind_of_mistake_is_called(model):
    kinds = {("flat 7", "price"): "× 10", ("flat 20", "rent"): "sign", ("flat 33", "costs"): "neighbour's value"}
    for cell, kind in kinds.items():
        assert next(iter(model.explain(*cell).kinds)) == kind
    assert "it is the value of rent" in model.explain("flat 33", "costs").why
    assert model.explain("flat 50", "area").why.endswith("no common mistake explains it.")


def test_the_column_of_kinds_and_explanations_agree(model):
    listed = model.outliers(probability=1e-4, explain=True)
    assert len(listed) > 4 and (listed["why"].str.len() > 40).all()
    for row, column, kind, why in zip(*(listed[name] for name in ("row", "column", "kind", "why")), strict=True):
        found = model.explain(row, column)
        first, probability = next(iter(found.kinds.items()))
        assert why == found.why and sum(found.kinds.values()) == pytest.approx(1)
        assert (first == kind and probability >= 0.5) if kind else (first == NONE or probability <= 0.5)


def test_groups_agree_too():
    frame, _ = table(mapped=False)
    frame.iloc[40:60, 2] = 7.0
    frame.iloc[[80, 90, 99], 4] = -999.0
    model = InductiveRobustPCA(columns="as they are").fit(frame)
    listed = model.outliers()
    assert {"stuck", "code -999"} <= set(listed["kind"])
    for row, column, kind in zip(listed["row"], listed["column"], listed["kind"], strict=True):
        found = model.explain(row, column)
        assert not kind or next(iter(found.kinds)) == kind
        assert sum(found.kinds.values()) == pytest.approx(1)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("features", [True, False])
def test_shares_add_up(mapped, features):
    frame, sizes = table(mapped=mapped)
    frame.iloc[3, 1] *= 3
    model = InductiveRobustPCA(columns="auto" if mapped else "as they are")
    model.fit(frame, row_features=sizes if features else None)
    assert (model.result_.maps is not None) == (mapped and not features) or mapped
    for row, column in ((3, 1), (5, 3), (8, 0), (9, 4)):
        found = model.explain(frame.index[row], frame.columns[column])
        assert total(found) == pytest.approx(found.expected, rel=1e-9) and (found.features != 0) == features
        assert found.lower < found.expected < found.upper
        assert len(found.shares) == frame.iloc[row].notna().sum() - frame.iloc[row, [column]].notna().sum()
    listed = model.outliers().query("row == 'flat 3' and column == 'price'").iloc[0]
    found = model.explain("flat 3", "price")
    assert_allclose(
        [found.expected, found.lower, found.upper], listed[["expected", "lower", "upper"]].astype(float), 1e-3
    )


def test_the_cell_itself_does_not_count():
    """What is expected of it is what the model says of the same row without it."""
    frame, _ = table(mapped=False)
    model = InductiveRobustPCA(rank=2, columns="as they are").fit(frame)
    expected, std = model.expected(return_std=True)
    moved, left = [], []
    for row in range(10, 40):
        cell = row, row % frame.shape[1]
        without = frame.iloc[[row]].copy()
        without.iloc[0, cell[1]] = np.nan
        found = model.explain(frame.index[row], frame.columns[cell[1]])
        again = model.repaired(without, threshold=1e9).iloc[0, cell[1]]
        moved.append(abs(expected.iloc[cell] - again) / std.iloc[cell])
        left.append(abs(found.expected - again) / std.iloc[cell])
    assert max(left) < 0.2 and np.mean(left) < 0.3 * np.mean(moved)


def test_missing_cells_and_rows_without_other_cells(model, flats):
    found = model.explain("flat 5", "costs")
    assert found.observed is None and found.kinds == {} and found.why.startswith("Missing; ")
    assert total(found) == pytest.approx(found.expected)
    alone = flats.iloc[[1, 2]].copy()
    alone.iloc[0, 1:] = np.nan
    found = model.explain("flat 1", "area", alone)
    assert found.shares == {} and found.expected == pytest.approx(found.usual) and "as is usual" in found.why
    empty = flats.iloc[[1, 2]].copy()
    empty.iloc[0] = np.nan
    with pytest.raises(ValueError, match="nothing is known of row 'flat 1' and column 'area'"):
        model.explain("flat 1", "area", empty)


def test_a_loaded_model_takes_its_table(model, flats, tmp_path):
    model.save(tmp_path / "m.irpca")
    loaded = irpca.load(tmp_path / "m.irpca")
    with pytest.raises(ValueError, match="pass the table as M"):
        loaded.explain("flat 7", "price")
    assert loaded.explain("flat 7", "price", flats) == model.explain("flat 7", "price")


def test_what_cannot_be_explained_is_refused(flats):
    values = flats.fillna(1.0).to_numpy()
    with pytest.raises(ValueError, match=r"explain needs a model of the noise, .*solver='irpca'"):
        InductiveRobustPCA(rank=2, solver="altproj").fit(values).explain(0, 0)
    exact = np.outer(np.arange(1.0, 40.0), np.arange(1.0, 9.0))
    exact[3, 4] *= 10
    found = InductiveRobustPCA().fit(exact).explain(3, 4)
    assert found.expected == pytest.approx(exact[3, 4] / 10) and found.kinds["× 10"] > 0.9
    assert InductiveRobustPCA().fit(exact).explain(3, 5).kinds[NONE] == 1
    with pytest.raises(ValueError, match="'prise' is not the label of a column; did you mean 'price'"):
        InductiveRobustPCA().fit(flats).explain("flat 7", "prise")


def test_columns_without_labels_or_a_pattern():
    M = np.random.default_rng(0).normal(size=(200, 12))
    M[3, 4] = 40
    with pytest.warns(DoNotUseWarning, match="no pattern"):
        model = InductiveRobustPCA().fit(M)
    found = model.explain(3, 4)
    assert model.rank_ == 0 and set(found.shares.values()) == {0.0}
    assert found.why.startswith("40 where ") and ", as is usual in this column; " in found.why
    M += 10 * M[:, :1]
    assert " is usual, and column " in InductiveRobustPCA().fit(M).explain(3, 4).why


def test_chunks_are_explained_cell_by_cell(flats):
    da = pytest.importorskip("dask.array")
    values = flats.to_numpy()
    model = InductiveRobustPCA().fit(da.from_array(values, chunks=(100, 6)))
    found = model.explain(7, 1)
    assert total(found) == pytest.approx(found.expected) and next(iter(found.kinds)) == "× 10"


def test_mistakes_of_known_kinds_are_named():
    """One cell in twenty is spoilt; those with a name have the right one."""
    frame, _ = table(600, seed=3)
    M, rng = frame.fillna(1.0).to_numpy(), np.random.default_rng(4)
    hit, kind = rng.random(M.shape) < 0.05, rng.integers(0, 4, M.shape)
    names = np.array(["× 10", ": 10", "sign", "× 2.54"])
    X = np.where(hit, np.choose(kind, [10 * M, M / 10, -M, 2.54 * M]), M)
    listed = InductiveRobustPCA().fit(X).outliers()
    named = listed[listed["kind"] != ""]
    right = named["kind"] == names[kind[named["row"], named["column"]]]
    assert len(named) > 0.6 * len(listed) > 0.5 * hit.sum() and right.mean() > 0.9


def test_digits_that_changed_places():
    found = digit_swaps(np.array([1243.0, -0.52, 800.0, 77.0, np.pi]))
    assert [set(row[np.isfinite(row)].tolist()) for row in found] == [
        {2143.0, 1423.0, 1234.0},
        {-0.25},
        set(),  # 080 is no way to write a number
        set(),
        set(),  # nobody has typed this
    ]


def test_mistakes_are_undone(model, flats):
    clean, _ = table()
    fixed = model.repaired(kinds=["× 10", "sign"])
    others = ["flat 7", "flat 20", *model.outliers().query("kind == '× 2.54'")["row"]]
    assert fixed.loc["flat 7", "price"] == pytest.approx(clean.loc["flat 7", "price"], rel=1e-12)
    assert fixed.loc["flat 20", "rent"] == clean.loc["flat 20", "rent"]
    other = model.repaired(kinds="sign", return_std=True)
    assert other[0].loc["flat 7", "price"] == model.repaired().loc["flat 7", "price"]
    assert other[1].loc["flat 20", "rent"] == 0 < other[1].loc["flat 7", "price"]
    assert fixed.drop(others[:2]).equals(model.repaired().drop(others[:2]))
    assert fixed.drop(others[2:]).equals(model.repaired(kinds=True).drop(others[2:]))
    swapped = clean.copy()
    swapped.loc["flat 9", ["area", "price"]] = clean.loc["flat 9", ["price", "area"]].to_numpy()
    again = InductiveRobustPCA().fit(swapped)
    assert again.repaired(kinds="swapped").loc["flat 9"].equals(clean.loc["flat 9"])
    with pytest.raises(ValueError, match="kinds has 'stuck', which cannot be undone or is no kind of mistake"):
        model.repaired(kinds=["stuck"])


def test_the_command_and_the_report_say_why(model, flats, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flats.to_csv("flats.csv", index_label="flat")
    assert cli.main(["fit", "flats.csv", "--explain", "--json"]) in (0, 2, 3)
    first = json.loads(capsys.readouterr().out)["first_outliers"]
    written = pd.read_csv("flats-irpca/outliers.csv")
    assert list(written)[-1] == "why" and first[0]["why"] == written["why"][0]
    assert cli.main(["fit", "flats.csv", "--explain", "--force"]) in (0, 2, 3)
    assert f"{written['row'][0]}, {written['column'][0]}: {written['why'][0]}" in capsys.readouterr().out
    assert payload(Fitted(model))["outliers"]["why"][0] == model.outliers(explain=True)["why"][0]
