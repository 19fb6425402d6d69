"""Checkpoints: whatever happens to a solve, and to its file, it goes on to the same result or is refused."""

import json
import logging
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

import irpca
from irpca import InductiveRobustPCA, Status, constants, solve
from irpca.callbacks import TimeBudget, checkpoint
from irpca.checkpoint import CheckpointError, Journal, journal, recordfile
from irpca.checkpoint.questions import Question, question, recorded
from irpca.checkpoint.records import Malformed, NotStorable, decoded, encoded, parts, settled
from irpca.engines import MemoryEngine, ReferenceEngine, choose, observed
from irpca.engines.base import Lines, Look, Sums, Trim
from irpca.engines.distributed import DistributedEngine
from irpca.lowrank import LowRank
from irpca.solvers import SOLVERS

READING = {"core", "normal", "products", "solve_lines", "whole", "corruption", "write"}
ACCESSING = {"block", "entries", "draw", "glance", "survey"}


class Watched(MemoryEngine):
    """Counts questions; refuses some."""

    forbidden = frozenset()

    def __init__(self, M, **options):
        super().__init__(M, **options)
        self.asked = []

    def __getattribute__(self, name):
        if name in READING | ACCESSING:
            if name in object.__getattribute__(self, "forbidden"):
                raise AssertionError(f"{name} was asked")
            object.__getattribute__(self, "asked").append(name)
        return object.__getattribute__(self, name)


class Stored:
    """What dask reads chunks from: counts them."""

    ndim = 2

    def __init__(self, M):
        self.M, self.shape, self.dtype, self.read = M, M.shape, M.dtype, 0

    def __getitem__(self, where):
        chunk = self.M[where]
        self.read += chunk.size > 0  # dask asks for nothing, to see what it would be
        return chunk

    def chunks(self, rows=40, cols=30):
        return da.from_array(self, chunks=(rows, cols), name=False)


@pytest.fixture(scope="module")
def exact():
    return irpca.datasets.make_problem(60, 40, d1=4, d2=3, rank=2, corruption=0.1)


