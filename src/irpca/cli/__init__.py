"""The command ``irpca``: from a file to its outliers, a repaired table, a model and a report."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

USABLE, FOUND, USAGE, INPUT, DO_NOT_USE, OUTPUT, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 4, 5, 70, 130

EXIT_CODES = """exit codes:
  0    done; the result is usable, or to be used with care
  1    irpca check: there are outliers in the new data
  2    the command line is wrong
  3    an input cannot be read, or does not fit
  4    the verdict is "do not use"; files are written all the same
  5    the output cannot be written, or is there already (--force replaces it)
  70   an error in irpca itself
  130  stopped by Ctrl-C; nothing is written
"""
FORMATS = """DATA: csv, tsv (also .gz, .bz2, .xz), parquet, feather, npy, npz, mtx, zarr; - is csv on standard input.
Missing values in csv: empty fields, NA, N/A, n/a, NaN, nan, null, NULL, None, <NA>, #N/A and the like, and --missing.
"""


KINDS = """kinds of columns (--column NAME=KIND; of a table without names, NAME is the position, from 0 on):
  auto         found out: any of these, also values piled up at a bound, such as zeros
  as-it-is     plain numbers
  logarithm    numbers, none below 0, whose errors grow with their size: prices
  square-root  counts
  number       numbers that are stretched so that they spread evenly, if it helps
  ordered      few values with an order, such as scores from 1 to 5
