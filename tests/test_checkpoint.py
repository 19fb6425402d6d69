"""Checkpoints: whatever happens to a solve, and to its file, it goes on to the same result or is refused."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import irpca
from irpca import InductiveRobustPCA, Status, solve
from irpca.callbacks import TimeBudget, checkpoint
from irpca.checkpoint import CheckpointError, Journal, journal, recordfile
from irpca.checkpoint.questions import question
from irpca.checkpoint.records import Malformed, NotStorable, decoded, encoded
from irpca.engines import MemoryEngine, ReferenceEngine, observed
from irpca.engines.base import Cut, Lines, Sums, Trim
from irpca.lowrank import LowRank

READING = {"core", "normal", "times", "t_times", "sides", "products", "solve_rows", "solve_cols", "cut", "corruption"}
ACCESSING = {"block", "entries", "draw"}


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


class Dear(Watched):
    dear = True


@pytest.fixture(scope="module")
def exact():
    return irpca.datasets.make_problem(60, 40, d1=4, d2=3, rank=2, corruption=0.1)


@pytest.fixture(scope="module")
def noisy(exact):
    rng = np.random.default_rng(11)
    M = exact.L + 0.05 * rng.standard_normal(exact.M.shape)
    M[rng.random(M.shape) < 0.05] += 5
    return M


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


def records(path):
    """The ends of the records of a file."""
    file = recordfile.RecordFile(path)
    file.read()
    return file._ends


def names(path):
    file = recordfile.RecordFile(path)
    file.read()
    return [decoded(file[k])["question"]["name"] for k in range(1, file.count)]


IHT = {"rank": 2, "solver": "irpca_iht"}
WITH_CORRUPTION = {"corruption": 0.2}
CASES = [
    ("irpca", True, {}),
    ("irpca", False, {}),
    ("irpca_iht", True, {}),
    ("irpca_iht", True, {"variant": "paper"}),
    *((name, False, {}) for name in ("altproj", "accaltproj", "ircur", "pca")),
    *((name, False, WITH_CORRUPTION) for name in ("rpca_gd", "scaledgd")),
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


@pytest.mark.parametrize("dear", [False, True])
@pytest.mark.parametrize(("solver", "features", "options"), CASES)
def test_a_whole_replay_does_not_read_M(exact, noisy, tmp_path, solver, features, options, dear):
    kind = Dear if dear else Watched
    given = arguments(exact, noisy, features)
    options = {"solver": solver, "rank": 2, "sparse": False, **options}
    path = tmp_path / "run"
    first = solve(*given, engine=kind(given[0]), callbacks=checkpoint(path), **options)
    assert_same(first, solve(*given, **options))
    size = path.stat().st_size
    engine = kind(given[0])
    engine.forbidden = READING | ({"block"} if dear else set())
    again = solve(*given, engine=engine, resume=path, **options)
    assert_same(again, first)
    assert path.stat().st_size == size
    if dear:
        assert engine.asked == ["draw", "entries"]  # the glance by which another M would be noticed
        assert again.reads == 0 < first.reads


def test_all_but_S_is_replayed(exact, tmp_path):
    path = tmp_path / "run"
    solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path), **IHT)
    engine = Watched(exact.M)
    again = solve(exact.M, exact.F1, exact.F2, engine=engine, resume=path, **IHT)
    assert again.reads == 1 and READING & set(engine.asked) == {"corruption"}


def test_dear_engines_keep_accesses_and_facts_and_others_do_not(exact, noisy, tmp_path):
    for kind in (Watched, Dear):
        solve(noisy, exact.F1, engine=kind(noisy), rank=2, callbacks=checkpoint(tmp_path / kind.__name__))
    kept = set(names(tmp_path / "Watched"))
    assert not kept & {"block", "entries", "draw", "n_observed", "counts"}
    assert {"n_observed", "counts", "draw", "block"} <= set(names(tmp_path / "Dear"))


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
    for k in (len(ends), 5):
        os.truncate(path, ends[k - 1])
        assert_same(solve(M, exact.F1, exact.F2, engine=MemoryEngine(M), resume=path, rank=2), plain)


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
    assert len(ends) > 10
    for end in ends[:-1] if len(ends) < 40 else ends[:-1:4]:
        path.write_bytes(whole[:end])
        assert_same(solve(*given, rank=2, solver=solver, resume=path), plain)
        assert path.read_bytes() == whole  # it went on in the same file, to the same end


def test_cut_after_some_records_of_a_long_solve_of_a_dear_engine(exact, noisy, tmp_path):
    path = tmp_path / "run"
    plain = solve(noisy, exact.F1, exact.F2, engine=Dear(noisy), callbacks=checkpoint(path))
    whole, ends = path.read_bytes(), records(path)
    assert len(ends) > 100
    for end in ends[1 :: len(ends) // 3]:
        path.write_bytes(whole[:end])
        assert_same(solve(noisy, exact.F1, exact.F2, engine=Dear(noisy), resume=path), plain)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("kind", [Watched, Dear])
@pytest.mark.parametrize("features", [True, False])
def test_tables_too_large_to_be_copied(exact, noisy, tmp_path, monkeypatch, kind, features):
    monkeypatch.setattr(irpca.loop.constants, "MAX_ENTRIES_IN_MEMORY", 1000)
    path, given = tmp_path / "run", arguments(exact, noisy, features)
    plain = solve(*given, engine=kind(noisy), rank=2, callbacks=checkpoint(path))
    assert_same(solve(*given, engine=kind(noisy), rank=2), plain)
    whole, ends = path.read_bytes(), records(path)
    assert {"core", "solve_rows"} & set(names(path))
    os.truncate(path, ends[len(ends) // 2])
    assert_same(solve(*given, engine=kind(noisy), rank=2, resume=path), plain)
    assert path.read_bytes() == whole


def test_normal_equations_are_made_again_only_when_they_are_asked(exact, tmp_path):
    path = tmp_path / "run"
    plain = solve(exact.M, exact.F1, exact.F2, callbacks=checkpoint(path))
    asked, ends = names(path), records(path)
    within = next(k for k, name in enumerate(asked) if name.startswith("normal."))
    os.truncate(path, ends[within + 1])  # the file begins with the header
    engine = Watched(exact.M)
    assert_same(solve(exact.M, exact.F1, exact.F2, engine=engine, resume=path), plain)
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
    monkeypatch.setattr(irpca, "__version__", "9.9")
    with pytest.raises(CheckpointError, match=r"the version of irpca was '\S+', now '9.9'"):
        solve(M, F1, F2, resume=path, **IHT)


def test_what_only_ends_a_run_may_change(exact, tmp_path, caplog):
    path = tmp_path / "run"
    plain = solve(exact.M, exact.F1, exact.F2, engine=Dear(exact.M), **IHT)
    first = solve(
        exact.M, exact.F1, exact.F2, engine=Dear(exact.M), callbacks=checkpoint(path), sparse=False, max_iter=3, **IHT
    )
    assert first.status is Status.MAX_ITER
    with caplog.at_level(logging.WARNING, "irpca"):
        again = solve(exact.M, exact.F1, exact.F2, engine=Dear(exact.M), resume=path, variant="whitened", **IHT)
    assert_same(again, plain)
    assert not caplog.records


def test_a_replay_that_is_stopped_early_loses_nothing(exact, noisy, tmp_path):
    path = tmp_path / "run"
    plain = solve(noisy, exact.F1, exact.F2, engine=Dear(noisy), callbacks=checkpoint(path))
    whole = path.read_bytes()
    stopped = solve(noisy, exact.F1, exact.F2, engine=Dear(noisy), resume=path, callbacks=TimeBudget(1e-9))
    assert stopped.status is Status.STOPPED
    assert path.read_bytes() == whole
    engine = Dear(noisy)
    assert_same(solve(noisy, exact.F1, exact.F2, engine=engine, resume=path), plain)
    assert READING & set(engine.asked) == {"corruption"}


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


@pytest.mark.parametrize("solver", ["pcp", "pcpf"])
def test_a_dual_variable_is_refused(exact, tmp_path, solver):
    path = tmp_path / "run"
    with pytest.raises(ValueError, match=f"solver='{solver}' keeps a dual variable as large as M.*leave checkpoint"):
        solve(exact.M, exact.F1, exact.F2, solver=solver, callbacks=checkpoint(path))
    assert not path.exists()


def test_a_file_that_another_process_uses(exact, tmp_path):
    path = tmp_path / "run"
    first, second = (Journal(MemoryEngine(exact.M), path, resume=True, begin=True) for _ in range(2))
    for one in (first, second):
        one.begin({})
    L, Q1, Q2 = LowRank.zero(exact.M.shape), np.ones((60, 1)), np.ones((40, 1))
    first.core(L, np.inf, Q1, Q2)
    with pytest.raises(FileExistsError):
        second.core(L, np.inf, Q1, Q2)
    third = Journal(MemoryEngine(exact.M), path, resume=True, begin=False)
    first.core(L, 1.0, Q1, Q2)
    third.core(L, np.inf, Q1, Q2)
    with pytest.raises(CheckpointError, match="another process seems to use the same checkpoint"):
        third.core(L, 1.0, Q1, Q2)


# Interruptions.


@pytest.mark.parametrize("at", range(2, 12))
@pytest.mark.parametrize("moment", ["before", "within", "after"])
def test_ctrl_c_while_a_record_is_written(exact, tmp_path, monkeypatch, at, moment):
    path = tmp_path / "run"
    plain = solve(exact.M, exact.F1, exact.F2, engine=Dear(exact.M), **IHT)
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
        result = solve(exact.M, exact.F1, exact.F2, engine=Dear(exact.M), callbacks=checkpoint(path), **IHT)
        assert result.status is Status.INTERRUPTED
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    assert_same(solve(exact.M, exact.F1, exact.F2, engine=Dear(exact.M), resume=path, **IHT), plain)


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


KILLS = """
import json, os, random, signal, sys, time
import numpy as np
import irpca
from irpca.callbacks import checkpoint
from irpca.engines import MemoryEngine

