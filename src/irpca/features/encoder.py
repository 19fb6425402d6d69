"""Features from frames with text, categories, booleans, dates and missing values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..lowrank import Array
from ..wording import count, few
from .frames import Column, name_column, raw_columns, read_column, read_columns, read_dates
from .matrix import FeatureWarning, find_independent, level_outside, rounding_of, scale_columns
from .terms import MOST_DETAIL, Term

ROWS_PER_FEATURE = 3  # at least, of what is made: with fewer, features explain much of any table
SMALLEST_REST = 1e-7  # of a column about its mean, that those before it leave: less is rounding, or of no use


@dataclass(eq=False)
class Encoder:
    """Numeric features from a frame with columns of any kind.

    What each column becomes is learned from the frame given to `fit` and applied to new rows:

    - numbers are kept as they are, and count linearly; true and false become one and zero;
    - text and categories: a column of zeros and ones for each level. Levels with fewer than five rows are merged as
      "(other)"; a column with nearly as many different values as rows is left out;
    - dates (also text in ISO format): a smooth trend (natural cubic spline), which continues as a straight line beyond
      the dates of the fit, and cycles of the year, the week and the day where the dates are close enough to each other
      and their range is long enough to show them. Clock time counts in a named time zone, UTC where dates have an
      offset from it;
    - missing values: numbers get the median, others the average of what is made; a column of zeros and ones says
      where they were, if there were at least five;
    - a constant is added, and columns that the ones before them determine are left out.

    Parameters
    ----------
    name : str
        What messages call the frame. All else is learned.

    Attributes
    ----------
    columns_ : tuple of str
        Columns of the frame.
    terms_ : tuple of Term
        What each of them becomes, in numbers and text.
    kept_ : tuple of int
        Positions of the made columns that are kept; the first is the constant.
    names_, dropped_ : tuples of str
        Names of these, and of those that were left out because the ones before them determine them.
    notes_ : tuple of str
        What was done with each column, what was left out, and why.

    Examples
    --------
    >>> heights = [2.5, 3.0, 2.0, 4.0, 3.5, 1.5, 2.0, 1.0, 3.0]
    >>> encoder = Encoder().fit({"height": heights, "soil": ["clay", "sand", "peat"] * 3})
    >>> encoder.get_feature_names_out().tolist()
    ['constant', 'height', 'soil = clay']
    >>> encoder.transform({"height": [3.0, 2.0], "soil": ["sand", "clay"]})
    array([[1., 3., 0.],
           [1., 2., 1.]])
    >>> for note in encoder.notes_:
    ...     print(note)
    'height': numbers, as they are.
    'soil': one column for each of 1 level; 2 rarer ones ('peat', 'sand') merged as '(other)'.
    Fewer levels, knots or cycles than usual were made, because there are only 9 rows.
    Left out, because columns before them determine them: 'soil = (other)'.
    """

    name: str = "features"
    columns_: tuple[str, ...] = ()
    terms_: tuple[Term, ...] = ()
    kept_: tuple[int, ...] = ()
    names_: tuple[str, ...] = ()
    dropped_: tuple[str, ...] = ()
    notes_: tuple[str, ...] = ()

    def fit(self, frame: Any) -> Encoder:
        """Learn what each column becomes."""
        self.fit_transform(frame)
        return self

    def fit_transform(self, frame: Any) -> Array:
        """Learn what each column becomes, and return it for the rows of the frame."""
        given = read_columns(frame, self.name)
        columns = {key: _read_text(column, name_column(key, self.name)) for key, column in given.items()}
        n = self._count_rows(columns)
        if not n:
            raise ValueError(f"{self.name} is empty: it has {count(len(columns), 'column')} and no rows")
        tries = list(self._learn(columns, n))
        learned, made, kept = min(tries, key=lambda one: len(one[2]))  # the first of the smallest
        notes = [_why_left_out(key, columns[key]) if term is None else term.note() for key, term in learned.items()]
        if len(kept) < 2:
            raise ValueError(
                f"{self.name} has no column that tells rows apart, so nothing can be learned from it; "
                f"pass None instead. {' '.join(notes)}"
            )
        terms = [term for term in learned.values() if term is not None]
        names = _number_repeated(["constant", *(name for term in terms for name in term.names)])
        self.columns_, self.terms_, self.kept_ = tuple(columns), tuple(terms), tuple(kept)
        self.names_ = tuple(names[j] for j in kept)
        self.dropped_ = tuple(name for j, name in enumerate(names) if j not in kept)
        dates = [key for key in columns if columns[key] is not given[key]]
        notes += [f"{key!r} is text, but all of it in ISO format: it was read as dates." for key in dates]
        if learned is not tries[0][0]:
            notes.append(f"Fewer levels, knots or cycles than usual were made, because there are only {n} rows.")
        if len(kept) * ROWS_PER_FEATURE > n:
            notes.append(
                f"{len(kept)} features for {n} rows are many: they explain much of any table. Leave out columns."
            )
        if self.dropped_:
            notes.append(f"Left out, because columns before them determine them: {few(self.dropped_, 20)}.")
        self.notes_ = tuple(notes)
        return made[:, kept]

    def transform(self, frame: Any) -> Array:
        """Return the features of new rows."""
        pairs = list(self._pair(frame))
        for term, column in pairs:
            if text := term.describe_unknown(column):
                name = name_column(term.column, self.name)
                warnings.warn(f"{name} {text}", FeatureWarning, stacklevel=level_outside())
        return self._make(self._count_rows({term.column: column for term, column in pairs}), pairs)[:, self.kept_]

    def vague(self, frame: Any) -> Array:
        """Tell of which rows some feature is missing, rare or was not seen in the fit: of them less is known.

        Examples
        --------
        >>> encoder = Encoder().fit({"soil": ["clay"] * 9 + ["sand"] * 9 + [None] * 2})
        >>> encoder.vague({"soil": ["clay", "peat", None]})
        array([False,  True,  True])
        """
        return np.any([term.find_vague(column) for term, column in self._pair(frame)], axis=0)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the features."""
        self._check_fitted()
        return np.array(self.names_, dtype=object)

    def _learn(self, columns: dict[str, Column], n: int) -> Iterator[tuple[dict[str, Term | None], Array, list[int]]]:
        """Yield terms, what they make, and what of it to keep: less and less, until there are rows enough for it."""
        for detail in range(MOST_DETAIL, -1, -1):
            learned = {key: Term.learn(key, column, detail) for key, column in columns.items()}
            made = self._make(n, [(term, columns[key]) for key, term in learned.items() if term is not None])
            kept = _find_kept(made)
            yield learned, made, kept
            if len(kept) * ROWS_PER_FEATURE <= n:
                return

    def _pair(self, frame: Any) -> Iterator[tuple[Term, Column]]:
        """Yield each term and the column of new rows that it is for."""
        self._check_fitted()
        raw = raw_columns(frame, self.name)
        absent = [term.column for term in self.terms_ if term.column not in raw]
        if absent:
            raise ValueError(f"{self.name} has no column {few(absent)}, which the model was fitted with")
        extra = [key for key in raw if key not in self.columns_]
        if extra:
            raise ValueError(
                f"{self.name} has columns that the model was not fitted with: {few(extra)}; leave them out"
            )
        for term in self.terms_:
            name = name_column(term.column, self.name)
            yield term, term.accept(read_column(raw[term.column], name), name)

    def _make(self, n: int, pairs: list[tuple[Term, Column]]) -> Array:
        parts = [term.apply(column, name_column(term.column, self.name)) for term, column in pairs]
        return np.hstack([np.ones((n, 1)), *parts])

    def _check_fitted(self) -> None:
        if not self.names_:
            raise ValueError(f"the encoder of {self.name} is not fitted; call fit first")

    def _count_rows(self, columns: dict[str, Column]) -> int:
        lengths = {key: len(column.values) for key, column in columns.items()}
        if len(set(lengths.values())) > 1:
            some = few(lengths.items(), spell=lambda pair: f"{pair[0]!r} {pair[1]}")
            raise ValueError(f"columns of {self.name} differ in length ({some}); all need one value for each row")
        return next(iter(lengths.values()), 0)


