"""What a model remembers of the rows, or of the columns, of its table: their labels, and what features say of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_array

from .arguments import naming
from .arrays import as_numpy
from .containers import kind_of, split_first
from .features.encoder import Encoder
from .features.frames import as_array, index_column, needs_encoding
from .labels import Labels, match
from .lowrank import Array
from .result import Expected
from .wording import few


@dataclass(frozen=True, eq=False)
class Described:
    """One side of a model."""

    name: str  # of the features, as users know them
    lines: str  # "rows" or "columns"
    labels: Labels | None
    columns: Labels | None = None  # names of the features, if they came in a frame
    encoder: Encoder | None = None  # how numbers are made of the features, if they are no numbers
    by_index: bool = False  # whether features are made from the labels
    expected: Expected | None = None  # what features say of the factor of L; None without features

    @classmethod
    def of(cls, F: Any, name: str, lines: str, labels: Labels | None) -> Described:
        """The side of a table with these labels and features, not fitted yet."""
        if F is None:
            return cls(name, lines, labels)
        if isinstance(F, str):
            frame = cls(name, lines, labels)._index_frame(F, labels)
            return cls(name, lines, labels, encoder=Encoder(name).fit(frame), by_index=True)
        index, frame = split_labels(F, labels)
        match(labels, index, name, lines)
        if needs_encoding(frame):
            return cls(name, lines, labels, encoder=Encoder(name).fit(frame))
        return cls(name, lines, labels, columns=_names(frame))

    def array(self, F: Any) -> Any:
        """The features that this side was made from, as numbers; None without."""
        if F is None:
            return None
        return self._encoded(F, self.labels) if self.encoder else _numeric(self.split(F)[1], self.name)

    def place(self, F: Any, labels: Labels | None = None) -> Array:
        """What features of other rows or columns, or "index" and their labels, say of the factor of L."""
        if self.expected is None:
            advice = "rows but their data. Leave the features out, and pass the rows to outliers, repaired or transform"
            raise ValueError(
                f"{self.name} was given, but this model was fitted without (or its solver ignores them): it knows "
                "nothing about new " + (advice if self.lines == "rows" else "columns")
            )
        return self.expected(self._numbers(F, labels))

    def vague(self, F: Any) -> Array | None:
        """Of which lines features are not really known; None if of all."""
        if self.encoder is None or self.by_index:
            return None
        found = self.encoder.vague(self.split(F)[1])
        return found if found.any() else None

    def split(self, F: Any) -> tuple[Labels | None, Any]:
        """Labels that features of any rows or columns bring along, and the features without them."""
        if self.by_index:
            return (None if isinstance(F, str) else Labels.of(F)), F
        if kind_of(F) in ("polars", "pyarrow"):
            known, names = self.columns or (self.encoder and self.encoder.columns_) or (), _names(F)
            if names and names[0] not in set(known):
                return split_first(F)
        return labels_of(F), F

    def _numbers(self, F: Any, labels: Labels | None) -> Array:
        if self.encoder is not None:
            return self._encoded(F, labels)
        if isinstance(F, str):
            raise ValueError(f"{self.name}={F!r}, but this model was fitted with a table of features: pass one here")
        assert self.expected is not None
        frame = self.split(F)[1]
        names, d = _names(frame), len(self.expected.coefficients)
        with naming(self.name), np.errstate(invalid="ignore"):  # scikit-learn adds up infinities
            found: Array = check_array(_numeric(frame, self.name), dtype=np.float64, input_name=self.name)
        if found.shape[1] != d:
            hint = f"; did you mean {self.name}.T?" if len(found) == d else ""
            raise ValueError(f"{self.name} has {found.shape[1]} columns but had {d} in fit{hint}")
        if names is not None and self.columns is not None and not names.equals(self.columns):
            raise ValueError(f"the columns of {self.name} are {few(names)}, in fit {few(self.columns)}: pass the same")
        return found

    def _encoded(self, F: Any, labels: Labels | None) -> Array:
        assert self.encoder is not None
        return self.encoder.transform(self._index_frame(F, labels) if self.by_index else self.split(F)[1])

    def _index_frame(self, F: Any, labels: Labels | None) -> Any:
        """A frame of the labels: those of the table if F is "index", else F itself."""
        if not isinstance(F, str):
            labels = Labels.of(F)
        elif F != "index":
            raise ValueError(f'{self.name}={F!r} is unknown: pass a table of features, or "index" to use the labels')
        if labels is None:
            raise ValueError(
                f'{self.name}="index" makes features from the labels of the {self.lines}, and M has none: set an index '
                "(on the command line: --index COLUMN), or pass the features themselves"
            )
        if len(labels.levels) > 1:
            raise ValueError(f'{self.name}="index" needs labels of one level, and the {self.lines} have nested ones')
        name = labels.names[0] or "index" if self.encoder is None else self.encoder.columns_[0]
        with naming(self.name):
            return index_column(labels.levels[0], name)


def labels_of(F: Any) -> Labels | None:
    """The labels that features bring along: a pandas index."""
    return Labels.of(F.index) if hasattr(F, "iloc") and hasattr(F, "columns") else None


def split_labels(F: Any, labels: Labels | None) -> tuple[Labels | None, Any]:
    """Features without their labels, and these: a pandas index; elsewhere a first column that holds those of M."""
    if kind_of(F) not in ("polars", "pyarrow") or labels is None or not F.shape[1]:
        return labels_of(F), F
    first, rest = split_first(F)
    return (first, rest) if set(first) == set(labels) or first.names[0] == labels.names[0] else (None, F)


def _numeric(F: Any, name: str) -> Any:
    """Features that are numbers already, as what becomes an array."""
    if hasattr(F, "__dlpack__") and not isinstance(F, np.ndarray):
        return as_numpy(F, name)
    return as_array(F) if isinstance(F, dict) or kind_of(F) in ("polars", "pyarrow") else F


def _names(F: Any) -> Labels | None:
    if hasattr(F, "iloc") and hasattr(F, "columns"):
        return Labels.of(F.columns)
    if kind_of(F) in ("polars", "pyarrow"):
        return Labels.of(list(getattr(F, "column_names", None) or F.columns))
    return None
