"""What L leaves: residuals against the noise model, and singular values of what was kept and what was left."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engines import Engine
from ..lowrank import Array, LowRank
from ..model.calibration import Calibration
from ..model.entry_scale import EntryScale
from ..result import Result
from ..wording import count
from .drawing import BLUE, GREY, LIGHT, ORANGE, axes_of, legend, plain_frame, title
from .fitted import Fitted

ENTRIES = 200_000  # residuals that are drawn
BINS = 81  # an odd number: one of them is about zero
BLOCK = 600  # squared: cells of which singular values are taken, at most; they take half a second
TICKS = 4  # to either side of zero, at most
LEFT = 15  # singular values of what is left that are shown


def residuals(model: Any, ax: Any = None, *, M: Any = None) -> Any:
    """Draw how residuals are distributed, what of it clean noise explains, and where outliers begin.

    Parameters
    ----------
    model : InductiveRobustPCA
        After ``fit``.
    M : table, or None
        The table that was fitted; needed for a model that was loaded from a file.
    ax : matplotlib Axes, or None
        None: the current Axes.

    Returns
    -------
    matplotlib Axes
        A histogram of the signed score (residual in units of its uncertainty) of all entries, or of 200,000 at random;
        both axes are logarithmic, the horizontal one but near zero. Of an exact fit, and of solvers without a model of
        the noise, a histogram of the residuals alone.

    Examples
    --------
    >>> import irpca
    >>> from irpca import plots
    >>> from matplotlib.figure import Figure
    >>> data = irpca.datasets.load_life_expectancy()
    >>> model = irpca.InductiveRobustPCA(2).fit(data.M[:50])
    >>> ax = plots.residuals(model, ax=Figure().subplots())
    >>> ax.get_ylabel()
    'number of cells'
    """
    fitted = Fitted(model, M)
    result, engine = fitted.result, fitted.engine
    rows, cols, values = engine.draw(ENTRIES, np.random.default_rng(fitted.seed))
    left = values - fitted.expected_at(rows, cols)
    known = np.isfinite(left)
    calibration = result.calibration
    if calibration is None or result.scale is None:
        return _plain_histogram(result, left[known], axes_of(ax))
    z, ax = (left / result.scale.unit_at(left, rows, cols))[known], axes_of(ax)
    edges = _bins(z, calibration.limit, _width(calibration))
    counts = np.histogram(z, edges)[0]
    _draw_counts(ax, counts, edges, calibration.limit, "more likely outliers")
    clean = _clean(calibration, edges) * len(z)
    ax.stairs(clean, edges, baseline=None, color=BLUE, linewidth=1.8, label="clean noise, as fitted")
    _scales_of_counts(ax, counts, edges, _width(calibration), "residual in units of its uncertainty")
    legend(ax, loc="upper right")
    title(ax, *_about(z, calibration.limit, engine))
    return ax


def _draw_counts(ax: Any, counts: Array, edges: Array, limit: float, beyond: str) -> None:
    """A histogram; what is beyond the limit, which is an edge of bins if there is one, in another colour."""
    ax.stairs(counts, edges, fill=True, color=LIGHT, label="all cells")
    ax.stairs(counts, edges, color=GREY, linewidth=0.8)
    if not 0 < limit < np.inf:
        return
    outside = (edges[:-1] >= limit) | (edges[1:] <= -limit)
    ax.stairs(np.where(outside, counts, 0), edges, fill=True, color=ORANGE, alpha=0.8, label=beyond)
    for side in (-limit, limit):
        ax.axvline(side, color=ORANGE, linestyle="--", linewidth=1.2)


def _scales_of_counts(ax: Any, counts: Array, edges: Array, width: float, what: str) -> None:
    ax.set_xscale("asinh", linear_width=width)
    ax.set_yscale("log")
    ax.set(ylim=(0.5, 2 * max(counts.max(initial=1), 1)), xlabel=what, ylabel="number of cells")
    _number_ticks(ax, edges, width)
    plain_frame(ax)


def _width(calibration: Calibration) -> float:
    return float(calibration.scale) or 1.0


def _bins(z: Array, limit: float, width: float) -> Array:
    """Edges of bins, evenly spaced near zero and then in ratios; the limit is one of them."""
    limit = limit if 0 < limit < np.inf else 4 * width
    largest = max(float(np.abs(z).max(initial=0.0)), 1.5 * limit) * 1.001
    end = np.arcsinh(limit / width)
    inner = np.linspace(0, end, max(8, int(np.ceil(BINS / 2 * end / np.arcsinh(largest / width)))))
    outer = np.arange(end, np.arcsinh(largest / width) + inner[1], inner[1])[1:]
    positive = width * np.sinh(np.r_[inner, outer])
    positive[len(inner) - 1] = limit
    return np.r_[-positive[:0:-1], positive]


def _clean(calibration: Calibration, edges: Array) -> Array:
    """The share of all cells that clean noise puts between the edges, half of it on either side of zero."""
    below = np.r_[0.0, np.cumsum(calibration.clean)[: len(calibration.edges)]] / calibration.counts.sum()
    share = np.interp(np.abs(edges), np.r_[0.0, calibration.edges], below)
    return np.abs(np.diff(np.sign(edges) * share)) / 2


def _number_ticks(ax: Any, edges: Array, width: float) -> None:
    """Round numbers on a scale that is linear near zero."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    nearest, end = width * np.sinh(0.15 * np.arcsinh(edges[-1] / width)), edges[-1]  # none too near to that of 0
    first, last = (int(np.floor(np.log10(size))) for size in (nearest, end))
    steps = (1, 3) if last - first < 3 else (1,)
    sizes = [step * 10.0**k for k in range(first, last + 1) for step in steps if nearest < step * 10.0**k < end]
    sizes = sizes[:: -(-len(sizes) // TICKS)] if sizes else [end]
    ax.set_xticks([*(-np.array(sizes[::-1])), 0, *sizes])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("e-0", "e-").replace("-", "−")))


