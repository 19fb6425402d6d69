"""The scenarios of ratings, who is found, and ``python -m experiments.ratings --quick``, on data made here."""

import csv
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from irpca.datasets import MovieLens
from irpca.datasets.movielens import _matrix

pytestmark = pytest.mark.usefixtures("short_fits")

ROOT = Path(__file__).parent.parent
N_USERS, N_ITEMS = 300, 120


@pytest.fixture(scope="module")
def load():
    """Import a module of experiments/, which is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield lambda name: import_module(f"experiments.{name}")


@pytest.fixture(scope="module")
def data():
    """Half of the films are seen by most users, half by few; taste goes by sex and genre."""
    rng = np.random.default_rng(0)
    women, drama = rng.random(N_USERS) < 0.5, rng.random(N_ITEMS) < 0.5
    seen = rng.random((N_USERS, N_ITEMS)) < np.where(np.arange(N_ITEMS) < N_ITEMS // 2, 0.4, 0.06)
    order = rng.permutation(np.count_nonzero(seen))
    users, items = (places[order] for places in np.nonzero(seen))
    level = 3.5 + rng.normal(0, 0.4, N_USERS)[users] + rng.normal(0, 0.6, N_ITEMS)[items]
    taste = np.where(women[users] == drama[items], 0.7, -0.7)
    stars = np.clip(np.round(level + taste + rng.normal(0, 0.5, len(users))), 1, 5)
    return MovieLens(
        ratings=_matrix(stars, users, items, (N_USERS, N_ITEMS)),
        users=users,
        items=items,
        stars=stars,
        timestamps=np.zeros(len(users), int),
        ages=rng.integers(18, 70, N_USERS),
        sexes=["F" if woman else "M" for woman in women],
        occupations=[("artist", "baker", "carpenter")[k % 3] for k in range(N_USERS)],
        titles=[f"Film {k} (1990)" for k in range(N_ITEMS)],
        years=1990.0 + np.arange(N_ITEMS) % 9,
        genres=np.column_stack([drama, np.arange(N_ITEMS) % 5 == 0]),
        genre_names=["Drama", "Western"],
    )


@pytest.fixture(scope="module")
def task(load, data):
    return lambda name, fold=1: load("ratings").made(data, name, fold)


@pytest.fixture(scope="module")
def attacked(load, task):
    """A fit to ratings with an attack."""
    return load("ratings").fitted(task("attack"))


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_ratings_turned_round(load, share):
    stars = np.random.default_rng(1).integers(1, 6, 1000).astype(float)
    before = stars.copy()
    lies = load("ratings_scenarios").flipped(stars, share, np.random.default_rng(0))
    chosen = np.random.default_rng(0).choice(1000, round(share * 1000), replace=False)
    np.testing.assert_array_equal(stars, before)
    np.testing.assert_array_equal(lies[chosen], 6 - stars[chosen])
    np.testing.assert_array_equal(np.delete(lies, chosen), np.delete(stars, chosen))


def test_an_attack_adds_users_and_touches_nothing_else(task):
    clean, attacked = task("clean"), task("attack")
    m, real = len(clean.stars), clean.shape[0]
    for name in ("users", "items", "stars"):
        np.testing.assert_array_equal(getattr(attacked, name)[:m], getattr(clean, name))
        np.testing.assert_array_equal(getattr(attacked, f"test_{name}"), getattr(clean, f"test_{name}"))
    np.testing.assert_array_equal(attacked.targets, clean.targets)
    users, items, stars = attacked.users[m:], attacked.items[m:], attacked.stars[m:]
    assert attacked.shape == (real + 47, N_ITEMS) and attacked.n_real == real
    np.testing.assert_array_equal(np.unique(users), np.arange(real, real + 47))
    assert len(np.unique(users * N_ITEMS + items)) == len(users) == 47 * 65
    pushed = np.isin(items, attacked.targets)
    assert (np.bincount(users - real, pushed) == 5).all()
    np.testing.assert_array_equal(stars, np.where(pushed, 5.0, 1.0))
    counts = np.bincount(clean.items, minlength=N_ITEMS)[attacked.targets]
    assert counts.min() >= 5 and counts.max() <= 20


def test_the_disguise_is_what_real_users_gave(load, task):
    attacked, disguised = task("attack"), task("disguised")
    fake, pushed = attacked.users >= attacked.n_real, np.isin(attacked.items, attacked.targets)
    kept = ~fake | pushed
    np.testing.assert_array_equal(disguised.stars[kept], attacked.stars[kept])
    real = set(zip(attacked.items[~fake], attacked.stars[~fake], strict=True))
    assert set(zip(disguised.items[~kept], disguised.stars[~kept], strict=True)) <= real
    assert 2 < disguised.stars[~kept].mean() < 4
    np.testing.assert_array_equal(task("disguised").stars, disguised.stars)
    assert not np.array_equal(load("ratings").disguised(attacked, 2).stars, disguised.stars)  # every fold has its own


@pytest.mark.parametrize("name", ["cold-users", "cold-items", "cold-both"])
def test_newcomers_are_predicted_from_features(load, task, name):
    one = task(name)
    if name != "cold-items":
        assert not np.isin(one.test_users, one.users).any()
    if name != "cold-users":
        assert not np.isin(one.test_items, one.items).any()
    model = load("ratings").fitted(one)
    rows = None if name == "cold-items" else one.F1
    cols = None if name == "cold-users" else one.F2
    expected = model.predict(row_features=rows, col_features=cols)[one.test_users, one.test_items]
    np.testing.assert_allclose(model.low_rank_.entries(one.test_users, one.test_items), expected, atol=1e-8)


def test_area_under_the_curve(load):
    auc, rng = load("ratings_found").auc, np.random.default_rng(0)
    scores, wanted = rng.integers(0, 6, 60), rng.random(60) < 0.3
    pairs = np.sign(scores[wanted][:, None] - scores[~wanted])
    assert auc(scores, wanted) == pytest.approx((pairs.mean() + 1) / 2, abs=1e-12)
    assert auc(wanted.astype(float), wanted) == 1.0


def test_liars_are_told_by_features_if_they_always_lie(load, task, attacked):
    ways = dict(load("ratings_found").found(attacked, task("attack"), task("clean")))
    assert ways["users: not as features say"]["auc"] > 0.95
    assert ways["users: not as features say"]["auc"] > ways["users: outlier_rows"]["auc"]
    flips = task("flip-10")
    model = load("ratings").fitted(flips)
    ((way, figures),) = load("ratings_found").found(model, flips, task("clean"))
    assert way == "ratings in S"
    assert figures["auc"] > 0.8 and figures["precision"] > 0.5


def test_suspects_do_not_matter_to_others(load, task, attacked, monkeypatch):
    ratings, one = load("ratings"), task("attack")
    n, real = one.shape[0], one.users < N_USERS
    pairs = np.arange(n), np.full(n, one.targets[0])
    model, rest = attacked, replace(one, users=one.users[real], items=one.items[real], stars=one.stars[real])
    lines = np.rec.fromarrays([np.arange(n)[::-1], (np.arange(n) >= N_USERS)[::-1]], names="position,broken")
    monkeypatch.setattr(ratings, "unlike", lambda model, task, axis: lines)
    without, expected = ratings.without_suspects(model, one)(*pairs), ratings.fitted(rest).low_rank_.entries(*pairs)
    np.testing.assert_allclose(without[:N_USERS], expected[:N_USERS], atol=1e-9)
    assert without[N_USERS:].mean() < expected[N_USERS:].mean() - 0.5  # they go by their many single stars
    lines.broken[:] = False
    assert ratings.without_suspects(model, one) == model.low_rank_.entries  # nothing is fitted again


def row(scenario, fold, method, rmse, stars=""):
    return {"scenario": scenario, "fold": str(fold), "method": method, "rmse": str(rmse), "target_stars": stars}


def test_bars(load):
    report = load("ratings_report").report
    rows = []
    for fold, more in ((1, 0.0), (2, 0.01)):
        rows += [row("clean", fold, "irpca", 0.90 + more), row("clean", fold, "bayes-not-robust", 0.90 + more)]
        rows += [row("flip-5", fold, "irpca", 0.91 + more), row("flip-5", fold, "bayes-not-robust", 0.95 + more)]
        rows += [row("attack", fold, "irpca", 0.92 + more), row("attack", fold, "bayes-not-robust", 0.94 + more)]
        rows += [row("disguised", fold, "irpca", 0.92), row("disguised", fold, "bayes-not-robust", 0.94)]
        rows += [row("cold-both", fold, "irpca", 1.1), row("cold-both", fold, "mean", 1.2)]
        rows += [row("cold-both", fold, "ridge", 1.09), row("cold-users", fold, "irpca", 1.0)]
        rows += [row("cold-users", fold, "irpca-no-features", 0.9), row("cold-users", fold, "mean", 1.2)]
    _, _, told = report(rows, [], ["irpca", "bayes-not-robust", "irpca-no-features"]).partition("Bars\n\n")
    verdicts = {line[8:].partition(":")[0]: line[:6].strip() for line in told.splitlines()}
    assert verdicts == {
        "clean": "met",
        "flip-5": "met",
        "attack": "MISSED",
        "disguised": "no bar",
        "cold-users": "met",
        "cold-both": "MISSED",
    }
    assert "clean: RMSE 0.9050 ± 0.0050" in told
    assert "flip-5: loss of irpca over that of bayes-not-robust 0.20 ± 0.00" in told
    assert "less that of ridge, the best other, 0.0100 ± 0.0000" in told


def test_the_standard_error_of_a_ratio(load):
    over, under = np.array([1.0, 2.0, 4.0]), np.array([2.0, 5.0, 6.0])
    ratios = np.array([6 / 11, 5 / 8, 3 / 7])
    expected = np.sqrt(2 / 3 * ((ratios - ratios.mean()) ** 2).sum())
    assert load("ratings_report")._jackknife(over, under) == f" ± {expected:.2f}"


def rows_of(path):
    with path.open(newline="") as text:
        return list(csv.DictReader(text))


def test_quick(load, data, tmp_path, monkeypatch, capsys):
    ratings = load("ratings")
    monkeypatch.setattr(ratings, "load_movielens_100k", lambda: data)
    monkeypatch.setattr(ratings, "QUICK", ("clean", "attack", "cold-both"))  # a fit takes as long as in all others
    ratings.main(["--quick", "--out", str(tmp_path)])
    told = capsys.readouterr().out
    rows, finds = rows_of(tmp_path / "ratings.csv"), rows_of(tmp_path / "ratings_found.csv")
    assert tuple(rows[0]) == load("ratings_peers").COLUMNS
    cases = [(name, "1", method) for name in ratings.QUICK for method in ratings.OURS]
    cases.remove(("cold-both", "1", "irpca-without-suspects"))
    assert [(row["scenario"], row["fold"], row["method"]) for row in rows] == cases
    assert all(0.3 < float(row["rmse"]) < 1.5 for row in rows)
    assert {row["scenario"] for row in rows if row["target_stars"]} == {"clean", "attack"}
    assert {(row["scenario"], row["method"]) for row in finds} == {("attack", "irpca")}
    assert "cmfrec" in told and "Bars" in told
    monkeypatch.setattr(ratings, "load_movielens_100k", None)  # nothing is measured twice
    for words in (["--quick"], ["--table"]):
        ratings.main([*words, "--out", str(tmp_path)])
        again = capsys.readouterr().out
        assert again.startswith("RMSE") and told.endswith(again)
    assert rows_of(tmp_path / "ratings.csv") == rows


def test_quick_keeps_away_from_the_results(load, capsys):
    with pytest.raises(SystemExit):
        load("ratings").main(["--quick", "--out", str(ROOT / "experiments" / "results")])
    assert "choose another --out" in capsys.readouterr().err
