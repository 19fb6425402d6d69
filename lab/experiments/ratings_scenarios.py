"""What is done to the ratings of MovieLens 100K before a model sees them: nothing, lies, fake users, or newcomers.

The tested ratings are never touched. Every scenario has five folds, 1 to 5, and everything random in it is drawn from
the number of the fold, so that all models see the same.

- ``clean``: the folds u1 to u5 as GroupLens made them.
- ``flip-5``, ``flip-10``, ``flip-20``: on u1 to u5; of the ratings to train on, this percentage is turned round, r to
  6 − r. Of those chosen a quarter has three stars and stays as it is.
- ``attack``: on u1 to u5; 47 fake users, 5 % of the real ones, push ten films. See :func:`attack`.
- ``cold-users``, ``cold-items``, ``cold-both``: ``MovieLens.cold_split`` with seed 0. A fifth of the users, of the
  films, or of both, has no rating to train on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.datasets import MovieLens

FOLDS = (1, 2, 3, 4, 5)
FLIPPED = {"flip-5": 0.05, "flip-10": 0.1, "flip-20": 0.2}
COLD = {"cold-users": "users", "cold-items": "items", "cold-both": "both"}
NAMES = ("clean", *FLIPPED, "attack", *COLD)

FAKES = 47
TARGETS = 10
PUSHED = 5  # of the targets, by each fake user
CAMOUFLAGE = 60
UNPOPULAR = (5, 20)  # ratings to train on that a target has: few enough to be outvoted
LOWEST, HIGHEST = 1.0, 5.0

Ratings = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Task:
    """Ratings to train on, ratings to predict, and the features of everyone in either.

    Attributes
    ----------
    users, items, stars : ndarray
        What a model may see: one entry per rating.
    test_users, test_items, test_stars : ndarray
        What it is to predict.
    F1 : ndarray of shape (n_users, 23)
        ``MovieLens.row_features``. Under attack it is longer: a fake user has the features of a real one, drawn at
        random, as it would have filled in the form.
    F2 : ndarray of shape (n_items, 21)
        ``MovieLens.col_features``.
    targets : ndarray
        The films that are pushed under attack; on the clean folds the same, for comparison; else none.
    n_real : int
        How many users are real. They come first.
    cold : bool
        Whether those tested are newcomers, without a rating to train on.
    """

    users: np.ndarray
    items: np.ndarray
    stars: np.ndarray
    test_users: np.ndarray
    test_items: np.ndarray
    test_stars: np.ndarray
    F1: np.ndarray
    F2: np.ndarray
    targets: np.ndarray
    n_real: int
    cold: bool

    @property
    def shape(self) -> tuple[int, int]:
        """The number of users, fakes included, and of films."""
        return len(self.F1), len(self.F2)


def scenarios() -> list[tuple[str, int]]:
    """Every scenario with every fold: names in the order of the table, folds within."""
    return [(name, fold) for name in NAMES for fold in FOLDS]


def task(data: MovieLens, name: str, fold: int) -> Task:
    """The ratings of one fold as a scenario leaves them."""
    if (name, fold) not in scenarios():
        raise ValueError(
            f"there is no scenario {name!r} with a fold {fold!r}: names are {', '.join(NAMES)}, folds 1 … 5"
        )
    train, test = data.cold_split(COLD[name], fold - 1) if name in COLD else data.fold(f"u{fold}")
    users, items, stars = data.users[train], data.items[train], data.stars[train]
    n_users, n_items = data.ratings.shape
    F1, rng = data.row_features(), np.random.default_rng(fold)
    pushed = np.array([], dtype=int)
    if name in FLIPPED:
        stars = flipped(stars, FLIPPED[name], rng)
    elif name in ("clean", "attack"):
        pushed = targets(items, n_items, np.random.default_rng(fold))
    if name == "attack":
        users, items, stars = attack(users, items, stars, n_users, n_items, rng)
        F1 = np.vstack([F1, F1[rng.integers(n_users, size=FAKES)]])
    return Task(
        users=users,
        items=items,
        stars=stars,
        test_users=data.users[test],
        test_items=data.items[test],
        test_stars=data.stars[test],
        F1=F1,
        F2=data.col_features(),
        targets=pushed,
        n_real=n_users,
        cold=name in COLD,
    )


def flipped(stars: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """A copy in which this share of the ratings, drawn at random, is turned round: r becomes 6 − r."""
    chosen = rng.choice(stars.size, round(share * stars.size), replace=False)
    result = stars.copy()
    result[chosen] = LOWEST + HIGHEST - result[chosen]
    return result


def targets(items: np.ndarray, n_items: int, rng: np.random.Generator) -> np.ndarray:
    """Ten films that few have rated: the first draw of :func:`attack`, with the same generator."""
    counts = np.bincount(items, minlength=n_items)
    few, many = UNPOPULAR
    return np.sort(rng.choice(np.flatnonzero((few <= counts) & (counts <= many)), TARGETS, replace=False))


def attack(
    users: np.ndarray, items: np.ndarray, stars: np.ndarray, n_users: int, n_items: int, rng: np.random.Generator
) -> Ratings:
    """The ratings, then those of 47 fake users, numbered from ``n_users`` on.

    Ten targets are drawn among the films with 5 to 20 ratings. Every fake user gives five stars to five of them, and
    one star to 60 other films, drawn without repetition in proportion to how often each was rated: so that it has rated
    what everybody has, and what stands in the way of the targets goes down. A target gains about 23 ratings of five
    stars, more than it had; all films together gain 3055 ratings, 3.8 % of those to train on.
    """
    pushed = targets(items, n_items, rng)
    weights = np.bincount(items, minlength=n_items).astype(float)
    weights[pushed] = 0
    fake_items = [
        np.concatenate(
            [
                rng.choice(pushed, PUSHED, replace=False),
                rng.choice(n_items, CAMOUFLAGE, replace=False, p=weights / weights.sum()),
            ]
        )
        for _ in range(FAKES)
    ]
    fake_users = np.repeat(np.arange(n_users, n_users + FAKES), PUSHED + CAMOUFLAGE)
    fake_stars = np.tile(np.repeat([HIGHEST, LOWEST], [PUSHED, CAMOUFLAGE]), FAKES)
    return (
        np.concatenate([users, fake_users]),
        np.concatenate([items, *fake_items]),
        np.concatenate([stars, fake_stars]),
    )
