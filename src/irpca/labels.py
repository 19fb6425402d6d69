"""Labels of rows and columns: kept, matched and put back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from .arguments import is_whole, shown
from .lowrank import Array
from .wording import few


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of the rows, or of the columns, of a table.

    Attributes
    ----------
    levels : tuple of 1-D arrays
        One array, or one for each level of nested labels.
    names : tuple of str or None
        Of the levels, such as ``("country",)``.
    dtypes : tuple of str
        What pandas calls the type of each level.

    Examples
    --------
    >>> labels = Labels.of(["Chile", "Cuba"], "country")
    >>> len(labels), labels[1], labels.names
    (2, 'Cuba', ('country',))
    """

    levels: tuple[Array, ...]
    names: tuple[str | None, ...]
    dtypes: tuple[str, ...]
    _pandas = None  # the index that they come from: its frequency, for one, is in none of the fields
    _spelt = None  # how a file spells them

    @classmethod
    def of(cls, given: Any, name: str | None = None) -> Labels:
        """Labels from a pandas index, an array, a list or Labels."""
        if isinstance(given, Labels):
            return given
        if hasattr(given, "get_level_values"):
            levels = [given.get_level_values(k) for k in range(given.nlevels)]
            found = cls(tuple(map(_to_array, levels)), tuple(given.names), tuple(str(level.dtype) for level in levels))
            object.__setattr__(found, "_pandas", given)
            return found
        values = _to_array(given)
        text = values.dtype == object and all(isinstance(value, str) for value in values)
        return cls((values,), (name,), ("str" if text else str(values.dtype),))

    def __len__(self) -> int:
        return len(self.levels[0])

    def __getitem__(self, i: int) -> Any:
        label = tuple(_to_plain(level[i]) for level in self.levels)
        return label if len(label) > 1 else label[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def take(self, positions: Array) -> Labels:
        found = Labels(tuple(level[positions] for level in self.levels), self.names, self.dtypes)
        if self._pandas is not None:
            object.__setattr__(found, "_pandas", self._pandas.take(positions))
        return found

    def spell(self) -> list[str]:
        """Every label as in the file that it was read from; else as people read it."""
        return self.texts() if self._spelt is None else self._spelt

    def texts(self) -> list[str]:
        """Every label as people read it: dates without a time of zero, nested labels with commas."""
        levels = [_spell_level(level) for level in self.levels]
        return levels[0] if len(levels) == 1 else [", ".join(label) for label in zip(*levels, strict=True)]

    def column(self) -> Array:
        """The labels as one array; nested ones are tuples."""
        if len(self.levels) == 1:
            return self.levels[0]
        column = np.empty(len(self), object)
        column[:] = list(zip(*self.levels, strict=True))
        return column

    def equals(self, other: Labels) -> bool:
        return len(self) == len(other) and list(self) == list(other)

    def positions(self, wanted: Labels) -> Array | None:
        """Where each of ``wanted`` is among these, if all are, and each once."""
        at = {label: i for i, label in enumerate(self)}
        if len(at) < len(self) or any(label not in at for label in wanted):
            return None
        return np.array([at[label] for label in wanted], np.intp)

    def pandas(self) -> Any:
        """As a pandas index."""
        import pandas as pd

        if self._pandas is not None:
            return self._pandas
        levels = [
            pd.Index(level, dtype=dtype, name=name)
            for level, dtype, name in zip(self.levels, self.dtypes, self.names, strict=True)
        ]
        return levels[0] if len(levels) == 1 else pd.MultiIndex.from_arrays(levels, names=list(self.names))


def _to_array(given: Any) -> Array:
    values = np.asarray(given)
    if values.ndim != 1:
        raise ValueError(f"labels must be one list, got an array of shape {values.shape}")
    return values.astype(object) if values.dtype.kind in "UT" else values


def _to_plain(value: Any) -> Any:
    """A Python object in the place of a NumPy scalar; of dates, what compares equal to those of pandas."""
    return value.item() if isinstance(value, np.generic) and value.dtype.kind not in "mM" else value


def _spell_level(level: Array) -> list[str]:
    if level.dtype.kind == "M":
        whole_days = bool((level == level.astype("datetime64[D]")).all())
        text = np.datetime_as_string(level, unit="D" if whole_days else "auto")
        return [day.replace("T", " ") for day in text.tolist()]
    return [str(_to_plain(value)).removesuffix(" 00:00:00") for value in level]


def text_of(label: Any) -> str:
    """One label as people read it."""
    return ", ".join(Labels.of([level]).texts()[0] for level in (label if isinstance(label, tuple) else (label,)))


def texts(labels: Labels | None, n: int) -> list[str]:
    """Labels as text; positions where there are none."""
    return [str(i) for i in range(n)] if labels is None else labels.texts()


def match(labels: Labels | None, of_features: Labels | None, name: str, side: str) -> None:
    """Refuse features whose labels are not those of the rows, or columns, of M, when both are labelled."""
    if labels is None or of_features is None or len(labels) != len(of_features) or labels.equals(of_features):
        return
    frame = "M.index" if side == "rows" else "M.columns"
    if of_features.positions(labels) is not None:
        advice = f"the labels are the same in another order: pass {name}.loc[{frame}]"
    else:
        advice = f"if they belong together as they stand, pass {name}.set_axis({frame})"
    raise ValueError(
        f"the index of {name} does not match the {side} of M: {few(of_features)} against {few(labels)}; {advice}"
    )


def position(wanted: Any, labels: Labels | None, n: int, side: str) -> int:
    """Where the label of a row or column is; where there are no labels, a position is meant."""
    if labels is None:
        if is_whole(wanted) and 0 <= wanted < n:
            return int(wanted)
        raise ValueError(f"{side}={wanted!r}: the {side}s have no labels, so give a position from 0 to {n - 1}")
    if not isinstance(wanted, (tuple, list)) and np.ndim(wanted):
        raise ValueError(f"{side} must be one label, got {shown(wanted)}")
    found = _find(wanted, labels)
    if len(found) == 1:
        return int(found[0])
    if len(found):
        raise ValueError(
            f"{side}={wanted!r} is the label of {len(found)} {side}s: make the labels unique, and fit again"
        )
    near = get_close_matches(str(wanted), labels.texts(), n=4)
    advice = f"did you mean {few(near)}?" if near else f"there are {few(labels)}"
    raise ValueError(f"{side}={wanted!r} is not the label of a {side}; {advice}")


def _find(wanted: Any, labels: Labels) -> Array:
    """Positions of a label: by value, dates by their moment, and else by how it reads."""
    if len(labels.levels) == 1 and labels.levels[0].dtype.kind == "M":
        try:
            return np.flatnonzero(labels.levels[0] == np.datetime64(wanted))
        except (ValueError, TypeError):
            return np.zeros(0, np.intp)
    same = [i for i, label in enumerate(labels) if type(label) is type(wanted) and label == wanted]
    if not same:
        text = ", ".join(map(str, wanted)) if isinstance(wanted, list) else text_of(wanted)
        same = [i for i, label in enumerate(labels.texts()) if label == text]
    return np.array(same, np.intp)
