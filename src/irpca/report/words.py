"""What a report says in sentences: for people who have never seen this project."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np

from ..plots.fitted import Fitted
from ..result import FATAL, NOTES, Result, grouped
from ..wording import count, percent

MEANING = {
    "usable": "No check found anything serious.",
    "use with care": "The result is sound on the whole, but some checks found something. Read these points before you "
    "rely on the numbers.",
    "do not use": "The expected values and the outliers below are not to be relied on. The points below say why, and "
    "what to do.",
}
TITLES = {
    "failure": "The fit failed",
    "not-predicted": "Cells are not predicted",
    "hardly-better": "Cells are hardly predicted",
    "intervals": "Intervals do not hold",
    "other-outliers": "Other fits find other outliers",
    "structure-left": "The model may be too simple",
    "noise-grows": "Large values scatter more",
    "many-outliers": "Very many outliers",
    "broken-lines": "Rows or columns that are mostly wrong",
    "noisy-rows": "Rows that scatter far more than others",
    "unknown-lines": "Too few cells to say anything",
    "unseen-lines": "Rows or columns without any value",
    "hardly-predicted": "Features do not predict new rows or columns",
    "filling-up": "Too many cells count as outliers",
    "no-pattern": "Rows and columns share no pattern",
    "skewed-noise": "Noise that is not symmetric",
    "too-small": "Too small a table",
    "code": "A value that stands for something else",
    "stuck": "A value that stays the same",
    "other-unit": "Cells in another unit",
    "swapped": "Swapped columns",
    "copied-row": "Rows that repeat another",
    "free-part-in-few": "Something only a few rows and columns share",
    "unused-features": "Features were not used",
    "unused-rank": "The rank was not used",
}
NAMES = {
    "rank": "Components (rank)",
    "extra_rank": "Components beyond the features (extra_rank)",
    "noise": "Ordinary scatter (noise)",
    "columns": "What columns hold (columns)",
}
PARTS = {"features": "the features", "free": "further components"}


def number(value: float) -> str:
    """Three significant digits, with commas where a number is long.

    Examples
    --------
    >>> number(12345.6), number(0.27391)
    ('12,300', '0.274')
    """
    if not np.isfinite(value):
        return "unknown"
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    digits = 2 - int(np.floor(np.log10(abs(value)))) if value else 0
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def verdict(case: Fitted) -> dict[str, Any]:
    """Whether to use the result, and the table and its outliers in three sentences."""
    (n1, n2), result = case.shape, case.result
    cells, holes = n1 * n2, n1 * n2 - result.n_observed
    said = f"The table has {count(n1, 'row')} and {count(n2, 'column')}, which makes {count(cells, 'cell')}. "
    empty = f"{count(holes, 'cell')} ({percent(holes / cells)}) {'is' if holes == 1 else 'are'} empty."
    said += empty if holes else "Every cell has a value."
    text = [said, found(case)]
    if result.unseen is not None:
        text.append(
            f"Every cell was left out once and predicted by the others: {sentence(result.predicted(case.texts[1]))}"
        )
    return {"word": result.usable, "meaning": MEANING[result.usable], "text": text}


def found(case: Fitted) -> str:
    """Which cells are outliers, in a sentence."""
    if case.result.S is None:
        return "Which cells are outliers is not known: the fit did not come to an end."
    n = len(case.listed["row"])
    if n == 0:
        return "No cell is an outlier: none is further from its expected value than ordinary scatter explains."
    rows, cols = (len(np.unique(cells)) for cells in (case.listed["row"], case.listed["column"]))
    verb, share = "is an outlier" if n == 1 else "are outliers", percent(n / max(case.result.n_observed, 1))
    return (
        f"{count(n, 'cell')} ({share} of those with a value) {verb}, in {count(rows, 'row')} and "
        f"{count(cols, 'column')}: what was observed there is too far from what all other cells lead one to expect to "
        "be ordinary scatter."
    )


def facts(case: Fitted) -> list[tuple[str, str, str]]:
    """The few numbers to know: what they are of, the number, and a word or two."""
    (n1, n2), result, n = case.shape, case.result, len(case.listed["row"])
    holes = n1 * n2 - result.n_observed
    noise = "unknown" if result.noise is None else f"± {number(result.noise)}" if result.noise else "none"
    found = "unknown" if result.S is None else f"{n:,}"
    share = percent(n / max(result.n_observed, 1))
    mapped = "" if result.maps is None else ", of mapped values, whose own is about 1"
    return [
        ("Table", f"{n1:,} × {n2:,}", "rows × columns"),
        ("Outliers", found, f"{share} of the observed cells"),
        ("Empty cells", f"{holes:,}", f"{percent(holes / (n1 * n2))} of all cells"),
        ("Ordinary scatter", noise, f"in a typical cell{mapped}; it differs by row and column"),
    ]


def doubts(result: Result) -> list[dict[str, str]]:
    """What to doubt, the gravest first; how a run ended too, if that was not well."""
    weights = {**dict.fromkeys(FATAL, "fatal"), **dict.fromkeys(NOTES, "note")}
    listed = [
        (TITLES.get(one.kind, one.kind), text, weights.get(one.kind, "care")) for one, text in grouped(result.doubts)
    ]
    if not result.status.ok:
        listed.insert(0, ("How the fit ended", result.status.advice, "fatal"))
    listed.sort(key=lambda doubt: ("fatal", "care", "note").index(doubt[2]))
    return [{"title": title, "text": sentence(text), "weight": weight} for title, text, weight in listed]


def sentence(text: str) -> str:
    """With a capital, where it begins with a word, and a full stop."""
    text = text.strip()
    first = text.split(" ", 1)[0]
    text = text[:1].upper() + text[1:] if first.isalpha() and first.islower() else text
    return text if text.endswith((".", "!", "?")) else text + "."


def beginning(text: str) -> str:
    """What was seen: a text up to what it means.

    Examples
    --------
    >>> beginning("Residuals are correlated (0.80): something is missing. Add features.")
    'Residuals are correlated (0.80).'
    """
    return re.split(r"[:.;] ", text, maxsplit=1)[0].rstrip(".") + "."


def choices(result: Result, columns: Sequence[str] | None = None) -> list[tuple[str, str, str]]:
    """What was chosen from the data: its name, its value, and why; ``columns`` are their labels."""
    listed = []
    for choice in result.choices:
        value = number(choice.value) if isinstance(choice.value, float) else str(choice.value)
        value = result.kinds(columns) if choice.name == "columns" else value
        listed.append((NAMES.get(choice.name, choice.name), value, sentence(choice.reason)))
    if np.isfinite(result.explained):
        reason = "Share of the sum of squares of all cells that are not outliers which the expected values account for."
        listed.append(("Explained", percent(min(max(result.explained, 0.0), 1.0)), reason))
    for part, share in result.shares.items():
        source = PARTS.get(part, part)
        reason = f"Share of the sum of squares of the expected values that comes from {source}."
        listed.append((f"of that, {source}", percent(share), reason))
    return listed


def reproduce(case: Fitted, command: str | None) -> dict[str, Any]:
    """What it takes to get the same result again."""
    import scipy

    import irpca

    model, result = case.model, case.result
    return {
        "command": command or "",
        "code": (
            f"import irpca\n\nmodel = irpca.{model!r}\n"
            "model.fit(M)  # with row_features and col_features, if there were some\n"
            'irpca.report.write(model, "report.html")'
        ),
        "facts": [
            ("Report written", f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}".strip()),
            ("irpca", irpca.__version__),
            ("NumPy, SciPy", f"{np.__version__}, {scipy.__version__}"),
            ("Solver, engine", f"{result.solver}, {result.engine}"),
            ("random_state", repr(model.random_state)),
            ("Iterations", f"{result.n_iter:,}"),
            ("How the iterations ended", f"{result.status.name}: {result.status.advice}"),
            ("Time", f"{result.seconds:.3g} s"),
        ],
    }
