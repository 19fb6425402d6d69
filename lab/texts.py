"""Which texts of the library no test reaches: messages, advice, verdicts, labels.

    python -m pytest -n 2 -p lab.texts

runs the tests as ever, and lists at the end the texts in functions of ``src/irpca`` that none of them made. A text is a
string, constant or formatted, with two words in it, and no docstring. It is known by its place, so that both texts of
``"one text" if few else "another text"`` have to be made. What is made only in other processes, such as by a command
that a test runs, is not seen. Runs add up in the file that ``IRPCA_TEXTS`` names, if it is set.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "irpca"
TWO_WORDS = re.compile(r"[^\W\d_]{2,}[,;:.]? \(?[^\W\d_]{2,}")


class Texts(ast.NodeTransformer):
    """Makes every text in a function tell its place when it is made; ``places`` holds all of them."""

    def __init__(self, file: str) -> None:
        self.file, self.places, self.depth = file, dict[str, str](), 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.depth += 1  # what is outside of functions, as their defaults are, is made at import
        node.body = [self.visit(statement) for statement in node.body]
        self.depth -= 1
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)  # a docstring stays one

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if getattr(node.func, "id", "") != "require":
            return self.generic_visit(node)
        fine, text = map(
            self.visit, node.args
        )  # the text is made only where it is needed: fine or require(False, text)
        call = ast.Call(node.func, [ast.Constant(False), text], [])
        return ast.fix_missing_locations(ast.copy_location(ast.BoolOp(ast.Or(), [fine, call]), node))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):  # but not its format, which must stay a plain string
                part.value = self.visit(part.value)
        return self._telling(node, "…".join(str(part.value) for part in node.values if isinstance(part, ast.Constant)))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self._telling(node, node.value) if isinstance(node.value, str) else node

    def _telling(self, node: ast.expr, text: str) -> ast.AST:
        if not self.depth or not TWO_WORDS.search(text):
            return node
        place = f"{self.file}:{node.lineno}:{node.col_offset}"
        self.places[place] = " ".join(text.split())
        call = ast.Call(ast.Name("__text__", ast.Load()), [ast.Constant(place), node], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


def unreached(reached: set[str]) -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        texts = Texts(str(path.relative_to(PACKAGE)))
        texts.visit(ast.parse(path.read_bytes()))
        yield from (f"{place} {text}" for place, text in texts.places.items() if place not in reached)


def pytest_configure() -> None:
    reached: set[str] = set()
    if "IRPCA_TEXTS" not in os.environ:  # the processes of xdist find it there
        atexit.register(shutil.rmtree, folder := tempfile.mkdtemp())
        os.environ["IRPCA_TEXTS"] = f"{folder}/texts"
    file = os.open(os.environ["IRPCA_TEXTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(place: str, text: str) -> str:
        if place not in reached:
            reached.add(place)
            os.write(file, f"{place}\n".encode())
        return text

    def code(self: SourceFileLoader, module: str) -> CodeType | None:  # without compiled files, old or new
        if module.partition(".")[0] != "irpca":
            return as_ever(self, module)
        file = Path(self.path).resolve().relative_to(PACKAGE)
        return compile(Texts(str(file)).visit(ast.parse(self.get_data(self.path))), self.path, "exec")

    assert "irpca" not in sys.modules, "irpca was imported before its texts could be watched"
    as_ever = SourceFileLoader.get_code
    builtins.__text__, SourceFileLoader.get_code = tell, code  # type: ignore


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = list(unreached(set(Path(os.environ["IRPCA_TEXTS"]).read_text().split())))
    terminalreporter.section(f"texts that no test reached: {len(lines)}")
    for line in lines:
        terminalreporter.line(line)
