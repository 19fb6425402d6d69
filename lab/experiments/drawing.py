"""Curves with their failures above them, from records alone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .harness import WRONG
from .methods import EVERYONE, Method
from .plan import Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

ROW = 0.15  # inches of a method's line in the strip of failures
NOTE = (
    "lines: median of the seeds, failures counted as endless; bands: range of those that succeeded.   "
    "× failed (how many seeds, if not all)   · none failed   – not run, having failed before   "
    f"○ the criterion was met by a wrong L, ‖L − L*‖ > {WRONG:g} ‖L*‖"
)


@dataclass(frozen=True)
class Column:
    """One x axis: a strip of failures, and below it one panel per value.

    Attributes
    ----------
    criterion : whose failures the strip shows; None for no strip
    values : column of the CSV and label of each panel; nothing for the seconds to the criterion
    """

    records: Records
    x: str
    xlabel: str
    title: str
    criterion: str | None = None
    values: tuple[tuple[str, str], ...] = ()

    @property
    def panels(self) -> tuple[tuple[str, str], ...]:
        return self.values or ((f"seconds_{self.criterion}", "seconds"),)

    @property
    def levels(self) -> list[float]:
        return sorted({record[self.x] for record in self.records})

    def at(self, method: Method, x: float) -> list[dict[str, Any]]:
        return [record for record in self.records if record["method"] == method.name and record[self.x] == x]


def block(figure: Figure | SubFigure, columns: Sequence[Column]) -> None:
    """Columns side by side; the names of the methods stand beside the first strip."""
    methods = present([record for column in columns for record in column.records])
    panels = max(len(column.panels) for column in columns)
    heights = [max(ROW * len(methods), 0.4), *[2.6] * panels]
    axes = figure.subplots(panels + 1, len(columns), squeeze=False, height_ratios=heights)
    timed = [axes[1, k] for k, column in enumerate(columns) if column.panels[0][0].startswith("seconds_")]
    for other in timed[1:]:
        other.sharey(timed[0])
    for number, column in enumerate(columns):
        strip, *below = axes[:, number]
        strip.set_title(column.title, fontsize=9)
        if column.criterion is None:
            strip.set_axis_off()
        else:
            _strip(strip, column, methods, named=number == 0)
        for panel, (value, label) in zip(below, column.panels, strict=True):
            _curves(panel, column, methods, value)
            panel.set_ylabel(label, fontsize=8)
        below[-1].set_xlabel(column.xlabel, fontsize=8)


def save(figure: Figure, path: Path) -> None:
    """As a PNG of few colours: it is kept in the repository."""
    from PIL import Image  # matplotlib brings it

    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    # Octree, since median cut gives up colours that cover few pixels.
    few = Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def new_figure(width: float, height: float, title: str, records: Records, note: str = NOTE) -> Figure:
    """A figure that says what it shows and where that was measured."""
    from matplotlib.figure import Figure  # drawing alone needs it: a machine that measures may do without

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(f"{title}\n{origin(records)}", fontsize=10)
    figure.supxlabel(note, fontsize=7, color="0.3")
    return figure


def origin(records: Records) -> str:
    """Seeds, machine and commit, as the rows have them."""
    seeds = len({record["seed"] for record in records})
    cpu, cores, commit, numpy = ("/".join(_values(records, name)) for name in ("cpu", "cores", "commit", "numpy"))
    return f"{seeds} seed{'s'[: seeds > 1]} · {cpu}, {cores} cores a run · irpca at {commit}, numpy {numpy}"


def setting(records: Records, but: Sequence[str] = ()) -> str:
    """What all rows have in common, less what was said elsewhere."""
    names = {"n1": "n", "d1": "d", "rank": "r", "corruption": "z/n", "condition": "κ(F)"}
    if _values(records, "n1") != _values(records, "n2"):
        names = {"n1": "n1", "n2": "n2", "d1": "d1", "d2": "d2", "rank": "r", "corruption": "z/n"}
    literal = "literal" in _values(records, "features")
    if literal:
        names.pop("condition", None)  # is of Σ_F only, not of F
    values = {symbol: _values(records, name) for name, symbol in names.items() if name not in but}
    told = [f"{symbol} = {value[0]}" for symbol, value in values.items() if len(value) == 1]
    return ", ".join([*told, "features as printed"] if literal else told)


def hub(records: Records, names: Sequence[str]) -> dict[str, float]:
    """Where sweeps cross: of every size the value that the most cases have."""
    cases = {tuple(record[name] for name in names) for record in records}
    columns = zip(names, zip(*cases, strict=True), strict=True)
    return {name: max(sorted(set(values)), key=values.count) for name, values in columns}


def present(records: Records) -> list[Method]:
    """The methods that have rows, in the order of the table."""
    names = {record["method"] for record in records}
    return [method for method in EVERYONE.values() if method.name in names]


def _values(records: Records, name: str) -> list[str]:
    values = sorted({record[name] for record in records})
    return [f"{value:g}" if isinstance(value, float) else value for value in values]


def _curves(axes: Axes, column: Column, methods: Sequence[Method], value: str) -> None:
    for method in methods:
        runs = {x: found for x in column.levels if (found := column.at(method, x))}
        points = [_summary([record[value] for record in found]) for found in runs.values()]
        low, middle, high = np.array(points).reshape(-1, 3).T
        style = {"color": method.color, "marker": method.marker, "linestyle": method.line}
        axes.plot(list(runs), middle, markersize=5, linewidth=1.4, gid=method.name, **style)
        axes.fill_between(list(runs), low, high, color=method.color, alpha=0.15, linewidth=0)
        if value == "seconds_residual":
            mostly = np.array([2 * wrong(found) > len(found) for found in runs.values()], dtype=bool)
            ring = np.where(mostly, middle, np.nan)
            axes.plot(list(runs), ring, "o", markersize=10, markerfacecolor="none", markeredgecolor=method.color)
    _scales(axes, column)
    axes.set_yscale("log")
    axes.tick_params(which="both", labelsize=7)
    axes.grid(alpha=0.25, linewidth=0.5)


def _summary(values: list[float]) -> tuple[float, float, float]:
    """Lowest, median and highest, a failure (NaN) being endless; NaN if the median is."""
    ordered = np.nan_to_num(values, nan=np.inf)
    middle = float(np.median(ordered))
    if not np.isfinite(middle):
        return np.nan, np.nan, np.nan
    return float(ordered.min()), middle, float(ordered[np.isfinite(ordered)].max())


def _strip(axes: Axes, column: Column, methods: Sequence[Method], named: bool) -> None:
    """One line per method: who failed where."""
    for y, method in enumerate(methods):
        for x in column.levels:
            mark, color, kind = _mark(column.at(method, x), column.criterion)
            color = color or method.color
            axes.text(x, y, mark, color=color, gid=kind, ha="center", va="center_baseline", fontsize=8)
        beside = {"clip_on": False, "transform": axes.get_yaxis_transform()}
        axes.plot(-0.02, y, color=method.color, marker=method.marker, markersize=4, **beside)
    axes.set_ylim(len(methods) - 0.4, -0.6)
    axes.set_yticks(range(len(methods)), [method.label if named else "" for method in methods], fontsize=7)
    for label, method in zip(axes.get_yticklabels(), methods, strict=True):
        label.set_color(method.color)
    _scales(axes, column)
    axes.set_xticklabels([])
    axes.tick_params(length=0, pad=11)
    axes.spines[:].set_visible(False)


def _mark(runs: Records, criterion: str | None) -> tuple[str, str | None, str]:
    """A sign for some runs of a method, its colour if it is not the method's, and its meaning."""
    if not runs:
        return "–", "0.5", "not run"
    failed = sum(np.isnan(record[f"seconds_{criterion}"]) for record in runs)
    if failed:
        return f"×{_part(failed, runs)}", None, "failed"
    if criterion == "residual" and (count := wrong(runs)):
        return f"○{_part(count, runs)}", None, "wrong"
    return "·", "0.5", "succeeded"


def _part(count: int, runs: Records) -> str:
    return f"{count}" if count < len(runs) else ""


def wrong(runs: Records) -> int:
    """How many met the paper's criterion with an L that is wrong."""
    return sum(record["error_residual"] > WRONG for record in runs)


def _scales(axes: Axes, column: Column) -> None:
    levels = column.levels
    room = (levels[-1] / levels[0]) ** 0.06 if len(levels) > 1 else 1.5
    axes.set_xscale("log")
    axes.set_xlim(levels[0] / room, levels[-1] * room)
    axes.set_xticks(levels, [f"{level:g}" for level in levels], fontsize=7)
    axes.set_xticks([], minor=True)
