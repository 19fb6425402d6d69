"""Other packages on real tables with cells spoilt on purpose, and on synthetic ones: errors, false alarms, seconds.

    python -m lab.experiments.peers --resume   # with an interpreter that has peers-requirements.txt, PYTHONPATH=src
    python -m lab.experiments table            # docs/peers-table.md, from results/peers.csv

Tables and ways of spoiling them are those of ``real_tables``; 10 % of the cells:

- ``gross``: values from three times the range of the table; where columns have units of their own (digits, cancer),
  3 to 5 standard deviations of the column added or taken away;
- ``mixed up``: values of other spoilt cells; in digits and cancer of the same column;
- ``holes``: no errors, but 10 % of the cells missing;
- ``clean``: nothing is spoilt: whatever is flagged is a false alarm, or an error of the table's own;
- ``rows``: half of the cells of 5 % of the rows, as ``gross``.

All errors are root mean squares, in standard deviations of the clean table (of its column in digits and cancer, whose
columns have units of their own); of synthetic tables relative to L. ``error``: of the estimate, on the spoilt cells or
holes; ``error_all``: on all; ``repaired``: of the spoilt table, all cells, once flagged cells have their estimates.
``found``: the share of the spoilt cells that is flagged; ``false``: the share of the flagged cells that were not
spoilt; ``flagged``: of all cells.
``seconds`` are processor time of one thread. A method that is not installed, fails or uses more than ``LIMIT`` seconds
has a row that says so; after the last it is not tried on other spoilt versions of that table.
"""

from __future__ import annotations

import atexit
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version

import numpy as np

import irpca
from lab.machine import PROVENANCE
from lab.rows import Row

from . import peers_report, real_tables
from .limited import Died, OverTime, OwnProcess, seconds_at_most
from .peer_methods import FEATURES, PEERS, ROWS, SYNTHETIC, Answer, Given, Peer, attempt
from .problems import Case as Drawn
from .problems import make
from .study import Case, Study

LIMIT = 30.0  # seconds of processor time, of one fit
SEEDS = 2
SHARE = 0.1  # of the cells
SHARE_ROWS = 0.05
NOISE = 0.1  # of synthetic tables, relative to L
KINDS = (("gross", SHARE), ("mixed up", SHARE), ("holes", SHARE), ("rows", SHARE_ROWS), ("clean", 0.0))
DRAWN = (("exact", 0.1), ("exact", 0.3), ("noisy", 0.1), ("noisy", 0.3))


@dataclass(frozen=True, eq=False)
class Spoilt:
    """What methods are given, and what they are measured by."""

    given: Given
    truth: np.ndarray
    cells: np.ndarray
    rows: np.ndarray
    unit: np.ndarray

    def error(self, estimate: np.ndarray, cells: np.ndarray) -> float:
        return float(np.sqrt(np.mean(((estimate - self.truth) / self.unit)[cells] ** 2)))


def cases(quick: bool = False) -> list[Case]:
    if quick:
        wanted = [("tiny", SHARE, kind, 0) for kind in ("gross", "rows")] + [("exact", SHARE, "drawn", 0)]
    else:
        wanted = []
        for seed in range(SEEDS):
            kinds = KINDS if seed == 0 else KINDS[:-1]  # a clean table is the same for all seeds
            wanted += [(name, share, kind, seed) for name in real_tables.TABLES for kind, share in kinds]
            wanted += [(name, share, "drawn", seed) for name, share in DRAWN]
    return [
        {"table": name, "share": share, "kind": kind, "method": method, "seed": seed}
        for name, share, kind, seed in wanted
        for method, peer in PEERS.items()
        if _takes_part(peer, name, kind)
    ]


def _takes_part(peer: Peer, name: str, kind: str) -> bool:
    needs = {"": True, ROWS: kind == "rows", SYNTHETIC: kind == "drawn", FEATURES: name in ("i94", "life", "pines")}
    return needs[peer.needs] or (peer.needs == FEATURES and kind == "drawn")


@lru_cache(maxsize=1)
def spoilt(name: str, share: float, kind: str, seed: int) -> Spoilt:
    if kind == "drawn":
        return _drawn(name, share, seed)
    M, F1, F2 = _table(name)
    rows = np.zeros(len(M), bool)
    plain = name in real_tables.PLAIN or name == "tiny"
    gross = "added" if plain else "swap"
    if kind == "rows":
        rng = np.random.default_rng([seed, 78])
        rows = rng.random(len(M)) < share
        cells = np.isfinite(M) & rows[:, None] & (rng.random(M.shape) < 0.5)
        X = np.where(cells, real_tables.spoil(M, 1.0, gross, seed)[0], M)
    elif kind == "mixed up" and plain:
        cells = real_tables.spoil(M, share, "clean", seed)[1]
        X, rng = M.copy(), np.random.default_rng([seed, 79])
        for column, places in zip(X.T, cells.T, strict=True):
            column[places] = rng.permutation(column[places])
    else:
        X, cells = real_tables.spoil(M, share, gross if kind == "gross" else kind, seed)
    unit = np.broadcast_to(np.nanstd(M, axis=0 if plain else None), M.shape)
    return Spoilt(Given(X, F1, F2, SHARE_ROWS), M, cells, rows, unit)


