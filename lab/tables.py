"""Tables of plain text and of Markdown, and the pages of the documentation that are made of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"[-–+≤≥×.\d]|nan|inf|$")  # how a number begins; a dash and nothing stand for one


def text_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of plain text: the first column and words to the left, numbers to the right."""
    cells = [[f"{x:.3g}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    table = list(zip(header, *cells, strict=True))
    widths = [max(map(len, column)) for column in table]
    left = [k == 0 or not all(map(NUMBER.match, column[1:])) for k, column in enumerate(table)]
    ruled = [list(header), ["-" * width for width in widths], *cells]
    lines = (
        [cell.ljust(width) if word else cell.rjust(width) for cell, width, word in zip(row, widths, left, strict=True)]
        for row in ruled
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], aligned: str = "---") -> str:
    """A table in Markdown; all columns but the first are aligned as it is said."""
    lines = (header, ("---", *(aligned for _ in header[1:])), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def keep_page(page: Path, text: str, check: bool, command: str) -> int:
    """Print a page and write it; or, if it is to be checked, say whether the file holds it. Returns the exit code."""
    if not check:
        print(text, end="")
        page.write_text(text)
    elif not page.exists() or page.read_text() != text:
        print(f"{page} is not what the results say: run {command}", file=sys.stderr)
        return 1
    return 0
