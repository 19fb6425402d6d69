import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread

EXAMPLE = Path(__file__).parents[1] / "examples" / "life_expectancy.py"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-X", "utf8", "-W", "error", str(EXAMPLE)]
    return subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8"), folder


def test_it_runs_without_a_word_of_complaint(demo):
    run, _ = demo
    assert run.stderr == ""
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("country", "year", "difference"), [("Rwanda", 1994, -44.3), ("Cambodia", 1977, -28.5), ("Haiti", 2010, -16.6)]
)
def test_it_finds_the_catastrophes(demo, country, year, difference):
    run, _ = demo
    line = re.search(rf"^{country} +{year} +(\S+) +(\S+) +(\S+) +(\d+)$", run.stdout, re.MULTILINE)
    assert line, f"no line of {country} in {year}:\n{run.stdout}"
    observed, expected, found, years = map(float, line.groups())
    assert found == pytest.approx(difference, abs=1)
    assert found == pytest.approx(observed - expected, abs=0.11)  # each is printed to 0.1
    assert 1 <= years <= 50


def test_it_says_what_was_chosen_and_what_it_cannot_know(demo):
    run, _ = demo
    _, _, told = run.stdout.partition("chosen from the data:")
    assert "to doubt:" in told
    _, _, doubts = told.partition("what it cannot know:")
    assert re.search(r"HIV years of\s+southern\s+Africa", doubts)
    assert {"Botswana", "Lesotho", "Zimbabwe"} <= set(re.findall(r"\w+", doubts))


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
