"""Survive an attack: predict ratings of films where one in ten was turned round, and 47 fake users push ten films.

Run it as ``python -m lab.examples.ratings``. It needs MovieLens 100K, which may not be passed on.
"""

import sys

import numpy as np
import pandas as pd

import irpca
from lab.datasets import load_movielens_100k

try:
    data = load_movielens_100k()
except FileNotFoundError:
    print(
        "MovieLens 100K is not on this machine, and since it is for research only and may not be passed on, irpca does "
        "not bring it along: unpack https://files.grouplens.org/datasets/movielens/ml-100k.zip and set IRPCA_DATA to "
        "the folder that ml-100k lies in, or call lab.datasets.load_movielens_100k(download=True) once."
    )
    sys.exit()

# Ratings, and what is known of users and films, as frames.
people = pd.DataFrame({"age": data.ages, "sex": data.sexes, "job": data.occupations})
people.index = [f"user {k}" for k in range(1, len(people) + 1)]
titles = pd.Series(data.titles)
films = pd.DataFrame(data.genres.astype(float), titles.mask(titles.duplicated(), titles + " again"), data.genre_names)
films["year"] = np.nan_to_num(data.years, nan=np.nanmean(data.years))
ratings = pd.DataFrame({"user": people.index[data.users], "film": films.index[data.items], "stars": data.stars})
train, test = (ratings.iloc[places] for places in data.fold("u1"))

# The attack. Fake users look like others, give five stars to five of ten little known films and one star to 60 others.
rng = np.random.default_rng(0)
counts = train.film.value_counts()
pushed = rng.choice(counts.index[counts.between(5, 20)], 10, replace=False)
rest = counts.drop(pushed)
fakes = people.sample(47, random_state=0).set_axis([f"fake {k}" for k in range(1, 48)])
turned = train.sample(frac=0.1, random_state=0)
lies = [turned.assign(stars=6 - turned.stars)]
for fake in fakes.index:
    camouflage = rng.choice(rest.index, 60, replace=False, p=rest / rest.sum())
    lies.append(pd.DataFrame({"user": fake, "film": rng.choice(pushed, 5, replace=False), "stars": 5.0}))
    lies.append(pd.DataFrame({"user": fake, "film": camouflage, "stars": 1.0}))
attacked = pd.concat([train.drop(turned.index), *lies])
features = pd.get_dummies(pd.concat([people, fakes]), columns=["sex", "job"], drop_first=True, dtype=float)


def table(ratings, users):
    return irpca.LongTable.from_frame(ratings, "user", "film", "stars", rows=users, columns=films.index)


def fit(ratings, users=features.index):
    model = irpca.InductiveRobustPCA()
    return model.fit(table(ratings, users), row_features=features.loc[users], col_features=films)


def averages(ratings):
    """For comparison: the average of the user, and how much more or less than average a film gets."""
    film = (ratings.stars - ratings.stars.mean()).groupby(ratings.film).mean().reindex(films.index, fill_value=0.0)
    user = ratings.groupby("user").stars.mean().reindex(people.index, fill_value=ratings.stars.mean())
    return pd.DataFrame(np.add.outer(user.array, film.array), people.index, films.index)


def tell(name, stars):
    stars = stars.loc[people.index].clip(1, 5)
    at = stars.index.get_indexer(test.user), stars.columns.get_indexer(test.film)
    error = np.sqrt(np.mean((stars.to_numpy()[at] - test.stars) ** 2))
    print(f"  {name:34}{error:7.4f}{stars[pushed].to_numpy().mean():16.2f}")


lied = (turned.stars != 3).sum(), len(attacked) - len(train)
print("Of {} ratings {} are turned round, and {} are added by 47 fake users.\n".format(len(train), *lied))
print(f"  {f'error on {len(test)} others, in stars':34}{'RMSE':>7}{'pushed films':>16}")
tell("before the attack", fit(train, people.index).predict())
tell("attacked, averages", averages(attacked))
model = fit(attacked)
tell("attacked, robust", model.predict())

# Who is not as features say? L cannot tell: it has learned to know all users, also those who always lie.
users = model.outlier_rows(table(attacked, features.index), row_features=features).rename(columns={"row": "user"})
named = users.user[users.broken].array
# These are left out of the fit, and then predicted from their own ratings: others no longer depend on them.
suspect = attacked.user.isin(named)
cured = fit(attacked[~suspect])
stars, own = cured.predict(), cured.transform(table(attacked[suspect], named), row_features=features.loc[named])
stars.loc[named] = cured.inverse_transform(own)
tell("robust, suspects left out", stars)

flagged = model.outliers(most=500).rename(columns={"row": "user", "column": "film"})
cells = pd.MultiIndex.from_frame(flagged[["user", "film"]])
flagged["in truth"] = train.set_index(["user", "film"]).stars.reindex(cells).array
print(f"\nThe most suspicious ratings. Of the first 500, {(flagged['in truth'] != flagged.observed).sum()} are lies:\n")
print(flagged[["user", "film", "observed", "expected", "in truth"]].head(6).round(1).to_string(index=False))
found = model.outlier_rows().row.head(47).isin(fakes.index).sum()
print(f"\nThe most suspicious users. {found} of the first 47 of outlier_rows() are fake. By what features say of them")
print(f"{len(named)} are named, among them {np.isin(fakes.index, named).sum()} of the 47 fake ones:\n")
print(users[["user", "observed", "flagged", "expected", "score"]].head(4).round(2).to_string(index=False))

# Somebody new: at first by age, sex and job alone, then with five ratings.
new = pd.DataFrame({"age": 24.0, "job_student": 1.0}, ["new"]).reindex(columns=features.columns, fill_value=0.0)
before = cured.predict(row_features=new).loc["new"]
given = pd.Series({"Alien (1979)": 5, "Aliens (1986)": 5, "Terminator, The (1984)": 5, "Blade Runner (1982)": 4})
given["English Patient, The (1996)"] = 2
asked = pd.DataFrame({"user": "new", "film": given.index, "stars": given.array})
after = pd.Series(cured.inverse_transform(cured.transform(table(asked, ["new"]), row_features=new))[0], films.index)
change = (after - before).drop(given.index).sort_values()
print("\nFor a student of 24, a woman:", *before.nlargest(5).index, sep="\n  ")
print("Who gives", ", ".join(f"{stars} to {film}" for film, stars in given.items()) + ":")
print("\n".join(f"  {film}" for film in after.drop(given.index).nlargest(5).index))
rises, falls = change.index[-1], change.index[0]
print(f"{rises} rises most, by {change[rises]:.2f}; {falls} falls most, by {-change[falls]:.2f}.")
