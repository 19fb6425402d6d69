"""The table and its parts as images: observed, expected, outliers, and what is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arguments import text
from ..lowrank import Array
from .drawing import axes_of, below_and_above, from_low_to_high, label_ticks, title
from .fitted import Fitted

PIXELS = 400  # of an image, to either side, at most: about as many as a picture in print has
LOOK = 50_000  # entries of L that the scale is taken from
RANGE = (0.01, 0.99)  # quantiles of L between which the scale runs: one odd line shall not pale all others
BAND = 1 << 22  # entries of M that are read together
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
        Grey: no value, or nothing known. In a table of more than 400 rows or columns a pixel is the mean of a block of
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
    image = _image(fitted, part, size)
    if part in ("observed", "expected"):
        (low, high), colours, what = _scale(fitted), from_low_to_high(), "value"
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
    each = f"each pixel is the {'largest' if part == 'outliers' else 'mean'} of a block of {size[0]} × {size[1]} cells"
    title(ax, PARTS[part], "" if size == (1, 1) else each)
    return ax


def _image(fitted: Fitted, part: str, size: tuple[int, int]) -> Array:
    if part == "expected":
        return _expected(fitted, size)
    S, engine, columns = fitted.outliers, fitted.engine, np.arange(fitted.shape[1])

    def values_of(rows: Array) -> Array:
        values = engine.block(rows, columns).astype(float)
        if part == "residual":
            values -= fitted.expected_at(rows[:, None], columns)
            values[S[rows].toarray() != 0] = np.nan
        return values

    means = _in_bands(values_of, fitted.shape, size)
    return np.where(np.isnan(means), np.nan, _largest(S, size, means.shape)) if part == "outliers" else means


def _in_bands(values_of: Callable[[Array], Array], shape: tuple[int, int], size: tuple[int, int]) -> Array:
    """Means over blocks of a table, of which some rows are asked for at a time."""
    n1, n2 = shape
    step = max(1, BAND // n2 // size[0]) * size[0]
    bands = (np.arange(first, min(first + step, n1)) for first in range(0, n1, step))
    return np.vstack([_means(values_of(rows), size) for rows in bands])


def _means(values: Array, size: tuple[int, int]) -> Array:
    """Means of blocks, of what is not NaN; NaN of nothing."""
    seen = ~np.isnan(values)
    starts = [np.arange(0, n, step) for n, step in zip(values.shape, size, strict=True)]
    total, count = (
        np.add.reduceat(np.add.reduceat(part, starts[0]), starts[1], axis=1)
        for part in (np.where(seen, values, 0.0), seen.astype(float))
    )
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _expected(fitted: Fitted, size: tuple[int, int]) -> Array:
    """Means of L over blocks, from means of its factors; a column of zeros beside them says where nothing is known."""
    if fitted.result.maps is not None:  # the mean of what is mapped is not that of the factors
        columns = np.arange(fitted.shape[1])
        return _in_bands(lambda rows: fitted.expected_at(rows[:, None], columns), fitted.shape, size)
    means = [
        _means(np.where(known[:, None], np.column_stack([factor, np.zeros(len(factor))]), np.nan), (step, 1))
        for factor, known, step in zip(fitted.result.L.thin(), fitted.known, size, strict=True)
    ]
    return means[0] @ means[1].T + np.add.outer(means[0][:, -1], means[1][:, -1])


def _largest(S: Any, size: tuple[int, int], shape: tuple[int, int]) -> Array:
    """Of every block the outlier that is largest in size, with its sign; 0 where there is none."""
    found = S.tocoo()
    order = np.argsort(np.abs(found.data), kind="stable")
    image = np.zeros(shape)
    image[found.row[order] // size[0], found.col[order] // size[1]] = found.data[order]  # the last one stays
    return image


def _scale(fitted: Fitted) -> tuple[float, float]:
    """Between which values colours run."""
    n1, n2 = fitted.shape
    rng = np.random.default_rng(fitted.seed)
    at = np.arange(n1 * n2) if n1 * n2 <= LOOK else rng.integers(n1 * n2, size=LOOK)
    L = fitted.expected_at(*np.divmod(at, n2))
    L = L[np.isfinite(L)]
    low, high = np.quantile(L, RANGE) if L.size else (0.0, 0.0)
    return (float(low), float(high)) if low < high else (float(low) - 1.0, float(high) + 1.0)


def _beyond(image: Array, low: float, high: float) -> str:
    """On which side of the colour bar values lie beyond it."""
    rounding = 1e-9 * (high - low)
    below = np.nanmin(image, initial=low) < low - rounding
    above = np.nanmax(image, initial=high) > high + rounding
    return "both" if below and above else "min" if below else "max" if above else "neither"
