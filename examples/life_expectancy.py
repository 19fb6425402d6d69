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
differences = flagged.groupby("country").difference
worst = flagged.loc[differences.idxmin()].set_index("country").sort_values("difference")
worst["years"], worst["highest"] = differences.size(), differences.max()
# Far above its curve as well as below: then the cubic is wrong for this country, whatever happened there.
misfit = worst.highest > -worst.difference / 2
dips, misfits = worst[~misfit], worst[misfit]

print(f"{len(flagged)} of {M.size} entries are flagged, in {len(worst)} of {len(M)} countries. The deepest dips:\n")
print(f"{'country':24}{'worst year':>10}{'observed':>10}{'expected':>10}{'difference':>12}{'years flagged':>15}")
for row in dips[:12].itertuples():
    values = f"{row.observed:10.1f}{row.expected:10.1f}{row.difference:12.1f}"
    print(f"{row.Index:24}{row.year:10}{values}{row.years:15}")

print(f"\n{model.summary()}\n\nwhat it cannot know:")
long = worst[worst.years >= 15].sort_values("years", ascending=False, kind="stable")
counts = ", ".join(f"{row.Index} {row.years}" for row in long.itertuples())
southern = ["Botswana", "Lesotho", "Namibia", "South Africa", "Swaziland", "Zambia", "Zimbabwe"]
epidemic = ", ".join(long.index.intersection(southern))
others = " and ".join(long.index.intersection(dips.index[:12]).difference(southern))
bent = next(misfits.itertuples())
ends = worst.year[worst.difference < 0].isin(data.years[[0, -1]]).sum()
for doubt in (
    f"Whether a change is sudden or slow. {len(long)} countries are flagged in 15 years or more, with "
    f"{long.years.sum() / len(flagged):.0%} of all flagged entries: {counts}. The HIV years of southern Africa are "
    f"there ({epidemic}), a catastrophe but no sparse error; so are {others} of the table above.",
    f"Whether the curve is right. {len(misfits)} countries are not in the table because they rise above their curve "
    f"by more than half of what they fall below it, {bent.Index} for one: {bent.difference:+.1f} years in "
    f"{bent.year}, but up to {bent.highest:+.1f} in others.",
    f"What came before and after. {ends} countries have their worst year in {data.years[0]} or {data.years[-1]}, "
    "where the curve is held from one side only.",
):
    print(fill(doubt, 118, initial_indent="  - ", subsequent_indent="    "))

# The picture. Left: the five deepest dips and the deepest misfit. Right: S, of the countries that are flagged.
RED, BLUE, GREY = "#d55e00", "#0072b2", "#444444"  # told apart by the colour-blind too (Okabe and Ito)
figure = Figure(figsize=(10, 5.6), dpi=200)
left, right = figure.add_gridspec(1, 2, width_ratios=(2.3, 1), left=0.03, right=0.92, top=0.8, bottom=0.05, wspace=0.32)
panels = left.subgridspec(2, 3, hspace=0.22, wspace=0.06).subplots(sharex=True, sharey=True)
shown = [*dips[:5].itertuples(), bent]
for axes, row in zip(panels.flat, shown, strict=True):
    entries = flagged[flagged.country == row.Index]
    axes.plot(M.columns, expected.loc[row.Index], color=BLUE, linewidth=2.6, label="expected: a cubic, fitted robustly")
    axes.plot(M.columns, M.loc[row.Index], ".", color="black", markersize=2.5, label="observed, in years")
    axes.plot(entries.year, entries.observed, "o", color=RED, markersize=4, label="flagged")
    axes.vlines(entries.year, entries.observed, entries.expected, color=RED, alpha=0.4, linewidth=1)
    side, shift = ("right", -2) if row.year > 1985 else ("left", 2)
    loss = f"{row.year}\n−{-row.difference:.0f} years"
    axes.text(row.year + shift, max(row.observed - 8, 7), loss, color=RED, ha=side, va="center", fontsize=9.5)
    axes.set_title(row.Index, loc="left", fontsize=11, fontweight="bold", pad=3)
    axes.set(xlim=(1962, 2015), ylim=(0, 82), xticks=(1970, 1990, 2010), yticks=(20, 40, 60, 80))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, labelcolor=GREY)
axes.text(1964, 8, "slow, not sparse: here\nthe curve is wrong", color=GREY, va="center", fontsize=9.5)
figure.text(0.008, 0.935, "Life expectancy, and what the calendar does not explain", fontsize=15, fontweight="bold")
figure.legend(handles=axes.lines, loc="upper left", bbox_to_anchor=(-0.005, 0.925), ncols=3, frameon=False)

regions = dict(zip(data.countries, data.regions, strict=True))
order = sorted(worst.index, key=lambda country: (regions[country], worst.year[country]))
S = flagged.pivot(index="country", columns="year", values="difference").reindex(index=order, columns=M.columns)
axes = figure.add_subplot(right, xticks=(1970, 1990, 2010), yticks=())
colours = LinearSegmentedColormap.from_list("S", [RED, "white", BLUE])
place = {"aspect": "auto", "extent": (1963.5, 2013.5, len(order), 0)}
image = axes.imshow(S.fillna(0), cmap=colours, vmin=-10, vmax=10, **place)
for region in sorted(set(data.regions)):
    rows = [k for k, country in enumerate(order) if regions[country] == region]
    name = region.replace(" & ", " &\n").replace("Saharan ", "Saharan\n")
    axes.axhline(rows[0], color=GREY, linewidth=0.5)
    axes.text(1962.5, sum(rows) / len(rows) + 0.5, name, color=GREY, ha="right", va="center", fontsize=9)
for row in shown:
    axes.text(2014.5, order.index(row.Index) + 0.5, row.Index, va="center", fontsize=9)
axes.tick_params(labelsize=9, labelcolor=GREY)
axes.set_title(f"Flagged: {len(order)} of {len(M)} countries", loc="left", fontsize=11, fontweight="bold", y=1, pad=3)
bar = figure.colorbar(image, cax=axes.inset_axes((0, 1.115, 1, 0.025)), orientation="horizontal", ticks=(-10, 0, 10))
bar.ax.set_xticklabels(("−10", "0", "+10 years"), fontsize=9, color=GREY)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "life_expectancy.png")
