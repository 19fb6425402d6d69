"""Find broken sensors and odd days in six years of traffic on Interstate 94, knowing the calendar and the weather.

Run it as ``python -m lab.examples.traffic``. The counts are not part of irpca: without them it says where they are.
"""

import sys
from textwrap import fill

import numpy as np
import pandas as pd

import irpca
from lab.datasets import load_i94_traffic

try:
    data = load_i94_traffic()
except FileNotFoundError as error:
    print(fill(f"There is nothing to look at without the data: {error}", 118))
    sys.exit()

LAST = pd.Timestamp("2018-09-25")  # a Tuesday, kept out of the table: can it be told from its features?
everything = data.frame()  # 1860 days × 24 hours, labelled; NaN where nothing was counted
F1 = pd.DataFrame(data.row_features(), everything.index)  # weekday, holiday, trend, season, weather
F2 = pd.DataFrame(data.col_features(), everything.columns)  # waves of the hour
holidays = pd.Series(data.holidays, everything.index)
snow = pd.Series(data.snow, everything.index)


def rms(values):
    return np.sqrt(np.mean(values**2))


def about(day):
    """Why a day may be odd, as far as the data say."""
    near = (("", day), ("day before ", day + pd.Timedelta("1D")), ("day after ", day - pd.Timedelta("1D")))
    told = [when + holidays[other] for when, other in near if holidays.get(other)]
    told += [f"snow in {snow[day]:.0%} of its hours"] if snow[day] > 0 else []
    return ", ".join(told) or "nothing"


# The story: at 17 h the detector is stuck at 0 for a month, and one count in a hundred becomes 15,000.
truth = everything.drop(LAST)
M, known = truth.copy(), F1.drop(LAST)
MONTH, HOUR = "2017-03", 17
M.loc[MONTH, HOUR] = M.loc[MONTH, HOUR].where(M.loc[MONTH, HOUR].isna(), 0.0)
M = M.mask(truth.notna() & (np.random.default_rng(94).random(M.shape) < 0.01), 15_000.0)
spoilt = truth.notna() & (truth != M)

# First question: which cells disagree with the other hours of their day, as well as with calendar and weather?
model = irpca.InductiveRobustPCA().fit(M, row_features=known, col_features=F2)
flagged = model.outliers()
flagged["put there"] = [spoilt.at[day, hour] for day, hour in zip(flagged.row, flagged.column, strict=True)]


def show(title, cells):
    shown = pd.DataFrame({"day": cells.row.dt.strftime("%Y-%m-%d"), "hour": cells.column})
    shown[["counted", "expected"]] = cells[["observed", "expected"]].round().astype(int)
    shown["deviations"], shown["probability"] = cells.score.round(1), cells.probability.round(4)
    print(f"\n{title}\n\n{shown.to_string(index=False)}")


print(model.summary())
show("Too few cars:", flagged[flagged.difference < 0][:4])
show("Too many:", flagged[flagged.difference > 0][:4])
show("The worst that nobody put there:", flagged[~flagged["put there"]][:6])
show("The least sure:", flagged[-3:])

crowds = flagged.groupby([flagged.row.dt.strftime("%Y-%m"), "column"]).size().nlargest(4)
print("\nWhere flagged cells crowd (month, hour, of how many days):\n")
for (month, hour), count in crowds.items():
    print(f"{month:>12}{hour:6}{count:6} of {M.loc[month, hour].count()}")
print("\nHours that are flagged more often than hours differ anyway:\n")
print(f"{'hour':>12}{'flagged':>10}{'usual':>8}{'mean deviation':>16}")
for hour in model.outlier_columns().query("broken").itertuples():
    print(f"{hour.column:12}{hour.share:10.1%}{hour.expected:8.1%}{hour.mean_signed:+16.1f}")

off, before = ((table - truth).to_numpy()[spoilt.to_numpy()] for table in (model.predict(), M))
print(
    f"\nOf {len(off)} spoilt cells {flagged['put there'].sum()} are flagged. What they should have been is told to "
    f"{rms(off):.0f} cars\n(root mean square; they were wrong by {rms(before):.0f})."
)

# Second question: which days are not what calendar and weather say? Then nothing may be free to adapt to the day.
calendar = irpca.InductiveRobustPCA(extra_rank=0).fit(M, row_features=known, col_features=F2)
odd = calendar.outlier_rows()
low = calendar.outliers().query("difference < 0").groupby("row").size()
print(f"\nOdd days, by calendar and weather alone ({odd.broken.sum()} stand out of how much days differ anyway):\n")
print(f"{'day':>16}{'flagged':>10}{'hours':>7}{'too few cars':>14}  what the data know of it")
for day in odd[:12].itertuples():
    print(f"  {day.row:%Y-%m-%d %a}{day.flagged:10}{day.observed:7}{low.get(day.row, 0):14} ", about(day.row))

counted, told = everything.loc[LAST], calendar.predict(row_features=F1.loc[[LAST]]).loc[LAST]
print(f"\n{LAST:%A, %Y-%m-%d}, which was not in the table, from its features alone:\n")
both = pd.DataFrame({"expected": told.round().astype(int), "counted": counted.astype(int)})
print(both[::3].T.to_string())
print(f"\nover its 24 hours they differ by {rms(told - counted):.0f} cars (root mean square)")
