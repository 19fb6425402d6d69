"""The observed values of the table that was fitted, for a report: whole, line by line, or cell by cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..answers import LOOK_ENTRIES, in_batches, owned
from ..cached import cached_property
from ..engines.base import Engine
from ..lowrank import Array

LISTED = 0.4  # share of observed cells below which a list of them is smaller than the table with its holes
SAME = 1e-5  # relative difference between values that are taken for the same: M may come in another precision


class Values:
    """M, owned by an engine.

    Parameters
    ----------
    engine : Engine
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.shape = engine, engine.shape

    @classmethod
    def of(cls, model: Any, M: Any) -> Values | None:
        """Of the M that is given, or that the model remembers; None if there is neither."""
        if M is None:
            return cls(model._owner()) if hasattr(model, "_M") else None
        given, shape = owned(M, model.engine), model.low_rank_.shape
        found = cls(model._new_rows(given, None)[0])
        if found.shape != shape:
            raise ValueError(
                f"M is {_times(found.shape)}, and the model was fitted to {_times(shape)}: pass that table"
            )
        rows = model.row_labels_
        if given.rows is not None and rows is not None and given.rows.texts() != rows.texts():
            raise ValueError(
                "the rows of M have other labels, or another order, than in fit: pass the table of the fit"
            )
        return found

    def line(self, axis: int, k: int) -> Array:
        """Row (``axis=0``) or column k, NaN where nothing was observed."""
        others, this = np.arange(self.shape[1 - axis]), np.array([k])
        return self.engine.block(this, others).ravel() if axis == 0 else self.engine.block(others, this).ravel()

    def at(self, rows: Array, cols: Array) -> Array:
        return self.engine.entries(rows, cols)

    @cached_property
    def n_observed(self) -> int:
        return int(self.engine.counts[0].sum())

    @property
    def listed(self) -> bool:
        """Whether a list of the observed cells is smaller than the table."""
        return self.n_observed < LISTED * self.shape[0] * self.shape[1]

    @property
    def numbers(self) -> int:
        """How many numbers it takes to hold all."""
        return 2 * self.n_observed + self.shape[0] if self.listed else self.shape[0] * self.shape[1]

    def table(self) -> Array:
        """All of it, NaN where nothing was observed."""
        return self.engine.block(np.arange(self.shape[0]), np.arange(self.shape[1]))

    def listing(self) -> tuple[Array, Array, Array]:
        """The observed cells: where each row starts, then columns and values, row by row."""
        lines = [line for _, lines in in_batches(self.engine, LOOK_ENTRIES) for line in lines]
        there = [np.flatnonzero(~np.isnan(line)) for line in lines]
        starts = np.append(0, np.cumsum([len(at) for at in there]))
        return starts, np.concatenate(there), np.concatenate([line[at] for line, at in zip(lines, there, strict=True)])

    def refuse_others(self, rows: Array, cols: Array, expected: Array) -> None:
        """Refuse a table that does not hold the outliers that were found in the one of the fit."""
        found = self.at(rows, cols)
        near = np.isclose(found, expected, rtol=SAME, atol=SAME * float(np.abs(expected).max(initial=0.0)))
        if not near.all():
            k = int(np.argmin(near))
            raise ValueError(
                f"M is not the table of the fit: in row {rows[k]}, column {cols[k]} (counted from 0) it holds "
                f"{found[k]:g}, and the fit saw {expected[k]:g}"
            )


def _times(shape: tuple[int, int]) -> str:
    return f"{shape[0]} × {shape[1]}"
