"""What people read and use of a fit: outliers, expected and repaired values, with how sure they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .arguments import number
from .engines.base import Engine
from .engines.sparse_part import only, places, to_host
from .lowrank import Array
from .model.entry_scale import EntryScale
from .outliers import reported
from .result import Result

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
        if self.probability is not None:
            number(self.probability, "probability", above=0, most=1)
        if self.threshold is not None:
            number(self.threshold, "threshold (a size in units of M)", least=0)
        if self.fdr is not None:
            number(self.fdr, "fdr (a share of false alarms, such as 0.05)", above=0, below=1)

    def __str__(self) -> str:
        if self.fdr is not None:
            return f"an expected share of false alarms of at most {self.fdr:g}"
        if self.threshold is not None:
            return f"a difference larger than {self.threshold:g}"
        return "probability above 0.5" if self.probability is None else f"probability at least {self.probability:g}"

    @property
    def default(self) -> bool:
        return self == Criterion()


def flagged(result: Result, cut: Criterion, owner: Callable[[], Engine]) -> tuple[csr_array, Array, Array]:
    """The cells that a cut calls outliers: M − L there, its size in units of its uncertainty, and the probability.

    They are in host memory. Those of the fit are known. For more, M is read again, and ``owner`` makes its engine.
    """
    S = to_host(candidates(result, cut, owner), f"a list of cells with {cut}")
    judge, at = result.judge, places(S)
    z, probability = judge.standardised(S.data, *at), judge.probability(S.data, *at)
    kept = np.ones(S.nnz, bool)
    if cut.threshold is not None:
        kept = np.abs(S.data) > cut.threshold
    elif cut.probability is not None:
        kept = probability >= cut.probability
    elif cut.fdr is not None:
        kept = reported(probability, np.abs(z), cut.fdr)
    return only(S, kept), np.abs(z[kept]), probability[kept]


def candidates(result: Result, cut: Criterion, owner: Callable[[], Engine]) -> Sparse:
    """The cells among which a cut chooses, and perhaps others; where they are."""
    exact = result.noise == 0
    if result.failed and (cut.fdr or cut.probability):
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
        return result.scale is None and cut.threshold >= result.zeta
    return cut.probability is not None and cut.probability > 0.5


def _beyond(result: Result, cut: Criterion, engine: Engine) -> Sparse:
    """All cells that may be in the cut, from one read of M."""
    if cut.threshold is not None:
        judge = replace(result.judge, limit=cut.threshold, scale=None)
    else:
        assert result.scale is not None and result.calibration is not None
        limit = result.calibration.size_at(np.nextafter(cut.probability or 0.0, -1))
        judge = replace(result.judge, limit=limit)
    S, _ = engine.corruption(result.L, judge.candidates)
    return judge.outliers(S)


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


def std_part(
    block: None, rows: tuple[Any, ...], cols: tuple[Any, ...], *, tail: float, dtype: np.dtype
) -> tuple[Array]:
    """Of each side: the scale of the noise, its spread, and of which lines something is known."""
    std: Array = EntryScale(rows[0], cols[0], rows[1], cols[1], tail).std_table().astype(dtype, copy=False)
    std[~rows[2]], std[:, ~cols[2]] = np.nan, np.nan
    return (std,)


def repaired_part(block: Array, rows: tuple[Array, csr_array], cols: tuple[Array, slice]) -> tuple[Array, Array]:
    """Of rows: their factor, NaN where nothing is known, and S. Of columns: their factor, and which they are."""
    return repaired(block, rows[1][:, cols[1]], rows[0] @ cols[0].T)
