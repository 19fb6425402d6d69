"""The table and its parts as images: observed, expected, outliers, and what is left."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import text
from ..lowrank import Array
from .drawing import axes_of, below_and_above, from_low_to_high, label_ticks, title
from .fitted import Fitted

PIXELS = 400  # of an image, to either side, at most: about as many as a picture in print has
RANGE = (0.01, 0.99)  # quantiles of L between which the scale runs: one odd line shall not pale all others
PARTS = {
    "observed": "Observed values",
    "expected": "Expected values (the low-rank part)",
    "outliers": "Outliers: observed less expected",
    "residual": "Residuals: observed less expected, without outliers",
}


def decomposition(model: Any, part: str = "expected", ax: Any = None, *, M: Any = None) -> Any:
    """Draw one part of the table as an image: ``observed = expected + outliers + residual``.

    Parameters
    ----------
    part : {"expected", "observed", "outliers", "residual"}
        "observed" and "expected" are drawn to the same scale, that of the expected values.
    model, M, ax : as in :func:`cell_map`
        "expected" needs no M.

    Returns
    -------
    matplotlib Axes
        Grey: no value, or nothing known. In a table of more than 400 rows or columns a pixel is the first of a block of
        cells, of "outliers" the largest; the title says so.

    Examples
    --------
    >>> import irpca
    >>> from irpca import plots
    >>> from matplotlib.figure import Figure
    >>> problem = irpca.datasets.make_problem(900, 50, d1=6, d2=5, rank=2, corruption=0.02)
    >>> model = irpca.InductiveRobustPCA().fit(problem.M, row_features=problem.F1, col_features=problem.F2)
    >>> ax = plots.decomposition(model, "outliers", ax=Figure(figsize=(9, 4)).subplots())
    >>> print(ax.get_title(loc="left").splitlines()[-1])
    each pixel is the largest of a block of 3 × 1 cells
    """
    if text(part, "part") not in PARTS:
        raise ValueError(f"part must be one of {', '.join(map(repr, PARTS))}, got {part!r}")
    fitted = Fitted(model, M)
    n1, n2 = fitted.shape
    size = -(-n1 // PIXELS), -(-n2 // PIXELS)
    rows, cols = np.arange(0, n1, size[0]), np.arange(0, n2, size[1])
    expected = fitted.expected_at(rows[:, None], cols)
    image = expected if part == "expected" else _image(fitted, part, expected, rows, cols)
    if part in ("observed", "expected"):
        (low, high), colours, what = _scale(expected), from_low_to_high(), "value"
    else:
        sizes = np.abs(image[np.nan_to_num(image) != 0])
        high = float(np.quantile(sizes, RANGE[1])) if sizes.size else 1.0
        low, colours, what = -high, below_and_above(), "observed less expected"
    ax = axes_of(ax)
    # The last blocks of the image may be cut short by the edge of the table.
    place = (-0.5, image.shape[1] * size[1] - 0.5, image.shape[0] * size[0] - 0.5, -0.5)
    drawn = ax.imshow(image, cmap=colours, vmin=low, vmax=high, aspect="auto", interpolation="nearest", extent=place)
    ax.set(xlim=(-0.5, n2 - 0.5), ylim=(n1 - 0.5, -0.5), ylabel=fitted.names[0], xlabel=fitted.names[1])
    for axis in (0, 1):
        label_ticks(ax, "yx"[axis], np.arange(fitted.shape[axis]), fitted.texts[axis])
    ax.figure.colorbar(drawn, ax=ax, extend=_beyond(image, low, high)).set_label(what)
    each = f"each pixel is the {'largest' if part == 'outliers' else 'first'} of a block of {size[0]} × {size[1]} cells"
    title(ax, PARTS[part], "" if size == (1, 1) else each)
    return ax


def _image(fitted: Fitted, part: str, expected: Array, rows: Array, cols: Array) -> Array:
    """One part of M at the first rows and columns of blocks of cells; of the outliers the largest in each block."""
    S, observed = fitted.outliers, fitted.engine.block(rows, cols).astype(float)
    if part == "observed":
        return observed
    if part == "residual":
        return np.where(S[rows][:, cols].toarray() != 0, np.nan, observed - expected)
    found, largest = S.tocoo(), np.zeros(observed.shape)
    order = np.argsort(np.abs(found.data), kind="stable")
    at = np.searchsorted(rows, found.row[order], "right") - 1, np.searchsorted(cols, found.col[order], "right") - 1
    largest[at] = found.data[order]  # the last one stays
    return np.where(np.isnan(observed) & (largest == 0), np.nan, largest)


def _scale(expected: Array) -> tuple[float, float]:
    """Between which values colours run."""
    known = expected[np.isfinite(expected)]
    low, high = map(float, np.quantile(known, RANGE)) if known.size else (0.0, 0.0)
    return (low, high) if low < high else (low - 1.0, high + 1.0)


def _beyond(image: Array, low: float, high: float) -> str:
    """On which side of the colour bar values lie beyond it."""
    rounding = 1e-9 * (high - low)
    below = np.nanmin(image, initial=low) < low - rounding
    above = np.nanmax(image, initial=high) > high + rounding
    return "both" if below and above else "min" if below else "max" if above else "neither"
