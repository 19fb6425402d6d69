import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "ratings.py"
real = pytest.mark.skipif(not os.environ.get("IRPCA_DATA"), reason="MovieLens 100K is for research, and not shipped")


def run(**environment):
    command = [sys.executable, "-X", "utf8", "-W", "error", str(EXAMPLE)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, encoding="utf-8")


@pytest.fixture(scope="module")
def demo():
    return run()


@real
def test_it_runs_without_a_word_of_complaint(demo):
    assert demo.stderr == ""
    assert demo.returncode == 0


@real
def test_robustness_saves_most_of_the_error_and_leaving_suspects_out_the_films(demo):
    found = re.findall(r"^  (\w.+?) +(0\.\d+) +(\d\.\d+)$", demo.stdout, re.MULTILINE)
    (clean, low), (gaussian, _), (robust, high), (cured, cured_stars) = [tuple(map(float, line[1:])) for line in found]
    assert clean < 0.92
    assert robust - clean < (gaussian - clean) / 3
    assert cured < robust
    assert low < cured_stars < high - 0.2  # the rest is the work of those turned round


@real
def test_it_names_the_fake_users_and_says_what_does_not(demo):
    named, fakes = map(
        int, re.search(r"^(\d+) are named, among them (\d+) of the 47", demo.stdout, re.MULTILINE).groups()
    )
    assert fakes == 47 and named < 60
    assert re.search(r"\b\d of the first 47 of outlier_rows\(\) are fake", demo.stdout)
    assert int(re.search(r"Of the first 500, (\d+) are lies", demo.stdout)[1]) > 400


@real
def test_a_newcomer_who_likes_science_fiction(demo):
    _, _, told = demo.stdout.partition("For a student of 24, a woman:\n")
    before, given, after = re.split(r"^(Who gives .*)\n", told, flags=re.MULTILINE)
    assert len(re.findall(r"^  \S", before, re.MULTILINE)) == len(re.findall(r"^  \S", after, re.MULTILINE)) == 5
    assert "5 to Alien (1979)" in given
    assert "  Star Wars (1977)\n" in after
    assert "Star Wars (1977)" not in before


def test_without_the_data_it_says_where_to_get_them(tmp_path):
    nowhere = {name: str(tmp_path) for name in ("IRPCA_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME")}
    told = run(**nowhere)
    assert told.returncode == 0 and told.stderr == ""
    assert "https://files.grouplens.org/datasets/movielens/ml-100k.zip" in told.stdout
    assert "research only" in told.stdout
    assert re.findall(r"[.!?](?=\s)", told.stdout) == ["."]  # one sentence