@pytest.fixture(scope="module")
def noisy(exact):
    rng = np.random.default_rng(11)
    M = exact.L + 0.05 * rng.standard_normal(exact.M.shape)
    M[rng.random(M.shape) < 0.05] += 5
    return M


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Shorter fits, on fewer entries."""
    monkeypatch.setattr(constants, "MAX_SWEEPS", 12)
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, race=600))


@pytest.fixture
def large(monkeypatch):
    """Small tables are solved as those that are too large for memory."""
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, **SMALLER))


@pytest.fixture(scope="module")
def tables():
    """Tables in chunks: M and its features, by kind."""
    problem = irpca.datasets.make_problem(80, 60, d1=4, d2=3, rank=2, corruption=0.1)
    rng = np.random.default_rng(5)
    noisy = problem.L + 0.05 * rng.standard_normal(problem.M.shape)
    noisy[rng.random(noisy.shape) < 0.05] += 5
    holes = np.where(rng.random(noisy.shape) < 0.1, np.nan, noisy)
    F = problem.F1, problem.F2
    few = problem.F1.copy()
    few[:-3, 0] = 0  # of few rows: whether these are fitted, too, is looked at
    rare = few @ rng.standard_normal((4, 3)) @ problem.F2.T
    rare[rng.random(rare.shape) < 0.05] += 5
    return {
        "exact": (problem.M, *F),
        "rare": (rare, few, problem.F2),
        "noisy": (noisy, *F),
        "holes": (holes, *F),
        "alone": (noisy,),
    }


def assert_same(a, b):
    """Equal to the bit, all but clocks and reads."""
    for x, y in ((a.L.left, b.L.left), (a.L.core, b.L.core), (a.L.right, b.L.right)):
        np.testing.assert_array_equal(x, y)
    assert (a.W is None) == (b.W is None)
    if a.W is not None:
        np.testing.assert_array_equal(a.W, b.W)
    assert (a.S is None) == (b.S is None)
    if a.S is not None:
        for x, y in ((a.S.data, b.S.data), (a.S.indices, b.S.indices), (a.S.indptr, b.S.indptr)):
            np.testing.assert_array_equal(x, y)
    assert (a.status, a.rank, a.noise, a.zeta, a.doubts) == (b.status, b.rank, b.noise, b.zeta, b.doubts)
    assert a.history.step == b.history.step


SMALLER = {"memory": 1 << 12, "block": 1 << 10, "race": 600, "judged": 1500, "sample": 1000, "lines": 16}


def records(path):
    """The ends of the records of a file."""
    file = recordfile.RecordFile(path)
    file.read()
    return file._ends


def names(path):
    file = recordfile.RecordFile(path)
    file.read()
    return [decoded(file[k])["question"]["name"] for k in range(1, file.count)]


def resumed(engine, path):
    journal = Journal(engine, path, resume=True, begin=False)
    journal.begin({})
    return journal


IHT = {"rank": 2, "solver": "irpca_iht"}
PLAIN = [name for name, solver in SOLVERS.items() if not solver.features and not solver.needs]
CASES = [
    ("irpca", True, {}),
    ("irpca", False, {}),
    ("irpca_iht", True, {}),
    ("irpca_iht", True, {"variant": "paper"}),
    *((name, False, {}) for name in PLAIN),
]


def arguments(exact, M, features):
    return (M, exact.F1, exact.F2) if features else (M,)


# The same result.


@pytest.mark.parametrize(("solver", "features", "options"), CASES)
def test_every_solver_is_replayed_to_the_bit(exact, tmp_path, solver, features, options):
    given = arguments(exact, exact.M, features)
    options = {"solver": solver, "rank": 2, **options}
    path = tmp_path / "run"
    plain = solve(*given, **options)
    assert_same(solve(*given, callbacks=checkpoint(path), **options), plain)
    assert_same(solve(*given, resume=path, **options), plain)


@pytest.mark.parametrize(("solver", "features", "options"), CASES)
def test_a_whole_replay_does_not_read_M(exact, noisy, tmp_path, solver, features, options):
    given = arguments(exact, noisy, features)
    options = {"solver": solver, "rank": 2, "sparse": False, **options}
    path = tmp_path / "run"
    first = solve(*given, engine=Watched(given[0]), callbacks=checkpoint(path), **options)
    assert_same(first, solve(*given, **options))
    size = path.stat().st_size
    engine = Watched(given[0])
    engine.forbidden = READING
    assert_same(solve(*given, engine=engine, resume=path, **options), first)
    assert path.stat().st_size == size


IN_CHUNKS = [
    *(("irpca", kind, {}) for kind in ("exact", "rare", "noisy", "holes", "alone")),
    ("irpca_iht", "noisy", {"rank": 2}),
    ("irpca_iht", "holes", {"rank": 2, "variant": "paper"}),
    *((name, "alone", {"rank": 2, "max_iter": 6}) for name in PLAIN),
]


@pytest.mark.parametrize(("solver", "kind", "options"), IN_CHUNKS)
def test_a_whole_replay_reads_one_chunk(large, tables, tmp_path, monkeypatch, solver, kind, options):
    """That one by which another M would be noticed; then the final S is made."""
    (M, *F), path = tables[kind], tmp_path / "run"
    options, stored, read = {"solver": solver, **options}, Stored(M), []
    corruption = DistributedEngine.corruption

    def noted(*given):
        read.append(stored.read)
        return corruption(*given)

    monkeypatch.setattr(DistributedEngine, "corruption", noted)
    first = solve(stored.chunks(), *F, callbacks=checkpoint(path), **options)
    whole = path.read_bytes()
    stored.read = 0
    again = solve(stored.chunks(), *F, resume=path, **options)
    assert_same(again, first)
    assert read[0] > read[1] == 1 and path.read_bytes() == whole
    assert again.reads < first.reads


def test_all_but_S_is_replayed(exact, tmp_path):
    path = tmp_path / "run"
    solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
    engine = Watched(exact.M)
    again = solve(exact.M, exact.F1, exact.F2, engine=engine, resume=path, **IHT)
    assert again.reads == 1 and READING & set(engine.asked) == {"corruption"}


def test_entries_are_kept_where_they_are_dear_and_were_not_known(large, tables, tmp_path):
    M, *F = tables["noisy"]
    for name, given in (("memory", M), ("chunks", Stored(M).chunks())):
        solve(given, *F, **IHT, callbacks=checkpoint(tmp_path / name))
        solve(given, rank=2, solver="ircur", callbacks=checkpoint(tmp_path / f"{name} ircur"))
    assert not set(names(tmp_path / "memory")) & ACCESSING - {"glance"}
    assert names(tmp_path / "chunks")[:2] == ["glance", "survey"]
    assert not {"block", "entries", "draw"} & set(names(tmp_path / "chunks"))
    assert names(tmp_path / "memory ircur") == ["glance"]
    assert set(names(tmp_path / "chunks ircur")) == {"glance", "survey", "block"}
    M, *F = tables["rare"]
    solve(Stored(M).chunks(), *F, callbacks=checkpoint(tmp_path / "rare"))
    assert "entries" in names(tmp_path / "rare")


@pytest.mark.parametrize("make", [observed, ReferenceEngine, MemoryEngine])
def test_every_engine(exact, noisy, tmp_path, make):
    path = tmp_path / "run"
    first = solve(noisy, exact.F1, exact.F2, engine=make(noisy), callbacks=checkpoint(path), **IHT)
    assert_same(solve(noisy, exact.F1, exact.F2, engine=make(noisy), resume=path, **IHT), first)


def test_holes_that_are_met_on_the_way(exact, noisy, tmp_path):
    """Some entries are NaN, and the engine is not told: recorded answers know it, and so must the engine."""
    M = noisy.copy()
    M[np.random.default_rng(3).random(M.shape) < 0.002] = np.nan
    path = tmp_path / "run"
    given = {"callbacks": checkpoint(path), "rank": 2}
    plain = solve(M, exact.F1, exact.F2, rank=2, engine=MemoryEngine(M))
    assert_same(solve(M, exact.F1, exact.F2, engine=MemoryEngine(M), **given), plain)
    ends = records(path)
    for k in (len(ends), 2):
        os.truncate(path, ends[k - 1])
        assert_same(solve(M, exact.F1, exact.F2, engine=MemoryEngine(M), resume=path, rank=2), plain)


def test_holes_are_known_when_the_answer_that_met_them_is_replayed(exact, tmp_path):
    M, path = exact.M.copy(), tmp_path / "run"
    M[7, 3] = np.nan
    given = LowRank.zero(M.shape), 1.0, exact.F1, exact.F2
    for begin in (True, False):
        engine = Watched(M)
        one = Journal(engine, path, resume=not begin, begin=begin)
        one.begin({})
        assert not engine.holes and one.n_observed == M.size
        one.core(*given)
        assert engine.holes and one.n_observed == M.size - 1 and one.counts[0][7] == 39
    assert engine.asked == ["glance"]


def test_float32(exact, noisy, tmp_path):
    M, path = noisy.astype(np.float32), tmp_path / "run"
    plain = solve(M, solver="pca", rank=2)
    assert_same(solve(M, solver="pca", rank=2, callbacks=checkpoint(path)), plain)
    os.truncate(path, records(path)[20])
    assert_same(solve(M, solver="pca", rank=2, resume=path), plain)


# Cut off.


@pytest.mark.parametrize("solver", ["irpca", "irpca_iht", "accaltproj"])
def test_cut_after_every_record(exact, tmp_path, solver):
    path = tmp_path / "run"
    given = arguments(exact, exact.M, solver != "accaltproj")
    plain = solve(*given, rank=2, solver=solver, callbacks=checkpoint(path))
    whole, ends = path.read_bytes(), records(path)
    assert len(ends) > (1 if solver == "irpca" else 10)  # that one copies a small M
    for end in ends[:-1] if len(ends) < 40 else ends[:-1:4]:
        path.write_bytes(whole[:end])
        assert_same(solve(*given, rank=2, solver=solver, resume=path), plain)
        assert path.read_bytes() == whole  # it went on in the same file, to the same end


@pytest.mark.parametrize("kind", ["exact", "noisy", "holes", "alone"])
def test_chunks_cut_after_some_records(large, tables, tmp_path, kind):
    (M, *F), path = tables[kind], tmp_path / "run"
    stored = Stored(M)
    plain = solve(stored.chunks(), *F, rank=2, callbacks=checkpoint(path))
    whole, ends, asked = path.read_bytes(), records(path), names(path)
    assert asked[:2] == ["glance", "survey"] and (kind == "exact" or {"core", "solve_lines"} & set(asked))
    for k in {1, 2, 3} if kind == "exact" else {2, len(ends) // 2, len(ends) - 1}:
        path.write_bytes(whole[: ends[k - 1]])
        assert_same(solve(stored.chunks(), *F, rank=2, resume=path), plain)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("features", [True, False])
def test_tables_too_large_to_be_copied(exact, noisy, tmp_path, monkeypatch, features):
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=1000))
    path, given = tmp_path / "run", arguments(exact, noisy, features)
    plain = solve(*given, engine=Watched(noisy), rank=2, callbacks=checkpoint(path))
    assert_same(solve(*given, engine=Watched(noisy), rank=2), plain)
    whole, ends = path.read_bytes(), records(path)
    assert {"core", "solve_lines"} & set(names(path))
    os.truncate(path, ends[len(ends) // 2])
    assert_same(solve(*given, engine=Watched(noisy), rank=2, resume=path), plain)
    assert path.read_bytes() == whole


def test_normal_equations_are_made_again_only_when_they_are_asked(exact, tmp_path):
    """More than half of M is missing: it is taken as it is, not copied."""
    path = tmp_path / "run"
    M = np.where(np.random.default_rng(5).random(exact.M.shape) < 0.55, np.nan, exact.M)
    plain = solve(M, exact.F1, exact.F2, callbacks=checkpoint(path))
    asked, ends = names(path), records(path)
    within = next(k for k, name in enumerate(asked) if name.startswith("normal."))
    os.truncate(path, ends[within + 1])  # the file begins with the header
    engine = Watched(M, holes=True)
    assert_same(solve(M, exact.F1, exact.F2, engine=engine, resume=path), plain)
    made = engine.asked.count("normal")
    assert made == asked[within:].count("normal") + (asked[within + 1].startswith("normal."))


def test_torn_at_any_byte(exact, tmp_path, caplog):
    path = tmp_path / "run"
    plain = solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
    whole, (start, end) = path.read_bytes(), records(path)[-2:]
    rng = np.random.default_rng(0)
    for cut in {start + 1, start + recordfile.HEAD, end - 1, *rng.integers(start, end, 25).tolist()}:
        path.write_bytes(whole[:cut])
        journal = Journal(MemoryEngine(exact.M), path, resume=True, begin=False)
        assert journal.file.torn == cut - start
        assert_same(solve(exact.M, exact.F1, exact.F2, resume=path, **IHT), plain)
        assert path.read_bytes() == whole


def test_torn_while_the_file_was_begun(exact, tmp_path):
    path = tmp_path / "run"
    plain = solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
    whole, header = path.read_bytes(), records(path)[0]
    for cut in (0, 1, len(recordfile.MAGIC), len(recordfile.MAGIC) + 5, header - 1, header):
        path.write_bytes(whole[:cut])
        assert_same(solve(exact.M, exact.F1, exact.F2, resume=path, **IHT), plain)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("left", [b"\0" * 5000, b"\0" * 3])
def test_zeros_that_a_power_cut_leaves(exact, tmp_path, left):
    path = tmp_path / "run"
    plain = solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
    whole = path.read_bytes()
    path.write_bytes(whole[: records(path)[5]] + left)
    assert_same(solve(exact.M, exact.F1, exact.F2, resume=path, **IHT), plain)
    assert path.read_bytes() == whole


# Damaged, foreign, of something else.


def test_a_flipped_byte_anywhere_never_changes_the_result(exact, tmp_path):
    path = tmp_path / "run"
    plain = solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
    whole, ends = path.read_bytes(), records(path)
    rng = np.random.default_rng(1)
    outcomes = []
    places = [*range(20), *rng.integers(len(whole), size=70).tolist(), *rng.integers(ends[-2], ends[-1], 20).tolist()]
    for at in places:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            assert_same(solve(exact.M, exact.F1, exact.F2, resume=path, **IHT), plain)
            outcomes.append(at >= ends[-2])  # only the last record may be taken for an unfinished one
        except CheckpointError as error:
            assert str(path) in str(error)
            assert path.read_bytes() == bytes(damaged)  # a refused file is left as it is
            outcomes.append(True)
    assert all(outcomes) and len(outcomes) == 110


def test_records_in_another_order_or_from_another_file(exact, tmp_path):
    path, other = tmp_path / "run", tmp_path / "other"
    solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
    solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(other), **{**IHT, "rank": 1})
    whole, ends = path.read_bytes(), records(path)
    a, b, c = ends[4:7]
    spliced = other.read_bytes()[: records(other)[0]] + whole[ends[0] :]
    for wrong in (whole[:a] + whole[b:c] + whole[a:b] + whole[c:], whole[:a] + whole[b:], spliced):
        path.write_bytes(wrong)
        with pytest.raises(
            CheckpointError, match=r"is damaged after \d+ records: restore it from a copy, or delete it"
        ):
            solve(exact.M, exact.F1, exact.F2, resume=path, **IHT)


@pytest.mark.parametrize(
    "content", [b"hello", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"irpca checkpoint 2\n", b"\0" * 100, os.urandom(3000)]
)
def test_foreign_files(exact, tmp_path, content):
    path = tmp_path / "run"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is no checkpoint, or one of another version"):
        solve(exact.M, exact.F1, exact.F2, resume=path, **IHT)
    assert path.read_bytes() == content


def test_a_well_formed_file_of_nonsense(exact, tmp_path):
    path = tmp_path / "run"
    for nonsense in (b"", b"abcd", encoded([1, 2]), encoded({"solver": 1})):
        path.unlink(missing_ok=True)
        file = recordfile.RecordFile(path)
        file.append(nonsense)
        file.append(nonsense)
        with pytest.raises(CheckpointError):
            solve(exact.M, exact.F1, exact.F2, resume=path, **IHT)


OTHERS = [
    ({"rank": 1}, "rank was 2, now 1"),
    ({"rank": "auto", "solver": "irpca"}, "solver was 'irpca_iht', now 'irpca'; rank was 2, now 'auto'"),
    ({"variant": "paper"}, "variant was 'whitened', now 'paper'"),
    ({"tol": 1e-8}, "tol was 1e-10, now 1e-08"),
    ({"random_state": 5}, "random_state was"),
    ({"engine": "reference"}, "engine was 'memory', now 'reference'"),
]


@pytest.mark.parametrize(("other", "message"), OTHERS)
def test_another_solve_is_refused(exact, tmp_path, other, message):
    path = tmp_path / "run"
    solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=f"is the checkpoint of another solve: .*{message}"):
        solve(exact.M, exact.F1, exact.F2, resume=path, **{**IHT, **other})
    assert path.read_bytes() == before


def test_another_M_or_other_features_are_refused(exact, tmp_path, monkeypatch):
    path = tmp_path / "run"
    M, F1, F2 = exact.M, exact.F1, exact.F2
    solve(M, F1, F2, callbacks=checkpoint(path), **IHT)
    for given, message in [
        ((M, F1 + 1e-9, F2), "the features of the rows changed"),
        ((M, F1, F2[:, :2]), "the features of the columns changed"),
        ((M, F1), "the features of the columns changed"),
        ((M[:-1], F1[:-1], F2), r"the shape of M was \[60, 40\], now \[59, 40\]; the features"),
        ((M.astype(np.float32), F1, F2), "the type of M was 'float64', now 'float32'"),
        ((M + 1e-9, F1, F2), "is the checkpoint of another M, which had other values"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            solve(*given, resume=path, **IHT)
    stored, other, chunked = Stored(M), Stored(M + 1e-9), tmp_path / "chunks"
    solve(stored.chunks(), F1, F2, callbacks=checkpoint(chunked), **IHT)
    with pytest.raises(CheckpointError, match="is the checkpoint of another M, which had other values"):
        solve(other.chunks(), F1, F2, resume=chunked, **IHT)
    assert other.read == 1
    with pytest.raises(CheckpointError, match="engine was 'distributed', now 'memory'"):
        solve(M, F1, F2, resume=chunked, **IHT)
    monkeypatch.setattr(irpca, "__version__", "9.9")
    with pytest.raises(CheckpointError, match=r"the version of irpca was '\S+', now '9.9'"):
        solve(M, F1, F2, resume=path, **IHT)


def test_other_chunks_are_refused(exact, tmp_path):
    path = tmp_path / "run"

    class InChunks(MemoryEngine):
        edges = (0, 30, 60), (0, 40)

    class InOthers(MemoryEngine):
        edges = (0, 30, 50, 60), (0, 40)

    Journal(InChunks(exact.M), path, resume=False, begin=True).begin({})
    resumed(InChunks(exact.M), path)
    with pytest.raises(CheckpointError, match="the division of M into chunks changed"):
        resumed(InOthers(exact.M), path)


@pytest.mark.parametrize("in_chunks", [False, True])
def test_what_only_ends_a_run_may_change(large, tables, tmp_path, caplog, in_chunks):
    path, (M, *F) = tmp_path / "run", tables["exact"]
    M = Stored(M).chunks() if in_chunks else M
    plain = solve(M, *F, **IHT)
    first = solve(M, *F, callbacks=checkpoint(path), sparse=False, max_iter=3, **IHT)
    assert first.status is Status.MAX_ITER
    with caplog.at_level(logging.WARNING, "irpca"):
        again = solve(M, *F, resume=path, variant="whitened", **IHT)
    assert_same(again, plain)
    assert not caplog.records


@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_replay_that_is_stopped_early_loses_nothing(large, tables, tmp_path, in_chunks):
    path, (M, *F) = tmp_path / "run", tables["noisy"]
    stored = Stored(M)
    M = stored.chunks() if in_chunks else M
    plain = solve(M, *F, rank=2, callbacks=checkpoint(path))
    whole = path.read_bytes()
    stopped = solve(M, *F, rank=2, resume=path, callbacks=TimeBudget(1e-9))
    assert stopped.status is Status.STOPPED
    assert path.read_bytes() == whole
    stored.read = 0
    again = solve(M, *F, rank=2, resume=path)
    assert_same(again, plain)
    if in_chunks:
        assert again.reads < 1.5 < plain.reads


# The path.


def test_an_existing_file_is_not_begun_anew(exact, tmp_path):
    path = tmp_path / "run"
    path.write_bytes(b"of someone")
    with pytest.raises(FileExistsError, match=r"pass resume='.*run' to go on from it, or delete it"):
        solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
    assert path.read_bytes() == b"of someone"


def test_paths_that_lead_nowhere(exact, tmp_path):
    given = exact.M, exact.F1, exact.F2
    with pytest.raises(FileNotFoundError, match="no checkpoint to resume from"):
        solve(*given, resume=tmp_path / "run", **IHT)
    with pytest.raises(FileNotFoundError, match="the folder of the checkpoint does not exist"):
        solve(*given, callbacks=checkpoint(tmp_path / "no" / "run"), **IHT)
    with pytest.raises(ValueError, match="give one checkpoint; got 2"):
        solve(*given, callbacks=[checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")], **IHT)
    with pytest.raises(ValueError, match="goes on in its own file"):
        solve(*given, callbacks=checkpoint(tmp_path / "a"), resume=tmp_path / "b", **IHT)
    assert not list(tmp_path.iterdir())


def test_with_both_the_same_call_begins_and_goes_on(exact, tmp_path):
    path = tmp_path / "run"
    both = {"callbacks": [checkpoint(path), lambda state, history: None], "resume": str(path)}
    first = solve(exact.M, exact.F1, exact.F2, **both, **IHT)
    again = solve(exact.M, exact.F1, exact.F2, **both, **IHT)
    assert_same(first, again)
    assert (first.reads > 5, again.reads) == (True, 1)


def test_arguments_that_are_refused_leave_no_file(exact, tmp_path):
    path = tmp_path / "run"
    for wrong in ({"max_iter": 0}, {"tol": -1}, {"rank": 99}):
        with pytest.raises(ValueError, match=r"max_iter|tol|rank"):
            solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **{**IHT, **wrong})
    assert not path.exists()


@pytest.mark.parametrize("solver", [name for name, solver in SOLVERS.items() if solver.needs])
def test_solvers_of_dense_matrices_are_refused_before_anything_is_read(exact, tmp_path, solver):
    path, engine = tmp_path / "run", Watched(exact.M)
    engine.forbidden = READING | ACCESSING
    options = {"rank": 2, "solver": solver, "callbacks": checkpoint(path)}
    with pytest.raises(ValueError, match=f"solver='{solver}' keeps arrays as large as M.*leave checkpoint"):
        solve(exact.M, exact.F1, exact.F2, engine=engine, **options)
    stored = Stored(exact.M)
    with pytest.raises(NotImplementedError, match=f"solver='{solver}' works on all of M"):
        solve(stored.chunks(), exact.F1, exact.F2, **options)
    assert stored.read == 0 and not path.exists()


def test_a_file_that_another_process_uses(exact, tmp_path):
    path = tmp_path / "run"
    first, second = (Journal(MemoryEngine(exact.M), path, resume=True, begin=True) for _ in range(2))
    first.begin({})
    with pytest.raises(FileExistsError):
        second.begin({})
    L, Q1, Q2 = LowRank.zero(exact.M.shape), np.ones((60, 1)), np.ones((40, 1))
    first.core(L, np.inf, Q1, Q2)
    third = resumed(MemoryEngine(exact.M), path)
    first.core(L, 1.0, Q1, Q2)
    third.core(L, np.inf, Q1, Q2)
    with pytest.raises(CheckpointError, match="another process seems to use the same checkpoint"):
        third.core(L, 1.0, Q1, Q2)


# Interruptions.


@pytest.mark.parametrize("at", range(2, 35, 3))  # a record is written in several parts
@pytest.mark.parametrize("moment", ["before", "within", "after"])
def test_ctrl_c_while_a_record_is_written(exact, tmp_path, monkeypatch, at, moment):
    path = tmp_path / "run"
    plain = solve(exact.M, exact.F1, exact.F2, **IHT)
    writes, opened = [], recordfile.RecordFile._opened

    class Interrupted:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            writes.append(len(data))
            if len(writes) != at:
                return self.file.write(data)
            self.file.write(data[: {"before": 0, "within": len(data) // 2, "after": len(data)}[moment]])
            raise KeyboardInterrupt

    monkeypatch.setattr(recordfile.RecordFile, "_opened", lambda self: Interrupted(opened(self)))
    try:
        result = solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
        assert result.status is Status.INTERRUPTED
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    assert_same(solve(exact.M, exact.F1, exact.F2, resume=path, **IHT), plain)


def test_a_full_disk(exact, tmp_path, monkeypatch):
    path = tmp_path / "run"
    plain = solve(exact.M, exact.F1, exact.F2, **IHT)
    sync, count = os.fsync, []

    def full(fd):
        count.append(fd)
        if len(count) > 4:
            raise OSError(28, "No space left on device")
        sync(fd)

    monkeypatch.setattr(recordfile, "SYNC_EVERY", 0)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
    monkeypatch.undo()
    assert_same(solve(exact.M, exact.F1, exact.F2, resume=path, **IHT), plain)


LIVES = """
import json, os, random, signal, sys, time
from dataclasses import replace
from pathlib import Path
import dask, dask.array as da
import numpy as np
import irpca
from irpca import constants
from irpca.callbacks import checkpoint
from irpca.checkpoint.recordfile import RecordFile
from irpca.engines.distributed import DistributedEngine

