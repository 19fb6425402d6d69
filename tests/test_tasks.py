"""The page of tasks: every block runs, is short, and does what the page says."""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from pandas.testing import assert_frame_equal

pytestmark = pytest.mark.timeout(200)  # whichever test comes first runs all tasks before its own
PAGE = Path(__file__).parents[1] / "docs" / "tasks.md"
TASKS = 13
MOST_LINES = 5


def sections():
    """The code blocks of the page as (language, code), by section; the first one is before all tasks."""
    parts = re.split(r"^## .*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [re.findall(r"^```(\w+)\n(.*?)^```$", part, flags=re.MULTILINE | re.DOTALL) for part in parts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="module")
def names():
    """What the blocks that have run have left behind."""
    import matplotlib

    matplotlib.use("agg")
    return {"stderr": "", "done": 0}


@pytest.fixture
def page(request, names, folder):
    """What is there after all blocks of Python up to the task of a test have run, in order."""
    task, errors = int(request.node.name.split("_")[1]), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stderr(errors):
        for blocks in sections()[names["done"] : task + 1]:
            for language, code in blocks:
                if language == "python":
                    exec(compile(code, str(PAGE), "exec"), names)
            names["done"] += 1
    names["plt"].close("all")
    names["stderr"] += errors.getvalue()
    return names


def test_every_task_has_one_block_of_at_most_five_lines():
    (imports,), *tasks = sections()
    assert all(re.match("import|from", line) for line in imports[1].split("\n") if line)
    assert len(tasks) == TASKS
    for blocks in tasks:
        ((_, code),) = blocks
        assert 1 <= len([line for line in code.splitlines() if line.strip()]) <= MOST_LINES
    assert [language for blocks in tasks for language, _ in blocks] == ["python"] * (TASKS - 1) + ["bash"]


def test_1_wide_csv(page):
    weather, outliers, repaired, marks = (page[name] for name in ("weather", "outliers", "repaired", "marks"))
    first = outliers[:8].set_index("observed", drop=False).loc[1048.4]
    assert (first["row"], first["column"]) == (pd.Timestamp("2013-02-12 08:00"), "EWR wind")
    assert 5 < first["expected"] < 20
    assert repaired.index.equals(weather.index) and repaired.columns.equals(weather.columns)
    assert not repaired.isna().any().any()
    assert repaired.loc[first["row"], first["column"]] == pytest.approx(first["expected"], rel=1e-12)
    assert_frame_equal(repaired[marks == ""], weather[marks == ""])
    assert ((marks == "missing") == weather.isna()).all(axis=None)
    assert (marks == "outlier").sum().sum() == len(outliers)
    assert page["model"].summary().split(":")[0] in ("usable", "use with care")


def test_2_long_table(page):
    events = page["events"].set_index(["row", "column"])
    assert events.index[0] == ("Haiti", 2010) and ("Indonesia", 1966) in events.index
    assert events.loc[("Indonesia", 1966), "observed"] == 43.9


def test_3_categories(page):
    assert page["how"][0] == "'region': one column for each of 6 levels."
    assert page["by_region"].shares_["features"] > 0.9
    assert re.search(r"99\.\d%.* features", page["by_region"].summary())


def test_4_time_index(page):
    for part in ("curve 1", "Monday", "of the day"):
        assert any(part in name for name in page["names"])
    assert not any("of the year" in name for name in page["names"])  # three months do not show one
    assert 1048.4 in page["by_hour"].outliers(most=8)["observed"].tolist()


def test_5_cold_start(page):
    expected, std, life = page["expected"], page["std"], page["life"]
    region = life.M[np.array(life.regions) == "South Asia"]
    assert list(expected.index) == list(std.index) == ["a new country"]
    assert list(expected.columns) == list(life.years)
    assert np.abs(expected.to_numpy()[0] - region.mean(axis=0)).max() < 4
    assert (np.abs(region - expected.to_numpy()) < 1.96 * std.to_numpy()).mean() > 0.85
    assert std.to_numpy().min() > 2


def test_6_save_and_reuse(page):
    assert_frame_equal(page["again"].outliers(), page["outliers"], check_exact=True)
    assert_frame_equal(page["again"].expected(), page["model"].expected(), check_exact=True)
    with pytest.raises(ValueError, match=r"table.* as M$"):
        page["again"].repaired()
    assert page["again"].repaired(page["weather"]).shape == page["weather"].shape


def test_7_pipeline(page):
    search = page["search"]
    assert search.best_params_["inductiverobustpca__rank"] in (2, 3)
    assert search.best_score_ > 0.6
    assert search.predict(page["early"]).shape == (202,)


def test_8_containers(page):
    found = page["found"]
    assert isinstance(found, pl.DataFrame)
    assert found["row"].to_list() == page["outliers"]["row"].to_list()
    assert found["column"].to_list() == page["outliers"]["column"].to_list()
    # polars lies in memory column by column, so sums are rounded otherwise: that must not be seen beside the noise
    off = np.abs(found["expected"].to_numpy() - page["outliers"]["expected"].to_numpy())
    assert (off < 1e-3 * page["outliers"]["std"]).all()


def test_9_pictures(page, folder):
    assert (folder / "outliers.png").read_bytes().startswith(b"\x89PNG")
    assert "Cambodia" in page["right"].get_title(loc="left")
    assert page["left"].images or page["left"].collections


def test_10_progress_and_time(page):
    assert re.search(r"\[#+\.*\] comparing fits", page["stderr"])
    assert page["watched"].converged_  # in far less than ten minutes


def test_11_more_or_fewer(page):
    cells = {
        name: set(zip(page[name]["row"], page[name]["column"], strict=True))
        for name in ("certain", "outliers", "more", "far")
    }
    assert cells["certain"] and cells["certain"] <= cells["outliers"] < cells["more"]
    assert page["certain"]["probability"].min() >= 0.7
    assert (1 - page["more"]["probability"]).mean() <= 0.2
    weather, expected = page["weather"], page["model"].expected()
    assert len(cells["far"]) == ((weather - expected).abs() > 10).sum().sum()
    changed = (page["corrected"] != weather) & weather.notna()
    assert changed.sum().sum() == len(cells["far"])


def test_12_a_new_day(page):
    first = page["alarms"].iloc[0]
    assert (first["row"], first["column"]) == (page["today"].index[9], "EWR temperature")
    assert 38 < first["difference"] < 42
    assert len(page["alarms"]) < 10  # of 360 cells
    clean = page["clean"]
    assert clean.index.equals(page["today"].index)
    assert abs(clean.iloc[9, 0] - (page["today"].iloc[9, 0] - 40)) < 2


def test_13_command_line(page, folder):
    """With ``irpca`` of this environment, whatever is on the path."""
    ((_, code),) = sections()[TASKS]
    irpca = f'irpca() {{ {shlex.quote(sys.executable)} -m irpca "$@"; }}\n'
    done = subprocess.run(["bash", "-c", irpca + code], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.stderr == ""
    made = {path.name for path in (folder / "weather-irpca").iterdir()}
    assert made == {"outliers.csv", "repaired.csv", "model.irpca", "report.html"}
    outliers = pd.read_csv(folder / "weather-irpca" / "outliers.csv")
    assert len(outliers) == len(page["outliers"]) and 1048.4 in outliers["observed"][:8].tolist()
    new = pd.read_csv(folder / "today-outliers.csv", parse_dates=["row"])
    assert (new["row"] >= page["today"].index[0]).all()
    assert done.returncode == (len(new) > 0)  # 1: there are outliers on the last day
