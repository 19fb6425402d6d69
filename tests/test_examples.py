import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.image import imread

import irpca

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, folder, **changed):
    """An example, run in a folder of its own; None takes a variable out of the environment."""
    environment = {key: value for key, value in {**os.environ, **changed}.items() if value is not None}
    command = [sys.executable, "-X", "utf8", "-W", "error", str(EXAMPLES / f"{name}.py")]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return run("life_expectancy", folder), folder


@pytest.fixture(scope="module")
def weather(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weather")
    done = run("weather", folder)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout, folder / "demo"


def test_the_wind_of_1048_miles_per_hour_is_found(weather):
    text, folder = weather
    first = pd.read_csv(folder / "weather_outliers.csv").head(8).set_index("observed").loc[1048.4]
    assert first[["row", "column"]].tolist() == ["2013-02-12 08:00:00", "EWR wind"]
    assert 5 < first["lower"] < first["expected"] < first["upper"] < 25 and first["probability"] > 0.7
    assert "EWR wind: 1048 observed" in text


def test_the_weather_is_repaired_where_it_was_marked_and_nowhere_else(weather):
    text, folder = weather
    before, after = (
        pd.read_csv(folder / name, index_col="time", parse_dates=True)
        for name in ("weather.csv", "weather_repaired.csv")
    )
    changed = int((before != after).to_numpy().sum())
    outliers, missing = map(int, re.search(r"(\d+) outliers and (\d+) empty cells were replaced", text).groups())
    assert changed == outliers + missing and missing == before.isna().to_numpy().sum()
    assert not after.isna().to_numpy().any() and after["EWR wind"].max() < 60


def test_the_demo_ends_with_where_its_report_is(weather):
    text, folder = weather
    assert text.rstrip().endswith(str((folder / "weather.html").resolve()))
    assert "1,048.4" in (folder / "weather.html").read_text() or (folder / "weather.html").stat().st_size > 100_000
    assert irpca.load(folder / "weather.irpca").rank_ >= 1
    assert imread(folder / "weather.png").shape[0] > 400


def test_it_runs_without_a_word_of_complaint(demo):
    run, _ = demo
    assert run.stderr == ""
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("country", "year", "least", "most"),
    [("Rwanda", 1994, 38, 46), ("Cambodia", 1977, 27, 32), ("Haiti", 2010, 15, 18)],
)
def test_it_finds_the_catastrophes(demo, country, year, least, most):
    """How much of the years around them counts as outliers is a matter of a few years of life."""
    run, _ = demo
    line = re.search(rf"^{country} +{year} +(\S+) +(\S+) +(\S+) +> 99\.9% +(\d+)$", run.stdout, re.MULTILINE)
    assert line, f"no line of {country} in {year}:\n{run.stdout}"
    observed, expected, found, years = map(float, line.groups())
    assert least < -found < most
    assert found == pytest.approx(observed - expected, abs=0.11)  # each is printed to 0.1
    assert 1 <= years <= 50


def test_it_draws_one_picture_where_it_is_run(demo):
    _, folder = demo
    (picture,) = folder.iterdir()
    image = imread(picture)
    assert picture.name == "life_expectancy.png"
    assert image.shape == (1120, 2000, 4)
    inked = (image[..., :3] < 0.9).any(axis=2)
    assert inked.mean() > 0.02
    for half in (inked[:, :1000], inked[:, 1000:]):
        assert half.any(axis=0).mean() > 0.9  # nothing was left empty


def test_it_says_what_was_chosen_and_what_it_cannot_know(demo):
    run, _ = demo
    _, _, told = run.stdout.partition("Chosen from the data:")
    assert "What to check:" in told
    _, _, doubts = told.partition("what it cannot know:")
    assert re.search(r"HIV\s+years\s+of\s+southern\s+Africa", doubts)
    assert {"Botswana", "Lesotho", "Zimbabwe"} <= set(re.findall(r"\w+", doubts))
