"""Find wars, famines and earthquakes in a bare table of life expectancy, knowing nothing but the calendar.

Run it as ``python examples/life_expectancy.py [picture.png]``; the picture goes to the current folder by default.
"""

import sys
from textwrap import fill

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

import irpca

data = irpca.datasets.load_life_expectancy()
M = data.frame()  # 202 countries × 50 years, labelled
model = irpca.InductiveRobustPCA(extra_rank=0)  # the calendar and nothing else: no free part beside it
model.fit(M, col_features=data.col_features(3))  # cubic in the year

expected = model.predict()
flagged = model.outliers().rename(columns={"row": "country", "column": "year"})

# One line per country: its worst year, and how many of its years are flagged.
worst = flagged.loc[flagged.groupby("country").difference.idxmin()].set_index("country").sort_values("difference")
worst["years"] = flagged.groupby("country").size()
# How far the curve of a country misses the years that are not flagged: the noise of that country, for the model.
left = (M - expected).mask(flagged.pivot(index="country", columns="year", values="difference").reindex_like(M).notna())
misses = (left**2).mean(axis=1).pow(0.5).sort_values(ascending=False)


def sure(probability):
    return f"{probability:.1%}" if probability < 0.9995 else "> 99.9%"


print(f"{len(flagged)} of {M.size} entries are flagged, in {len(worst)} of {len(M)} countries. The deepest dips:\n")
header = f"{'country':16}{'worst year':>10}{'observed':>10}{'expected':>10}{'difference':>12}"
print(f"{header}{'probability':>13}{'years flagged':>15}")
for row in worst[:12].itertuples():
    values = f"{row.observed:10.1f}{row.expected:10.1f}{row.difference:12.1f}{sure(row.probability):>13}"
    print(f"{row.Index:16}{row.year:10}{values}{row.years:15}")

print(f"\n{model.summary()}\n\nwhat it cannot know:")
slow = misses[misses > 5 * misses.median()]
missed = ", ".join(f"{country} {miss:.1f}" for country, miss in slow.items())
caught = ", ".join(slow.index.intersection(worst.index)) or "none"
small = flagged.loc[flagged.difference.abs().idxmin()]
last = flagged[flagged.year.isin(data.years[[0, -1]])]
ends = " and ".join(f"{row.country} {row.year}" for row in last.itertuples()) or "none"
for doubt in (
    f"Whether a slow change is a catastrophe. A cubic misses half of the countries by {misses.median():.1f} years or "
    f"less, but some by far more: {missed}. Years that differ for long, such as the HIV years of southern Africa, are "
    f"taken for the noise of a country; of these {len(slow)}, the following have a flagged year: {caught}.",
    f"Whether a small difference is an error. A country that follows its curve closely is flagged for little: "
    f"{small.country} in {small.year}, {small.difference:+.1f} years, with a probability of {sure(small.probability)}. "
    "The probability says that an entry is not like the rest, not what happened.",
    f"What came before and after. The curve is held from one side only in {data.years[0]} and {data.years[-1]}; "
    f"flagged there: {ends}.",
):
    print(fill(doubt, 118, initial_indent="  - ", subsequent_indent="    "))

# The picture. Left: the five deepest dips, and the country that its curve misses most.
# Right: S, of the countries that are flagged.
RED, BLUE, GREY = "#d55e00", "#0072b2", "#444444"  # told apart by the colour-blind too (Okabe and Ito)
figure = Figure(figsize=(10, 5.6), dpi=200)
curves, right = figure.add_gridspec(
    1, 2, width_ratios=(2.3, 1), left=0.03, right=0.92, top=0.8, bottom=0.05, wspace=0.32
)
panels = curves.subgridspec(2, 3, hspace=0.22, wspace=0.06).subplots(sharex=True, sharey=True)
shown = [*worst.index[:5], misses.index.difference(worst.index, sort=False)[0]]
for axes, country in zip(panels.flat, shown, strict=True):
    entries = flagged[flagged.country == country]
    axes.plot(M.columns, expected.loc[country], color=BLUE, linewidth=2.6, label="expected: a cubic, fitted robustly")
    axes.plot(M.columns, M.loc[country], ".", color="black", markersize=2.5, label="observed, in years")
    axes.plot(entries.year, entries.observed, "o", color=RED, markersize=4, label="flagged")
    axes.vlines(entries.year, entries.observed, entries.expected, color=RED, alpha=0.4, linewidth=1)
    if country in worst.index:
        row = worst.loc[country]
        side, shift = ("right", -2) if row.year > 1985 else ("left", 2)
        loss = f"{row.year:.0f}\n−{-row.difference:.0f} years"
        axes.text(row.year + shift, max(row.observed - 8, 7), loss, color=RED, ha=side, va="center", fontsize=9.5)
    axes.set_title(country, loc="left", fontsize=11, fontweight="bold", pad=3)
    axes.set(xlim=(1962, 2015), ylim=(0, 82), xticks=(1970, 1990, 2010), yticks=(20, 40, 60, 80))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, labelcolor=GREY)
axes.text(1964, 8, "slow, not sparse:\ntaken for noise", color=GREY, va="center", fontsize=9.5)
figure.text(0.008, 0.935, "Life expectancy, and what the calendar does not explain", fontsize=15, fontweight="bold")
figure.legend(handles=axes.lines, loc="upper left", bbox_to_anchor=(-0.005, 0.925), ncols=3, frameon=False)

regions = dict(zip(data.countries, data.regions, strict=True))
order = sorted(worst.index, key=lambda country: (regions[country], worst.year[country]))
S = flagged.pivot(index="country", columns="year", values="difference").reindex(index=order, columns=M.columns)
axes = figure.add_subplot(right, xticks=(1970, 1990, 2010), yticks=())
colours = LinearSegmentedColormap.from_list("S", [RED, "white", BLUE])
place = {"aspect": "auto", "extent": (1963.5, 2013.5, len(order), 0)}
image = axes.imshow(S.fillna(0), cmap=colours, vmin=-10, vmax=10, **place)
for region in sorted({regions[country] for country in order}):
    rows = [k for k, country in enumerate(order) if regions[country] == region]
    name = region.replace(" & ", " &\n").replace("Saharan ", "Saharan\n")
    axes.axhline(rows[0], color=GREY, linewidth=0.5)
    axes.text(1962.5, sum(rows) / len(rows) + 0.5, name, color=GREY, ha="right", va="center", fontsize=9)
for k, country in enumerate(order):
    axes.text(2014.5, k + 0.5, country, va="center", fontsize=9)
axes.tick_params(labelsize=9, labelcolor=GREY)
axes.set_title(f"Flagged: {len(order)} of {len(M)} countries", loc="left", fontsize=11, fontweight="bold", y=1, pad=3)
bar = figure.colorbar(image, cax=axes.inset_axes((0, 1.115, 1, 0.025)), orientation="horizontal", ticks=(-10, 0, 10))
bar.ax.set_xticklabels(("−10", "0", "+10 years"), fontsize=9, color=GREY)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "life_expectancy.png")
