"""On a miniature in the same format, made here; and on the real data wherever IRPCA_DATA is set."""

import os
import sys
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest

from irpca.completion import optspace
from irpca.datasets import load_movielens_100k, movielens, sources

GENRES = """unknown, Action, Adventure, Animation, Children's, Comedy, Crime, Documentary, Drama, Fantasy, Film-Noir,
Horror, Musical, Mystery, Romance, Sci-Fi, Thriller, War, Western""".replace("\n", " ").split(", ")
FILMS = {  # title and release: a later release, nothing known, numbers that are no year
    1: ("Toy (1995)", "01-Jan-1995"),
    2: ("Contempt (Mépris, Le) (1963)", "27-Jun-1997"),
    3: ("unknown", ""),
    4: ("1984 (Nineteen) (1984) (1956) (V)", "01-Jan-1956"),
}
OCCUPATIONS = ["writer", "artist", "other"]

# What is known of each: of the real data from their README and from the splits that GroupLens published.
FACTS = {
    "miniature": SimpleNamespace(
        shape=(12, 26),
        ratings=307,
        women=6,
        occupations=3,
        dramas=1,
        first_year=1956,
        users_u1=12,
        mean_rmse=1.198,
        rank=2,
    ),
    "real": SimpleNamespace(
        shape=(943, 1682),
        ratings=100_000,
        women=273,
        occupations=21,
        dramas=725,
        first_year=1922,
        users_u1=459,
        mean_rmse=1.126,
        rank=3,
    ),
}
WHERE = ["miniature", *(["real"] if os.environ.get("IRPCA_DATA") else [])]


def lines_of_the_miniature():
    """Twelve users and 26 films; user 7 rates 21 of them, the others all."""
    pairs = [(user, film) for user in range(1, 13) for film in range(1, 27) if user != 7 or film > 5]
    order = np.random.default_rng(0).permutation(len(pairs))
    films = []
    for film in range(1, 27):
        title, release = FILMS.get(film, (f"Film {film} (19{film + 70})", "01-Jan-1990"))
        genres = ["01"[genre in (film % 19, film % 5 + 3)] for genre in range(19)]
        films.append("|".join([str(film), title, release, "", f"http://film/{film}", *genres]))
    return {
        "u.data": [
            f"{pairs[k][0]}\t{pairs[k][1]}\t{1 + pairs[k][0] % 2 + pairs[k][1] % 4}\t{880_000_000 + k}" for k in order
        ],
        "u.user": [f"{n}|{20 + n}|{'MF'[n % 2]}|{OCCUPATIONS[n % 3]}|55105" for n in range(1, 13)],
        "u.item": films,
        "u.genre": [f"{name}|{n}" for n, name in enumerate(GENRES)] + [""],
    }


def write(folder, lines):
    folder.mkdir(exist_ok=True)
    for file, content in lines.items():
        (folder / file).write_text("\n".join(content) + "\n", encoding="latin-1")
    return folder


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "ml-100k", lines_of_the_miniature())


@pytest.fixture(scope="module", params=WHERE)
def case(request, miniature):
    path = miniature if request.param == "miniature" else None
    return load_movielens_100k(path), FACTS[request.param]


def test_shape_and_labels(case):
    data, facts = case
    assert data.ratings.shape == facts.shape == (len(data.ages), len(data.titles))
    assert data.ratings.dtype == data.stars.dtype == np.float64
    assert data.ratings.nnz == len(data.stars) == len(data.timestamps) == facts.ratings
    assert data.sexes.count("F") == facts.women == facts.shape[0] - data.sexes.count("M")
    assert len(set(data.occupations)) == facts.occupations
    assert data.genre_names == GENRES
    assert data.genres.shape == (facts.shape[1], 19)
    assert data.genres[:, GENRES.index("Drama")].sum() == facts.dramas
    assert repr(data) == f"MovieLens({facts.shape[0]} users × {facts.shape[1]} films, {facts.ratings} ratings)"


def test_the_matrix_holds_the_ratings_of_the_file(case):
    data, _ = case
    np.testing.assert_array_equal(data.ratings[data.users, data.items], data.stars)
    assert set(data.stars) == {1, 2, 3, 4, 5}
    everything = data.ratings_at(np.arange(len(data.stars)))
    np.testing.assert_array_equal(everything.toarray(), data.ratings.toarray())


def test_years_are_those_of_the_titles(case):
    data, facts = case
    assert np.nanmin(data.years) == facts.first_year
    (unknown,) = np.flatnonzero(np.isnan(data.years))
    assert data.titles[unknown] == "unknown"
    for title, year in zip(data.titles, data.years, strict=True):
        assert np.isnan(year) or f"({year:.0f})" in title