folder, smaller, cases = Path(sys.argv[1]), *map(json.loads, sys.argv[2:])
constants.BUDGET = replace(constants.BUDGET, **smaller)
constants.MAX_SWEEPS = 12
dask.config.set(scheduler="threads", num_workers=2)

class Slow:
    ndim = 2

    def __init__(self, M, pause):
        self.M, self.shape, self.dtype, self.pause = M, M.shape, M.dtype, pause

    def __getitem__(self, where):
        time.sleep(self.pause)
        return self.M[where]

def given(kind):
    found = np.load(folder / f"{kind}.npz")
    return [found[key] for key in found]

def solved(kind, name, pause=0.004, rows=40, solver="irpca", **options):
    M, *F = given(kind)
    slow = da.from_array(Slow(M, pause), chunks=(rows, 30), name=False)
    result = irpca.solve(slow, *F, rank=2, solver=solver, **options)
    if result.S is not None:
        np.savez(folder / "part.npz", L=result.L.dense(), S=result.S.toarray())
        os.rename(folder / "part.npz", folder / f"{name}.npz")

def life(*given, **options):
    pid = os.fork()  # of a process that has no threads yet
    if pid:
        return pid
    try:
        solved(*given, **options)
    except BaseException as error:
        print(given, repr(error), flush=True)
        os._exit(1)
    os._exit(0)

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def resumed(path):
    return {"callbacks": checkpoint(path), "resume": path}

