"""One row or column: what was observed against what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..labels import Labels
from ..lowrank import Array
from ..wording import count
from .drawing import BLACK, BLUE, ORANGE, axes_of, label_ticks, legend, plain_frame, title
from .fitted import Fitted

MANY = 400  # values: of more than that, dots and lines are drawn thinner
GAP = 20.0  # times the usual distance of labels: where they are further apart, the line is interrupted
IN_BAND = "95 % of clean measurements"
HEADROOM = 0.2  # of the height, left free for the legend


def line(model: Any, row: Any = None, column: Any = None, *, M: Any = None, ax: Any = None) -> Any:
    """Draw one row, or one column: observed values, what is expected, and which are outliers.

    Parameters
    ----------
    row, column : label, or a position where there are no labels
        Give one of them.
    model, M, ax : as in :func:`cell_map`

    Returns
    -------
    matplotlib Axes
        Numbers and dates are drawn to scale, other labels side by side. The band holds 95 % of clean measurements:
        expected ± 1.96 standard deviations, those of ``model.expected(return_std=True)``; where columns are mapped, of
        mapped values.

    Examples
    --------
    >>> import irpca
    >>> from irpca import plots
    >>> from matplotlib.figure import Figure
    >>> model = irpca.InductiveRobustPCA(extra_rank=0)
    >>> data = irpca.datasets.load_life_expectancy()
    >>> model = model.fit(data.frame(), col_features=data.col_features(3))
    >>> ax = plots.line(model, row="Rwanda", ax=Figure().subplots())
    >>> print(ax.get_title(loc="left"))
    Rwanda: ... of 50 values are outliers
    """
    if (row is None) == (column is None):
        raise ValueError(f"give either row or column, got row={row!r} and column={column!r}")
    fitted, axis = Fitted(model, M), int(row is None)
    along = 1 - axis
    engine, i = fitted.engine, fitted.position(row if axis == 0 else column, axis)
    x, ticks = coordinates(fitted.labels[along], fitted.shape[along])
    order = np.argsort(x, kind="stable")
    at = (np.full(len(order), i), order) if axis == 0 else (order, np.full(len(order), i))
    observed, expected, bounds = engine.entries(*at), fitted.expected_at(*at), fitted.bounds_at(*at)
    wrong = (fitted.outliers[[i]] if axis == 0 else fitted.outliers[:, [i]]).toarray().ravel()[order] != 0

    ax, x = axes_of(ax), x[order]
    _draw_expected(ax, x, expected, *bounds, joined=ticks is None)
    _draw_observed(ax, x, observed, expected, wrong)
    if ticks is not None:
        label_ticks(ax, "x", x, ticks)
    ax.set(xlabel=fitted.names[along], ylabel="value")
    plain_frame(ax)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + HEADROOM * (high - low))
    legend(ax, loc="upper left", ncols=2)
    name = fitted.texts[axis][i]
    if name.lstrip("-").replace(".", "").isdigit():  # a number says nothing without the name of its side
        name = f"{fitted.names[axis]} {name}"
    title(ax, _heading(name, observed, wrong))
    return ax


def _draw_expected(ax: Any, x: Array, expected: Array, lower: Array, upper: Array, joined: bool) -> None:
    """A curve with a band; of labels that have no order, marks and bars: a line that joins them would mean nothing."""
    if joined:
        x, expected, lower, upper = _with_gaps(x, expected, lower, upper)
        ax.fill_between(x, lower, upper, color=BLUE, alpha=0.25, linewidth=0, label=IN_BAND)
        ax.plot(x, expected, color=BLUE, linewidth=1.8 if len(x) <= MANY else 0.5, label="expected")
        return
    width = float(np.clip(0.8 * ax.bbox.width / ax.figure.dpi * 72 / len(x), 1.0, 16.0))
    ax.vlines(x, lower, upper, color=BLUE, alpha=0.25, linewidth=width, label=IN_BAND)
    ax.plot(x, expected, "_", color=BLUE, markersize=max(width, 3.0), markeredgewidth=1.8, label="expected")


def _draw_observed(ax: Any, x: Array, observed: Array, expected: Array, wrong: Array) -> None:
    size = 3.0 if len(x) <= MANY else 1.2
    ax.plot(x[~wrong], observed[~wrong], "o", color=BLACK, markersize=size, markeredgewidth=0, label="observed")
    if wrong.any():
        ax.vlines(x[wrong], observed[wrong], expected[wrong], color=ORANGE, alpha=0.6, linewidth=1)
        ax.plot(x[wrong], observed[wrong], "D", color=ORANGE, markersize=5, label="observed, an outlier")


def _with_gaps(x: Array, *values: Array) -> tuple[Array, ...]:
    """Places and values, with a NaN in the middle of every long gap between labels, such as months without a day."""
    apart = np.diff(x).astype(float)
    wide = np.flatnonzero(apart > GAP * np.median(apart)) if len(apart) else np.zeros(0, int)
    middle = x[wide] + (x[wide + 1] - x[wide]) // 2 if len(wide) else x[:0]
    return np.insert(x, wide + 1, middle), *(np.insert(each, wide + 1, np.nan) for each in values)


def coordinates(labels: Labels | None, n: int) -> tuple[Array, list[str] | None]:
    """Where to draw values: at numbers and dates as they are; else side by side, with texts for the ticks."""
    if labels is None:
        return np.arange(n), None
    if len(labels.levels) == 1:
        values = labels.levels[0]
        if values.dtype == object and labels.dtypes[0].startswith("datetime64"):  # with a time zone: as clocks show it
            values = np.array([moment.replace(tzinfo=None) for moment in values], "datetime64[us]")
        if values.dtype.kind in "iufM" and len(np.unique(values)) == n and not np.isnan(values.astype(float)).any():
            return values, None
    return np.arange(n), labels.texts()


def _heading(name: str, observed: Array, wrong: Array) -> str:
    missing = int(np.isnan(observed).sum())
    seen = len(observed) - missing
    holes = f", {missing:,} missing" if missing else ""
    if not wrong.any():
        return f"{name}: none of {count(seen, 'value')} is an outlier{holes}"
    verb = "is an outlier" if wrong.sum() == 1 else "are outliers"
    return f"{name}: {wrong.sum():,} of {count(seen, 'value')} {verb}{holes}"
