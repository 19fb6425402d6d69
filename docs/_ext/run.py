"""Sphinx directives that run what a page shows, and show what comes of it; a block that fails ends the build.

``run`` executes Python. All blocks of a page share one namespace and one temporary folder. What was printed, the value
of the last expression and every figure that was drawn are shown below the code. ``shell`` executes commands, one in
each line, in the same folder, and shows what they print.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import shutil
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.addnodes import download_reference
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

FOLDER = "generated"  # for figures and files, in that of the pages
ROWS = 12  # that are shown of a frame


class Block(SphinxDirective):
    """What both have in common: a folder for each page, and files that are kept."""

    has_content = True
    option_spec: ClassVar = {"keep": directives.unchanged}  # files to link to, that the block has written

    @property
    def folder(self) -> Path:
        folder = Path(self.env.doctreedir, FOLDER, self.env.docname)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def failed(self, why: str) -> ExtensionError:
        return ExtensionError(f"{self.env.docname}, line {self.lineno}: {why}")

    def target(self, name: str) -> tuple[Path, str]:
        """Where to keep a file, and how the page refers to it."""
        path = Path(self.env.srcdir, FOLDER, f"{self.env.docname.replace('/', '-')}-{name}")
        path.parent.mkdir(exist_ok=True)
        return path, f"/{FOLDER}/{path.name}"

    def links(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for name in self.options.get("keep", "").split():
            path, uri = self.target(Path(name).name)
            shutil.copyfile(self.folder / name, path)
            link = download_reference(reftarget=uri, refdoc=self.env.docname, refdomain="", reftype="download")
            link += nodes.literal(text=Path(name).name)
            found.append(nodes.paragraph("", "The file that this wrote: ", link))
        return found


class Run(Block):
    option_spec: ClassVar = {
        **Block.option_spec,
        "alt": directives.unchanged,  # of every figure, one a line
        "hide": directives.flag,  # do not show the code
    }

    def run(self) -> list[nodes.Node]:
        code = "\n".join(self.content)
        shown = [] if "hide" in self.options else [literal(code, "python")]
        import matplotlib

        matplotlib.use("agg")
        printed, value = self.executed(code)
        shown += [literal(printed, "none", "run-output")] if printed else []
        return [*shown, *(self.figures() or formatted(value)), *self.links()]

    def executed(self, code: str) -> tuple[str, Any]:
        """What was printed, and the value of the last expression; a warning is an error."""
        names = self.env.temp_data.setdefault("run", {"__name__": "__main__"})
        out, value = io.StringIO(), None
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                tree = ast.parse(code)
                last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
                exec(compile(tree, self.env.docname, "exec"), names)
                if last is not None:
                    value = eval(compile(ast.Expression(last.value), self.env.docname, "eval"), names)
            except Exception as error:
                raise self.failed(f"the block raised\n{traceback.format_exc()}") from error
        return out.getvalue().rstrip(), value

    def figures(self) -> list[nodes.Node]:
        """All figures that are open, saved and closed."""
        import matplotlib.pyplot as plt

        drawn, texts = [plt.figure(k) for k in plt.get_fignums()], self.options.get("alt", "").splitlines()
        if len(drawn) != len(texts):
            raise self.failed(f"{len(drawn)} figures were drawn, and :alt: describes {len(texts)}, one a line")
        found: list[nodes.Node] = []
        for figure, alt in zip(drawn, texts, strict=True):
            path, uri = self.target(f"{self.env.new_serialno('figure') + 1}.png")
            figure.savefig(path, dpi=110, bbox_inches="tight", facecolor="white")
            found.append(nodes.image(uri=uri, alt=alt, classes=["run-figure"]))
        plt.close("all")
        return found


class Shell(Block):
    option_spec: ClassVar = {**Block.option_spec, "exit": directives.nonnegative_int}  # the code that is expected

    def run(self) -> list[nodes.Node]:
        text = "\n".join(f"$ {line}\n{self.executed(line)}".rstrip() for line in self.content)
        return [literal(text, "console"), *self.links()]

    def executed(self, line: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        env = {**os.environ, "PATH": path, "COLUMNS": "88", "PYTHONIOENCODING": "utf-8"}
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
        done = subprocess.run(line, shell=True, cwd=self.folder, env=env, **out)
        if done.returncode != self.options.get("exit", 0):
            raise self.failed(f"{line!r} ended with exit code {done.returncode}\n{done.stdout}")
        return done.stdout.rstrip()


def literal(text: str, language: str, *classes: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language=language, classes=list(classes))


def formatted(value: Any) -> list[nodes.Node]:
    """A frame as a table that scrolls, all else as its repr."""
    if not hasattr(value, "to_html"):
        return [] if value is None else [literal(repr(value), "none", "run-output")]
    table = value.to_html(border=0, max_rows=ROWS, float_format="{:.5g}".format, classes="table run-table")
    return [nodes.raw("", f'<div class="run-scroll" tabindex="0">{table}</div>', format="html")]


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("run", Run)
    app.add_directive("shell", Shell)
    app.connect("build-finished", lambda app, error: shutil.rmtree(app.doctreedir / FOLDER, ignore_errors=True))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
