"""What all pictures share: colours, Axes, titles that fit, and tick labels that do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np

from ..lowrank import Array

# Told apart by the colour-blind, too (Okabe and Ito), and in grey print: the dots and lines differ in shape as well.
BLUE, ORANGE, BLACK, GREY, LIGHT = "#0072b2", "#d55e00", "#000000", "#595959", "#d9d9d9"
HOLE = "#b8b8b8"  # a cell without a value
TICK_SIZE = 8.0  # points
TITLE_SIZE = 10.0  # points
CHARACTER = 0.6  # of the size of a font: how wide a character is, about
LONGEST = 28  # characters of a tick label; the end of longer ones is cut


def axes_of(ax: Any, height: float = 4.8) -> Any:
    """``ax``, or the current Axes of pyplot; if no figure is open, of a new one, so many inches high."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError('irpca.plots needs matplotlib: pip install "irpca[plot]"') from error
    return plt.gca() if plt.get_fignums() else plt.figure(figsize=(6.4, height), layout="constrained").gca()


def below_and_above() -> Any:
    """A colour map from blue (below what is expected) by white to orange (above); grey where there is no value."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("below_and_above", [BLUE, "white", ORANGE]).with_extremes(bad=HOLE)


def from_low_to_high() -> Any:
    """A colour map for values: dark is low; grey where there is none."""
    import matplotlib

    return matplotlib.colormaps["cividis"].with_extremes(bad=HOLE)


def title(ax: Any, *lines: str) -> None:
    """A title of one or more lines, each wrapped to the width of the Axes."""
    width = max(24, int(_points(ax)[0] / (0.55 * TITLE_SIZE)))
    ax.set_title("\n".join(fill(line, width) for line in lines if line), loc="left", fontsize=TITLE_SIZE)


def sentence(ax: Any, heading: str, text: str) -> Any:
    """In place of a picture that there is not: a sentence that says why."""
    title(ax, heading)
    ax.set_axis_off()
    width = max(24, int(_points(ax)[0] / (0.6 * TITLE_SIZE)))
    ax.text(0.5, 0.5, fill(text, width), ha="center", va="center", transform=ax.transAxes, fontsize=TITLE_SIZE)
    return ax


def legend(ax: Any, **place: Any) -> None:
    """A legend on white, so that it can be read on top of what is drawn."""
    ax.legend(fontsize=8, frameon=True, facecolor="white", edgecolor="none", framealpha=0.85, **place)


def plain_frame(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=TICK_SIZE)


def label_ticks(ax: Any, which: str, positions: Array, texts: Sequence[str]) -> None:
    """Put labels on evenly spaced positions of the "x" or "y" axis, as many as there is room for."""
    shown = [text if len(text) <= LONGEST else text[: LONGEST - 1] + "…" for text in texts]
    upright = which == "x" and not _fit(ax, shown)
    room = TICK_SIZE * 1.2
    if which == "x" and not upright:
        room = TICK_SIZE * (CHARACTER * max(map(len, shown), default=1) + 1.5)
    every = max(1, int(np.ceil(len(shown) * room / _points(ax)[which == "y"])))
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_ticks(positions[::every], shown[::every], fontsize=TICK_SIZE, rotation=90 if upright else 0)


def _fit(ax: Any, texts: Sequence[str]) -> bool:
    """Whether labels can stand side by side: all of them, or, of numbers and dates, those that are left by thinning."""
    if all(text[:1].isdigit() or text[:1] in "-−+" for text in texts) and max(map(len, texts), default=0) <= 10:
        return True
    return sum(CHARACTER * len(text) + 1.5 for text in texts) * TICK_SIZE <= _points(ax)[0]


def _points(ax: Any) -> tuple[float, float]:
    """Width and height of the Axes in points, of which an inch has 72."""
    return ax.bbox.width / ax.figure.dpi * 72, ax.bbox.height / ax.figure.dpi * 72