def at_random(cases, kills):
    moments, said = random.Random(3), {"codes": [], "sizes": []}
    for kind, solver in cases:
        name, path, killed = f"{kind} {solver}", folder / f"{kind} {solver}.checkpoint", 0
        whole = folder / f"{name} whole.checkpoint"
        said["codes"].append(ended(life(kind, f"{name} undisturbed", solver=solver, callbacks=checkpoint(whole))))
        file = RecordFile(whole)
        file.read()
        while killed < kills:
            pid = life(kind, f"{name} killed", solver=solver, **resumed(path))
            until = file._ends[int((killed + moments.random()) / kills * file.count)]  # however busy the machine is
            while (path.stat().st_size if path.exists() else 0) < until:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.02))
            os.kill(pid, signal.SIGKILL)
            if ended(pid) == -signal.SIGKILL:
                killed += 1
                said["sizes"].append(path.stat().st_size if path.exists() else 0)
            else:
                path.unlink()  # it was done: another one
        said["codes"].append(ended(life(kind, f"{name} killed", solver=solver, **resumed(path))))
    return said

def while_S_is_written(kind):
    said = {"codes": [], "parts": []}
    said["codes"].append(ended(life(kind, "", rows=20, outliers_to=folder / f"{kind} undisturbed.parquet")))
    path, target = folder / f"{kind} S.checkpoint", folder / f"{kind} killed.parquet"
    for wanted in (1, 3, 5):
        pid = life(kind, "", pause=0.03, rows=20, outliers_to=target, **resumed(path))
        parts = folder / f"{target.name}.part" / "parts"
        until = time.perf_counter() + 60
        while len(list(parts.glob("part-*"))) < wanted and time.perf_counter() < until:
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        said["codes"].append(ended(pid))
        said["parts"].append([len(list(parts.glob("part-*"))), target.exists(), path.stat().st_size])
    said["codes"].append(ended(life(kind, "", rows=20, outliers_to=target, **resumed(path))))
    said["parts"].append([path.stat().st_size])
    return said