def _about(z: Array, limit: float, engine: Engine) -> list[str]:
    sample = "" if len(z) == engine.n_observed else f"{count(len(z), 'cell')} at random. "
    text = "No size is more likely an outlier than noise"
    if np.isfinite(limit):
        text = f"Beyond ±{limit:.3g} a cell is called an outlier: {np.mean(np.abs(z) > limit):.2%} of them"
    return ["Residuals and the noise model", sample + text]


def _plain_histogram(result: Result, left: Array, ax: Any) -> Any:
    """Residuals of a fit that has no model of the noise."""
    zeta = result.zeta if 0 < result.zeta < np.inf else 0.0
    width = zeta / 4 or float(np.median(np.abs(left))) or 1.0
    edges = _bins(left, zeta, width)
    counts = np.histogram(left, edges)[0]
    _draw_counts(ax, counts, edges, zeta, "outliers")
    _scales_of_counts(ax, counts, edges, width, "residual: observed less expected")
    legend(ax, loc="upper left")
    why = f"solver={result.solver!r} has no model of the noise"
    if result.noise == 0:
        why = "The fit is exact: what is not rounding is an outlier, and there is no noise to model"
    title(ax, "Residuals", f"{why}. Beyond ±{zeta:.3g} a cell is called an outlier" if zeta else why)
    return ax


