"""MovieLens 100K: 100,000 ratings of films, with what is known of the users and of the films.

The data belong to GroupLens Research, are for research only, and may not be passed on: they are not part of irpca.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .sources import Source, locate

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array

SOURCE = Source(
    name="ml-100k",
    files=("u.data", "u.user", "u.item", "u.genre"),
    url="https://files.grouplens.org/datasets/movielens/ml-100k.zip",
    md5="0e33842e24a9c977be4e0107933c0723",
)
FOLDS = ("u1", "u2", "u3", "u4", "u5", "ua", "ub")
HELD_OUT = 10  # ratings of each user in the test sets of ua and ub
COLD = ("users", "items", "both")
COLD_FOLDS = 5


@dataclass(frozen=True, eq=False, repr=False)
class MovieLens:
    """Ratings of films by users, from 1 to 5 stars.

    Attributes
    ----------
    ratings : csr_array of shape (943, 1682)
        One row per user, one column per film. The stored entries are the observed ones.
    users, items, stars, timestamps : ndarray of shape (100000,)
        The same ratings in the order of the file, which the folds go by: row, column, value, and when it was given,
        in seconds since 1970.
    ages : ndarray of shape (943,)
    sexes, occupations : list of str
        ``"F"`` or ``"M"``, and one of 21 occupations, of each user.
    titles : list of str
    years : ndarray of shape (1682,)
        The year in a film's title, which is its own also where the file gives the date of a later release;
        NaN for the one film without.
    genres : bool ndarray of shape (1682, 19)
        Which genres a film belongs to, often several.
    genre_names : list of str
    """

    ratings: csr_array
    users: np.ndarray
    items: np.ndarray
    stars: np.ndarray
    timestamps: np.ndarray
    ages: np.ndarray
    sexes: list[str]
    occupations: list[str]
    titles: list[str]
    years: np.ndarray
    genres: np.ndarray
    genre_names: list[str]

    def row_features(self) -> np.ndarray:
        """Return age, sex and occupation of the users.

        Returns
        -------
        ndarray of shape (943, 23)
            Standardised age; 1 for women; a one in a column per occupation, in alphabetical order. The occupations
            add up to the constant.
        """
        names, column = np.unique(self.occupations, return_inverse=True)
        women = np.array(self.sexes) == "F"
        return np.column_stack([_standardised(self.ages), women, np.eye(names.size)[column]])

    def col_features(self) -> np.ndarray:
        """Return genres and year of the films.

        Returns
        -------
        ndarray of shape (1682, 21)
            The constant, without which no mean rating can be told; a column per genre; the standardised year, 0 where
            it is unknown.
        """
        year = np.nan_to_num(_standardised(self.years))
        return np.column_stack([np.ones(len(self.titles)), self.genres, year])

    def fold(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return which ratings are for training and which for testing, as GroupLens splits them.

        Parameters
        ----------
        name : {"u1", "u2", "u3", "u4", "u5", "ua", "ub"}
            ``u1`` to ``u5`` each test on another fifth of the file. ``ua`` tests on the first ten ratings of every
            user, ``ub`` on the ten after those.

        Returns
        -------
        train, test : ndarray of int
            Places in the order of the file: ``ratings_at(train)``, ``stars[test]``.
        """
        if name not in FOLDS:
            raise ValueError(f"name must be one of {', '.join(FOLDS)}; got {name!r}.")
        if name in ("ua", "ub"):
            place, first = _place_among_own(self.users), HELD_OUT * (name == "ub")
            tested = (first <= place) & (place < first + HELD_OUT)
        else:
            tested = np.arange(len(self.stars)) * 5 // len(self.stars) == int(name[1]) - 1
        return np.flatnonzero(~tested), np.flatnonzero(tested)

    def cold_split(self, kind: str, fold: int = 0, random_state: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return a split in which users, films or both are tested of which no rating is in the training part.

        Parameters
        ----------
        kind : {"users", "items", "both"}
            ``"users"``: a fifth of the users is held out, and all their ratings are for testing. ``"items"``: the
            same with films. ``"both"``: tested are the ratings of held-out films by held-out users, about 4 % of
            all; trained is on those in which neither is held out; the others are in no part.
        fold : {0, 1, 2, 3, 4}
            Which fifth. Every user and every film is held out in exactly one.
        random_state : int
            Seed of the order in which users and films are dealt to the fifths. Equal seeds hold out the same users
            whatever ``kind`` is, and the same films.

        Returns
        -------
        train, test : ndarray of int
            Places in the order of the file, as of :meth:`fold`.
        """
        if kind not in COLD:
            raise ValueError(f"kind must be one of {', '.join(COLD)}; got {kind!r}.")
        if fold not in range(COLD_FOLDS):
            raise ValueError(f"fold must be one of 0 … {COLD_FOLDS - 1}; got {fold!r}.")
        rng = np.random.default_rng(random_state)
        n_users, n_items = self.ratings.shape
        new_user = (rng.permutation(n_users) % COLD_FOLDS == fold)[self.users]
        new_item = (rng.permutation(n_items) % COLD_FOLDS == fold)[self.items]
        if kind == "both":
            return np.flatnonzero(~new_user & ~new_item), np.flatnonzero(new_user & new_item)
        tested = new_user if kind == "users" else new_item
        return np.flatnonzero(~tested), np.flatnonzero(tested)

    def ratings_at(self, places: np.ndarray) -> csr_array:
        """Return the ratings at some places of the file alone, as a matrix of the full shape."""
        return _matrix(self.stars[places], self.users[places], self.items[places], self.ratings.shape)

    def frame(self) -> pd.DataFrame:
        """Return the ratings as a pandas DataFrame with a line for each, in the order of the file.

        Returns
        -------
        DataFrame with the columns user, item and rating
            Users and films go by their numbers in the file, which begin at 1; two films may have one title.
        """
        try:
            import pandas as pd
        except ImportError as error:
            advice = 'pip install "irpca[pandas]", or use users, items and stars.'
            raise ImportError(f"frame() needs pandas: {advice}") from error
        return pd.DataFrame({"user": self.users + 1, "item": self.items + 1, "rating": self.stars})

    def __repr__(self) -> str:
        return f"MovieLens({len(self.sexes)} users × {len(self.titles)} films, {len(self.stars)} ratings)"


def load_movielens_100k(path: str | os.PathLike[str] | None = None, *, download: bool = False) -> MovieLens:
    """Load MovieLens 100K from a folder on this machine; it is not bundled.

    Parameters
    ----------
    path : path-like or None
        The folder with ``u.data``, ``u.user``, ``u.item`` and ``u.genre``. None: ``ml-100k`` in the folder that the
        environment variable IRPCA_DATA names, then in the user's cache folder.
    download : bool
        Whether to fetch it from GroupLens into the cache, if it is in neither. The checksum is verified.

    Returns
    -------
    MovieLens

    Notes
    -----
    Terms of use, shortened; the README of the data has them in full. The data may be used for research. They may not
    be redistributed, nor used for commercial or revenue-bearing purposes, without permission of GroupLens; no
    endorsement by it may be implied; and publications must acknowledge it by citing: F. M. Harper and J. A. Konstan,
    The MovieLens Datasets: History and Context, ACM Transactions on Interactive Intelligent Systems 5(4), 2015.
    """
    folder = locate(SOURCE, path, download=download)
    users = _records(folder / "u.user", 5)
    films = _records(folder / "u.item", 24)
    table = np.loadtxt(folder / "u.data", dtype=np.int64, ndmin=2)
    if table.shape[1] != 4:
        raise ValueError(f"{folder / 'u.data'} has {table.shape[1]} columns: user, film, stars and time are expected.")
    _check_numbers(folder / "u.data", table, len(users), len(films))
    rows, cols, stars = table[:, 0] - 1, table[:, 1] - 1, table[:, 2].astype(float)
    return MovieLens(
        ratings=_matrix(stars, rows, cols, (len(users), len(films))),
        users=rows,
        items=cols,
        stars=stars,
        timestamps=table[:, 3].copy(),
        ages=np.array([int(user[1]) for user in users]),
        sexes=[user[2] for user in users],
        occupations=[user[3] for user in users],
        titles=[film[1] for film in films],
        years=np.array([_year(film[1]) for film in films]),
        genres=np.array([film[5:] for film in films]) == "1",
        genre_names=[line.split("|")[0] for line in _lines(folder / "u.genre")],
    )


def _lines(file: Path) -> list[str]:
    # Latin-1: the titles are from 1998. Files end in empty lines.
    return [line for line in file.read_text(encoding="latin-1").split("\n") if line]


def _matrix(stars: np.ndarray, users: np.ndarray, items: np.ndarray, shape: tuple[int, int]) -> csr_array:
    from scipy.sparse import coo_array  # takes long, and few need it

    return coo_array((stars, (users, items)), shape=shape).tocsr()


def _records(file: Path, length: int) -> list[list[str]]:
    """The fields of every line; the first must count the lines, since ratings refer to it."""
    records = [line.split("|") for line in _lines(file)]
    for number, record in enumerate(records, start=1):
        if len(record) != length or record[0] != str(number):
            raise ValueError(
                f"{file}, line {number}: {length} fields separated by | are expected, of which the first is {number}; "
                f"got {len(record)}, and {record[0]!r}."
            )
    return records


def _check_numbers(file: Path, table: np.ndarray, users: int, films: int) -> None:
    for what, column, last in ("user", 0, users), ("film", 1, films):
        wrong = np.flatnonzero((table[:, column] < 1) | (table[:, column] > last))
        if wrong.size:
            raise ValueError(f"{file}, rating {wrong[0] + 1}: {what} {table[wrong[0], column]} is not in 1 … {last}.")
    if len(np.unique(table[:, :2], axis=0)) < len(table):
        raise ValueError(f"{file} rates some film twice for one user; every pair is expected once.")


def _year(title: str) -> float:
    found = re.findall(r"\((\d{4})\)", title)
    return float(found[-1]) if found else np.nan


def _standardised(values: np.ndarray) -> np.ndarray:
    return (values - np.nanmean(values)) / np.nanstd(values)


def _place_among_own(users: np.ndarray) -> np.ndarray:
    """How many ratings of the same user come before each, in the order of the file."""
    counts = np.bincount(users)
    order = np.argsort(users, kind="stable")
    place = np.empty(len(users), dtype=int)
    place[order] = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place
