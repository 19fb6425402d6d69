"""Text files with a delimiter: csv and its relatives."""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from ..arguments import reads_as_number
from ..dates import parse_dates
from ..lowrank import Array
from ..wording import count
from .table import UNNAMED, FileTable, Options, ReaderError, objects, shorten

# What stands for a missing value: the words that pandas takes, too.
MISSING = frozenset(("", "NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "NaN", "nan", "-NaN", "-nan", "null"))
MISSING |= {"NULL", "None", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
SNIFFED_RECORDS = 50
SNIFFED_LETTERS = 1 << 20
CELLS_AT_ONCE = 1 << 18
OTHER_DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}( .*)?")
MARKED_NUMBER = r"(?:^|[;\r])[ \t]*\"?([+-]?\d+{}\d+)\"?[ \t]*(?=[;\r]|$)"  # a field, between semicolons


def from_csv(name: str, content: bytes, options: Options) -> FileTable:
    """Return the columns of a csv file."""
    encoding = options.encoding or ("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    text = _decode(name, content, encoding)
    delimiter = options.delimiter or _find_delimiter(name, text)
    decimal = options.decimal or (_find_decimal_mark(name, text) if delimiter == ";" else ".")
    del text
    return _CsvFile(name, content, encoding, options, delimiter, decimal).read()


@dataclass(frozen=True, eq=False)
class _CsvFile:
    """A csv file, and how to take it apart."""

    name: str
    content: bytes
    encoding: str
    options: Options
    delimiter: str
    decimal: str

    def read(self) -> FileTable:
        wanted = self.options.choose(self.name, self.names)
        as_text = {*self.options.text, *self.options.labels}
        numbers = self._read_numbers([name for name in wanted if name not in as_text])
        texts = self._read_texts([name for name in wanted if name not in numbers])
        columns = {name: numbers[name] if name in numbers else self._convert(name, texts[name]) for name in wanted}
        if not len(columns[wanted[0]]):
            raise ReaderError(f"{self.name} has no lines of data")
        notes = [note for name, fields in texts.items() for note in self._note_dates(name, fields)]
        if self.options.header and all(map(reads_as_number, self.names)):
            notes.append(
                f"the first line of {self.name} is taken for the names of its columns; if it is data, pass --no-header"
            )
        # As lines with a delimiter at their end make them.
        hollow = [name for name in numbers if name.startswith(UNNAMED) and np.isnan(numbers[name]).all()]
        if hollow and len(hollow) < len(columns):
            notes.append(f"columns without a name and without any value are left out: {', '.join(hollow)}")
            columns = {name: values for name, values in columns.items() if name not in hollow}
        return FileTable(self.name, columns, texts, self.options.header, tuple(notes), self._line_of)

    @cached_property
    def names(self) -> list[str]:
        """The names of all columns."""
        line, fields = next(self._records(), (0, []))
        if not fields:
            raise ReaderError(f"{self.name} is empty")
        if not self.options.header:
            return [str(j) for j in range(len(fields))]
        names = [field.strip() or f"{UNNAMED}{j}" for j, field in enumerate(fields)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ReaderError(
                f"{self.name}, line {line}: the name {twice!r} stands {names.count(twice)} times in the header; give "
                "every column its own name, or, if this line is data, pass --no-header"
            )
        return names

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line that a record begins on, and its fields; blank lines are skipped."""
        # Not from StringIO, which takes four bytes a letter.
        lines = io.TextIOWrapper(io.BytesIO(self.content), self.encoding, newline="")
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

    def _chunks(self) -> Iterator[dict[str, Sequence[str]]]:
        """Yield the columns of some records at a time, all of which must have as many fields as there are names."""
        records = islice(self._records(), 1 if self.options.header else 0, None)
        width, at_once = len(self.names), max(1, CELLS_AT_ONCE // len(self.names))
        while chunk := list(islice(records, at_once)):
            for line, fields in chunk:
                if len(fields) != width:
                    raise ReaderError(self._describe_width(line, len(fields)))
            yield dict(zip(self.names, zip(*(fields for _, fields in chunk), strict=True), strict=True))

    def _describe_width(self, line: int, fields: int) -> str:
        width, whose = len(self.names), "the header" if self.options.header else "the first line"
        shown = DELIMITERS.get(self.delimiter, self.delimiter)
        advice = f"fields are separated by {shown}; put a field that contains one in quotation marks"
        if fields == width + 1:
            advice += ". If the first column holds the names of the rows, give it a name in the header"
        return f"{self.name}, line {line}: {count(fields, 'field')}, but {whose} has {width}; {advice}"

    def _line_of(self, k: int) -> str:
        return f"line {next(islice(self._records(), k + self.options.header, None))[0]}"

    def _read_numbers(self, names: list[str]) -> dict[str, Array]:
        """Return the columns of nothing but numbers and gaps, of those named."""
        pieces: dict[str, list[Array]] = {name: [] for name in names}
        for chunk in self._chunks():
            for name in list(pieces):
                if (values := self._to_numbers(chunk[name])) is None:
                    del pieces[name]
                else:
                    pieces[name].append(values)
        return {name: np.concatenate(found) if found else np.empty(0) for name, found in pieces.items()}

    def _read_texts(self, names: list[str]) -> dict[str, list[str]]:
        """Return these columns as they are spelt, equal fields as one object."""
        texts: dict[str, list[str]] = {name: [] for name in names}
        known: dict[str, str] = {}
        for chunk in self._chunks() if names else ():
            for name in names:
                texts[name] += [known.setdefault(text, text) for text in map(str.strip, chunk[name])]
        return texts

    def _to_numbers(self, fields: Sequence[str]) -> Array | None:
        """Return fields as numbers, NaN where missing; None if one is neither."""
        if self.decimal == "." and not self.options.missing and "_" not in "".join(fields):
            with suppress(ValueError):  # several times as fast as one by one
                values = np.array([float(text or "nan") for text in fields])
                if not np.isinf(values).any():
                    return values
        try:
            return np.array(list(map(self._to_number, fields)))
        except ValueError:
            return None

    def _to_number(self, text: str) -> float:
        """Return one field as a number, NaN if it is missing."""
        text = text.strip()
        if self._is_missing(text):
            return math.nan
        if self.decimal == ",":
            text = text.replace(".", "_").replace(",", ".")  # 1.234 may mean a thousand
        value = float(text)
        if "_" in text or math.isinf(value):
            raise ValueError(text)
        return math.nan if value in self._missing_numbers else value

    @cached_property
    def _missing_numbers(self) -> set[float]:
        return {float(token) for token in self.options.missing if reads_as_number(token)}

    def _is_missing(self, text: str) -> bool:
        return text in MISSING or text in self.options.missing

    def _convert(self, name: str, fields: list[str]) -> Array:
        """Return a column that is not all numbers: booleans, dates or text."""
        if name in self.options.labels:
            return objects(text or None for text in fields)
        values = {text: None if self._is_missing(text) else text for text in dict.fromkeys(fields)}
        words = [text for text in values.values() if text is not None]
        if name in self.options.text:
            return objects(values[text] for text in fields)
        if words and all(word.lower() in ("true", "false") for word in words):
            number = {
                text: math.nan if word is None else float(word.lower() == "true") for text, word in values.items()
            }
            return np.array([number[text] for text in fields], float if None in values.values() else bool)
        try:
            dates = parse_dates(words)
        except ValueError as error:
            advice = f"or pass --text {shlex.quote(name)} to keep the column as text"
            raise ReaderError(f"{self.name}, column {name!r}: {error}, {advice}") from error
        if dates is not None:
            of = dict(zip(words, dates.tolist(), strict=True))
            return np.array([of.get(text) for text in fields], "datetime64[us]")
        self._refuse_mixed(name, fields, lambda text: self._to_numbers([text]) is not None, "a number")
        self._refuse_mixed(name, fields, lambda text: parse_dates([text]) is not None, "a date such as 2013-01-31")
        return objects(values[text] for text in fields)

    def _refuse_mixed(self, name: str, fields: list[str], fits: Callable[[str], bool], what: str) -> None:
        """Refuse a column of which most, but not all, is of one kind: as text it would be lost."""
        kinds = {text: fits(text) for text in set(fields) if not self._is_missing(text)}
        present = [kinds[text] for text in fields if text in kinds]
        if 2 * sum(present) <= len(present):
            return
        k = next(k for k, text in enumerate(fields) if not kinds.get(text, True))
        value, column = fields[k], shlex.quote(name)
        also = " With --decimal , a comma is the decimal mark." if re.fullmatch(r"[+-]?\d+,\d+", value) else ""
        raise ReaderError(
            f"{self.name}, {self._line_of(k)}, column {name!r}: {shorten(value, 40)} is not {what}, but {sum(present)} "
            f"of the {len(present)} values of this column are. Correct it in the file, or pass "
            f"--missing={shlex.quote(value)} if it means missing, --text {column} to keep the column as text, "
            f"--drop {column} to leave it out.{also}"
        )

    def _note_dates(self, name: str, fields: list[str]) -> Iterator[str]:
        words = [text for text in islice(fields, 1000) if not self._is_missing(text)]
        if words and all(map(OTHER_DATE.fullmatch, words)) and parse_dates(words[:1]) is None:
            yield (
                f"column {name!r} looks like dates ({words[0]}), and is read as text: only dates with the year first, "
                "such as 2013-01-31, are read as dates"
            )


def _decode(name: str, content: bytes, encoding: str) -> str:
    """Return the text of a file."""
    for start, what in ((b"PK\x03\x04", "a zip file or a workbook"), (b"\xd0\xcf\x11\xe0", "an old workbook")):
        if content.startswith(start):
            raise ReaderError(f"{name} is {what}, not text; save the table as csv")
    try:
        text = content.decode(encoding)
    except LookupError as error:
        raise ReaderError(f"--encoding {encoding}: there is no such encoding; latin-1 and cp1252 are common") from error
    except UnicodeDecodeError as error:
        line, wanted = _line_after(content[: error.start].decode("latin-1")), encoding.upper().removesuffix("-SIG")
        raise ReaderError(
            f"{name}, line {line}: byte {error.start} (0x{content[error.start]:02x}) is not {wanted}; "
            "pass the encoding of the file, such as --encoding latin-1"
        ) from error
    if "\0" in text:
        line = _line_after(text[: text.index("\0")])
        raise ReaderError(
            f"{name}, line {line}: a zero byte; this is no text file, or in another encoding (--encoding)"
        )
    return text


def _line_after(text: str) -> int:
    """Return the number of the line that follows some text, however its lines end."""
    return 1 + max(text.count("\n"), text.count("\r"))


def _find_delimiter(name: str, text: str) -> str:
    """Return the one of `DELIMITERS` that gives the first records the same number of fields, the larger the better."""

    def agreement(delimiter: str) -> tuple[float, int]:
        reader = csv.reader(io.StringIO(text[:SNIFFED_LETTERS], newline=""), delimiter=delimiter, skipinitialspace=True)
        try:
            widths = [len(fields) for fields in islice(reader, SNIFFED_RECORDS) if fields]
        except csv.Error:
            return 0.0, 0
        return (widths.count(widths[0]) / len(widths), widths[0]) if widths and widths[0] > 1 else (0.0, 0)

    return "\t" if re.search(r"\.tsv(\.gz|\.bz2|\.xz)?$", name.lower()) else max(DELIMITERS, key=agreement)


def _find_decimal_mark(name: str, text: str) -> str:
    """Return the decimal mark of a file with semicolons: a comma, if that is in its numbers, and no point is."""
    comma, point = (re.search(MARKED_NUMBER.format(mark), text, re.MULTILINE) for mark in (",", r"\."))
    if comma and point:
        places = [f"{one[1]} in line {_line_after(text[: one.start(1)])}" for one in (comma, point)]
        raise ReaderError(
            f"{name} has numbers with a decimal comma, {places[0]}, and with a point, {places[1]}; say which is the "
            "decimal mark: --decimal , or --decimal ."
        )
    return "," if comma else "."