def _table(name: str) -> real_tables.Table:
    if name == "tiny":
        return real_tables.table("cancer")[0][:100, :10], None, None
    M, F1, F2 = real_tables.table(name)
    return (M[:, ::4], F1, F2[::4]) if name == "pines" else (M, F1, F2)  # with all bands several need minutes


def _drawn(name: str, share: float, seed: int) -> Spoilt:
    instance = make(Drawn(300, 60, 10, 10, 3, share, features="conditioned"), seed)
    L = instance.L.dense()
    size = np.sqrt(np.mean(L**2))
    if name == "noisy":
        noise = NOISE * size * np.random.default_rng([seed, 80]).standard_normal(L.shape)
        instance = replace(instance, M=instance.M + noise)
    given = Given(instance.M, instance.F1, instance.F2, SHARE_ROWS, instance)
    cells = instance.S.toarray() != 0
    return Spoilt(given, L, cells, np.zeros(len(L), bool), np.broadcast_to(size, L.shape))


def measure_here(case: Case) -> Row:
    """One method on one table, in this process: the best of its settings by the truth."""
    peer = PEERS[case["method"]]
    try:
        row: Row = {"package": _version(peer.package)}
    except PackageNotFoundError:
        return {"status": f"not installed: {peer.package}"}
    problem = spoilt(case["table"], case["share"], case["kind"], case["seed"])
    best: Row = {}
    for settings in peer.settings:
        try:
            warm_up(case["method"])
            with seconds_at_most(LIMIT):
                started = time.process_time()
                answer = attempt(peer, problem.given, settings)
                seconds = time.process_time() - started
            found = judge(answer, problem, case["kind"])
        except Exception as error:  # whatever a package raises is its answer
            said = " ".join(str(error).split())[:160]
            found, seconds = {"status": f"failed: {type(error).__name__}: {said}"}, np.nan
        found |= {"seconds": seconds, "told": ", ".join(f"{name} {value}" for name, value in settings.items())}
        if not best or found.get("worth", np.inf) < best.get("worth", np.inf):
            best = found
    return row | best


def judge(answer: Answer, problem: Spoilt, kind: str) -> Row:
    """All errors and shares; ``worth`` is what settings are chosen by."""
    row: Row = {"status": "done"}
    observed, spoilt_cells = np.isfinite(problem.truth), problem.cells
    if answer.expected is not None:
        strange = np.count_nonzero(~np.isfinite(answer.expected[observed]))
        if strange:
            return {"status": f"failed: {strange} of its estimates are not finite"}
        row["error_all"] = problem.error(answer.expected, observed)
        row["error"] = problem.error(answer.expected, spoilt_cells) if spoilt_cells.any() else None
        row["worth"] = row["error"] or row["error_all"]
    if answer.cells is not None:
        X, cells = problem.given.X, answer.cells & np.isfinite(problem.given.X)
        row["flagged"] = np.count_nonzero(cells) / np.count_nonzero(np.isfinite(X))
        if kind not in ("holes", "clean"):
            row["found"], row["false"] = _shares(cells, spoilt_cells)
        if answer.expected is not None:
            row["repaired"] = problem.error(np.where(cells | np.isnan(X), answer.expected, X), observed)
    if answer.rows is not None:
        row["flagged_rows"] = float(np.mean(answer.rows))
        if problem.rows.any():
            row["found_rows"], row["false_rows"] = _shares(answer.rows, problem.rows)
    return row


def _shares(flagged: np.ndarray, spoilt: np.ndarray) -> tuple[float, float]:
    """Of the spoilt those flagged, of the flagged those not spoilt."""
    return (
        np.count_nonzero(flagged & spoilt) / np.count_nonzero(spoilt),
        np.count_nonzero(flagged & ~spoilt) / max(np.count_nonzero(flagged), 1),
    )


@cache
def warm_up(method: str) -> None:
    """Compile and import what a method needs, outside every clock."""
    peer = PEERS[method]
    problem = _drawn("noisy", SHARE, 0) if peer.needs == SYNTHETIC else spoilt.__wrapped__("tiny", SHARE, "rows", 0)
    with suppress(Exception), seconds_at_most(LIMIT):  # what fails will do so again, within the clock
        attempt(peer, problem.given, peer.settings[0])


_worker = OwnProcess()
atexit.register(_worker.close)
_over: set[tuple[str, str]] = set()  # tables that took a method too long


def measure(case: Case) -> Row:
    """The same in a process of its own, within the limit."""
    place = case["method"], case["table"]
    if place not in _over:
        try:
            return _worker(measure_here, case)
        except Died as error:
            return {"status": f"failed: its process died with {error}"}
        except OverTime:
            _over.add(place)
    return {"status": f"over {LIMIT:.0f} s", "package": _version(PEERS[case["method"]].package)}


def _version(package: str) -> str:
    return f"{package} {irpca.__version__ if package == 'irpca' else version(package)}"


MEASURED = (
    "status",
    "error",
    "error_all",
    "repaired",
    "found",
    "false",
    "flagged",
    "found_rows",
    "false_rows",
    "flagged_rows",
    "told",
    "package",
    "seconds",
    *PROVENANCE,
)
STUDY = Study("peers", cases, measure, MEASURED, peers_report.render, warm_up=True)

if __name__ == "__main__":
    STUDY.main()
