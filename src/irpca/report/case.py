"""A fitted model as a report sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..cached import cached_property
from ..engines.base import Engine
from ..engines.sparse_part import to_host
from ..labels import texts
from ..lowrank import Array
from ..model.calibration import most_certain_first
from ..outliers import score_lines, standardised
from ..tables import Criterion, flagged
from .values import Values

MOST_CELLS = 1 << 22  # of a table of standard deviations


@dataclass
class Case:
    """A fitted model, and what several parts of its report need of it.

    Attributes
    ----------
    model : fitted
    M : what it was fitted to, or None
    cut : which cells are outliers
    """

    model: Any
    M: Any
    cut: Criterion = field(default_factory=Criterion)

    @cached_property
    def result(self) -> Any:
        return self.model.result_

    @property
    def shape(self) -> tuple[int, int]:
        shape: tuple[int, int] = self.result.L.shape
        return shape

    @property
    def labels(self) -> tuple[Any, Any]:
        return self.model.row_labels_, self.model.col_labels_

    @cached_property
    def texts(self) -> tuple[list[str], list[str]]:
        rows, columns = (texts(labels, n) for labels, n in zip(self.labels, self.shape, strict=True))
        return rows, columns

    @property
    def names(self) -> tuple[str, str]:
        """What rows and columns are called: the names of their labels, if these have some."""
        rows, columns = (_name(labels, side) for labels, side in zip(self.labels, ("Row", "Column"), strict=True))
        return rows, columns

    @cached_property
    def values(self) -> Values | None:
        return Values.of(self.model, self.M)

    @cached_property
    def S(self) -> Any:
        """The outliers: observed less expected."""
        from scipy.sparse import csr_array

        if self.result.S is None:
            return csr_array(self.shape)
        return to_host(flagged(self.result, self.cut, self._owner), f"a list of cells with {self.cut}")

    @cached_property
    def z(self) -> Any:
        """The outliers in units of their uncertainty."""
        return standardised(self.S, self.result.judge)

    @cached_property
    def probability(self) -> Array:
        found: Array = self.result.judge.probability(self.S.data, *self.cells)
        return found

    @cached_property
    def order(self) -> Array:
        """The entries of S, the most certain first."""
        order: Array = most_certain_first(self.probability, self.scores)
        return order

    @cached_property
    def scores(self) -> Array:
        """The differences of outliers in standard deviations; without a noise model, in multiples of the threshold."""
        return self.z.data if self.result.scale is None else self.S.data / self.deviation(*self.cells)

    @cached_property
    def cells(self) -> tuple[Array, Array]:
        """Rows and columns of the entries of S."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.S.indptr)), self.S.indices

    @cached_property
    def observed(self) -> Array:
        """What was observed at the entries of S."""
        if not self.S.nnz:
            return np.zeros(0)
        if self.M is None or self.values is None:
            return np.asarray(self.model._entries(*self.cells))
        self.values.refuse_others(*self.cells, self.result.L.entries(*self.cells) + self.S.data)
        return self.values.at(*self.cells)

    def deviation(self, rows: Array, cols: Array) -> Array:
        """The standard deviation of clean cells about their expected values."""
        return np.asarray(self.model._std_at(self.result, *np.broadcast_arrays(rows, cols)))

    def _owner(self) -> Engine:
        """Who holds M: asked for only if more cells are wanted than the fit listed."""
        engine: Engine = self.model._owner() if self.values is None else self.values.engine
        return engine

    @cached_property
    def scored(self) -> tuple[Array, Array]:
        """Rows, and columns, in the order of how surprising their outliers are."""
        rows, columns = (score_lines(self.z, axis, self.result.counts[axis]) for axis in (0, 1))
        return rows, columns


def _name(labels: Any, side: str) -> str:
    names = () if labels is None else [name for name in labels.names if name]
    return ", ".join(map(str, names)) or side
