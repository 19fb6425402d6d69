"""From a CSV file to a repaired table: what is wrong in the weather of New York, early in 2013.

Run it as ``python examples/weather.py [folder]``; what it writes goes to ``demo`` in the current folder by default.
"""

import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import irpca

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
folder.mkdir(parents=True, exist_ok=True)
file = irpca.datasets.load_weather().to_csv(folder / "weather.csv")  # it comes with the package

table = pd.read_csv(file, index_col="time", parse_dates=True)  # 2,157 hours × 15 measurements, with gaps
model = irpca.InductiveRobustPCA().fit(table)  # nothing to choose
outliers = model.outliers()
repaired, marks = model.repaired(return_marks=True)

print(model.summary())
print("\nThe first of the outliers, the most certain first:\n")
print(outliers.head(12).to_string(index=False, float_format="{:.4g}".format))

figure = Figure(figsize=(12, 5), layout="constrained")
left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
irpca.plots.cell_map(model, most=20, ax=left)
irpca.plots.line(model, column="EWR dew point", ax=right)
right.set(xlim=(pd.Timestamp("2013-03-27"), pd.Timestamp("2013-04-01")), ylim=(5, 50), ylabel="°F")
right.set_title("Dew point at Newark: a sensor that failed twice", loc="left")

repaired.to_csv(folder / "weather_repaired.csv")
outliers.to_csv(folder / "weather_outliers.csv", index=False)
figure.savefig(folder / "weather.png", dpi=130)
model.save(folder / "weather.irpca")
report = irpca.report.write(model, folder / "weather.html", title="The weather of New York", overwrite=True)

replaced = (marks == "outlier").to_numpy().sum(), (marks == "missing").to_numpy().sum()
print(f"\n{replaced[0]} outliers and {replaced[1]} empty cells were replaced in {folder / 'weather_repaired.csv'};")
print(f"the picture is {folder / 'weather.png'}, the model {folder / 'weather.irpca'}.")
print(f"\nThe report, to open in a browser: {report.resolve()}")
