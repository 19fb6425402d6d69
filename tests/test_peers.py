"""``python -m experiments peers``: that it measures rightly and leaves nobody out; never how good anybody is."""

import os
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def load():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield lambda name: import_module(f"experiments.{name}")


@pytest.fixture(scope="module")
def peers(load):
    return load("peers")


def case_of(method, table="tiny", kind="gross", share=0.1):
    return {"table": table, "share": share, "kind": kind, "method": method, "seed": 0}


@pytest.mark.parametrize("kind", ["gross", "mixed up", "holes", "rows"])
def test_what_is_spoilt(peers, kind):
    problem = peers.spoilt("tiny", 0.1, kind, 0)
    X, M, cells = problem.given.X, problem.truth, problem.cells
    assert np.array_equal(X[~cells], M[~cells])
    assert cells.mean() == pytest.approx(0.05 if kind == "rows" else 0.1, abs=0.03)
    assert np.array_equal(cells.any(axis=1), problem.rows) == (kind == "rows")
    if kind == "mixed up":
        assert np.array_equal(np.sort(X, axis=0), np.sort(M, axis=0))
        assert np.mean(X[cells] != M[cells]) > 0.8
    elif kind == "holes":
        assert np.isnan(X[cells]).all()
    else:
        assert (np.abs(X - M) / problem.unit)[cells].min() >= 3 * (1 - 1e-12)


def test_the_measures(peers):
    problem = peers.spoilt("tiny", 0.1, "gross", 0)
    X, M, cells = problem.given.X, problem.truth, problem.cells
    right = peers.judge(peers.Answer(M, cells), problem, "gross")
    assert (right["error"], right["error_all"], right["repaired"]) == (0, 0, 0)
    assert (right["found"], right["false"], right["flagged"]) == (1, 0, cells.mean())
    means = np.broadcast_to(M.mean(axis=0), M.shape)
    some = peers.judge(peers.Answer(means, np.ones_like(cells)), problem, "gross")
    assert some["error_all"] == some["repaired"] == pytest.approx(1)
    assert (some["found"], some["false"]) == (1, pytest.approx(1 - cells.mean()))
    nothing = peers.judge(peers.Answer(M, ~np.ones_like(cells)), problem, "gross")
    assert (nothing["found"], nothing["false"]) == (0, 0)
    assert nothing["repaired"] == pytest.approx(np.sqrt(np.mean(((X - M) / problem.unit) ** 2)))
    broken = peers.judge(peers.Answer(np.where(cells, np.nan, M)), problem, "gross")
    assert broken == {"status": f"failed: {cells.sum()} of its estimates are not finite"}


def test_those_that_are_installed(peers, monkeypatch):
    """Everyone runs, and who models the table beats the medians; the settings kept are the best ones."""
    monkeypatch.setattr(peers, "warm_up", lambda method: None)  # nothing is timed here
    rows = {name: peers.measure_here(case_of(name)) for name in ("irpca", "pca", "z-impute", "medians")}
    assert {row["status"] for row in rows.values()} == {"done"}
    assert rows["irpca"]["error"] < rows["medians"]["error"]
    assert rows["irpca"]["found"] > rows["pca"]["found"]
    assert 0 < rows["irpca"]["seconds"] < peers.LIMIT
    peer, problem = peers.PEERS["pca"], peers.spoilt("tiny", 0.1, "gross", 0)
    errors = [problem.error(peer.solve(problem.given, **one).expected, problem.cells) for one in peer.settings]
    assert rows["pca"]["error"] == min(errors)
    solver = peers.measure_here(case_of("altproj", "exact", "drawn"))
    assert solver["error"] < 1e-3 and solver["found"] == 1


def test_nobody_is_left_out(peers, monkeypatch):
    def fails(given):
        raise ArithmeticError("singular\nmatrix")

    monkeypatch.setitem(peers.PEERS, "absent", peers.Peer("", "no such package", fails))
    monkeypatch.setitem(peers.PEERS, "fails", peers.Peer("", "numpy", fails))
    assert peers.measure_here(case_of("absent")) == {"status": "not installed: no such package"}
    assert peers.measure_here(case_of("fails"))["status"] == "failed: ArithmeticError: singular matrix"
    assert {case["method"] for case in peers.cases()} == set(peers.PEERS)


def test_a_process_that_uses_up_its_seconds_is_ended(load):
    limited = load("limited")
    call = limited.OwnProcess()
    first = call(os.getpid)
    assert first != os.getpid() and call(os.getpid) == first
    assert call(os.getenv, "OMP_NUM_THREADS") == "1"
    endless = "from experiments.limited import seconds_at_most\nwith seconds_at_most(0.05):\n    while True: pass"
    with pytest.raises(limited.OverTime):
        call(exec, endless)
    assert call(os.getpid) != first
    with pytest.raises(limited.Died, match="exit code 3"):
        call(os._exit, 3)
    with limited.seconds_at_most(0.02):
        pass
    started = time.process_time()
    while time.process_time() < started + 0.04:  # lives on: the clock was stopped
        pass
    call.close()


def test_who_took_too_long_is_not_tried_again(peers, load, monkeypatch):
    asked = []

    def over(function, case):
        asked.append(case["kind"])
        raise load("limited").OverTime

    monkeypatch.setattr(peers, "_worker", over)
    monkeypatch.setattr(peers, "_over", set())
    for kind in ("gross", "holes"):
        assert peers.measure(case_of("pca", kind=kind))["status"] == "over 30 s"
    assert asked == ["gross"]


def test_the_page(load):
    empty = dict.fromkeys(("error", "repaired", "found", "false", "flagged", "flagged_rows", "package", "seconds"), "")
    same = empty | {"table": "cancer", "share": 0.1, "kind": "gross", "cpu": "a chip", "commit": "c0ffee"}
    done = {"status": "done", "seconds": 0.5, "package": "p 1"}
    rows = [same | done | {"method": "irpca", "seed": seed, "error": 0.2 + 0.1 * seed, "found": 0.9} for seed in (0, 1)]
    rows += [same | done | {"method": "pca", "seed": 0, "error": 0.5, "found": 0.25}]
    rows += [same | {"method": "ddc", "seed": 0, "status": "over 30 s"}]
    rows += [same | {"method": "cmfrec", "seed": 0, "status": "failed: ValueError: no"}]
    page = load("peers_report").render(rows)
    lines = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert lines["irpca"].split(" | ")[1:4] == ["**0.25**", "90%", "–"]
    assert lines["scikit-learn PCA, 3σ"].split(" | ")[1:3] == ["0.50", "25%"]
    assert lines["robpy DDC"].count("over 30 s") == 5
    assert "- cmfrec CMF on cancer: failed: ValueError: no" in page
    assert "a chip; p 1; commit c0ffee" in page
