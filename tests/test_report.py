"""What a report holds, and the file it is written to; what it does in a browser is in test_report_browser."""

import ast
import json
import pickle
import re
import subprocess
import sys
from base64 import b64decode
from dataclasses import replace
from datetime import datetime
from importlib.resources import files
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from mixed_columns import KINDS, mixed
from scipy.sparse import csr_array
from scipy.special import ndtr
from sklearn.base import BaseEstimator

import irpca
from irpca.answers import Answers
from irpca.engines import choose
from irpca.labels import Labels
from irpca.lowrank import LowRank
from irpca.model.calibration import Calibration
from irpca.model.entry_scale import EntryScale
from irpca.plots.fitted import Fitted
from irpca.report import payload as payload_module
from irpca.report import write
from irpca.report.page import drawn, inert, render
from irpca.report.payload import worst_lines
from irpca.report.words import TITLES, choices, doubts, number, percent, sentence, verdict
from irpca.result import FATAL, NOTES, Certificate, Choice, Doubt, History, Result, Status

pytestmark = pytest.mark.usefixtures("short_fits")

HOSTILE = ["<script>alert(1)</script>", "</script><b>x", "<!-- <script>", "a\u2028b\u2029c", "{{data}}", "\"'&amp;"]


class Made(Answers, BaseEstimator):
    """A fitted model as a report needs it, from its parts: for sizes and cases that no quick fit has."""

    def __init__(
        self, M, U, V, S, noise=1.0, labels=(None, None), doubts=(), status=Status.CONVERGED, names=(None, None)
    ):
        n1, n2 = M.shape
        scale = EntryScale(np.full(n1, noise**2), np.ones(n2), np.zeros((n1, 2)), np.zeros((n2, 2)))
        dense = isinstance(M, np.ndarray)
        counts = tuple((~np.isnan(M)).sum(axis=k) for k in (1, 0)) if dense else choose(M, "auto").counts
        z = np.r_[np.random.default_rng(0).normal(size=2000), np.zeros(0) if S is None else S.data[:2000] / noise]
        self.low_rank_ = LowRank(U, np.eye(U.shape[1]), V)
        self.result_ = Result(
            L=self.low_rank_,
            S=S,
            W=None,
            rank=U.shape[1],
            noise=noise,
            corruption=0.0 if S is None else S.nnz / counts[0].sum(),
            zeta=4.0 * noise,
            residual=noise,
            explained=0.9,
            status=status,
            history=History(),
            choices=(Choice("rank", U.shape[1], "held-out cells call for so many"),),
            doubts=tuple(doubts),
            solver="irpca",
            engine="memory",
            reads=3.0,
            seconds=1.5,
            counts=counts,
            certificate=Certificate((("plain", -1.25, 0.5), ("other", -1.5, 0.75)), "plain"),
            scale=scale,
            calibration=Calibration(z),
        )
        sides = zip(labels, names, strict=True)
        self._rows, self._cols = (
            SimpleNamespace(labels=given if given is None else Labels.of(given, name)) for given, name in sides
        )
        self.row_labels_, self.col_labels_ = self._rows.labels, self._cols.labels
        self.sparse_, self.components_, self.container_ = S, V.T, "numpy"
        self._M, self.engine, self.random_state = M, "auto", 0

    def __repr__(self):
        return "InductiveRobustPCA()"

    def fit(self):
        """What has this is an estimator to scikit-learn."""

    def _scale_of(self, result):
        return replace(result.scale, left=result.L.left, right=result.L.right)

    def _explanations(self, *arguments):
        return []


