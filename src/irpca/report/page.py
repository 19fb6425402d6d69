"""The page itself: sentences and short tables as HTML, long tables as data that scripts show."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from ..plots.fitted import SIDES, Fitted
from ..plots.fitting import plain_names
from ..result import Result
from ..wording import count, percent
from . import words
from .payload import payload, worst_lines
from .words import beginning, number

SCRIPTS = ("data.js", "chart.js", "table.js", "map.js", "page.js")
MOST_COLUMNS = 15  # of which numbers are told
SIGNS = {
    "usable": '<path d="M7 17.5l6 6 12-14"/>',
    "use with care": '<path d="M16 7v12M16 24.5v.5"/>',
    "do not use": '<path d="M9 9l14 14M23 9L9 23"/>',
}
TILE = '<div><dt>{}</dt><dd><span class="value">{}</span><span class="note">{}</span></dd></div>'
HIDDEN = '<span class="hidden">Remark</span>'


def render(case: Fitted, title: str | None = None, command: str | None = None) -> str:
    """The page of a fit, complete in itself."""
    data, verdict, doubts = payload(case), words.verdict(case), words.doubts(case.result)
    title, reproduce = title or "What was found in the table", words.reproduce(case, command)
    parts = {
        "title": escape(title),
        "css": _asset("page.css"),
        "byline": escape(f"Report by irpca {reproduce['facts'][1][1]}, {reproduce['facts'][0][1]}"),
        "mood": verdict["word"].replace(" ", "-"),
        "sign": f'<svg viewBox="0 0 32 32" focusable="false">{SIGNS[verdict["word"]]}</svg>',
        "word": escape(verdict["word"].capitalize()),
        "meaning": escape(verdict["meaning"]),
        "reasons": _reasons(doubts),
        "overview": "".join(f"<p>{escape(text)}</p>" for text in verdict["text"]),
        "tiles": "".join(TILE.format(*map(escape, fact)) for fact in words.facts(case)),
        "outliers": _outliers(data["outliers"]) or escape(words.found(case)),
        "without_list": "" if data["outliers"]["listed"] else "hidden",
        "row_name": escape(data["names"][0]),
        "column_name": escape(data["names"][1]),
        "drawn": escape(drawn(data["values"])),
        "map": _map(data),
        "lines": _lines(case, data["names"]),
        "fit": _fit(case),
        "doubts": _doubts(doubts),
        "reproduce": _reproduce(reproduce),
        "data": inert(data),
        "js": "\n".join(map(_asset, SCRIPTS)),
    }
    # In one pass: what is put in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def inert(data: Any) -> str:
    """JSON that no HTML parser mistakes for anything else.

    Examples
    --------
    >>> print(inert("</script>"))
    "\\u003c/script\\u003e"
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _reasons(doubts: list[dict[str, str]]) -> str:
    grave = [doubt for doubt in doubts if doubt["weight"] != "note"]
    if not grave:
        return ""
    listed = "".join(
        f"<li><strong>{escape(doubt['title'])}.</strong> {escape(beginning(doubt['text']))}</li>" for doubt in grave
    )
    return f'<ul class="reasons">{listed}</ul><p><a href="#doubts">What was seen, and what to do</a></p>'


def _outliers(outliers: dict[str, Any]) -> str:
    if not outliers["listed"]:
        return ""
    said = "Each is a cell that differs from its expected value by more than ordinary scatter. "
    if outliers["listed"] < outliers["count"]:
        said += f"Listed and drawn are the {outliers['listed']:,} most certain of {outliers['count']:,}. "
    return said + "Select one to see its row or column."


def drawn(values: dict[str, Any]) -> str:
    """Which observed values the report holds."""
    if values["kind"] == "all":
        return ""
    if values["kind"] == "none":
        return (
            "This report was made without the table itself: observed values are known at the outliers only. "
            "Pass the table to irpca.report.write(model, path, M) for the others."
        )
    rows, columns = values["row"]["count"], values["column"]["count"]
    return (
        f"The table is too large to be in this file as a whole. Included are {count(rows, 'row')} and "
        f"{count(columns, 'column')}: the worst, and those of the most certain outliers."
    )


def _map(data: dict[str, Any]) -> str:
    n1, n2 = data["shape"]
    holes = "Grey is empty." if data["values"]["kind"] == "all" else "Empty cells are not shown."
    return (
        f"All {count(n1, 'row')} and {count(n2, 'column')} in one picture. A mark holds one cell or, where there is no "
        "room for that, several: it has the colour of the outlier in it that is furthest off, so that none is lost. "
        f"{holes}"
    )


def _lines(case: Fitted, names: list[str]) -> str:
    tables = [_worst(case, axis, names[axis]) for axis in (0, 1)]
    if not any(tables):
        return "<p>No row or column holds an outlier.</p>"
    said = (
        "Those first that have more outliers than rows, or columns, usually have here. “Stands out” means that chance "
        "does not explain so many: look at the whole row or column, such as a broken sensor or an odd day. Direction "
        "says whether they are mostly above or below their expected values."
    )
    return f'<p>{said}</p><div class="pair">' + "".join(tables) + "</div>"