folder, pause, kills = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])

class Slow(MemoryEngine):
    dear = True

    def __getattribute__(self, name):
        if name in ("core", "normal", "times", "t_times", "sides", "solve_rows", "solve_cols", "block", "draw"):
            time.sleep(pause)
        return object.__getattribute__(self, name)

problem = irpca.datasets.make_problem(40, 30, d1=3, d2=3, rank=2, corruption=0.1)
rng = np.random.default_rng(2)
M = problem.L + 0.05 * rng.standard_normal(problem.M.shape)
M[rng.random(M.shape) < 0.05] += 5

def solved(name, **options):
    solver = "irpca" if name in ("default", "alone", 0, 1) else "altproj"
    result = irpca.solve(M, problem.F1, problem.F2, engine=Slow(M, threads=1), rank=2, solver=solver, **options)
    np.save(f"{folder}/{name}.part.npy", np.r_[result.L.dense().ravel(), result.S.toarray().ravel()])
    os.rename(f"{folder}/{name}.part.npy", f"{folder}/{name}.npy")

def forked(name):
    pid = os.fork()
    if pid == 0:
        try:
            path = f"{folder}/{name}.checkpoint"
            solved(name, callbacks=checkpoint(path), resume=path)
        except BaseException as error:
            print(name, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return pid

if kills == 0:
    path = f"{folder}/alone.checkpoint"
    solved("alone", callbacks=checkpoint(path), resume=path)
    sys.exit()
solved("default")
started = time.perf_counter()
solved("undisturbed")
length = time.perf_counter() - started
moments = random.Random(3)
killed = 0
for longest in (0.7 * length, 0.4 * length):
    at = sorted((time.perf_counter() + moments.uniform(0, longest), forked(name)) for name in range(kills))
    for when, pid in at:
        time.sleep(max(0.0, when - time.perf_counter()))
        os.kill(pid, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
sizes = [os.path.getsize(f"{folder}/{name}.checkpoint") if os.path.exists(f"{folder}/{name}.checkpoint") else 0
         for name in range(kills)]
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in [forked(name) for name in range(kills)]]
print(json.dumps({"length": length, "killed": killed, "sizes": sizes, "codes": codes}))
"""


def started(tmp_path, pause, kills):
    script = tmp_path / "kills.py"
    script.write_text(KILLS)
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    source = {"PYTHONPATH": str(Path(irpca.__file__).parent.parent)}
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), str(pause), str(kills)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **single, **source},
    )


def test_killed_at_random_moments(tmp_path):
    """Twenty solves, each killed twice at a random moment and resumed in a new process."""
    process = started(tmp_path, 0.004, 20)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0, out
    said = json.loads(out.splitlines()[-1])
    assert said["codes"] == [0] * 20, out
    assert said["killed"] >= 20 and len(set(said["sizes"])) > 8  # they were killed at different places
    default, plain = np.load(tmp_path / "default.npy"), np.load(tmp_path / "undisturbed.npy")
    for name in range(20):
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), default if name < 2 else plain)
    whole = (tmp_path / "0.checkpoint").read_bytes()
    (tmp_path / "alone.checkpoint").write_bytes(whole[: len(whole) // 2])
    process = started(tmp_path, 0.0, 0)  # an interpreter of its own
    process.communicate(timeout=100)
    assert process.returncode == 0
    np.testing.assert_array_equal(np.load(tmp_path / "alone.npy"), default)


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
        again = Journal(Watched(exact.M), path, resume=True, begin=False)
        with caplog.at_level(logging.WARNING, "irpca"):
            H, _ = again.core(L, 1.0, Q1 * (1 + by), Q2)
        np.testing.assert_array_equal(G, H)
        assert len(caplog.records) == log and again.engine.asked == []
    for other in (
        (L, 1.0, Q1 * (1 + 1e-4), Q2),
        (L, 1.0, Q1[:, ::-1].copy(), Q2),
        (L, 1.0, Q1[::-1].copy(), Q2),
        (L, 1.0, -Q1, Q2),
        (L, 1.0, Q1[:, :2], Q2),
        (L, 1.001, Q1, Q2),
        (L, np.inf, Q1, Q2),
        (L, Cut(np.ones(60), np.ones(40)), Q1, Q2),
        (LowRank.zero(L.shape), 1.0, Q1, Q2),
    ):
        again = Journal(Watched(exact.M), path, resume=True, begin=False)
        H, _ = again.core(*other)
        np.testing.assert_array_equal(H, engine.core(*other)[0])
        path.write_bytes(path.read_bytes()[: records(path)[0]])
        begun = Journal(engine, path, resume=True, begin=False)
        begun.core(L, 1.0, Q1, Q2)


def test_integers_and_generators_are_compared_exactly():
    def ask(*arguments):
        return question("draw", arguments, {})

    rows = np.arange(1000)
    moved = rows.copy()
    moved[500] += 1
    assert ask(rows).same(ask(rows.copy())) and not ask(rows).same(ask(moved))
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    assert ask(7, one).same(ask(7, other)) and not ask(7, one).same(ask(8, other))
    other.random()
    assert not ask(7, one).same(ask(7, other))
    assert ask(np.array([np.nan, 1.0])).same(ask(np.array([np.nan, 1.0])))
    assert not ask(np.array([np.inf, 1.0])).same(ask(np.array([np.inf, 2.0])))
    assert ask(np.inf).same(ask(np.inf)) and not ask(np.inf).same(ask(1.0))
    assert ask(np.zeros((0, 3))).same(ask(np.zeros((0, 3)))) and not ask(np.zeros((0, 3))).same(ask(np.zeros((3, 0))))


def test_draws_move_the_generator_on_as_they_did(exact, tmp_path):
    path = tmp_path / "run"
    outcomes = []
    for begin in (True, False):
        one = Journal(Dear(exact.M), path, resume=not begin, begin=begin)
        one.begin({})
        rng = np.random.default_rng(5)
        outcomes.append((*one.draw(10, rng), rng.random()))
        assert one.engine.asked == (["draw", "entries"] if begin else [])
    for x, y in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(x, y)


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
        Journal(MemoryEngine(exact.M), path, resume=True, begin=False).core(*given)
    with pytest.raises(OSError, match="the disk is gone"):
        Journal(Broken(exact.M), tmp_path / "other", resume=False, begin=True).core(*given)
    assert not (tmp_path / "other").exists()


def test_what_version_2_asks(exact, tmp_path):
    """Questions that no engine answers yet, and handles in place of blocks."""

    class Handle:
        def __init__(self, B):
            self.B = B

    class Second:
        name, shape, dtype, dear, reads = "distributed", exact.M.shape, exact.M.dtype, True, 0.0
        n_observed, counts = 2400, (np.full(60, 40), np.full(40, 60))

        def place(self, B):
            return Handle(B)

        def survey(self, looks):
            return None

        def products(self, L, limit, X=None, Y=None, kept=False):
            return exact.M @ X.B, None if Y is None else exact.M.T @ Y, Trim(2400, 0, 1.0, np.float64(2.0))

    path, rng = tmp_path / "run", np.random.default_rng(0)
    X, L = rng.standard_normal((40, 2)), LowRank.zero(exact.M.shape)
    answers = []
    for begin in (True, False):
        one = Journal(Second(), path, resume=not begin, begin=begin)
        one.begin({})
        assert one.survey([("draw", 5)]) is None
        answers.append(one.products(L, np.inf, X=one.place(X), kept=True))
        assert one.n_observed == 2400 and one.counts[1][0] == 60
    np.testing.assert_array_equal(answers[0][0], answers[1][0])
    assert answers[0][2] == answers[1][2] and type(answers[1][2].largest) is np.float64
    assert names(path) == ["survey", "products", "n_observed", "counts"]
    other = Journal(Second(), path, resume=True, begin=False)
    other.survey([("draw", 5)])
    other.products(L, np.inf, X=other.place(X + 1), kept=True)
    assert len(records(path)) == 3  # another block: the rest does not belong to this solve


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
    again = decoded(encoded({"a": lines, "b": (Trim(1, 2, 3.0, 4.0), Cut(A[0], A[1]))}))
    np.testing.assert_array_equal(again["a"].sums.cols, A)
    assert again["a"].coefficients is None and again["b"][0] == Trim(1, 2, 3.0, 4.0)
    assert np.isnan(decoded(encoded(float("nan"))))


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
    os.truncate(path, records(path)[10])
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
        os.truncate(path, records(path)[3])
        assert_same(solve(exact.M, exact.F1, exact.F2, resume=path, random_state=make()), first)