def test_row_features(case):
    data, facts = case
    F = data.row_features()
    assert F.shape == (facts.shape[0], 2 + facts.occupations)
    assert np.linalg.matrix_rank(F) == F.shape[1]
    np.testing.assert_allclose([F[:, 0].mean(), F[:, 0].std()], [0, 1], rtol=0, atol=1e-12)
    assert np.corrcoef(F[:, 0], data.ages)[0, 1] == pytest.approx(1)
    np.testing.assert_array_equal(F[:, 1], [sex == "F" for sex in data.sexes])
    np.testing.assert_array_equal(F[:, 2:].sum(axis=1), 1)
    names = sorted(set(data.occupations))
    assert [names[column] for column in F[:, 2:].argmax(axis=1)] == data.occupations


def test_col_features(case):
    data, facts = case
    F = data.col_features()
    assert F.shape == (facts.shape[1], 21)
    np.testing.assert_array_equal(F[:, 0], 1)
    np.testing.assert_array_equal(F[:, 1:20], data.genres)
    known = ~np.isnan(data.years)
    np.testing.assert_allclose([F[known, 20].mean(), F[known, 20].std()], [0, 1], rtol=0, atol=1e-12)
    assert np.corrcoef(F[known, 20], data.years[known])[0, 1] == pytest.approx(1)
    np.testing.assert_array_equal(F[~known, 20], 0)


@pytest.mark.parametrize("name", movielens.FOLDS)
def test_a_fold_splits_the_ratings_in_two(case, name):
    data, _ = case
    train, test = data.fold(name)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(data.stars)))
    np.testing.assert_array_equal(data.ratings_at(test)[data.users[test], data.items[test]], data.stars[test])
    assert data.ratings_at(train).nnz == len(train)


def test_u1_to_u5_test_on_each_rating_once_in_the_order_of_the_file(case):
    data, facts = case
    tests = [data.fold(f"u{k}")[1] for k in range(1, 6)]
    np.testing.assert_array_equal(np.concatenate(tests), np.arange(len(data.stars)))
    assert max(map(len, tests)) - min(map(len, tests)) <= 1
    assert len(np.unique(data.users[tests[0]])) == facts.users_u1


@pytest.mark.parametrize(("name", "first"), [("ua", 0), ("ub", 10)])
def test_ua_and_ub_test_on_ten_ratings_of_every_user(case, name, first):
    data, _ = case
    _, test = data.fold(name)
    for user in range(data.ratings.shape[0]):
        own = np.flatnonzero(data.users == user)
        np.testing.assert_array_equal(test[data.users[test] == user], own[first : first + 10])
    assert len(test) == 10 * data.ratings.shape[0]


# Cold start.


@pytest.mark.parametrize(("kind", "column"), [("users", "users"), ("items", "items")])
def test_cold_folds_test_on_each_rating_once_and_share_nobody(case, kind, column):
    data, _ = case
    labels, tests = getattr(data, column), []
    for fold in range(5):
        train, test = data.cold_split(kind, fold)
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(data.stars)))
        new = set(labels[test])
        assert new.isdisjoint(labels[train])
        assert len(new) == pytest.approx(data.ratings.shape[kind == "items"] / 5, abs=1)
        tests.append(test)
    np.testing.assert_array_equal(np.sort(np.concatenate(tests)), np.arange(len(data.stars)))


def test_both_cold_trains_on_neither_and_tests_on_both(case):
    data, _ = case
    for fold in range(5):
        train, test = data.cold_split("both", fold, random_state=3)
        of_users, of_items = (data.cold_split(kind, fold, random_state=3) for kind in ("users", "items"))
        np.testing.assert_array_equal(train, np.intersect1d(of_users[0], of_items[0]))
        np.testing.assert_array_equal(test, np.intersect1d(of_users[1], of_items[1]))
        assert test.size > 0


def test_cold_splits_go_by_their_seed(case):
    data, _ = case
    np.testing.assert_array_equal(data.cold_split("users", 2)[1], data.cold_split("users", 2, random_state=0)[1])
    assert not np.array_equal(data.cold_split("users", 2)[1], data.cold_split("users", 2, random_state=1)[1])