def _table(caption: str, heads: list[str], rows: list[list[str]], numbers: tuple[int, ...]) -> str:
    """A short table of what is HTML already; an empty head is a remark, and some columns hold numbers."""
    kinds = [' class="number"' if k in numbers else "" for k in range(len(heads))]
    head = "".join(
        f'<th scope="col"{kind}>{escape(text) or HIDDEN}</th>' for text, kind in zip(heads, kinds, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(others, kinds[1:], strict=True))
        + "</tr>"
        for first, *others in rows
    )
    return (
        f'<div class="wide"><table class="plain"><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _badge(text: str) -> str:
    return f'<span class="badge">{text}</span>'


def _worst(case: Fitted, axis: int, name: str) -> str:
    side, rows = SIDES[axis], []
    for line in worst_lines(case, axis):
        label, direction = case.texts[axis][line["position"]], line["mean_signed"] / line["mean_size"]
        rows.append(
            [
                f'<button type="button" class="{"link short" if len(label) <= 14 else "link"}" data-side="{side}" '
                f'data-at="{line["position"]}">{escape(label)}</button>',
                f"{line['flagged']:,} of {line['observed']:,}",
                f'<span class="share" style="--share:{line["share"]:.4f}">{percent(line["share"])}</span>',
                "above" if direction > 0.5 else "below" if direction < -0.5 else "both",
                _badge("stands out") if line["broken"] else "",
            ]
        )
    return _table(f"Worst {side}s", [name, "Outliers", "Share", "Direction", ""], rows, (1, 2)) if rows else ""


def _fit(case: Fitted) -> str:
    choices = [[escape(text) for text in choice] for choice in words.choices(case.result, case.texts[1])]
    table = _table("Chosen from the data, and why", ["What", "Value", "Why"], choices, (1,))
    table = table if choices else "<p>Nothing was chosen from the data.</p>"
    return table + _columns(case) + _candidates(case.result)


def _columns(case: Fitted) -> str:
    """How well cells are predicted that a fit has not seen, of the worst columns."""
    if case.result.unseen is None:
        return ""
    rows = [
        [escape(label), percent(max(of["skill"], 0.0)), number(of["error"])]
        + [percent(of[share]) for share in ("covered_50", "covered_95")]
        for label, of in list(case.result.unseen.of_columns(case.texts[1]).items())[:MOST_COLUMNS]
    ]
    heads = ["Column", "Variance predicted", "Typical error", "Within 50 % intervals", "Within 95 % intervals"]
    return _table("Cells left out, the columns predicted worst first", heads, rows, (1, 2, 3, 4)) if rows else ""


def _candidates(result: Result) -> str:
    """The fits that were compared at held-out cells, the best first."""
    if (certificate := result.certificate) is None:
        return ""
    named = zip(plain_names([name for name, *_ in certificate.candidates]), certificate.candidates, strict=True)
    fits = [(plain, *fit) for plain, fit in named if np.isfinite(fit[1])]
    if not fits:
        return ""
    fits.sort(key=lambda fit: -fit[2])
    best, worst = fits[0][2], fits[-1][2]
    rows = [
        [
            escape(plain),
            f'<span class="bar" style="--share:{0.04 + 0.96 * (density - worst) / (best - worst or 1):.4f}"></span>'
            f"{density:.3f}",
            number(error),
            _badge("chosen") if name == certificate.chosen else "",
        ]
        for plain, name, density, error in fits
    ]
    near = "" if fits[0][1] == certificate.chosen else "The one chosen predicts about as well as the best. "
    said = f"Several fits were tried and compared at cells that they were not shown. {near}"
    heads = ["Fit", "Mean log density (higher is better)", "Mean absolute error", ""]
    return f"<p>{escape(said)}</p>" + _table("Fits that were compared, the best prediction first", heads, rows, (2,))


def _doubts(doubts: list[dict[str, str]]) -> str:
    if not doubts:
        return "<p>Nothing: no check found anything wrong.</p>"
    tags = {"fatal": "grave", "care": "mind this", "note": "good to know"}
    listed = "".join(
        f'<li class="{doubt["weight"]}"><h3>{escape(doubt["title"])} {_badge(tags[doubt["weight"]])}</h3>'
        f"<p>{escape(doubt['text'])}</p></li>"
        for doubt in doubts
    )
    return f'<ul class="doubts">{listed}</ul>'


def _reproduce(found: dict[str, Any]) -> str:
    command = f'<h3>Command</h3><pre tabindex="0">{escape(found["command"])}</pre>' if found["command"] else ""
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in found["facts"])
    return f'{command}<h3>Code</h3><pre tabindex="0">{escape(found["code"])}</pre><dl class="words">{facts}</dl>'