"""


class Interrupted(BaseException):
    """Ctrl-C. Not a KeyboardInterrupt, after which a fit would first finish what it has."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"irpca: {message}. See {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code.

    Parameters
    ----------
    argv : list of str, or None
        Arguments without the name of the command; None: those of this process.

    Examples
    --------
    >>> main(["fit", "no-such-file.csv", "--quiet"])
    3
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _make_parser().parse_args(words)
    except SystemExit as end:  # --help, --version and wrong usage, which argparse has written about
        _flush()
        return int(end.code or 0)
    arguments.command_line = shlex.join(["irpca", *words])
    before = _stop_on_interrupt()
    try:
        return _run(arguments)
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
        _flush()


def _run(arguments: argparse.Namespace) -> int:
    try:
        from . import commands

        return int(getattr(commands, arguments.command)(arguments))
    except (Interrupted, KeyboardInterrupt):
        return _fail("stopped; nothing was written", INTERRUPTED)
    except BrokenPipeError:  # a reader who has gone, as head does, is no error
        return USABLE
    except Exception as error:
        if arguments.debug:
            raise
        return _fail(*_explain(error))


def _explain(error: Exception) -> tuple[str, int]:
    """One line about an error, and its exit code."""
    text = " ".join(str(error).split())
    if (code := getattr(error, "exit_code", None)) is not None:
        return text, code
    if isinstance(error, MemoryError):
        advice = "leave columns out (--drop), or see Tables larger than memory in the documentation"
        return f"there is not enough memory for this table ({text or 'out of memory'}); {advice}", INPUT
    if isinstance(error, ValueError):
        return text, INPUT
    return f"{type(error).__name__}: {text}. This should not happen; --debug shows where it comes from", INTERNAL


def _fail(text: str, code: int) -> int:
    print(f"irpca: {text}", file=sys.stderr)
    return code


def _stop_on_interrupt() -> Any:
    """Make Ctrl-C end the command at once, unless the parent process has it ignored."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            return signal.signal(signal.SIGINT, _interrupt)
    except ValueError:  # not in the main thread
        pass
    return None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted


def _flush() -> None:
    """Write out what is left, if anybody reads it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="irpca",
        description="Find what is grossly wrong in a table, and what should be there.",
        epilog=f"{FORMATS}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_spell_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    _add_fit(commands)
    _add_predict(commands)
    _add_check(commands)
    _add_report(commands)
    _add_demo(commands)
    return parser


def _spell_version() -> str:
    from .. import __version__

    return f"irpca {__version__}"


def _add_command(commands: Any, name: str, text: str, epilog: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"{epilog}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return parser


def _add_fit(commands: Any) -> None:
    parser = _add_command(commands, "fit", "find outliers in a table and repair it", f"{KINDS}\n{FORMATS}")
    parser.add_argument("data", metavar="DATA", help="the table: one row in each line, or --long")
    _add_reading(parser)
    parser.add_argument("--rows", metavar="F", help='features of the rows: a table, or "index" for their labels')
    parser.add_argument("--cols", metavar="F", help='features of the columns: a table, or "index" for their labels')
    parser.add_argument("--rank", type=_rank, default="auto", metavar="R", help="number of components (default: auto)")
    columns = parser.add_mutually_exclusive_group()
    columns.add_argument(
        "--column",
        action="append",
        default=[],
        type=_read_kind,
        metavar="NAME=KIND",
        help="what a column holds, one of the kinds below (may be repeated)",
    )
    columns.add_argument(
        "--columns",
        choices=["auto", "as-they-are"],
        default="auto",
        help="auto: find out what columns hold (default); as-they-are: take all as plain numbers",
    )
    _add_cut(parser)
    parser.add_argument("--seed", type=_natural, default=0, metavar="N", help="random seed (default: 0)")
    parser.add_argument("--time-budget", type=_positive, metavar="S", help="stop after about S seconds")
    parser.add_argument("--report", action="store_true", help="write report.html, too")
    parser.add_argument("--out", metavar="DIR", help="folder to write to (default: name of DATA + -irpca)")
    _add_output(parser)


def _add_predict(commands: Any) -> None:
    parser = _add_command(commands, "predict", "expected values for new rows or columns, by their features alone")
    parser.add_argument("model", metavar="MODEL", help="a model.irpca that was fitted with features")
    parser.add_argument("--rows", metavar="F", help="features of the new rows, as in the fit")
    parser.add_argument("--cols", metavar="F", help="features of the new columns, as in the fit")
    parser.add_argument("--out", metavar="FILE", help="csv file to write (default: standard output)")
    _add_csv(parser)
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")


def _add_check(commands: Any) -> None:
    parser = _add_command(commands, "check", "find outliers in new rows by a model that was fitted before", FORMATS)
    parser.add_argument("model", metavar="MODEL", help="a model.irpca")
    parser.add_argument("data", metavar="DATA", help="new rows, with the same columns as in the fit")
    _add_reading(parser)
    parser.add_argument("--rows", metavar="F", help='features of the new rows: a table, or "index"')
    _add_cut(parser)
    parser.add_argument("--out", metavar="FILE", help="csv file to write (default: name of DATA + -outliers.csv)")
    _add_output(parser)


def _add_report(commands: Any) -> None:
    parser = _add_command(commands, "report", "write the report of a fitted model, one HTML file", FORMATS)
    parser.add_argument("model", metavar="MODEL", help="a model.irpca")
    parser.add_argument("data", metavar="DATA", help="the table that it was fitted to")
    _add_reading(parser)
    parser.add_argument("--out", metavar="FILE", default="report.html", help="default: report.html")
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")


def _add_demo(commands: Any) -> None:
    parser = _add_command(commands, "demo", "try it on life expectancy in 202 countries")
    parser.add_argument("--out", metavar="DIR", default="irpca-demo", help="default: irpca-demo")
    _add_output(parser)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to read DATA")
    group.add_argument("--index", metavar="COL", help="column with the labels of the rows")
    group.add_argument("--long", type=_read_names, metavar="ROW,COLUMN,VALUE", help="one observation in each line")
    group.add_argument(
        "--feature", action="append", default=[], metavar="COL", help=_AGAIN.format("describes the rows")
    )
    group.add_argument("--drop", action="append", default=[], metavar="COL", help=_AGAIN.format("is left out"))
    group.add_argument("--key", metavar="NAME", help="which array of an npz or zarr file")
    _add_csv(group)


_AGAIN = "a column that {} (may be repeated)"


def _add_csv(group: Any) -> None:
    group.add_argument("--text", action="append", default=[], metavar="COL", help=_AGAIN.format("is kept as text"))
    group.add_argument(
        "--missing", action="append", default=[], metavar="TOKEN", help="read this as missing, too (repeatable)"
    )
    group.add_argument("--no-header", dest="header", action="store_false", help="the first line is data")
    group.add_argument("--delimiter", type=_read_delimiter, metavar="C", help="between fields (default: found out)")
    group.add_argument("--decimal", choices=[",", "."], help="the decimal mark (default: found out)")
    group.add_argument("--encoding", metavar="NAME", help="such as latin-1 (default: UTF-8)")


def _add_cut(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--fdr", type=_share, metavar="Q", help="allow this share of false alarms among the outliers")
    group.add_argument(
        "--probability", type=_share, metavar="P", help="list cells at least this likely to be wrong (default: 0.5)"
    )
    group.add_argument(
        "--threshold", type=_positive, metavar="T", help="list cells at least this far off, in units of the table"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--explain", action="store_true", help="say in a sentence why each outlier is one")
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of text")


def _read_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if len(names) != 3 or len(set(names)) != 3 or not all(names):
        raise argparse.ArgumentTypeError(f"three different names of columns are needed, ROW,COLUMN,VALUE; got {text!r}")
    return names


def _read_kind(text: str) -> tuple[str, str]:
    name, _, kind = text.rpartition("=")
    if not name or not kind:
        raise argparse.ArgumentTypeError(f"the name of a column and its kind are needed, NAME=KIND; got {text!r}")
    return name, kind.replace("-", " ")


def _read_delimiter(text: str) -> str:
    text = {"tab": "\t", "\\t": "\t", "space": " "}.get(text, text)
    if len(text) != 1 or text in '"\r\n':
        raise argparse.ArgumentTypeError(f"one character, or tab, or space; got {text!r}")
    return text


def _make_reader(kind: type[float], low: float, high: float = float("inf")) -> Callable[[str], float]:
    """A number between two, which it must not be."""

    def number(text: str) -> float:  # argparse names it in a message
        value = kind(text)
        if not low < value < high:
            words = f"a number above {low}{f' and below {high}' if high < float('inf') else ''}"
            raise argparse.ArgumentTypeError(f"{words} is needed; got {text!r}")
        return value

    return number


_natural, _count = _make_reader(int, -1), _make_reader(int, 0)
_share, _positive = _make_reader(float, 0, 1), _make_reader(float, 0)


def _rank(text: str) -> float | str:
    return "auto" if text == "auto" else _count(text)