@pytest.mark.parametrize(
    ("kind", "fold", "sentence"),
    [
        ("films", 0, "kind must be one of users, items, both; got 'films'"),
        ("users", 5, "fold must be one of 0 … 4; got 5"),
        ("users", -1, "fold must be one of 0 … 4; got -1"),
    ],
)
def test_a_cold_split_that_is_not_there(miniature, kind, fold, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_movielens_100k(miniature).cold_split(kind, fold)


# What the ratings hold.


def test_the_mean_predicts_as_badly_as_it_should(case):
    data, facts = case
    errors = []
    for k in range(1, 6):
        train, test = data.fold(f"u{k}")
        errors.append(np.sqrt(np.mean((data.stars[test] - data.stars[train].mean()) ** 2)))
    assert np.mean(errors) == pytest.approx(facts.mean_rmse, abs=0.001)


def test_a_free_low_rank_part_predicts_better(case):
    data, facts = case
    train, test = data.fold("u1")
    found = optspace(data.ratings_at(train), facts.rank, max_iter=20)
    left = data.stars[test] - found.L.entries(data.users[test], data.items[test])
    assert np.sqrt(np.mean(left**2)) < 0.87 * facts.mean_rmse  # 0.96 against 1.13 on the real data


def test_frame_has_a_line_for_every_rating(case):
    data, _ = case
    frame = data.frame()
    assert list(frame.columns) == ["user", "item", "rating"]
    np.testing.assert_array_equal(frame.user, data.users + 1)
    np.testing.assert_array_equal(frame.item, data.items + 1)
    np.testing.assert_array_equal(frame.rating, data.stars)


def test_frame_without_pandas_says_what_to_do(case, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'pip install "irpca\[pandas\]"'):
        case[0].frame()


# The file format.


def test_every_field_is_read(miniature):
    data, lines = load_movielens_100k(miniature), lines_of_the_miniature()
    table = np.array([line.split("\t") for line in lines["u.data"]], dtype=int)
    np.testing.assert_array_equal(
        np.stack([data.users + 1, data.items + 1, data.stars, data.timestamps], axis=1), table
    )
    np.testing.assert_array_equal(data.ages, np.arange(21, 33))
    assert data.sexes[:3] == ["F", "M", "F"]
    assert data.occupations[:4] == ["artist", "other", "writer", "artist"]
    assert data.titles[:4] == [title for title, _ in FILMS.values()]
    np.testing.assert_array_equal(data.years[:5], [1995, 1963, np.nan, 1956, 1975])
    np.testing.assert_array_equal(np.flatnonzero(data.genres[8]), [7, 9])


def broken(file, line, content):
    lines = lines_of_the_miniature()
    lines[file][line] = content
    return lines


BROKEN = {
    "a user too few fields": (broken("u.user", 4, "5|25|M"), "u.user, line 5: 5 fields .* got 3, and '5'"),
    "a user out of order": (broken("u.user", 4, "6|25|M|other|1"), "u.user, line 5: .* the first is 5; got 5, and '6'"),
    "a film too few fields": (broken("u.item", 0, "1|Toy (1995)"), "u.item, line 1: 24 fields .* got 2, and '1'"),
    "an unknown user": (broken("u.data", 2, "13\t1\t3\t8"), r"u.data, rating 3: user 13 is not in 1 … 12"),
    "an unknown film": (broken("u.data", 0, "1\t0\t3\t8"), r"u.data, rating 1: film 0 is not in 1 … 26"),
    "a rating twice": (broken("u.data", 0, lines_of_the_miniature()["u.data"][1]), "u.data rates some film twice"),
    "no times": (lines_of_the_miniature() | {"u.data": ["1\t1\t3", "2\t1\t4"]}, "u.data has 3 columns: user, film"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(tmp_path, name):
    lines, sentence = BROKEN[name]
    with pytest.raises(ValueError, match=sentence):
        load_movielens_100k(write(tmp_path / "broken", lines))


def test_an_unknown_fold(miniature):
    with pytest.raises(ValueError, match="name must be one of u1, u2, u3, u4, u5, ua, ub; got 'u6'"):
        load_movielens_100k(miniature).fold("u6")


# Where it comes from.


def test_it_is_found_under_irpca_data(miniature, monkeypatch):
    monkeypatch.setenv("IRPCA_DATA", str(miniature.parent))
    assert load_movielens_100k().ratings.shape == (12, 26)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The addresses that were asked, on a machine without data and without a network."""
    addresses = []

    def refuse(url, timeout):
        addresses.append(url)
        raise OSError("no network")

    monkeypatch.delenv("IRPCA_DATA", raising=False)
    monkeypatch.setattr(sources, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return addresses


def test_it_is_downloaded_only_on_request(asked):
    with pytest.raises(FileNotFoundError, match="ml-100k was not found"):
        load_movielens_100k()
    assert asked == []
    with pytest.raises(ConnectionError, match="could not be downloaded"):
        load_movielens_100k(download=True)
    assert asked == ["https://files.grouplens.org/datasets/movielens/ml-100k.zip"]


def test_the_docstring_tells_the_terms():
    told = " ".join(load_movielens_100k.__doc__.split())
    assert "may be used for research" in told
    assert "may not be redistributed" in told
