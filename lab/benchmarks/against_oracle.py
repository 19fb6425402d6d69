"""How far a full solve is from an oracle that knows W and has only to read M and write S.

Three problems in float32: ``square`` and ``noisy``, 10,000 × 10,000 with features on both sides, d = 50, r = 10, 10 %
corrupted, without noise and with outliers of 8 to 16 standard deviations of it; and ``tall``, 500,000 × 375 with
features of the rows only, d = 20, r = 5. Contenders:

bare read
    The sum of |M|, threaded and compiled: the floor below everything.
oracle read
    ``engine.corruption`` with the true L. The yardstick.
solve
    ``irpca.solve`` with S: rank and noise given, the rank given, neither.

The fewest bytes and flops, for ``square`` and m = 4d = 200 lines of a block:

=================  ==============================================  ===================================================
bare read          M once, 400 MB                                  n² additions, 0.1 G
oracle read        and S written once, 8 bytes an entry, 80 MB     residual 2·n²·r = 2 G, n² comparisons
solve              and F of both sides twice, 16 MB, and a block   and per question to the block 4·m²·d = 8 M or, close
                   of 0.3 MB, which stays in cache                 to the solution, 8·m²·r = 3 M; some thirty of them
solve under noise  and M once per refinement                       and 2·n²·(r + d) = 12 G per refinement, the QR of
                                                                   both sides, 8·n·d² = 0.2 G, and a block of 8d lines
=================  ==============================================  ===================================================

So the oracle read has to move 1.2 times the bytes of the bare one, and has twenty times its flops: two for each of r
products where the bare read has one addition. At r = 10 in float32 that is 5 flops a byte, about what a core of today
can do while it waits for memory; which of the two it waits for is told by the GB/s and Gflop/s below the table. S is
not known to be 10 % before it has been read: either it is found twice, or written into room that is made as it grows.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from irpca.lowrank import relative_distance

from . import problems
from .case import Bar, Case, Found, Report, at_most, measured, shown
from .contenders import AUTO, BARE, BOTH, CONTENDERS, GIVEN, ORACLE, check
from .memory import peak_extra
from .runner import interleave, ratio, times, worst


def measure(contenders: tuple[str, ...], weighed: list[str], repeats: int, **size: Any) -> Found:
    """Time and errors of every contender, and the memory of those ``weighed``."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, small = Path(temporary), Path(temporary) / "small"
        found = _timed(folder, contenders, repeats, size)  # M is let go: the processes below need the memory
        problems.make(small, **{**size, "n1": 400, "n2": min(size["n2"], 400), "d": min(size["d"], 20)})
        for name in weighed:
            found["contenders"][name]["extra_bytes"] = peak_extra(folder, small, name)
    return found


def _timed(folder: Path, contenders: tuple[str, ...], repeats: int, size: dict[str, Any]) -> Found:
    task = problems.make(folder, **size)
    runs = {name: partial(CONTENDERS[name], task) for name in contenders}
    records = interleave(runs, repeats, lambda _, answer: check(task, answer))
    known = relative_distance(task.L, problems.with_known_support(task)) if task.noise else None
    return {
        "M_bytes": task.M.nbytes,
        "noise": task.noise,
        "known_support_error": known,
        "contenders": {
            name: {**times(rounds, records[ORACLE]), "extra_bytes": None, "rounds": rounds}
            for name, rounds in records.items()
        },
    }


def report(found: Found) -> Report:
    rows = found["contenders"]
    header = [*("", "s", "min", "max", "cpu s", "/oracle", "/bare", "reads", "MB beyond M", "of that S", "rank")]
    header += ("error of L", "error of S", "S: false", "missed")
    size = found["sizes"]
    title = (
        f"{size['n1']:,} × {size['n2']:,} {size['dtype']} ({found['M_bytes'] / 1e6:.4g} MB), "
        f"features of {'the rows only' if size.get('one_sided') else 'both sides'}, d = {size['d']}, "
        f"r = {size['rank']}, {size['corruption']:.0%} corrupted, "
        + (f"outliers of {problems.OUTLIER_TO_NOISE} or more times the noise" if found["noise"] else "no noise")
    )
    moved, flops = found["M_bytes"], 2 * size["rank"] * size["n1"] * size["n2"]
    written = worst(rows[ORACLE]["rounds"], "S_bytes")
    remarks = [
        f"the bare read moves {moved / rows[BARE]['seconds'] / 1e9:.3g} GB/s, the oracle read "
        f"{(moved + written) / rows[ORACLE]['seconds'] / 1e9:.3g} GB/s at "
        f"{flops / rows[ORACLE]['seconds'] / 1e9:.3g} Gflop/s"
    ]
    if found["known_support_error"]:
        known = found["known_support_error"]
        remarks.append(f"error of L for one who knows which entries are corrupted, by least squares: {known:.3g}")
    return Report(title, header, [_row(row_of, row, rows) for row_of, row in rows.items()], remarks)