def singular_values(model: Any, ax: Any = None, *, M: Any = None) -> Any:
    """Draw the singular values of the low-rank part and of what is left, and how large those of noise may be.

    Parameters
    ----------
    model : InductiveRobustPCA
        After ``fit``.
    M : table, or None
        The table that was fitted; needed for a model that was loaded from a file.
    ax : matplotlib Axes, or None
        None: the current Axes.

    Returns
    -------
    matplotlib Axes
        Components of the low-rank part from the strongest on, then those of ``observed − expected`` without outliers.
        The line is the largest singular value that noise of these variances may have: what is left should be below. If
        there is a noise model, rows and columns are divided by their noise. Of a table with more than 360,000 cells a
        random block is taken; the title says so.

    Examples
    --------
    >>> import irpca
    >>> from irpca import plots
    >>> from matplotlib.figure import Figure
    >>> data = irpca.datasets.load_life_expectancy()
    >>> model = irpca.InductiveRobustPCA(2).fit(data.M[:50])
    >>> ax = plots.singular_values(model, ax=Figure().subplots())
    >>> len(ax.lines[0].get_xdata())
    2
    """
    fitted = Fitted(model, M)
    result, shape = fitted.result, fitted.shape
    lines = _block(shape, np.random.default_rng(fitted.seed))
    scales = _scales(result.scale, lines)
    U, V = (F[some] / scale[:, None] for F, some, scale in zip(result.L.thin(), lines, scales, strict=True))
    kept = LowRank.from_product(U, V).singular_values if result.rank else np.zeros(0)
    R = _left(fitted, lines) / np.multiply.outer(*scales)
    left = np.linalg.svd(R, compute_uv=False)[:LEFT]
    ax, rank = axes_of(ax), len(kept)
    ax.plot(1 + np.arange(rank), kept, "o", color=BLUE, markersize=6, label=f"kept: {count(rank, 'component')}")
    after = 1 + rank + np.arange(len(left))
    ax.plot(after, left, "s", color=GREY, markersize=4, markerfacecolor="white", label="left over")
    if (edge := _edge(R)) > 0 and result.noise != 0:
        ax.axhline(edge, color=ORANGE, linestyle="--", linewidth=1.2, label="largest to expect of noise alone")
    ax.axvline(rank + 0.5, color=GREY, linewidth=0.8)
    if (np.r_[kept, left] > 0).any():
        ax.set_yscale("log")
    unit = "" if result.scale is None else ", in units of the noise"
    ax.set(xlabel="component", ylabel=f"singular value{unit}", xlim=(0.4, rank + len(left) + 0.6))
    ax.xaxis.get_major_locator().set_params(integer=True)
    plain_frame(ax)
    legend(ax, loc="upper right")
    part = "" if R.shape == shape else f"of a random block of {R.shape[0]:,} × {R.shape[1]:,} cells"
    title(ax, f"Rank {rank}: singular values of what is kept and of what is left", part)
    return ax


def _block(shape: tuple[int, int], rng: np.random.Generator) -> list[Array]:
    """Rows and columns at random, of the shorter side as many as may be; all if they are few."""
    short = min(*shape, BLOCK)
    long = BLOCK**2 // short
    most = [short if n == min(shape) else long for n in shape]
    return [
        np.arange(n) if n <= m else np.sort(rng.choice(n, m, replace=False)) for n, m in zip(shape, most, strict=True)
    ]


def _scales(noise: EntryScale | None, lines: list[Array]) -> list[Array]:
    """The standard deviation of the noise is the product of a number for the row and one for the column, or is 1."""
    if noise is None:
        return [np.ones(len(some)) for some in lines]
    return [np.sqrt(scale[some]) for scale, some in zip((noise.rows, noise.cols), lines, strict=True)]


def _left(fitted: Fitted, lines: list[Array]) -> Array:
    """``observed − expected`` of a block; 0 where there is no value, or an outlier."""
    R = fitted.engine.block(*lines) - fitted.expected_at(lines[0][:, None], lines[1])
    outliers = fitted.outliers[lines[0]][:, lines[1]].toarray()
    return np.where(np.isnan(R) | (outliers != 0), 0.0, R)


def _edge(R: Array) -> float:
    """The largest singular value of independent noise with these variances, about (Bandeira and van Handel 2016)."""
    squares = R**2
    return float(sum(np.sqrt(squares.sum(axis=axis).max(initial=0.0)) for axis in (0, 1)))
