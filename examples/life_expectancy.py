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
model = irpca.InductiveRobustPCA().fit(M, col_features=data.col_features(3))  # cubic in the year, nothing else

expected = model.predict()
flagged = model.outliers().rename(columns={"row": "country", "column": "year"})

# One line per country: its worst year, and how many of its years are flagged.
differences = flagged.groupby("country").difference
worst = flagged.loc[differences.idxmin()].set_index("country").sort_values("difference")
worst["years"] = differences.size()
worst["highest"] = differences.max()
# More than half as far above its curve as below: the cubic is wrong for this country, whatever happened there.
misfit = worst.highest > -worst.difference / 2
dips, misfits = worst[~misfit], worst[misfit]

print(f"{len(flagged)} of {M.size} entries are flagged, in {len(worst)} of {len(M)} countries. The deepest dips:\n")
print(f"{'country':24}{'worst year':>10}{'observed':>10}{'expected':>10}{'difference':>12}{'years flagged':>15}")
for row in dips.head(12).itertuples():
    values = f"{row.observed:10.1f}{row.expected:10.1f}{row.difference:12.1f}"
    print(f"{row.Index:24}{row.year:10}{values}{row.years:15}")

print(f"\n{model.summary()}\n\nwhat it cannot know:")
long = worst[worst.years >= 15].sort_values("years", ascending=False, kind="stable")
also = long.index.intersection(dips.index[:12])
epidemic = long.index.intersection(["Botswana", "Lesotho", "Namibia", "South Africa", "Swaziland", "Zimbabwe"])
bent = misfits.iloc[0]
for doubt in (
    f"Whether an error is sparse. {len(long)} countries are flagged in 15 years or more and hold "
    f"{long.years.sum() / len(flagged):.0%} of all flagged entries: "
    + ", ".join(f"{row.Index} {row.years}" for row in long.itertuples())
    + f". Among them are {', '.join(also)} of the table above.",
    f"Whether the curve is right. {len(misfits)} countries, left out of the table, lie more than half as far above it in some "
    f"years as below it in others, {bent.name} most ({bent.difference:+.1f} and {bent.highest:+.1f}): slow changes "
    "that no cubic follows.",
    f"What happened. The HIV years of southern Africa are among these slow changes ({', '.join(epidemic)}): "
    "a catastrophe, but no sparse error.",
):
    print(fill(doubt, 118, initial_indent="  - ", subsequent_indent="    "))

# The picture. Left: the five deepest dips and the worst misfit. Right: S of every country that is flagged.
RED, BLUE, GREY = "#d55e00", "#0072b2", "#444444"  # told apart by the colour-blind too (Okabe and Ito)
figure = Figure(figsize=(10, 5.6), dpi=200)
left, right = figure.add_gridspec(1, 2, width_ratios=(2.2, 1), left=0.03, right=0.99, top=0.8, bottom=0.05, wspace=0.3)
panels = left.subgridspec(2, 3, hspace=0.22, wspace=0.06).subplots(sharex=True, sharey=True)
for axes, row in zip(panels.flat, [*dips[:5].itertuples(), *misfits[:1].itertuples()], strict=True):
    entries = flagged[flagged.country == row.Index]
    axes.plot(M.columns, M.loc[row.Index], ".", color=GREY, markersize=3.5, label="observed")
    axes.plot(M.columns, expected.loc[row.Index], color=BLUE, linewidth=1.8, label="expected: a cubic in the year")
    axes.plot(entries.year, entries.observed, "o", color=RED, markersize=4, label="flagged")
    axes.vlines(entries.year, entries.observed, entries.expected, color=RED, alpha=0.4, linewidth=1)
    side, shift = ("right", -1.5) if row.year > 1985 else ("left", 1.5)
    loss = f"{row.year}: {row.difference:.0f} years".replace("-", "−")
    axes.text(row.year + shift, max(row.observed - 6, 5), loss, color=RED, ha=side, va="center", fontsize=9.5)
    axes.set_title(row.Index, loc="left", fontsize=11, fontweight="bold", pad=3)
    axes.set(xlim=(1962, 2015), ylim=(0, 82), xticks=(1970, 1990, 2010), yticks=(20, 40, 60, 80))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, length=3, color=GREY, labelcolor=GREY)
figure.text(0.008, 0.935, "Life expectancy, and what the calendar does not explain of it", fontsize=15, fontweight="bold")
figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(0, 0.925), ncols=3, frameon=False, fontsize=10)

region = dict(zip(data.countries, data.regions, strict=True))
order = sorted(worst.index, key=lambda country: (region[country], worst.year[country]))
S = flagged.pivot(index="country", columns="year", values="difference").reindex(index=order, columns=M.columns).fillna(0)
axes = figure.add_subplot(right)
colours = LinearSegmentedColormap.from_list("S", [RED, "white", BLUE])
image = axes.imshow(S, cmap=colours, vmin=-10, vmax=10, aspect="auto", extent=(1963.5, 2013.5, len(order), 0))
places = {name: [k for k, country in enumerate(order) if region[country] == name] for name in sorted(set(data.regions))}
axes.hlines([rows[0] for rows in places.values()][1:], 1963.5, 2013.5, color=GREY, linewidth=0.5)
labels = [name.replace(" & ", " &\n").replace("Saharan ", "Saharan\n") for name in places]
axes.set_yticks([sum(rows) / len(rows) + 0.5 for rows in places.values()], labels)
axes.set_xticks((1970, 1990, 2010))
axes.tick_params(labelsize=9, length=0, labelcolor=GREY)
axes.spines[:].set(color=GREY, linewidth=0.5)
axes.set_title(f"S: {len(order)} countries, {len(flagged)} entries", loc="left", fontsize=11, fontweight="bold", pad=3)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "life_expectancy.png")
