"""The page itself: sentences and short tables as HTML, long tables as data that scripts show."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from typing import Any

from ..wording import count, percent
from .words import beginning, number

SCRIPTS = ("data.js", "chart.js", "table.js", "map.js", "page.js")
DRAWN = ("shape", "names", "ordered", "labels", "outliers", "values")  # what scripts need
SIGNS = {
    "usable": '<path d="M7 17.5l6 6 12-14"/>',
    "use with care": '<path d="M16 7v12M16 24.5v.5"/>',
    "do not use": '<path d="M9 9l14 14M23 9L9 23"/>',
}
TILE = '<div><dt>{}</dt><dd><span class="value">{}</span><span class="note">{}</span></dd></div>'
HIDDEN = '<span class="hidden">Remark</span>'


def render(data: dict[str, Any]) -> str:
    """The page for a payload, complete in itself."""
    verdict = data["verdict"]
    parts = {
        "title": escape(data["title"]),
        "css": _asset("page.css"),
        "byline": escape(f"Report by irpca {data['reproduce']['facts'][1][1]}, {data['reproduce']['facts'][0][1]}"),
        "mood": verdict["word"].replace(" ", "-"),
        "sign": f'<svg viewBox="0 0 32 32" focusable="false">{SIGNS[verdict["word"]]}</svg>',
        "word": escape(verdict["word"].capitalize()),
        "meaning": escape(verdict["meaning"]),
        "reasons": _reasons(data["doubts"]),
        "overview": "".join(f"<p>{escape(text)}</p>" for text in verdict["text"]),
        "tiles": "".join(TILE.format(*map(escape, fact)) for fact in data["facts"]),
        "outliers": _outliers(data),
        "without_list": "" if data["outliers"]["listed"] else "hidden",
        "row_name": escape(data["names"][0]),
        "column_name": escape(data["names"][1]),
        "drawn": escape(drawn(data)),
        "map": _map(data),
        "lines": _lines(data),
        "fit": _fit(data),
        "doubts": _doubts(data["doubts"]),
        "reproduce": _reproduce(data["reproduce"]),
        "data": inert({key: data[key] for key in DRAWN}),
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


def _outliers(data: dict[str, Any]) -> str:
    outliers = data["outliers"]
    if not outliers["listed"]:
        return escape(data["verdict"]["text"][-1])
    said = "Each is a cell that differs from its expected value by more than ordinary scatter. "
    if outliers["listed"] < outliers["count"]:
        said += f"Listed and drawn are the {outliers['listed']:,} most certain of {outliers['count']:,}. "
    return said + "Select one to see its row or column."


def drawn(data: dict[str, Any]) -> str:
    """Which observed values the report holds."""
    values = data["values"]
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


def _lines(data: dict[str, Any]) -> str:
    sides = [("row", data["names"][0], data["worst"]["row"]), ("column", data["names"][1], data["worst"]["column"])]
    if not any(lines for _, _, lines in sides):
        return "<p>No row or column holds an outlier.</p>"
    said = (
        "Those first that have more outliers than rows, or columns, usually have here. “Stands out” means that chance "
        "does not explain so many: look at the whole row or column, such as a broken sensor or an odd day. Direction "
        "says whether they are mostly above or below their expected values."
    )
    return f'<p>{said}</p><div class="pair">' + "".join(_worst(*side) for side in sides) + "</div>"


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


def _worst(side: str, name: str, lines: list[dict[str, Any]]) -> str:
    rows = [
        [
            f'<button type="button" class="{"link short" if len(line["label"]) <= 14 else "link"}" data-side="{side}" '
            f'data-at="{line["position"]}">{escape(line["label"])}</button>',
            f"{line['flagged']:,} of {line['observed']:,}",
            f'<span class="share" style="--share:{line["share"]:.4f}">{percent(line["share"])}</span>',
            "above" if line["signed"] > 0.5 else "below" if line["signed"] < -0.5 else "both",
            _badge("stands out") if line["broken"] else "",
        ]
        for line in lines
    ]
    return _table(f"Worst {side}s", [name, "Outliers", "Share", "Direction", ""], rows, (1, 2))


def _fit(data: dict[str, Any]) -> str:
    rows = [[escape(text) for text in choice] for choice in data["choices"]]
    table = _table("Chosen from the data, and why", ["What", "Value", "Why"], rows, (1,))
    table = table if rows else "<p>Nothing was chosen from the data.</p>"
    return table + _columns(data["columns"]) + _candidates(data["candidates"])


def _columns(found: list[tuple[str, ...]]) -> str:
    heads = ["Column", "Variance predicted", "Typical error", "Within 50 % intervals", "Within 95 % intervals"]
    rows = [[escape(text) for text in line] for line in found]
    return _table("Cells left out, the columns predicted worst first", heads, rows, (1, 2, 3, 4)) if rows else ""


def _candidates(fits: list[dict[str, Any]]) -> str:
    if not fits:
        return ""
    best, worst = fits[0]["density"], fits[-1]["density"]
    lengths = [0.04 + 0.96 * (fit["density"] - worst) / (best - worst or 1) for fit in fits]
    rows = [
        [
            escape(fit["name"]),
            f'<span class="bar" style="--share:{length:.4f}"></span>{fit["density"]:.3f}',
            number(fit["error"]),
            _badge("chosen") if fit["chosen"] else "",
        ]
        for fit, length in zip(fits, lengths, strict=True)
    ]
    near = "" if fits[0]["chosen"] else "The one chosen predicts about as well as the best. "
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