with dask.config.set(scheduler="sync"):  # what is loaded now is there in all lives
    for kind in ("exact", "noisy"):
        solved(kind, "first", pause=0, outliers_to=folder / f"{kind} first.parquet")
print(json.dumps({"random": at_random(cases, 3), **{kind: while_S_is_written(kind) for kind in ("exact", "noisy")}}))
"""


KILLED = [("holes", "irpca"), ("noisy", "irpca_iht")]


@pytest.fixture(scope="module")
def lives(tables, tmp_path_factory):
    """A folder, and what a process says that starts solves there, and kills them."""
    folder = tmp_path_factory.mktemp("lives")
    for kind, given in tables.items():
        np.savez(folder / f"{kind}.npz", *given)
    (folder / "lives.py").write_text(LIVES)
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    process = subprocess.run(
        [sys.executable, folder / "lives.py", folder, json.dumps(SMALLER), json.dumps(KILLED)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **single, "PYTHONPATH": str(Path(irpca.__file__).parent.parent)},
        timeout=300,
    )
    assert process.returncode == 0, process.stdout
    print(process.stdout)  # errors of solves
    return folder, json.loads(process.stdout.splitlines()[-1])


@pytest.mark.timeout(200)
def test_killed_at_random_moments(lives, large, tables):
    """Two solves, each killed three times at a random moment and resumed in a new process."""
    folder, said = lives[0], lives[1]["random"]
    assert said["codes"] == [0] * 4
    assert len(said["sizes"]) == 6 and len(set(said["sizes"])) > 3  # they were killed at different places
    for kind, solver in KILLED:
        undisturbed, killed = (np.load(folder / f"{kind} {solver} {how}.npz") for how in ("undisturbed", "killed"))
        for part in ("L", "S"):
            np.testing.assert_array_equal(killed[part], undisturbed[part])
        assert undisturbed["S"].any()
    kind, solver = KILLED[-1]
    (M, *F), path = tables[kind], folder / f"{kind} {solver}.checkpoint"
    os.truncate(path, records(path)[5])
    here = solve(Stored(M).chunks(), *F, rank=2, solver=solver, resume=path)  # in an interpreter of its own
    np.testing.assert_array_equal(here.L.dense(), undisturbed["L"])
    np.testing.assert_array_equal(here.S.toarray(), undisturbed["S"])


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", ["exact", "noisy"])
def test_killed_while_S_is_written(lives, kind):
    folder, said = lives[0], lives[1][kind]
    assert said["codes"] == [0, -9, -9, -9, 0]
    *killed, done = said["parts"]
    assert {size for *_, size in killed} == set(done)  # the fit was there, and nothing of it was asked again
    assert all(1 <= count < 8 and not there for count, there, _ in killed)
    undisturbed, resumed = (
        pd.read_parquet(folder / f"{kind} {how}.parquet").sort_values(["row", "column"], ignore_index=True)
        for how in ("undisturbed", "killed")
    )
    pd.testing.assert_frame_equal(resumed, undisturbed, check_exact=True)
    assert len(undisturbed) > 100 and not (folder / f"{kind} killed.parquet.part").exists()


# Other questions than then.


def test_a_replay_ends_where_the_question_is_another(exact, tmp_path, caplog, monkeypatch):
    path = tmp_path / "run"
    plain = solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
    count, same = len(records(path)), journal.Question.same
    seen = []

    def differs(self, other):
        seen.append(self)
        return same(self, other) and len(seen) != 5

    monkeypatch.setattr(journal.Question, "same", differs)
    engine = Watched(exact.M)
    with caplog.at_level(logging.WARNING, "irpca"):
        again = solve(exact.M, exact.F1, exact.F2, engine=engine, resume=path, **IHT)
    assert_same(again, plain)
    assert len(seen) == 5  # nothing of the rest was used
    (record,) = caplog.records
    assert f"{count - 5} records from there on are not used" in record.getMessage()
    assert len(records(path)) == count


def test_rounding_is_told_from_another_question(exact, tmp_path, caplog):
    path, engine = tmp_path / "run", MemoryEngine(exact.M)
    rng = np.random.default_rng(0)
    Q1, Q2 = rng.standard_normal((60, 3)), rng.standard_normal((40, 2))
    L = LowRank.from_product(Q1[:, :2], Q2)
    begun = Journal(engine, path, resume=False, begin=True)
    begun.begin({})
    G, _ = begun.core(L, 1.0, Q1, Q2)
    for by, log in ((0.0, 0), (1e-12, 1)):
        again = resumed(Watched(exact.M), path)
        with caplog.at_level(logging.WARNING, "irpca"):
            H, _ = again.core(L, 1.0, Q1 * (1 + by), Q2)
        np.testing.assert_array_equal(G, H)
        assert len(caplog.records) == log and again.engine.asked == ["glance"]
    for other in (
        (L, 1.0, Q1 * (1 + 1e-4), Q2),
        (L, 1.0, Q1[:, ::-1].copy(), Q2),
        (L, 1.0, Q1[::-1].copy(), Q2),
        (L, 1.0, -Q1, Q2),
        (L, 1.0, Q1[:, :2], Q2),
        (L, 1.001, Q1, Q2),
        (L, np.inf, Q1, Q2),
        (LowRank.zero(L.shape), 1.0, Q1, Q2),
    ):
        again = resumed(Watched(exact.M), path)
        H, _ = again.core(*other)
        assert again.engine.asked == ["glance", "core"]
        np.testing.assert_array_equal(H, engine.core(*other)[0])
        path.write_bytes(path.read_bytes()[: records(path)[0]])
        resumed(engine, path).core(L, 1.0, Q1, Q2)


def test_integers_and_seeds_are_compared_exactly():
    def ask(*arguments):
        return question("survey", arguments, {})

    rows = np.arange(1000)
    moved = rows.copy()
    moved[500] += 1
    assert ask(rows).same(ask(rows.copy())) and not ask(rows).same(ask(moved))
    one, other = np.random.SeedSequence(1).spawn(2)
    assert ask(7, one).same(ask(7, np.random.SeedSequence(1).spawn(1)[0])) and not ask(7, one).same(ask(7, other))
    assert not ask(7, one).same(ask(8, one)) and not ask(one).same(ask(np.random.SeedSequence(1)))
    one.spawn(3)  # numbers drawn with it stay the same
    assert ask(one).same(ask(np.random.SeedSequence(1).spawn(1)[0]))
    assert ask(np.array([np.nan, 1.0])).same(ask(np.array([np.nan, 1.0])))
    assert not ask(np.array([np.inf, 1.0])).same(ask(np.array([np.inf, 2.0])))
    assert ask(np.inf).same(ask(np.inf)) and not ask(np.inf).same(ask(1.0))
    assert ask(np.zeros((0, 3))).same(ask(np.zeros((0, 3)))) and not ask(np.zeros((0, 3))).same(ask(np.zeros((3, 0))))
    for unknown in (object(), np.random.default_rng(0), {1, 2}):  # whether they are the same cannot be told
        with pytest.raises(TypeError, match="cannot be recognised"):
            ask(unknown)


def test_looks_are_compared_exactly():
    def ask(*looks):
        return question("survey", (looks,), {})

    def seed(entropy):
        return np.random.SeedSequence(entropy)

    rows, cols = np.arange(5), np.arange(3)
    looks = [
        Look(lines=(rows, cols)),
        Look(lines=(cols, rows)),
        Look(lines=(rows, cols + 1)),
        Look(lines=(rows.astype(np.int32), cols)),
        Look(cells=(rows, rows)),
        Look(lines=(rows, rows)),
        Look(size=5, seed=seed(1)),
        Look(size=6, seed=seed(1)),
        Look(size=5, seed=seed(2)),
        Look(size=5),
    ]
    for k, one in enumerate(looks):
        for m, other in enumerate(looks):
            copied = Look(*(decoded(encoded(part)) for part in (other.lines, other.cells, other.size)), other.seed)
            assert ask(one).same(ask(copied)) == (k == m)
            assert ask(one, other).same(ask(other, one)) == (k == m)
            assert not ask(one).same(ask(one, other))


def surveyed(M):
    """Looks of all kinds, and what they bring."""
    rng = np.random.default_rng(0)
    rows, cols = rng.permutation(M.shape[0])[:7], rng.permutation(M.shape[1])[:5]
    cells = rng.integers(M.shape[0], size=50), rng.integers(M.shape[1], size=50)
    seed = np.random.SeedSequence(3)
    looks = [Look(lines=(rows, cols)), Look(cells=cells), Look(size=200, seed=seed), Look(size=1 << 14, seed=seed)]

    def answers(engine):
        drawn, every = np.random.default_rng(seed), np.random.default_rng(seed)
        found = [
            engine.block(rows, cols),
            engine.entries(*cells),
            *engine.draw(200, drawn),
            *engine.draw(1 << 14, every),
        ]
        return [*found, *engine.counts, engine.n_observed, drawn.random(), every.random()]

    return looks, answers


@pytest.mark.parametrize("kind", ["dense", "holes", "listed", "whole", "memory"])
def test_a_survey_is_recalled(tables, tmp_path, kind):
    """All that it brought is known to the next engine, which reads nothing for it, and draws as the first did."""
    path, M = tmp_path / "run", tables["noisy" if kind in ("dense", "memory") else "holes"][0]
    looks, answers = surveyed(M)
    if kind == "whole":
        looks.append(Look(lines=(np.arange(80), np.arange(60))))

    def made():
        stored = Stored(M)
        if kind == "memory":
            return stored, MemoryEngine(M)
        chunks = stored.chunks()
        if kind == "listed":
            chunks = chunks.map_blocks(listed, meta=csr_array((0, 0)))
        return stored, choose(chunks)

    stored, engine = made()
    first = Journal(engine, path, resume=False, begin=True)
    first.begin({})
    first.survey(looks)
    expected = answers(first)
    for name, value in zip(("block", "entries"), expected, strict=False):
        at = looks[0].lines if name == "block" else looks[1].cells
        np.testing.assert_array_equal(value, M[np.ix_(*at)] if name == "block" else M[at])
    whole = path.read_bytes()
    assert names(path) == ["glance", "survey"]
    stored, engine = made()
    again = resumed(engine, path)
    again.survey(looks)
    for x, y in zip(answers(again), expected, strict=True):
        np.testing.assert_array_equal(x, y)
        assert getattr(x, "dtype", None) == getattr(y, "dtype", None)
    assert stored.read == (kind != "memory") and path.read_bytes() == whole


def listed(chunk):
    rows, cols = np.nonzero(np.isfinite(chunk))
    return csr_array((chunk[rows, cols], (rows, cols)), shape=chunk.shape)


def test_an_error_after_which_solvers_go_on_is_an_answer(exact, tmp_path):
    class Failing(MemoryEngine):
        def core(self, *_):
            raise FloatingPointError("M - L is not finite")

    class Broken(MemoryEngine):
        def core(self, *_):
            raise OSError("the disk is gone")

    path, given = tmp_path / "run", (LowRank.zero(exact.M.shape), 1.0, np.ones((60, 1)), np.ones((40, 1)))
    first = Journal(Failing(exact.M), path, resume=False, begin=True)
    first.begin({})
    with pytest.raises(FloatingPointError, match="M - L is not finite"):
        first.core(*given)
    with pytest.raises(FloatingPointError, match="M - L is not finite"):
        resumed(MemoryEngine(exact.M), path).core(*given)
    with pytest.raises(OSError, match="the disk is gone"):
        Journal(Broken(exact.M), tmp_path / "other", resume=False, begin=True).core(*given)
    assert not (tmp_path / "other").exists()


def test_handles_in_place_of_blocks(exact, tmp_path):
    class Handle:
        def __init__(self, B):
            self.B = B

    class Elsewhere(MemoryEngine):
        def place(self, B):
            return Handle(B)

        def products(self, L, limit, X=None, Y=None, kept=False):
            return exact.M @ X.B, None if Y is None else exact.M.T @ Y, Trim(2400, 0, 1.0, np.float64(2.0))

    path, rng = tmp_path / "run", np.random.default_rng(0)
    X, L = rng.standard_normal((40, 2)), LowRank.zero(exact.M.shape)
    answers = []
    for begin in (True, False):
        one = Journal(Elsewhere(exact.M), path, resume=not begin, begin=begin)
        one.begin({})
        answers.append(one.products(L, np.inf, X=one.place(X), kept=True))
    np.testing.assert_array_equal(answers[0][0], answers[1][0])
    assert answers[0][2] == answers[1][2] and type(answers[1][2].largest) is np.float64
    assert names(path) == ["glance", "products"]
    before = path.read_bytes()
    other = resumed(Elsewhere(exact.M), path)
    other.products(L, np.inf, X=other.place(X + 1), kept=True)
    assert len(records(path)) == 3 and path.read_bytes() != before  # another block is another question


# Records.


def test_values_come_back_as_they_were():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((5, 3))
    values = [None, True, 3, -(2**70), 0.1, float("inf"), "é", np.float32(1.5), np.int64(7), np.bool_(True)]
    for value in values:
        again = decoded(encoded(value))
        assert type(again) is type(value) and again == value
    for array in (A, A.T, A[::2, ::-1], A[:0], A[0], np.array(2.0), A.astype(np.float32), A > 0, np.arange(4)):
        again = decoded(encoded((array, [array])))[0]
        np.testing.assert_array_equal(again, array)
        assert again.dtype == array.dtype and again.flags.writeable and again.flags.owndata | (again.base is not None)
        assert not array.flags.forc or again.flags.c_contiguous == array.flags.c_contiguous
    lines = Lines(A, A, A, A[:, 0], A[:3], None, A[0], Sums(A, A, A[0]))
    again = decoded(encoded({"a": lines, "b": [Trim(1, 2, 3.0, 4.0)]}))
    np.testing.assert_array_equal(again["a"].sums.cols, A)
    assert again["a"].coefficients is None and again["b"][0] == Trim(1, 2, 3.0, 4.0)
    assert np.isnan(decoded(encoded(float("nan"))))


def test_an_answer_is_not_copied_where_it_need_not_be():
    A = np.arange(12.0).reshape(3, 4).copy()
    for array in (A, np.asfortranarray(A), A > 3):
        assert settled(array) is array
        assert np.shares_memory(np.frombuffer(parts((1, array))[-1], array.dtype), array)
    for array in (A[:, ::2], A[1:], np.broadcast_to(2.0, (3, 2)), A.T[::-1], np.moveaxis(np.ones((2, 3, 4)), 0, 1)):
        again, expected = settled({"a": (array, None)})["a"][0], decoded(encoded(array))
        np.testing.assert_array_equal(again, array)
        np.testing.assert_array_equal(expected, array)
        assert again.strides == expected.strides and again.flags.writeable and again.flags.owndata


def test_a_large_answer_is_in_memory_once(exact, tmp_path):
    answer = np.zeros((1 << 21, 2))

    class Large(MemoryEngine):
        def products(self, *_):
            return answer, answer[::-1], Trim(1, 2, 3.0, 4.0)

    given, path = (LowRank.zero(exact.M.shape), 1.0), tmp_path / "run"
    lie = []
    for begin, most in ((True, 1.1), (False, 4.1)):  # times as large; what is reversed is copied, what is read twice
        one = Journal(Large(exact.M), path, resume=not begin, begin=begin)
        one.begin({})
        tracemalloc.start()
        found = one.products(*given)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= most * answer.nbytes
        lie.append([part.strides for part in found[:2]])
    assert lie[0] == lie[1]  # to lie in another way in memory may change the rounding of what follows


def test_what_records_cannot_hold():
    for value in (object(), np.array([None]), {1: 2}, LowRank.zero((2, 2)), np.array(["a"])):
        with pytest.raises(NotStorable):
            encoded(value)


@pytest.mark.parametrize(
    "node",
    [
        {"array": "<f8", "shape": [1 << 40], "order": "C", "single": False},
        {"array": "<f8", "shape": [-1], "order": "C", "single": False},
        {"array": "O", "shape": [1], "order": "C", "single": False},
        {"array": "<f8", "shape": [1]},
        {"class": "Popen", "fields": ["ls"]},
        {"class": "Trim", "fields": [1]},
        {"set": [1]},
        [1],
        {},
    ],
)
def test_malformed_records(node):
    text = json.dumps(node).encode()
    with pytest.raises(Malformed):
        decoded(len(text).to_bytes(4, "little") + text)


# The estimator.


def test_the_estimator(exact, noisy, tmp_path):
    path = tmp_path / "run"
    features = {"row_features": exact.F1, "col_features": exact.F2}
    plain = InductiveRobustPCA(rank=2).fit(noisy, **features)
    first = InductiveRobustPCA(rank=2, callbacks=checkpoint(path)).fit(noisy, **features)
    os.truncate(path, records(path)[len(records(path)) // 2])
    again = InductiveRobustPCA(rank=2).fit(noisy, **features, resume=path)
    for model in (first, again):
        assert_same(model.result_, plain.result_)
    again.save(tmp_path / "model.irpca")
    with pytest.raises(CheckpointError, match="rank was 2, now 1"):
        InductiveRobustPCA(rank=1).fit(noisy, **features, resume=path)


def test_a_random_state_of_none_is_that_of_the_earlier_run(exact, noisy, tmp_path):
    path = tmp_path / "run"
    first = solve(noisy, rank=2, solver="pca", callbacks=checkpoint(path), random_state=None)
    os.truncate(path, records(path)[5])
    assert_same(solve(noisy, rank=2, solver="pca", resume=path, random_state=None), first)


def test_seeds_of_other_kinds(exact, tmp_path):
    for k, make in enumerate(
        [lambda: np.random.default_rng(3), lambda: np.random.SeedSequence(4).spawn(2)[1], lambda: np.int64(2)]
    ):
        path = tmp_path / str(k)
        first = solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), random_state=make())
        os.truncate(path, records(path)[1])
        assert_same(solve(exact.M, exact.F1, exact.F2, resume=path, random_state=make()), first)


def test_answers_that_a_checkpoint_cannot_hold(tmp_path):
    class Odd(MemoryEngine):
        def products(self, *_):
            return object()

    journal = Journal(Odd(np.eye(4)), tmp_path / "c", resume=False, begin=True)
    journal.begin({})
    words = "answer to 'products' holds a builtins.object, which a checkpoint cannot hold: solve without one"
    with pytest.raises(CheckpointError, match=words):
        journal.products(LowRank.zero((4, 4)), np.inf)


def test_a_record_with_more_behind_it():
    with pytest.raises(Malformed, match="longer than what it describes"):
        decoded(encoded(np.ones(3)) + bytes(8))


@pytest.mark.parametrize(
    "changed",
    [
        {"numbers": [[1.0, 2.0, 3.0]]},
        {"numbers": [[1.0, "2"]]},
        {"numbers": [1.0]},
        {"numbers": "12"},
        {"form": 3},
        {"more": 1},
    ],
)
def test_a_question_of_a_file_is_texts_and_pairs_of_numbers(changed):
    fields = {"name": "core", "form": "a", "numbers": [[1.0, 2.0], [3, 4.0]], "bits": "b"}
    assert recorded(fields) == Question(**fields)
    with pytest.raises(TypeError):
        recorded(fields | changed)
