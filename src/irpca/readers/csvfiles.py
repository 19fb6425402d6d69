"""Text files with a delimiter: csv and its relatives."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from ..dates import parse_dates
from ..lowrank import Array
from .columns import UNNAMED, Options, ReaderError, Table, check_known, objects, quoted

# What stands for a missing value: the words that pandas takes, too.
MISSING = frozenset(("", "NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "NaN", "nan", "-NaN", "-nan", "null"))
MISSING |= {"NULL", "None", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
SNIFFED_RECORDS = 50
SNIFFED_BYTES = 1 << 20
CELLS_AT_ONCE = 1 << 18
OTHER_DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}( .*)?")


def from_csv(name: str, content: bytes, options: Options) -> Table:
    return _Csv.of(name, content, options).table()


@dataclass(frozen=True, eq=False)
class _Csv:
    """The text of a csv file, and how to take it apart."""

    name: str
    content: bytes
    options: Options
    encoding: str
    delimiter: str
    decimal: str
    names: list[str]

    @classmethod
    def of(cls, name: str, content: bytes, options: Options) -> _Csv:
        encoding = _encoding(name, content, options.encoding)
        delimiter = options.delimiter or _delimiter(name, content, encoding)
        found = cls(name, content, options, encoding, delimiter, options.decimal or ".", [])
        first = next(found._records(), None)
        if first is None:
            raise ReaderError(f"{name} is empty")
        found = replace(found, names=_names(name, *first) if options.header else [str(j) for j in range(len(first[1]))])
        return found if options.decimal or delimiter != ";" else replace(found, decimal=found._decimal_mark())

    def table(self) -> Table:
        check_known(self.name, self.names, self.options)
        columns, spelt = self._numbers()
        spelt |= self._texts([j for j in self._wanted() if j not in columns and j not in spelt])
        columns |= {j: self._typed(j, fields) for j, fields in spelt.items()}
        if not columns:
            raise ReaderError(f"every column of {self.name} is dropped")
        if not len(next(iter(columns.values()))):
            raise ReaderError(f"{self.name} has no lines of data")
        notes = [note for j, fields in spelt.items() for note in self._about(j, fields)]
        return _without_unnamed(
            Table(
                self.name,
                {self.names[j]: columns[j] for j in sorted(columns)},
                {self.names[j]: fields for j, fields in spelt.items()},
                self.options.header,
                (*self._about_header(), *notes),
                self._line_of,
            )
        )

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """The line that a record begins on, and its fields; blank lines are skipped."""
        lines = io.TextIOWrapper(io.BytesIO(self.content), encoding=self.encoding, newline="")
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True, skipinitialspace=True)
        line = 1
        try:
            for fields in reader:
                if any(fields) or len(fields) > 1:
                    yield line, fields
                line = reader.line_num + 1
        except csv.Error as error:
            raise ReaderError(
                f"{self.name}, line {line}: this record cannot be taken apart ({error}); "
                "look for a quotation mark that is not closed, or not doubled inside a quoted field"
            ) from error

    def _data(self) -> Iterator[list[str]]:
        """The fields of all records but the header, as many in each."""
        width = len(self.names)
        for line, fields in islice(self._records(), 1 if self.options.header else 0, None):
            if len(fields) != width:
                raise ReaderError(self._malformed(line, len(fields)))
            yield fields

    def _malformed(self, line: int, count: int) -> str:
        width, whose = len(self.names), "the header" if self.options.header else "the first line"
        shown = DELIMITERS.get(self.delimiter, self.delimiter)
        advice = f"fields are separated by {shown}; put a field that contains one in quotation marks"
        if count == width + 1:
            advice += ". If the first column holds the names of the rows, give it a name in the header"
        fields = "1 field" if count == 1 else f"{count} fields"
        return f"{self.name}, line {line}: {fields}, but {whose} has {width}; {advice}"

    def _line_of(self, k: int) -> str:
        start = 1 if self.options.header else 0
        return f"line {next(islice(self._records(), start + k, None))[0]}"

    def _wanted(self) -> list[int]:
        only, drop = self.options.only, self.options.drop
        return [j for j, name in enumerate(self.names) if name not in drop and (not only or name in only)]

    def _numbers(self) -> tuple[dict[int, Array], dict[int, list[str]]]:
        """All columns of nothing but numbers and gaps; and, as they are spelt, those that are to be kept as text."""
        as_text = {*self.options.text, *self.options.labels}
        spelt: dict[int, list[str]] = {j: [] for j in self._wanted() if self.names[j] in as_text}
        pieces: dict[int, list[Array]] = {j: [] for j in self._wanted() if j not in spelt}
        data, at_once, known = self._data(), max(1, CELLS_AT_ONCE // len(self.names)), dict[str, str]()
        while chunk := list(islice(data, at_once)):
            for j, fields in enumerate(zip(*chunk, strict=True)):
                if j in spelt:
                    spelt[j] += [known.setdefault(text, text) for text in map(str.strip, fields)]
                elif j in pieces and (values := self._floats(fields)) is not None:
                    pieces[j].append(values)
                elif j in pieces:
                    del pieces[j]
        return {j: np.concatenate(found) if found else np.empty(0) for j, found in pieces.items()}, spelt

    def _floats(self, fields: Sequence[str]) -> Array | None:
        """Fields as numbers, NaN where missing; None if one is neither."""
        together = "".join(fields)
        if "_" in together or (self.decimal == "," and "." in together):  # Python takes 1_000 for a number
            return self._floats_one_by_one(fields)
        try:
            numbers = map(float, [text.replace(",", ".") for text in fields] if self.decimal == "," else fields)
            values = np.array(list(numbers))
        except ValueError:
            return self._floats_one_by_one(fields)
        return self._floats_one_by_one(fields) if np.isinf(values).any() else self._with_gaps(values)

    def _floats_one_by_one(self, fields: Sequence[str]) -> Array | None:
        try:
            return self._with_gaps(np.array([self._number(field) for field in fields]))
        except ValueError:
            return None

    def _with_gaps(self, values: Array) -> Array:
        numbers = [float(token) for token in self.options.missing if _is_float(token)]
        return np.where(np.isin(values, numbers), np.nan, values) if numbers else values

    def _number(self, text: str) -> float:
        """One field as a number, NaN if it is missing."""
        if self._is_missing(text):
            return math.nan
        value = float(text.replace(",", ".") if self.decimal == "," else text)
        if "_" in text or math.isinf(value) or (self.decimal == "," and "." in text):  # 1.234 may mean a thousand
            raise ValueError(text)
        return value

    def _is_missing(self, text: str) -> bool:
        text = text.strip()
        return text in MISSING or text in self.options.missing

    def _is_number(self, text: str) -> bool:
        try:
            self._number(text)
        except ValueError:
            return False
        return True

    def _texts(self, wanted: list[int]) -> dict[int, list[str]]:
        """These columns as they are spelt, equal fields as one object."""
        if not wanted:
            return {}
        columns: dict[int, list[str]] = {j: [] for j in wanted}
        known: dict[str, str] = {}
        for fields in self._data():
            for j in wanted:
                text = fields[j].strip()
                columns[j].append(known.setdefault(text, text))
        return columns

    def _typed(self, j: int, fields: list[str]) -> Array:
        """A column that is not all numbers: booleans, dates or text."""
        if self.names[j] in self.options.labels:
            return objects(text or None for text in fields)
        values = {text: None if self._is_missing(text) else text for text in dict.fromkeys(fields)}
        if self.names[j] not in self.options.text:
            words = [text for text in values.values() if text is not None]
            if words and all(word.lower() in ("true", "false") for word in words):
                return _booleans(fields, values)
            try:
                dates = parse_dates(words)
            except ValueError as error:
                advice = f"or pass --text {quoted(self.names[j])} to keep the column as text"
                raise ReaderError(f"{self.name}, column {self.names[j]!r}: {error}, {advice}") from error
            if dates is not None:
                of = dict(zip(words, dates.tolist(), strict=True))
                return np.array([of.get(text) for text in fields], "datetime64[us]")
            self._refuse_mixed(j, fields, self._is_number, "a number")
            self._refuse_mixed(j, fields, lambda text: parse_dates([text]) is not None, "a date such as 2013-01-31")
        return objects(values[text] for text in fields)

    def _refuse_mixed(self, j: int, fields: list[str], fits: Callable[[str], bool], what: str) -> None:
        """Refuse a column of which most, but not all, is of one kind: as text it would be lost."""
        kinds = {text: fits(text) for text in set(fields) if not self._is_missing(text)}
        present = [kinds[text] for text in fields if text in kinds]
        if 2 * sum(present) <= len(present):
            return
        name = self.names[j]
        k = next(k for k, text in enumerate(fields) if not kinds.get(text, True))
        value = fields[k]
        shown = repr(value if len(value) <= 40 else value[:39] + "…")
        also = " With --decimal , a comma is the decimal mark." if re.fullmatch(r"[+-]?\d+,\d+", value) else ""
        raise ReaderError(
            f"{self.name}, {self._line_of(k)}, column {name!r}: {shown} is not {what}, but {sum(present)} of the "
            f"{len(present)} values of this column are. Correct it in the file, or pass "
            f"--missing={quoted(value)} if it "
            f"means missing, --text {quoted(name)} to keep the column as text, --drop {quoted(name)} to leave it "
            f"out.{also}"
        )

    def _about_header(self) -> list[str]:
        if not self.options.header or not all(map(_is_float, self.names)):
            return []
        return [f"the first line of {self.name} is taken for the names of its columns; if it is data, pass --no-header"]

    def _about(self, j: int, fields: list[str]) -> list[str]:
        words = [text for text in islice(fields, 1000) if not self._is_missing(text)]
        if not words or not all(OTHER_DATE.fullmatch(word) for word in words) or parse_dates(words[:1]) is not None:
            return []
        return [
            f"column {self.names[j]!r} looks like dates ({words[0]}), and is read as text: only dates with the year "
            "first, such as 2013-01-31, are read as dates"
        ]

    def _decimal_mark(self) -> str:
        """Of a file with semicolons: a comma, if that is in its numbers, and no point is."""
        found: dict[str, tuple[int, str]] = {}
        for line, fields in self._records():
            for text in fields:
                for mark in ",.":
                    if mark in text and mark not in found and re.fullmatch(rf"\s*[+-]?\d+\{mark}\d+\s*", text):
                        found[mark] = (line, text.strip())
            if len(found) == 2:
                raise ReaderError(
                    f"{self.name} has numbers with a decimal comma, {found[','][1]} in line {found[','][0]}, and with "
                    f"a point, {found['.'][1]} in line {found['.'][0]}; say which is the decimal mark: --decimal , or "
                    "--decimal ."
                )
        return "," if "," in found else "."


def _encoding(name: str, content: bytes, given: str | None) -> str:
    """The encoding, after a look whether it holds for all of the file."""
    for start, what in ((b"PK\x03\x04", "a zip file or a workbook"), (b"\xd0\xcf\x11\xe0", "an old workbook")):
        if content.startswith(start):
            raise ReaderError(f"{name} is {what}, not text; save the table as csv")
    encoding = given or ("utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
    try:
        text = content.decode(encoding)
    except LookupError as error:
        raise ReaderError(f"--encoding {given}: there is no such encoding; latin-1 and cp1252 are common") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ReaderError(
            f"{name}, line {line}: byte {error.start} (0x{content[error.start]:02x}) is not "
            f"{'UTF-8' if given is None else given}; pass the encoding of the file, such as --encoding latin-1"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ReaderError(
            f"{name}, line {line}: a zero byte; this is no text file, or in another encoding (--encoding)"
        )
    return encoding


def _delimiter(name: str, content: bytes, encoding: str) -> str:
    """The one of :data:`DELIMITERS` that gives the first records the same number of fields, the larger the better."""
    start = content[:SNIFFED_BYTES].decode(encoding, errors="ignore")
    if name.lower().endswith((".tsv", ".tsv.gz", ".tsv.bz2", ".tsv.xz")):
        return "\t"
    return max(DELIMITERS, key=lambda delimiter: _agreement(start, delimiter))


def _agreement(text: str, delimiter: str) -> tuple[float, int]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        counts = [len(fields) for fields in islice(reader, SNIFFED_RECORDS) if fields]
    except csv.Error:
        return 0.0, 0
    if not counts or counts[0] == 1:
        return 0.0, 0
    return counts.count(counts[0]) / len(counts), counts[0]


def _names(file: str, line: int, fields: list[str]) -> list[str]:
    """The names in a header."""
    names = [field.strip() for field in fields]
    twice = [name for name in dict.fromkeys(names) if name and names.count(name) > 1]
    if twice:
        raise ReaderError(
            f"{file}, line {line}: the name {twice[0]!r} stands {names.count(twice[0])} times in the header; give "
            "every column its own name, or, if this line is data, pass --no-header"
        )
    return [name or f"{UNNAMED}{j}" for j, name in enumerate(names)]


def _without_unnamed(table: Table) -> Table:
    """Without columns that have neither a name nor a value, as lines with a delimiter at their end make them."""
    hollow = [
        name
        for name, values in table.columns.items()
        if name.startswith(UNNAMED) and values.dtype == float and np.isnan(values).all()
    ]
    if not hollow or len(hollow) == len(table.columns):
        return table
    notes = (*table.notes, f"columns without a name and without any value are left out: {', '.join(hollow)}")
    return replace(table.without(hollow), notes=notes)


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _booleans(fields: list[str], values: dict[str, str | None]) -> Array:
    """Booleans, or, with some missing, 0 and 1 as numbers."""
    of = {text: math.nan if word is None else float(word.lower() == "true") for text, word in values.items()}
    numbers = np.array([of[text] for text in fields])
    return numbers if np.isnan(numbers).any() else numbers.astype(bool)
