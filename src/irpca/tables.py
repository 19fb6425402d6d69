"""What people read and use of a fit: outliers, expected and repaired values, with how sure they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .arguments import number
from .engines.base import Engine, Noise, Standardised
from .engines.sparse_part import of_lines, only, places, to_host
from .lowrank import Array
from .outliers import probabilities, reported, standardised
from .result import Result, Status

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from .engines.sparse_part import Sparse

MOST_CELLS = 1 << 28  # of a table of expected or repaired values: 2 GB
MARKS = np.array(["", "outlier", "missing"])


@dataclass(frozen=True)
class Criterion:
    """Which cells are called outliers: by at most one of three numbers; none of them: probability above one half.

    Attributes
    ----------
    fdr : the expected share of false alarms among the cells
    probability : the least probability of being an outlier
    threshold : the size of the difference between observed and expected that a cell must exceed, in units of M

    Examples
    --------
    >>> print(Criterion(fdr=0.05))
    an expected share of false alarms of at most 0.05
    """

    fdr: float | None = None
    probability: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"give one of fdr, probability and threshold, got {', '.join(given)}")
        for name, value in given.items():
            number(value, name)
        if self.probability is not None and not 0 < self.probability <= 1:
            raise ValueError(f"probability must be above 0 and at most 1, got {self.probability!r}")
        if self.threshold is not None and not 0 <= self.threshold < np.inf:
            raise ValueError(f"threshold is a size in units of M, not negative and finite; got {self.threshold!r}")
        if self.fdr is not None and not 0 < self.fdr < 1:
            raise ValueError(f"fdr is a share of false alarms between 0 and 1, such as 0.05; got {self.fdr!r}")

    def __str__(self) -> str:
        if self.fdr is not None:
            return f"an expected share of false alarms of at most {self.fdr:g}"
        if self.threshold is not None:
            return f"a difference larger than {self.threshold:g}"
        return "probability above 0.5" if self.probability is None else f"probability at least {self.probability:g}"

    @property
    def default(self) -> bool:
        return self == Criterion()


Scale = Callable[["csr_array"], Array]  # of cells: the size of clean residuals there


def flagged(
    result: Result, cut: Criterion, owner: Callable[[], Engine], scale: Scale
) -> tuple[csr_array, Array, Array]:
    """The cells that a cut calls outliers: M − L there, its size in units of its uncertainty, and the probability.

    They are in host memory. Those of the fit are known. For more, M is read again, and ``owner`` makes its engine.
    """
    S = to_host(candidates(result, cut, owner), f"a list of cells with {cut}")
    exact, failed = certainty(result)
    z = standardised(S, None, result.zeta).data if result.weights is None else S.data / scale(S)
    probability = probabilities(z, None if failed else result.calibration, exact)
    kept = np.ones(S.nnz, bool)
    if cut.threshold is not None:
        kept = np.abs(S.data) > cut.threshold
    elif cut.probability is not None:
        kept = probability >= cut.probability
    elif cut.fdr is not None:
        kept = reported(probability, np.abs(z), cut.fdr)
    return only(S, kept), np.abs(z[kept]), probability[kept]


def certainty(result: Result) -> tuple[bool, bool]:
    """Whether outliers are certain, since the fit is exact; and whether nothing is, since it failed."""
    failed = result.status in (Status.SATURATED, Status.DIVERGED)
    return result.noise == 0 and not failed, failed


def candidates(result: Result, cut: Criterion, owner: Callable[[], Engine]) -> Sparse:
    """The cells among which a cut chooses, and perhaps others; where they are."""
    exact, failed = result.noise == 0, result.status in (Status.SATURATED, Status.DIVERGED)
    if failed and (cut.fdr or cut.probability):
        raise ValueError(f"there are no probabilities to choose by. {result.status.name}: {result.status.advice}")
    if not exact and result.calibration is None and (cut.fdr or cut.probability):
        raise ValueError(
            "fdr and probability need a model of the noise, and this solver has none: use solver='irpca', or threshold"
        )
    assert result.S is not None
    return result.S if exact or cut.default or _enough(result, cut) else _beyond(result, cut, owner())


def _enough(result: Result, cut: Criterion) -> bool:
    """Whether the outliers of the fit hold all that the cut asks for."""
    if cut.threshold is not None:
        return result.weights is None and cut.threshold >= result.zeta
    return cut.probability is not None and cut.probability > 0.5


def _beyond(result: Result, cut: Criterion, engine: Engine) -> Sparse:
    """All cells that may be in the cut, from one read of M."""
    limit: float | Standardised
    if cut.threshold is not None:
        limit = cut.threshold
    else:
        assert result.weights is not None and result.calibration is not None
        limit = Standardised(result.weights, result.calibration.size_at(np.nextafter(cut.probability or 0.0, -1)))
    S, _ = engine.corruption(result.L, limit)
    return S if result.known is None else of_lines(S, *result.known)


def deviation(weights: Noise, factor: float, at: tuple[Array, Array] | None = None, var: Array | None = None) -> Array:
    """The standard deviation of a clean measurement about its expected value, everywhere or at some cells.

    That of the noise, ``factor`` times its scale, and of the expected value itself: ``var``, or as the noise model has
    it for entries of which nothing more is known.
    """
    if at is None:
        s2 = np.multiply.outer(weights.rows, weights.cols)
        own = weights.row_spread @ weights.col_spread.T if var is None else var
    else:
        rows, cols = at
        s2 = weights.rows[rows] * weights.cols[cols]
        own = np.einsum("kq,kq->k", weights.row_spread[rows], weights.col_spread[cols]) if var is None else var[at]
    found: Array = np.sqrt(factor**2 * s2 + own)
    return found


def refuse_large(shape: tuple[int, int], what: str) -> None:
    if shape[0] * shape[1] > MOST_CELLS:
        raise ValueError(
            f"a table of {shape[0]} × {shape[1]} {what} values does not fit into memory; take some cells, with "
            "low_rank_.entries(rows, columns), some rows of low_rank_.thin(), or the cells of outliers(). Fitted to a "
            "dask array, it is one that is computed chunk by chunk"
        )


def repaired(values: Array, S: csr_array, expected: Array) -> tuple[Array, Array]:
    """Values with outliers and holes replaced by what is expected there, where that is known; and marks of both."""
    wrong = np.zeros(values.shape, np.int8)
    wrong[np.isnan(values)] = 2
    wrong[places(S)] = 1
    known = np.isfinite(expected)
    made = np.where((wrong > 0) & known, expected, values)
    return made.astype(values.dtype, copy=False), MARKS[np.where(known | (wrong == 2), wrong, 0)]


# The same for some rows and columns, in tables that are computed chunk by chunk


def expected_part(block: None, rows: Array, cols: Array, *, dtype: np.dtype) -> tuple[Array]:
    return ((rows @ cols.T).astype(dtype, copy=False),)


def deviation_part(
    block: None, rows: tuple[Array, ...], cols: tuple[Array, ...], *, weights: Noise, factor: float, dtype: np.dtype
) -> tuple[Array]:
    """Of each side: the scale of the noise, its spread, and of which lines something is known."""
    here = replace(weights, rows=rows[0], row_spread=rows[1], cols=cols[0], col_spread=cols[1])
    std = deviation(here, factor).astype(dtype, copy=False)
    std[~rows[2]], std[:, ~cols[2]] = np.nan, np.nan
    return (std,)


def repaired_part(block: Array, rows: tuple[Array, csr_array], cols: tuple[Array, slice]) -> tuple[Array, Array]:
    """Of rows: their factor, NaN where nothing is known, and S. Of columns: their factor, and which they are."""
    return repaired(block, rows[1][:, cols[1]], rows[0] @ cols[0].T)
