"""A fitted model as pictures and reports read it: labels, entries of M, outliers, and how uncertain every cell is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arguments import is_whole, naming
from ..arrays import as_numpy
from ..cached import cached_property
from ..engines.base import Engine
from ..labels import Labels, position, texts
from ..lowrank import Array
from ..model.entry_scale import EntryScale
from ..outliers import score_lines
from ..result import Result
from ..tables import Criterion, bounds_at

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SIDES = ("row", "column")
NUMBERS = ("observed", "expected", "difference", "std", "lower", "upper", "score", "probability")  # of an outlier
SAME = 1e-5  # relative difference between values that are taken for the same: M may come in another precision


@dataclass(eq=False)
class Fitted:
    """A fitted model and its table. What takes time is found when it is first asked for. Axis 0 means rows.

    Attributes
    ----------
    model : InductiveRobustPCA
    M : what it was fitted to, or None for what the model remembers
    cut : which cells are outliers
    """

    model: Any
    M: Any = None
    cut: Criterion = field(default_factory=Criterion)

    @property
    def result(self) -> Result:
        """The result of the fit; a Result in place of the model is refused, since it has neither labels nor M."""
        if isinstance(result := getattr(self.model, "result_", None), Result):
            return result
        raise ValueError(
            f"model must be a fitted irpca.InductiveRobustPCA, got {type(self.model).__name__}"
            + (": call fit first" if hasattr(self.model, "fit") else "")
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.result.L.shape

    @property
    def seed(self) -> int:
        """A seed for what is drawn at random: that of the model, or 0."""
        seed = getattr(self.model, "random_state", 0)
        return int(seed) if is_whole(seed) else 0

    # Labels

    @property
    def labels(self) -> tuple[Labels | None, Labels | None]:
        return self.model.row_labels_, self.model.col_labels_

    @cached_property
    def texts(self) -> list[list[str]]:
        """Labels of rows and of columns as text, or positions."""
        return [texts(labels, n) for labels, n in zip(self.labels, self.shape, strict=True)]

    @property
    def names(self) -> list[str]:
        """What the labels of each side are called, such as "country"; "row" or "column" if they have no name."""
        levels = [() if labels is None else labels.names for labels in self.labels]
        named = [", ".join(str(name) for name in names if name not in (None, "")) for names in levels]
        return [name or side for name, side in zip(named, SIDES, strict=True)]

    def position(self, wanted: Any, axis: int) -> int:
        """Where a label is; where there are no labels, a position is meant."""
        return position(wanted, self.labels[axis], self.shape[axis], SIDES[axis])

    def positions(self, wanted: Iterable[Any], axis: int) -> Array:
        side = SIDES[axis]
        if isinstance(wanted, str):
            raise ValueError(f"{side}s must be a list of labels, got the text {wanted!r}: pass [{wanted!r}]")
        with naming(f"{side}s"):
            listed = list(wanted)
        return np.array([self.position(label, axis) for label in listed], np.intp)

    # Observed values

    @property
    def has_table(self) -> bool:
        return self.M is not None or self.model._M is not None

    @cached_property
    def engine(self) -> Engine:
        """What answers questions about the entries of the fitted M."""
        shape = self.shape
        if not self.has_table:
            raise ValueError("a model that was loaded from a file has no table: pass M=, the table that was fitted")
        if self.M is None:
            remembered: Engine = self.model._owner()
            return remembered
        from ..answers import owned  # scikit-learn, and with it pandas, would come with every import of pictures

        given = owned(self.M, self.model.engine)
        engine: Engine = self.model._new_rows(given, None)[0]
        if engine.shape != shape:
            raise ValueError(
                f"M has shape {engine.shape} and the fitted table {shape}: pass the table that was fitted, or None. "
                "For new rows, see model.outliers(M)"
            )
        rows = self.labels[0]
        if given.rows is not None and rows is not None and given.rows.texts() != rows.texts():
            raise ValueError(
                "the rows of M have other labels, or another order, than in fit: pass the table of the fit"
            )
        return engine

    # Outliers

    @cached_property
    def listed(self) -> dict[str, Array]:
        """The outliers as `outliers()` lists them, the most certain first, by positions; none of a fit that failed."""
        if self.result.S is None:
            return {**dict.fromkeys(SIDES, np.zeros(0, np.intp)), **dict.fromkeys(NUMBERS, np.zeros(0))}
        from ..answers import Asked  # scikit-learn, and with it pandas, would come with every import of pictures

        owner = self.model._owner if self.M is None else lambda: self.engine
        listed = self.model._cells(Asked(self.result, owner, self.labels[0], self.M), self.cut, kinds=False)
        listed = {name: as_numpy(values, name) for name, values in listed.items()}
        if self.M is not None:
            self._check_table(listed)
        return listed

    def _check_table(self, listed: dict[str, Array]) -> None:
        """Refuse another M than that of the fit, by what it holds at the outliers."""
        fitted = listed["expected"] + listed["difference"]
        near = np.isclose(listed["observed"], fitted, rtol=SAME, atol=SAME * float(np.abs(fitted).max(initial=0.0)))
        if not near.all():
            k = int(np.argmin(near))
            raise ValueError(
                f"M is not the table of the fit: in row {listed['row'][k]}, column {listed['column'][k]} (counted from "
                f"0) it holds {listed['observed'][k]:g}, and the fit saw {fitted[k]:g}"
            )

    def _sparse(self, values: Array) -> csr_array:
        from scipy.sparse import csr_array

        return csr_array((values, (self.listed["row"], self.listed["column"])), shape=self.shape)

    @cached_property
    def outliers(self) -> csr_array:
        """Observed less expected of the outliers, or an error if the fit failed."""
        result = self.result
        if result.S is None:
            raise ValueError(f"this fit has no outliers to show. {result.status.name}: {result.status.advice}")
        return self._sparse(self.listed["difference"])

    @cached_property
    def scores(self) -> csr_array:
        """Scores of the outliers, negative where what was observed is below what is expected."""
        return self._sparse(np.copysign(self.listed["score"], self.listed["difference"]))

    @cached_property
    def scored(self) -> list[Array]:
        """Rows, and columns, in the order of how surprising their outliers are."""
        return [score_lines(self.scores, axis, self.result.counts[axis]) for axis in (0, 1)]

    # Expected values

    @property
    def known(self) -> tuple[Array, Array]:
        """Of which rows and columns L is known."""
        return self.result.known or (np.ones(self.shape[0], bool), np.ones(self.shape[1], bool))

    @cached_property
    def scale(self) -> EntryScale:
        """How far clean cells scatter, and about what."""
        scale: EntryScale = self.model._scale_of(self.result)
        return scale

    def expected_at(self, rows: Array, cols: Array) -> Array:
        """L at scattered entries; NaN where it is not known."""
        known = self.known
        return np.where(known[0][rows] & known[1][cols], self.result.L.entries(rows, cols).astype(float), np.nan)

    def residuals_at(self, observed: Array, rows: Array, cols: Array) -> Array:
        """Observed less expected at scattered entries, where columns are mapped of latent values; NaN likewise."""
        if (maps := self.result.maps) is None:
            return observed - self.expected_at(rows, cols)
        at, across = np.broadcast_arrays(rows, cols)
        left: Array = maps.latent(observed, across) - self.result.factors.entries(at, across)
        return np.where(self.known[0][at] & self.known[1][across], left, np.nan)

    def bounds_at(self, rows: Array, cols: Array) -> tuple[Array, Array]:
        """Between which values 95 % of clean measurements lie; NaN where nothing is known."""
        at, across = np.broadcast_arrays(rows, cols)
        known = self.known[0][at] & self.known[1][across]
        lower, upper = (np.where(known, end, np.nan) for end in bounds_at(self.scale, at, across))
        return lower, upper