def made(n1=40, n2=30, wrong=25, rank=2, noise=0.1, holes=0.0, **options):
    """A table of known patterns, with some cells that are far off."""
    rng = np.random.default_rng(3)
    U, V = rng.normal(size=(n1, rank)) + 2.0, rng.normal(size=(n2, rank)) + 2.0
    E = rng.normal(size=(n1, n2)) * noise
    at = rng.choice(n1 * n2, wrong, replace=False)
    E.ravel()[at] += rng.choice([-1, 1], wrong) * rng.uniform(20, 60, wrong) * noise
    missing = rng.random((n1, n2)) < holes
    missing.ravel()[at] = False
    M = np.where(missing, np.nan, U @ V.T + E)
    at = np.sort(at)
    S = csr_array((E.ravel()[at], (at // n2, at % n2)), shape=(n1, n2))
    return Made(M, U, V, S, noise, **options)


def payload(model, M=None):
    return payload_module.payload(Fitted(model, M))


def page_of(model, **options):
    return render(Fitted(model), **options)


def numbers(column):
    return np.frombuffer(b64decode(column["data"]), np.dtype(column["type"]).newbyteorder("<"))


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    M = pd.DataFrame(
        rng.normal(size=(60, 3)) @ rng.normal(size=(3, 40)) * 5 + rng.normal(size=(60, 40)) * 0.1 + 100,
        index=pd.Index([f"town {k}" for k in range(60)], name="town"),
        columns=pd.date_range("2020-01-01", periods=40, name="day"),
    )
    M.iloc[5, 7], M.iloc[9, 3], M.iloc[5, 8] = 1048.36, -80.0, 55.5
    M.iloc[20:25, 30] = np.nan
    return irpca.InductiveRobustPCA().fit(M), M


def test_outliers_are_those_of_the_model(fitted):
    model, M = fitted
    found, table = payload(model)["outliers"], model.outliers()
    assert found["count"] == found["listed"] == len(table)
    rows, cols = numbers(found["row"]), numbers(found["column"])
    assert list(M.index[rows]) == list(table["row"]) and list(M.columns[cols]) == list(table["column"])
    assert (rows[:2].tolist(), cols[:2].tolist()) == ([5, 9], [7, 3])
    np.testing.assert_allclose(numbers(found["observed"]), M.to_numpy()[rows, cols], rtol=1e-6)
    np.testing.assert_allclose(numbers(found["difference"]), table["difference"], rtol=1e-6)
    for key in ("std", "lower", "upper", "score", "probability"):
        np.testing.assert_allclose(numbers(found[key]), table[key], rtol=1e-6)


def tables(values, side="row"):
    """Observed and expected values of some rows or columns, and the ends of their ranges."""
    lines = numbers(values[side]["values"])
    return np.moveaxis(lines.reshape(values[side]["count"], 4, -1), 1, 0)


def test_the_values_of_all_cells_and_their_ranges(fitted):
    model, M = fitted
    observed, expected, lower, upper = tables(payload(model)["values"])
    middle, std = model.expected(return_std=True)
    np.testing.assert_allclose(observed, M, rtol=1e-6)
    np.testing.assert_allclose(expected, middle, rtol=1e-6)
    np.testing.assert_allclose(upper - lower, 2 * 1.96 * std, rtol=1e-3)


def test_all_of_it_is_json_and_says_what_was_found(fitted):
    model, _ = fitted
    again = json.loads(json.dumps(payload(model), allow_nan=False))
    assert again["names"] == ["town", "day"] and again["ordered"] == [False, True]
    assert again["labels"][1]["text"][:2] == ["2020-01-01", "2020-01-02"]
    page = page_of(model, title="Towns", command="irpca fit towns.csv")
    for text in ("Towns", "irpca fit towns.csv", f"{datetime.now():%Y-}", irpca.__version__, "random_state"):
        assert text in page
    assert "60 rows and 40 columns" in page and "5 cells (0.21 %) are empty" in page
    worst = worst_lines(Fitted(model), 0)[0]
    assert worst["position"] == 5 and f'>town 5</button></th><td class="number">{worst["flagged"]} of 40' in page


def test_a_saved_model_reports_without_its_table_and_says_so(fitted, tmp_path):
    model, M = fitted
    loaded = pickle.loads(pickle.dumps(model))
    found = payload(loaded)
    assert found["values"] == {"kind": "none"} and "observed values are known at the outliers only" in drawn(
        found["values"]
    )
    whole = payload(model)
    for key in ("row", "column", "observed", "difference", "score", "probability"):
        assert found["outliers"][key] == whole["outliers"][key]
    assert (numbers(found["outliers"]["std"]) > 0).all()
    assert payload(loaded, M)["values"] == whole["values"]
    assert "loads nothing" in write(loaded, tmp_path / "r.html").read_text("utf-8")


def test_another_table_than_that_of_the_fit_is_refused(fitted):
    model, M = fitted
    with pytest.raises(ValueError, match=r"M has shape \(59, 40\) and the fitted table \(60, 40\)"):
        payload(model, M.iloc[1:])
    with pytest.raises(ValueError, match="rows of M have other labels, or another order"):
        payload(model, M.iloc[::-1])
    with pytest.raises(
        ValueError, match=r"M is not the table of the fit: in row 5, column 7 .*it holds 1, and the fit saw 1048.36"
    ):
        payload(model, M.replace(1048.36, 1.0))


def test_too_large_a_table_is_drawn_by_its_worst_lines(monkeypatch):
    model = made()
    monkeypatch.setattr(payload_module, "MOST_CELLS", 300)
    found = payload(model)
    assert found["values"]["kind"] == "lines"
    rows, columns = found["values"]["row"], found["values"]["column"]
    at, (observed, expected, lower, upper) = numbers(rows["at"]), tables(found["values"])
    assert len(at) == rows["count"] == 150 // 30
    assert at[0] == worst_lines(Fitted(model), 0)["position"][0]
    np.testing.assert_allclose(observed, model._M[at], rtol=1e-5)
    np.testing.assert_allclose(expected, model.low_rank_.dense()[at], rtol=1e-5)
    np.testing.assert_allclose(upper - lower, 2 * 1.96 * 0.1, rtol=1e-4)
    observed = tables(found["values"], "column")[0]
    np.testing.assert_allclose(observed, model._M[:, numbers(columns["at"])].T, rtol=1e-5)
    said = f"Included are {rows['count']} rows and {columns['count']} columns"
    assert said in drawn(found["values"]) and said in page_of(model)


def test_no_more_than_the_most_certain_are_listed(monkeypatch):
    model = made(wrong=60)
    monkeypatch.setattr(payload_module, "MOST_OUTLIERS", 10)
    found = payload(model)
    assert (found["outliers"]["count"], found["outliers"]["listed"]) == (60, 10)
    assert "Listed and drawn are the 10 most certain of 60." in page_of(model)
    scores = np.sort(np.abs(model.result_.S.data)) / 0.1
    assert numbers(found["outliers"]["score"]).min() >= scores[-10] * (1 - 1e-6)


def test_too_many_labels_are_left_out_unless_they_are_listed(monkeypatch):
    model = made(labels=([f"town {k}" for k in range(40)], None), wrong=3)
    monkeypatch.setattr(payload_module, "MOST_LABELS", 100)
    found = payload(model)["labels"]
    assert found[1] is None
    at = numbers(found[0]["at"])
    assert sorted(at) == sorted(set(np.repeat(np.arange(40), np.diff(model.result_.S.indptr))))
    assert found[0]["text"] == [f"town {k}" for k in at]


def test_a_long_table():
    model = made(holes=0.8)
    dense = model._M
    rows, cols = np.nonzero(~np.isnan(dense))
    model._M = irpca.LongTable(rows, cols, dense[rows, cols], shape=dense.shape)
    np.testing.assert_allclose(tables(payload(model)["values"])[0], dense, rtol=1e-6)


def test_labels_cannot_become_markup():
    labels = [*HOSTILE, *(str(k) for k in range(34))]
    doubt = Doubt("intervals", f"about {HOSTILE[0]}")
    model = made(labels=(labels, HOSTILE * 5), names=("<i>row", None), doubts=[doubt])
    page = page_of(model, title=HOSTILE[0], command=HOSTILE[1])
    assert len(re.findall(r"<script", page)) == 2 and page.count("</script>") == 2
    assert "<b>x" not in page and "<i>row" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    data = page.split('id="data">')[1].split("</script>")[0]
    assert not set(data) & set("<>&\u2028\u2029")
    assert json.loads(data)["labels"][0]["text"][:6] == HOSTILE
    assert json.loads(inert(HOSTILE)) == HOSTILE


def test_the_page_loads_nothing(fitted):
    page = page_of(fitted[0])
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:" in page
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r'(?:src|href)="([^"#]*)', page)) == {"", "data:,"}


@pytest.mark.parametrize(
    ("kinds", "status", "word", "meaning"),
    [
        ((), Status.CONVERGED, "Usable", "No check found anything serious."),
        (
            ("code", "noisy-rows"),
            Status.CONVERGED,
            "Use with care",
            "Read these points before you rely on the numbers.",
        ),
        (("intervals",), Status.CONVERGED, "Do not use", "The points below say why, and what to do."),
        ((), Status.MAX_ITER, "Do not use", "The points below say why, and what to do."),
    ],
)
def test_the_verdict_comes_first_and_says_why(kinds, status, word, meaning):
    seen = [Doubt(kind, "seen: meant. Do this") for kind in kinds]
    model = made(doubts=seen, status=status)
    assert verdict(Fitted(model))["meaning"].endswith(meaning)
    assert {TITLES[kind] for kind in kinds} <= {doubt["title"] for doubt in doubts(model.result_)}
    page = page_of(model)
    assert f'<h2 id="verdict-heading">{word}</h2>' in page
    assert page.index("verdict-heading") < page.index('id="outliers"') < page.index('id="data"')
    for doubt in seen:
        assert sentence(doubt.text) in page
    assert status.ok or "How the fit ended" in page


def test_a_fit_that_found_nothing_and_one_that_failed():
    M = np.random.default_rng(0).normal(size=(20, 10))
    nothing = Made(M, np.zeros((20, 0)), np.zeros((10, 0)), csr_array((20, 10)))
    found = payload(nothing)
    assert found["outliers"]["listed"] == 0 and not tables(found["values"])[1].any()
    page = page_of(nothing)
    assert "No cell is an outlier" in page and "No row or column holds an outlier" in page
    failed = Made(M, np.zeros((20, 0)), np.zeros((10, 0)), None, status=Status.DIVERGED)
    page = page_of(failed)
    assert "Which cells are outliers is not known" in page and "Do not use" in page


def test_candidates_without_a_score_are_left_out_and_a_fit_that_chose_nothing_says_so():
    model = made()
    lost = Certificate((("a", np.nan, 1.0), ("b", -1.0, 2.0)), "b")
    model.result_ = replace(model.result_, certificate=lost)
    page = page_of(model)
    assert "2: all components, b</th>" in page and "1: all components, a" not in page
    model.result_ = replace(model.result_, certificate=None, choices=(), explained=float("nan"))
    page = page_of(model)
    assert "<p>Nothing was chosen from the data.</p>" in page and "Fits that were compared" not in page


def test_what_is_there_stays_unless_it_may_be_replaced(tmp_path):
    model, target = made(), tmp_path / "report.html"
    target.write_text("mine")
    with pytest.raises(FileExistsError, match=r"report.html' exists; pass overwrite=True to replace it"):
        write(model, target)
    assert target.read_text() == "mine"
    assert write(model, str(target), overwrite=True) == target
    assert target.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_half_a_character_in_a_label_does_not_stop_it(tmp_path):
    model = made(labels=(["\ud800 town"] + [str(k) for k in range(39)], None))
    assert " town" in write(model, tmp_path / "report.html").read_text("utf-8")


def test_a_folder_and_a_folder_that_is_missing_are_named(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; give a file in it"):
        write(made(), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the folder of path does not exist; create it first: '.*nowhere'"):
        write(made(), tmp_path / "nowhere" / "report.html")


def test_neither_pandas_nor_matplotlib_is_needed(tmp_path):
    code = (
        "import sys; sys.modules.update(pandas=None, matplotlib=None)\n"
        "import numpy as np, irpca\n"
        "M = np.outer(np.arange(1.0, 31), np.arange(1.0, 21)); M[3, 4] = -500\n"
        "model = irpca.InductiveRobustPCA(rank=1, solver='altproj').fit(M)\n"
        f"irpca.report.write(model, {str(tmp_path / 'report.html')!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_words():
    assert [percent(share) for share in (0, 1, 0.5, 0.0117, 0.00117, 1e-6, 1 - 1e-6)] == [
        "0 %", "100 %", "50 %", "1.2 %", "0.12 %", "less than 0.01 %", "more than 99.99 %",
    ]  # fmt: skip
    numbers = {0.0: "0", 1234567.0: "1,230,000", 0.00123: "0.00123", 1e-9: "1e-09", np.nan: "unknown"}
    assert list(map(number, numbers)) == list(numbers.values())
    assert sentence("the rank is 4") == "The rank is 4."
    assert sentence("extra_rank='auto' helps.") == "extra_rank='auto' helps."


def _luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return np.dot(linear, [0.2126, 0.7152, 0.0722])


def test_text_can_be_read_in_both_themes():
    css = files("irpca.report").joinpath("page.css").read_text("utf-8")
    themes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)
    ]
    themes = themes[:2]  # light and dark; the third is for paper
    pairs = [(text, ground) for text in ("ink", "quiet", "blue-text") for ground in ("paper", "ground", "soft")]
    pairs += [("ink", soft) for soft in ("blue-soft", "green-soft", "amber-soft", "orange-soft")]
    pairs += [("quiet", soft) for soft in ("green-soft", "amber-soft", "orange-soft")]
    pairs += [(text, ground) for text in ("blue-text", "orange-text") for ground in ("paper", "soft", "blue-soft")]
    for colours, (text, ground) in product(themes, pairs):
        light, dark = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_one_outlier_is_told_in_the_singular():
    text = " ".join(verdict(Fitted(made(wrong=1)))["text"])
    assert "1 cell (0.08 % of those with a value) is an outlier, in 1 row and 1 column: " in text


def test_parts_of_the_expected_values_are_named():
    model = made()
    model.result_ = replace(model.result_, shares={"features": 0.75, "free": 0.25})
    *_, features, free = choices(model.result_)
    assert features[:2] == ("of that, the features", "75 %")
    assert free[2] == "Share of the sum of squares of the expected values that comes from further components."


def test_every_doubt_about_a_fit_has_a_title():
    """Two are about new rows, which no report is about."""
    calls = [
        node
        for path in Path(irpca.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Doubt", "about_lines", "about_cells")
    ]
    kinds = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert kinds - {"few-entries", "unlike-fit"} == set(TITLES)
    assert {*FATAL, *NOTES} <= kinds


def test_mapped_columns_are_shown_in_their_units_with_their_ranges():
    M = mixed()
    model = irpca.InductiveRobustPCA(3, columns=KINDS).fit(M)
    found = payload(model)
    values = found["values"]
    lower, upper = model.interval(2 * ndtr(1.96) - 1)
    for found_table, table in zip(tables(values), (M, model.expected(), lower, upper), strict=True):
        np.testing.assert_allclose(found_table, table, rtol=1e-9)
    listed = model.outliers()
    for name in ("observed", "difference", "lower", "upper", "score", "probability"):
        np.testing.assert_allclose(numbers(found["outliers"][name]), listed[name], rtol=1e-6)
    page = page_of(model)
    assert "income: logarithm; rent: " in page and "of mapped values" in page
