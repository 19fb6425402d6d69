"""Features from frames with text, categories, booleans, dates and missing values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..engines import single_threaded_blas
from ..features import _rounding, _unit_columns
from ..lowrank import Array
from .columns import Column, column, is_frame, listed, raw_columns, read_dates
from .terms import LIMITS, Calendar, Category, Clock, Curve, Limits, Linear, Term

ROWS_PER_FEATURE = 3  # at least, of what is made: with fewer, features explain much of any table
BLOCK = 1 << 12  # rows, that fit a cache with a hundred columns
SMALLEST_REST = 1e-7  # of a column about its mean, that those before it leave: less is rounding, or of no use


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
        What messages call the frame.

    Attributes
    ----------
    columns_ : tuple of str
        Columns of the frame.
    dropped_ : tuple of str
        Made columns that were left out because those before them determine them.
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

    def __init__(self, name: str = "features") -> None:
        self.name = name

    def fit(self, frame: Any) -> Encoder:
        """Learn what each column becomes."""
        self.fit_transform(frame)
        return self

    def fit_transform(self, frame: Any) -> Array:
        """Learn what each column becomes, and return it for the rows of the frame."""
        raw = raw_columns(frame, self.name)
        given = {key: column(values, self._called(key)) for key, values in raw.items()}
        columns = {key: _dates_from_text(one, self._called(key)) for key, one in given.items()}
        n = self._rows(columns)
        if not n:
            raise ValueError(f"{self.name} is empty: it has {_count(len(columns), 'column')} and no rows")
        tries = [*self._tries(columns, n, ordered=isinstance(frame, IndexColumn))]
        kept, terms, notes, made = min(tries, key=lambda one: len(one[0]))  # the first of the smallest
        if len(kept) < 2:
            raise ValueError(
                f"{self.name} has no column that tells rows apart, so nothing can be learned from it; "
                f"pass None instead. {' '.join(notes)}"
            )
        names = _unique(["constant", *(name for term in terms for name in term.made_names)])
        self.columns_, self._terms, self._kept = tuple(columns), terms, kept
        self._names = tuple(names[j] for j in kept)
        self.dropped_ = tuple(name for j, name in enumerate(names) if j not in set(kept))
        notes += [_read_as_dates(key) for key in columns if columns[key] is not given[key]]
        reduced = terms != tries[0][1]
        self.notes_ = (*notes, *_notes_on_size(reduced, len(kept), n), *_notes_on_dropped(self.dropped_))
        return made[:, kept]

    def _tries(
        self, columns: dict[str, Column], n: int, ordered: bool
    ) -> Iterator[tuple[list[int], list[Term], list[str], Array]]:
        """What can be made, with tighter and tighter limits, until the rows are enough for it."""
        for limits in LIMITS:
            terms, notes = _terms(columns, limits, ordered)
            made = self._made(terms, columns, n, new=False)
            kept = _independent(made)
            yield kept, terms, notes, made
            if len(kept) * ROWS_PER_FEATURE <= n:
                return

    def transform(self, frame: Any) -> Array:
        """The features of new rows."""
        self._check_fitted()
        raw = raw_columns(frame, self.name)
        used = [term.column for term in self._terms]
        self._check_names(list(raw), used)
        columns = {key: column(raw[key], self._called(key)) for key in used}
        return self._made(self._terms, columns, self._rows(columns), new=True)[:, self._kept]

    def vague(self, frame: Any) -> Array:
        """Rows of which some feature is missing, rare or was not seen in the fit: of them less is known than of others.

        Examples
        --------
        >>> encoder = Encoder().fit({"soil": ["clay"] * 9 + ["sand"] * 9 + [None] * 2})
        >>> encoder.vague({"soil": ["clay", "peat", None]})
        array([False,  True,  True])
        """
        self._check_fitted()
        raw = raw_columns(frame, self.name)
        columns = {term.column: column(raw[term.column], self._called(term.column)) for term in self._terms}
        found = np.zeros(self._rows(columns), bool)
        for term in self._terms:
            found |= term.vague(columns[term.column], self._called(term.column))
        return found

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names of the made columns."""
        self._check_fitted()
        return np.array(self._names, dtype=object)

    def state(self) -> dict[str, Any]:
        """All that was learned, in dicts, lists, text and numbers."""
        self._check_fitted()
        return {
            "name": self.name,
            "columns": list(self.columns_),
            "terms": [term.state() for term in self._terms],
            "kept": list(self._kept),
            "names": list(self._names),
            "dropped": list(self.dropped_),
            "notes": list(self.notes_),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Encoder:
        """The encoder that `state` described."""
        try:
            self = cls(state["name"])
            self.columns_ = tuple(state["columns"])
            self._terms = [Term.from_state(term) for term in state["terms"]]
            self._kept = list(state["kept"])
            self._names = tuple(state["names"])
            self.dropped_ = tuple(state["dropped"])
            self.notes_ = tuple(state["notes"])
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError("state is not what Encoder.state() returns") from error
        return self

    def _called(self, key: str) -> str:
        return f"column {key!r} of {self.name}"

    def _check_fitted(self) -> None:
        if not hasattr(self, "_terms"):
            raise ValueError(f"the encoder of {self.name} is not fitted; call fit first")

    def _rows(self, columns: dict[str, Column]) -> int:
        lengths = {len(one.values) for one in columns.values()}
        if len(lengths) > 1:
            told = ", ".join(f"{key!r} {len(one.values)}" for key, one in list(columns.items())[:5])
            raise ValueError(f"columns of {self.name} differ in length ({told}); all need one value for each row")
        return lengths.pop() if lengths else 0

    def _check_names(self, given: list[str], used: list[str]) -> None:
        absent = [key for key in used if key not in set(given)]
        if absent:
            raise ValueError(f"{self.name} has no column {listed(absent)}, which the model was fitted with")
        extra = [key for key in given if key not in set(self.columns_)]
        if extra:
            raise ValueError(
                f"{self.name} has columns that the model was not fitted with: {listed(extra)}; leave them out"
            )

    def _made(self, terms: list[Term], columns: dict[str, Column], n: int, new: bool) -> Array:
        parts = [term.apply(columns[term.column], self._called(term.column), new) for term in terms]
        return np.hstack([np.ones((n, 1)), *parts])


class IndexColumn(dict[str, Array]):
    """Labels of M as a frame of one column; numbers among them are ordered times, and may count as a curve."""


def from_index(values: Any, name: str) -> dict[str, Array]:
    """The labels of M as a frame of one column, for `Encoder`.

    Parameters
    ----------
    values : array of shape (n,)
        Dates, numbers, or text that reads as either (dates in ISO format).
    name : str
        What to call the column.
    """
    made = column(values, f"the index {name!r}")
    if made.kind == "text":
        made = _from_text(made, f"the index {name!r}")
    if made.kind not in ("missing", "date", "number", "duration"):
        some = ", ".join(repr(value) for value in np.asarray(values, dtype=object)[:3])
        raise ValueError(
            f"'index' makes features from dates or numbers, but the labels of {name!r} are neither ({some}, …); "
            "pass a frame of features, or convert the labels, for example with pandas.to_datetime"
        )
    if not len(made.known):
        raise ValueError(f"'index' makes features from dates or numbers, but all labels of {name!r} are missing")
    return IndexColumn({name: made.values})


def needs_encoding(F: Any) -> bool:
    """Whether F is a frame that has to be made into numbers: with text, dates or missing values.

    False for arrays, and for frames of numbers (or true and false) without missing values: they serve as they are.
    """
    if not is_frame(F):
        return False
    try:
        columns = [column(raw, repr(key)) for key, raw in raw_columns(F, "the frame").items()]
    except ValueError:  # whoever uses F says what is wrong with it
        return not _is_plain(F)
    return any(one.kind not in ("number", "boolean") or one.missing.any() for one in columns)


def _is_plain(F: Any) -> bool:
    values = np.asarray(F)
    return values.ndim == 2 and values.dtype.kind in "fiub" and not np.isnan(values).any()


def numbers(F: Any) -> Array:
    """The columns of a frame that needs no encoding, as an array."""
    columns = [column(raw, repr(key)).values for key, raw in raw_columns(F, "the frame").items()]
    return np.column_stack(columns) if columns else np.empty((0, 0))


def _dates_from_text(given: Column, name: str) -> Column:
    return given if given.kind != "text" or given.levels is not None else read_dates(given, name) or given


def _from_text(given: Column, name: str) -> Column:
    dated = _dates_from_text(Column("text", given.values), name)
    if dated.kind == "date":
        return dated
    try:
        return Column("number", np.array([np.nan if value is None else float(value) for value in given.values]))
    except ValueError:
        return given


def _terms(columns: dict[str, Column], limits: Limits, ordered: bool) -> tuple[list[Term], list[str]]:
    terms, notes = [], []
    for key, one in columns.items():
        term = _term(key, one, limits, ordered)
        if term is not None:
            terms.append(term.with_gaps(one))
            notes.append(terms[-1].note())
        else:
            notes.append(_why_left_out(key, one))
    return terms, notes


def _term(key: str, one: Column, limits: Limits, ordered: bool) -> Term | None:
    match one.kind:
        case "missing":
            return None
        case "text":
            return Category.learn(one, key, limits)
        case "date":
            return Calendar.learn(key, one.known, limits) if len(one.known) else None
        case "clock":
            return Clock.learn(key, one.known, limits)
    if not len(one.known):
        return None
    return Curve.learn(key, one.known, limits) if ordered else Linear(key, one.kind, (key,))


def _why_left_out(key: str, one: Column) -> str:
    if not len(one.known):
        return f"{key!r} was left out: all its values are missing."
    count = len(set(one.known.tolist()))
    return (
        f"{key!r} was left out: it has {count} different values in {len(one.known)} rows, too many to group them. "
        "If they are numbers or dates, convert them."
    )


def _independent(made: Array) -> list[int]:
    """Columns, in reading order, that those before them do not determine; the first is the constant."""
    unit = made / np.maximum(np.abs(made).max(axis=0), np.finfo(float).tiny)
    centred = unit[:, 1:] - unit[:, 1:].mean(axis=0)
    centred[:, np.abs(centred).max(axis=0) <= _rounding(made)] = 0
    R = _triangle(_unit_columns(centred))
    basis, kept = np.zeros((len(R), 0)), [0]
    for j, one in enumerate(R.T, start=1):
        rest = one - basis @ (basis.T @ one)
        rest -= basis @ (basis.T @ rest)
        size = np.linalg.norm(rest)
        if size > SMALLEST_REST:
            basis = np.column_stack([basis, rest / size])
            kept.append(j)
    return kept


@single_threaded_blas
def _triangle(A: Array) -> Array:
    """R of A = QR, by blocks of rows: 3 times as fast as of all rows at once, but not with threads that wait."""
    R = A[:0]
    for start in range(0, len(A), BLOCK):
        R = np.asarray(np.linalg.qr(np.vstack([R, A[start : start + BLOCK]]), mode="r"))
    return R


def _unique(names: list[str]) -> list[str]:
    """Names with a number behind those that were there before."""
    seen: dict[str, None] = {}
    for name in names:
        k, one = 1, name
        while one in seen:
            k += 1
            one = f"{name} ({k})"
        seen[one] = None
    return list(seen)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _read_as_dates(key: str) -> str:
    return f"{key!r} is text, but all of it in ISO format: it was read as dates."


def _notes_on_size(reduced: bool, d: int, n: int) -> list[str]:
    notes = []
    if reduced:
        notes.append(f"Fewer levels, knots or cycles than usual were made, because there are only {n} rows.")
    if d * ROWS_PER_FEATURE > n:
        notes.append(f"{d} features for {n} rows are many: they explain much of any table. Leave out columns.")
    return notes


def _notes_on_dropped(dropped: tuple[str, ...]) -> list[str]:
    return [f"Left out, because columns before them determine them: {listed(dropped, 20)}."] if dropped else []