def _read_text(given: Column, name: str) -> Column:
    """Return text as dates if all of it is; categories stay what they are."""
    return (given.kind == "text" and given.levels is None and read_dates(given, name)) or given


def _why_left_out(key: str, column: Column) -> str:
    if not len(column.known):
        return f"{key!r} was left out: all its values are missing."
    return (
        f"{key!r} was left out: it has {len(set(column.known))} different values in {count(len(column.known), 'row')}, "
        "too many to group them. If they are numbers or dates, convert them."
    )


def _find_kept(made: Array) -> list[int]:
    """Return positions of the columns that those before them do not determine; the first is the constant."""
    unit = made / np.maximum(np.abs(made).max(axis=0), np.finfo(float).tiny)
    centred = unit[:, 1:] - unit[:, 1:].mean(axis=0)
    centred[:, np.abs(centred).max(axis=0) <= rounding_of(made)] = 0
    R = np.asarray(np.linalg.qr(scale_columns(centred), mode="r"))
    return [0, *(1 + j for j in find_independent(R, SMALLEST_REST))]


def _number_repeated(names: list[str]) -> list[str]:
    """Return the names with a number behind those that were there before."""
    times = [names[:j].count(name) for j, name in enumerate(names)]
    return [f"{name} ({before + 1})" if before else name for name, before in zip(names, times, strict=True)]
