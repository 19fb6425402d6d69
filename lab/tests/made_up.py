"""Small data sets in the form of the real ones."""

import numpy as np
from scipy.sparse import csr_array

from lab.datasets import I94Traffic, MovieLens


def ratings(n_users=300, n_items=120):
    """Half of the films are seen by most users, half by few; taste goes by sex and genre."""
    rng = np.random.default_rng(0)
    women, drama = rng.random(n_users) < 0.5, rng.random(n_items) < 0.5
    seen = rng.random((n_users, n_items)) < np.where(np.arange(n_items) < n_items // 2, 0.4, 0.06)
    order = rng.permutation(np.count_nonzero(seen))
    users, items = (places[order] for places in np.nonzero(seen))
    level = 3.5 + rng.normal(0, 0.4, n_users)[users] + rng.normal(0, 0.6, n_items)[items]
    taste = np.where(women[users] == drama[items], 0.7, -0.7)
    stars = np.clip(np.round(level + taste + rng.normal(0, 0.5, len(users))), 1, 5)
    return MovieLens(
        ratings=csr_array((stars, (users, items)), shape=(n_users, n_items)),
        users=users,
        items=items,
        stars=stars,
        timestamps=np.zeros(len(users), int),
        ages=rng.integers(18, 70, n_users),
        sexes=["F" if woman else "M" for woman in women],
        occupations=[("artist", "baker", "carpenter")[k % 3] for k in range(n_users)],
        titles=[f"Film {k} (1990)" for k in range(n_items)],
        years=1990.0 + np.arange(n_items) % 9,
        genres=np.column_stack([drama, np.arange(n_items) % 5 == 0]),
        genre_names=["Drama", "Western"],
    )


def traffic(n_days=120):
    """Fewer cars at night and on weekends."""
    rng = np.random.default_rng(0)
    days = np.datetime64("2016-01-04") + np.arange(n_days)
    weekday = np.where(np.arange(n_days) % 7 < 5, 1.0, 0.6)
    hour = 3000 - 2500 * np.cos(2 * np.pi * np.arange(24) / 24)
    return I94Traffic(
        volume=np.outer(weekday, hour) + 100 * rng.standard_normal((n_days, 24)),
        days=days,
        holidays=[("", "New Years Day", "Columbus Day")[max(0, k - n_days + 3)] for k in range(n_days)],
        temperature=rng.normal(0, 10, n_days),
        rain=rng.random(n_days),
        snow=rng.random(n_days),
        clouds=rng.random(n_days),
    )
