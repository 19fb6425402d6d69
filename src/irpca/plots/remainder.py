"""What L leaves: residuals against the noise model, and singular values of what was kept and what was left."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engines import Engine
from ..lowrank import Array, LowRank
from ..result import Result
from ..wording import count
from .drawing import BLUE, GREY, LIGHT, ORANGE, axes_of, legend, plain_frame, title
from .fitted import Fitted

ENTRIES = 200_000  # residuals that are drawn
BINS = 81  # an odd number: one of them is about zero
BLOCK = 600  # rows and columns of which singular values are taken, at most; they take half a second
LEFT = 15  # singular values of what is left that are shown


def residuals(model: Any, ax: Any = None, *, M: Any = None) -> Any:
    """Draw how residuals are distributed, what of it clean noise explains, and where outliers begin.

    Parameters
    ----------
    model, M, ax : as in :func:`cell_map`

    Returns
    -------
    matplotlib Axes
        A histogram of the signed score (residual in units of its uncertainty) of all entries, or of 200,000 at random;
        both axes are logarithmic, the horizontal one but near zero. An entry that says no more than that it is within
        an interval, such as one of few ordered values, has a score at random within it. Of an exact fit, and of solvers
        without a model of the noise, a histogram of the residuals alone.

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
    rng = np.random.default_rng(fitted.seed)
    rows, cols, values = engine.draw(ENTRIES, rng)
    left = fitted.residuals_at(values, rows, cols)
    known = np.isfinite(left)
    calibration = None if result.scale is None else result.calibration
    if result.scale is None or calibration is None:
        z, limit = left[known], result.zeta if 0 < result.zeta < np.inf else 0.0
        limits, width = (-limit, limit), limit / 4 or float(np.median(np.abs(z))) or 1.0
        beyond, what = "outliers", "residual: observed less expected"
    else:
        z, limits = result.scale.spread_sizes(left[known], rows[known], cols[known]), calibration.limits_at(0.5)
        width = float(calibration.scale) or 1.0
        beyond, what = "more likely outliers", "residual in units of its uncertainty"
    ax, edges = axes_of(ax), _bins(z, limits, width)
    counts = np.histogram(z, edges)[0]
    _draw_counts(ax, counts, edges, limits, beyond)
    if calibration is not None:
        share = calibration.clean.sum() / calibration.counts.sum()
        clean = np.diff(calibration.below(edges)) * share * len(z)
        ax.stairs(clean, edges, baseline=None, color=BLUE, linewidth=1.8, label="clean noise, as fitted")
    ax.set_xscale("asinh", linear_width=width)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_yscale("log")
    ax.set(ylim=(0.5, 2 * max(counts.max(initial=1), 1)), xlabel=what, ylabel="number of cells")
    plain_frame(ax)
    legend(ax, loc="upper left" if calibration is None else "upper right")
    title(ax, *(_about_no_noise(result, limits[1]) if calibration is None else _about_noise(z, limits, engine)))
    return ax


def _about_noise(z: Array, limits: tuple[float, float], engine: Engine) -> tuple[str, str]:
    sample = "" if len(z) == engine.n_observed else f"{count(len(z), 'cell')} at random. "
    text = "No size is more likely an outlier than noise"
    if np.isfinite(limits).any():
        low, high = limits
        where = f"Beyond ±{high:.3g}" if high == -low else f"Below {low:.3g} and above {high:.3g}"
        text = f"{where} a cell is called an outlier: {np.mean((z < low) | (z > high)):.2%} of them"
    return "Residuals and the noise model", sample + text


def _about_no_noise(result: Result, limit: float) -> tuple[str, str]:
    why = f"solver={result.solver!r} has no model of the noise"
    if result.noise == 0:
        why = "The fit is exact: what is not rounding is an outlier, and there is no noise to model"
    return "Residuals", f"{why}. Beyond ±{limit:.3g} a cell is called an outlier" if limit else why


def _draw_counts(ax: Any, counts: Array, edges: Array, limits: tuple[float, float], beyond: str) -> None:
    """A histogram; what is beyond the limits, which are edges of bins if there are some, in another colour."""
    ax.stairs(counts, edges, fill=True, color=LIGHT, label="all cells")
    ax.stairs(counts, edges, color=GREY, linewidth=0.8)
    found = [side for side in limits if 0 < abs(side) < np.inf]
    if not found:
        return
    outside = (edges[:-1] >= limits[1]) | (edges[1:] <= limits[0])
    ax.stairs(np.where(outside, counts, 0), edges, fill=True, color=ORANGE, alpha=0.8, label=beyond)
    for side in found:
        ax.axvline(side, color=ORANGE, linestyle="--", linewidth=1.2)


def _bins(z: Array, limits: tuple[float, float], width: float) -> Array:
    """Edges of bins, evenly spaced near zero and then in ratios; the limits are among them."""
    finite = [limit for limit in limits if 0 < abs(limit) < np.inf]
    largest = 1.001 * max(float(np.abs(z).max(initial=4 * width)), *(1.5 * abs(limit) for limit in finite), 0.0)
    edges = width * np.sinh(np.linspace(-1, 1, BINS + 1) * np.arcsinh(largest / width))
    for limit in finite:
        edges[np.argmin(np.abs(edges - limit))] = limit
    return edges


def singular_values(model: Any, ax: Any = None, *, M: Any = None) -> Any:
    """Draw the singular values of the low-rank part and of what is left, and how large those of noise may be.

    Parameters
    ----------
    model, M, ax : as in :func:`cell_map`

    Returns
    -------
    matplotlib Axes
        Components of the low-rank part from the strongest on, then those of ``observed − expected`` without outliers.
        The line is the largest singular value that noise of these variances may have: what is left should be below. If
        there is a noise model, rows and columns are divided by their noise. Of more than 600 rows, or columns, so many
        are taken at random; the title says so.

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
    rng = np.random.default_rng(fitted.seed)
    lines = [np.sort(rng.choice(n, min(n, BLOCK), replace=False)) for n in shape]
    # The standard deviation of the noise is the product of a number for the row and one for the column, or 1.
    noise = [np.ones(n) for n in shape] if result.scale is None else [result.scale.rows, result.scale.cols]
    scales = [np.sqrt(side[some]) for side, some in zip(noise, lines, strict=True)]
    U, V = (F[some] / scale[:, None] for F, some, scale in zip(result.factors.thin(), lines, scales, strict=True))
    kept = LowRank.from_product(U, V).singular_values if result.rank else np.zeros(0)
    R = fitted.residuals_at(fitted.engine.block(*lines), lines[0][:, None], lines[1])
    R[np.isnan(R) | (fitted.outliers[lines[0]][:, lines[1]].toarray() != 0)] = 0.0
    R /= np.multiply.outer(*scales)
    left = np.linalg.svd(R, compute_uv=False)[:LEFT]
    ax, rank = axes_of(ax), len(kept)
    ax.plot(1 + np.arange(rank), kept, "o", color=BLUE, markersize=6, label=f"kept: {count(rank, 'component')}")
    after = 1 + rank + np.arange(len(left))
    ax.plot(after, left, "s", color=GREY, markersize=4, markerfacecolor="white", label="left over")
    # The largest singular value of independent noise with these variances, about (Bandeira and van Handel 2016).
    edge = sum(np.linalg.norm(R, axis=axis).max(initial=0.0) for axis in (0, 1))
    if edge > 0 and result.noise != 0:
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
