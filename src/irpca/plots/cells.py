"""Which cells are outliers, and how far off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..arguments import text, whole
from ..lowrank import Array
from ..wording import count
from .drawing import axes_of, below_and_above, label_ticks, title
from .fitted import SIDES, Fitted

CAP = 0.95  # quantile of the scores that are shown at which colours are full: a few huge ones shall not pale all others
FULL = 20.0  # times the smallest score of an outlier: colours are full there at the latest, and none is too pale to see
FEWEST = 10  # rows or columns to show of those that have no outlier, if there are no worse ones
LINE = 0.15  # inches that a row is high in a new figure, so that each has its label


def cell_map(
    model: Any,
    M: Any = None,
    *,
    rows: Iterable[Any] | None = None,
    columns: Iterable[Any] | None = None,
    most: int = 60,
    order: str = "trouble",
    ax: Any = None,
) -> Any:
    """Draw which cells are outliers, above or below what is expected, and by how much.

    Parameters
    ----------
    model : InductiveRobustPCA
        After ``fit``.
    M : table, or None
        The table that was fitted; needed for a model that was loaded from a file.
    rows, columns : list of labels (of positions if there are none), or None
        What to show. None: all, or those with the most outliers if there are more than ``most``.
    most : int
        How many rows, and how many columns, to show at most if none are named.
    order : {"trouble", "given"}
        "trouble": the row with the most outliers on top and the column with the most at the left; of as many, the one
        in which they are larger. "given": as in the table.
    ax : matplotlib Axes, or None
        None: the current Axes.

    Returns
    -------
    matplotlib Axes
        The colour of an outlier is its score, the difference from what is expected in standard deviations (of
        solvers without a noise model, of the limit beyond which it is an outlier). Grey: no value. The title says how
        many rows, columns and outliers are not shown.

    Examples
    --------
    >>> import irpca
    >>> from irpca import plots
    >>> from matplotlib.figure import Figure
    >>> problem = irpca.datasets.make_problem(80, 50, d1=6, d2=5, rank=2, corruption=0.02)
    >>> model = irpca.InductiveRobustPCA().fit(problem.M, row_features=problem.F1, col_features=problem.F2)
    >>> ax = plots.cell_map(model, most=20, ax=Figure().subplots())
    >>> print(ax.get_title(loc="left"))
    84 outliers in 4,000 cells, 46 not shown
    worst 20 of 80 rows, worst 20 of 50 columns
    """
    if text(order, "order") not in ("trouble", "given"):
        raise ValueError(f"order must be 'trouble' or 'given', got {order!r}")
    most = whole(most, "most", least=1)
    fitted = Fitted(model, M)
    S, engine = fitted.outliers, fitted.engine
    shown = [_lines(fitted, axis, wanted, most, order) for axis, wanted in enumerate((rows, columns))]
    image = fitted.scores[shown[0]][:, shown[1]].toarray()
    image[np.isnan(engine.block(*shown))] = np.nan
    ax = axes_of(ax, min(max(4.8, 1.6 + LINE * len(image)), 12.0))
    drawn = ax.imshow(
        image, cmap=below_and_above(), norm=_norm(image, fitted.listed["score"]), aspect="auto", interpolation="nearest"
    )
    for axis in (0, 1):
        label_ticks(ax, "yx"[axis], np.arange(len(shown[axis])), [fitted.texts[axis][i] for i in shown[axis]])
    ax.set(ylabel=fitted.names[0], xlabel=fitted.names[1])
    _colour_bar(ax, drawn, image, "multiples of the limit" if fitted.result.scale is None else "standard deviations")
    found = count(S.nnz, "outlier") if S.nnz else "No outliers"
    hidden = S.nnz - np.count_nonzero(np.nan_to_num(image))
    heading = f"{found} in {count(engine.n_observed, 'cell')}" + (f", {hidden:,} not shown" if hidden else "")
    title(ax, heading, _left_out(shown, (rows, columns), S.shape))
    return ax


def _lines(fitted: Fitted, axis: int, wanted: Any, most: int, order: str) -> Array:
    """Positions of the rows, or columns, to show, in the order to show them."""
    n, at = fitted.shape[axis], fitted.listed[SIDES[axis]]
    flagged = np.bincount(at, minlength=n)
    # Those with more outliers first, then those with larger ones, then as in the table.
    worst = np.lexsort((-np.bincount(at, fitted.listed["score"], n), -flagged))
    if wanted is None:
        shown = worst if n <= most else worst[: min(most, max(FEWEST, np.count_nonzero(flagged)))]
        return np.sort(shown) if order == "given" else shown
    shown = fitted.positions(wanted, axis)
    if not len(shown):
        raise ValueError(f"{SIDES[axis]}s is empty: name some, or leave it out")
    return shown if order == "given" else shown[np.argsort(np.argsort(worst)[shown])]


def _norm(image: Array, scores: Array) -> Any:
    """How scores become colours: nearly by their logarithm, so that the least of all outliers is seen, too."""
    from matplotlib.colors import AsinhNorm

    least = float(scores.min()) if len(scores) else 1.0
    sizes = np.abs(image[np.nan_to_num(image) != 0])
    cap = max(min(float(np.quantile(sizes, CAP)), FULL * least), 2 * least) if sizes.size else 2 * least
    return AsinhNorm(linear_width=least / 3, vmin=-cap, vmax=cap)


def _colour_bar(ax: Any, drawn: Any, image: Array, unit: str) -> None:
    """With numbers at few places, which are those of the scores."""
    cap, least = drawn.norm.vmax, 3 * drawn.norm.linear_width
    largest = float(np.nanmax(np.abs(image), initial=0.0))
    bar = ax.figure.colorbar(drawn, ax=ax, extend="both" if largest > cap else "neither")
    sizes = [least, cap] if cap < 4 * least else [least, np.sqrt(least * cap), cap]
    ticks = np.r_[-np.array(sizes[::-1]), 0, sizes]
    bar.set_ticks(ticks, labels=[f"{float(f'{tick:.2g}'):+,g}".replace("-", "−") if tick else "0" for tick in ticks])
    bar.minorticks_off()
    bar.set_label(f"score: below (−) or above (+) what is expected,\nin {unit}")


def _left_out(shown: list[Array], wanted: tuple[Any, Any], shape: tuple[int, int]) -> str:
    """Which rows and columns are in the picture, if some are not."""
    parts = [
        f"{'worst ' if given is None else ''}{len(lines):,} of {n:,} {side}s"
        for lines, given, n, side in zip(shown, wanted, shape, SIDES, strict=True)
        if len(lines) < n
    ]
    return ", ".join(parts)
