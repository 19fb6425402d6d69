"""The table and its parts as images: observed, expected, outliers, and what is left."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import text
from ..lowrank import Array
from .drawing import axes_of, below_and_above, from_low_to_high, label_ticks, title
from .fitted import engine_of, expected_at, known_of, name_of, outliers_of, result_of, seed_of, texts_of

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
    model : InductiveRobustPCA
        After ``fit``.
    part : {"expected", "observed", "outliers", "residual"}
        "observed" and "expected" are drawn to the same scale, that of the expected values.
    M : table, or None
        The table that was fitted; needed for a model that was loaded from a file, but for "expected".
    ax : matplotlib Axes, or None
        None: the current Axes.

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
    n1, n2 = result_of(model).L.shape
    size = -(-n1 // PIXELS), -(-n2 // PIXELS)
    image = _image(model, part, size, M)
    if part in ("observed", "expected"):
        (low, high), colours, what = _scale(model), from_low_to_high(), "value"
    else:
        high = _extent(image, RANGE[1])
        low, colours, what = -high, below_and_above(), "observed less expected"
    ax = axes_of(ax)
    place = (-0.5, n2 - 0.5, n1 - 0.5, -0.5)
    drawn = ax.imshow(
        image,
        cmap=colours,
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
        extent=_extended(place, size, image),
    )
    ax.set(xlim=place[:2], ylim=place[2:])
    for which, axis in (("y", 0), ("x", 1)):
        label_ticks(ax, which, np.arange((n1, n2)[axis]), texts_of(model, axis))
    ax.set(ylabel=name_of(model, 0), xlabel=name_of(model, 1))
    ax.figure.colorbar(drawn, ax=ax, extend=_beyond(image, low, high)).set_label(what)
    title(ax, PARTS[part], _blocks(part, size))
    return ax


def _image(model: Any, part: str, size: tuple[int, int], M: Any) -> Array:
    if part == "expected":
        return _expected(model, size)
    engine = engine_of(model, M)
    shape = engine.shape
    S = outliers_of(model)
    step = max(1, BAND // shape[1] // size[0]) * size[0]
    bands = []
    for first in range(0, shape[0], step):
        rows = np.arange(first, min(first + step, shape[0]))
        values = engine.block(rows, np.arange(shape[1])).astype(float)
        if part == "residual":
            outliers = S[rows].toarray()
            L = expected_at(model, rows[:, None], np.arange(shape[1])[None])
            values = np.where(outliers != 0, np.nan, values - L)
        bands.append(_means(values, size))
    means = np.vstack(bands)
    return np.where(np.isnan(means), np.nan, _largest(S, size, means.shape)) if part == "outliers" else means


def _starts(n: int, size: int) -> Array:
    return np.arange(0, n, size)


def _means(values: Array, size: tuple[int, int]) -> Array:
    """Means of blocks, of what is not NaN; NaN of nothing."""
    seen = ~np.isnan(values)
    total, count = (
        np.add.reduceat(np.add.reduceat(part, _starts(values.shape[0], size[0])), _starts(values.shape[1], size[1]), 1)
        for part in (np.where(seen, values, 0.0), seen.astype(float))
    )
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _expected(model: Any, size: tuple[int, int]) -> Array:
    """Means of L over blocks, from means of its factors."""
    means = [
        _means(np.where(known[:, None], factor, np.nan), (step, 1))
        for factor, known, step in zip(result_of(model).L.thin(), known_of(model), size, strict=True)
    ]
    lines = [
        _means(np.where(known, 0.0, np.nan)[:, None], (step, 1))
        for known, step in zip(known_of(model), size, strict=True)
    ]
    return means[0] @ means[1].T + lines[0] + lines[1].T  # where nothing is known: NaN, also of rank 0


def _largest(S: Any, size: tuple[int, int], shape: tuple[int, int]) -> Array:
    """Of every block the outlier that is largest in size, with its sign; 0 where there is none."""
    found = S.tocoo()
    order = np.argsort(np.abs(found.data), kind="stable")
    image = np.zeros(shape)
    image[found.row[order] // size[0], found.col[order] // size[1]] = found.data[order]  # the last one stays
    return image


def _scale(model: Any) -> tuple[float, float]:
    """Between which values colours run."""
    n1, n2 = result_of(model).L.shape
    rng = np.random.default_rng(seed_of(model))
    at = np.arange(n1 * n2) if n1 * n2 <= LOOK else rng.integers(n1 * n2, size=LOOK)
    L = expected_at(model, *np.divmod(at, n2))
    L = L[np.isfinite(L)]
    low, high = np.quantile(L, RANGE) if L.size else (0.0, 0.0)
    return (float(low), float(high)) if low < high else (float(low) - 1.0, float(high) + 1.0)


def _extent(image: Array, quantile: float) -> float:
    sizes = np.abs(image[np.nan_to_num(image) != 0])
    return float(np.quantile(sizes, quantile)) if sizes.size else 1.0


def _beyond(image: Array, low: float, high: float) -> str:
    """On which side of the colour bar values lie beyond it."""
    rounding = 1e-9 * (high - low)
    below = np.nanmin(image, initial=low) < low - rounding
    above = np.nanmax(image, initial=high) > high + rounding
    return "both" if below and above else "min" if below else "max" if above else "neither"


def _extended(place: tuple[float, float, float, float], size: tuple[int, int], image: Array) -> tuple[float, ...]:
    """Where the image lies: its last blocks may be cut short by the edge of the table."""
    return place[0], image.shape[1] * size[1] - 0.5, image.shape[0] * size[0] - 0.5, place[3]


def _blocks(part: str, size: tuple[int, int]) -> str:
    if size == (1, 1):
        return ""
    return f"each pixel is the {'largest' if part == 'outliers' else 'mean'} of a block of {size[0]} × {size[1]} cells"