def _row(name: str, row: dict[str, Any], rows: dict[str, Any]) -> tuple[str, ...]:
    rounds = row["rounds"]
    ranks = sorted({record["rank"] for record in rounds if record["rank"] is not None})
    return (
        name,
        *(f"{row[key]:.3f}" for key in ("seconds", "fastest", "slowest", "cpu_seconds")),
        f"{row['ratio']:.2f}",
        f"{ratio(rounds, rows[BARE]['rounds']):.2f}",
        shown(worst(rounds, "reads"), ".3f"),
        "–" if row["extra_bytes"] is None else f"{row['extra_bytes'] / 1e6:.0f}",
        f"{worst(rounds, 'S_bytes') / 1e6:.0f}",
        ", ".join(map(str, ranks)) or "–",
        *(shown(worst(rounds, key), ".1e") for key in ("error", "S_error")),
        *(shown(worst(rounds, key), ",d") for key in ("false", "missed")),
    )


def errors(rounds: list[dict[str, Any]], known: float | None = None) -> str:
    """The worst of all rounds, for the table of bars."""
    parts = [f"L {worst(rounds, 'error'):.1e}"]
    if known:
        parts[0] += f", {worst(rounds, 'error') / known:.3f} times that of known support"
    if worst(rounds, "false") is not None:
        parts.append(f"{worst(rounds, 'false'):,} false and {worst(rounds, 'missed'):,} missed in S")
    return ", ".join(parts)


def bars(found: Found) -> list[Bar]:
    rows, noisy = found["contenders"], bool(found["noise"])
    told = {name: errors(row["rounds"], found["known_support_error"]) for name, row in rows.items() if name != BARE}
    lines = []
    if not noisy:
        slower = ratio(rows[ORACLE]["rounds"], rows[BARE]["rounds"])
        lines += [
            Bar(f"{GIVEN}, against the {ORACLE}", *at_most(1.8, rows[GIVEN]["ratio"]), told[GIVEN]),
            Bar(f"{AUTO}, against the {ORACLE}", *measured(rows[AUTO]["ratio"]), told[AUTO]),
            Bar(f"{ORACLE}, against the {BARE}", *at_most(6, slower), told[ORACLE]),
        ]
    slower = ratio(rows[AUTO]["rounds"], rows[BOTH]["rounds"])
    reads = worst(rows[AUTO]["rounds"], "reads")
    lines += [
        Bar("rank and noise found, against both given", *at_most(1.5, slower), told[AUTO]),
        Bar("reads of M, rank and noise found", *at_most(4 if noisy else 2, reads, "", ".3f"), told[AUTO]),
    ]
    for name in (GIVEN, AUTO):
        if rows[name]["extra_bytes"] is not None:
            beside = rows[name]["extra_bytes"] - worst(rows[name]["rounds"], "S_bytes")
            share = 100 * beside / found["M_bytes"]
            lines.append(Bar(f"memory beside M and S, {name}", *at_most(10, share, " % of M"), told[name]))
    return lines


def tall_bars(found: Found) -> list[Bar]:
    row = found["contenders"][GIVEN]
    told = errors(row["rounds"])
    lines = [Bar(f"{GIVEN}, against the {ORACLE}", *measured(row["ratio"]), told)]
    if row["extra_bytes"] is not None:
        lines.append(Bar(f"memory beyond M, {GIVEN}", *at_most(1, row["extra_bytes"] / 1e9, " GB"), told))
    return lines


EVERYONE = (BARE, ORACLE, BOTH, GIVEN, AUTO)
COMMON = {"corruption": 0.1, "dtype": "float32"}
SQUARE = {"n1": 10_000, "n2": 10_000, "d": 50, "rank": 10, **COMMON, "weighed": [GIVEN, AUTO], "repeats": 11}
TALL = {"n1": 500_000, "n2": 375, "d": 20, "rank": 5, **COMMON, "one_sided": True, "weighed": [GIVEN], "repeats": 5}
SMALL = {"n1": 240, "n2": 240, "d": 10, "rank": 3, **COMMON, "weighed": [GIVEN], "repeats": 1}
CASES = (
    Case("square", partial(measure, EVERYONE), SQUARE, SMALL, report, bars),
    Case(
        "noisy",
        partial(measure, EVERYONE),
        {**SQUARE, "noisy": True},
        {**SMALL, "noisy": True, "weighed": []},
        report,
        bars,
    ),
    Case(
        "tall",
        partial(measure, (BARE, ORACLE, GIVEN)),
        TALL,
        {**SMALL, "n1": 3000, "n2": 60, "one_sided": True},
        report,
        tall_bars,
    ),
)
