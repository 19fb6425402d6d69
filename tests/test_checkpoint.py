"""Checkpoints: whatever happens to a solve, and to its file, it goes on to the same result or is refused."""

import importlib
import json
import logging
import os
import resource
import sqlite3
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest

import irpca
from irpca import InductiveRobustPCA, Status, checkpoint, constants, solve
from irpca.callbacks import checkpoint as keep
from irpca.checkpoint import CheckpointError, Journal, RecordFile
from irpca.engines import MemoryEngine, ReferenceEngine, choose, observed
from irpca.engines.base import Lines, Look, Sums, Trim
from irpca.engines.distributed import DistributedEngine
from irpca.lowrank import LowRank
from irpca.solvers import SOLVERS

READING = {"core", "normal", "products", "solve_lines", "whole", "corruption", "write"}
ACCESSING = {"block", "entries", "draw", "glance", "survey"}
SMALLER = {"memory": 1 << 12, "block": 1 << 10, "race": 600, "judged": 1500, "sample": 1000, "lines": 16}
IHT = {"rank": 2, "solver": "irpca_iht"}


class Watched(MemoryEngine):
    """Notes questions; refuses some."""

    forbidden = frozenset()

    def __init__(self, M, **options):
        super().__init__(M, **options)
        self.asked = []

    def __getattribute__(self, name):
        if name in READING | ACCESSING:
            assert name not in object.__getattribute__(self, "forbidden"), f"{name} was asked"
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
def tables():
    """M and its features, by kind."""
    problem = irpca.datasets.make_problem(80, 60, d1=4, d2=3, rank=2, corruption=0.1)
    rng = np.random.default_rng(5)
    noisy = problem.L + 0.05 * rng.standard_normal(problem.M.shape)
    noisy[rng.random(noisy.shape) < 0.05] += 5
    holes = np.where(rng.random(noisy.shape) < 0.1, np.nan, noisy)
    few = problem.F1.copy()
    few[:-3, 0] = 0  # of few rows: whether these are fitted, too, is looked at
    rare = few @ rng.standard_normal((4, 3)) @ problem.F2.T
    rare[rng.random(rare.shape) < 0.05] += 5
    F = problem.F1, problem.F2
    return {
        "exact": (problem.M, *F),
        "noisy": (noisy, *F),
        "holes": (holes, *F),
        "alone": (noisy,),
        "rare": (rare, few, problem.F2),
    }


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Shorter fits, on fewer entries."""
    monkeypatch.setattr(constants, "MAX_SWEEPS", 12)
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, race=600))


@pytest.fixture
def large(monkeypatch):
    """Small tables are solved as those that are too large for memory."""
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, **SMALLER))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


def assert_same(a, b):
    """Equal to the bit, all but clocks and reads."""

    def parts(result):
        S = () if result.S is None else (result.S.data, result.S.indices, result.S.indptr)
        return *result.L.thin(), np.zeros(0) if result.W is None else result.W, *S

    for x, y in zip(parts(a), parts(b), strict=True):
        np.testing.assert_array_equal(x, y)
    assert (a.status, a.rank, a.noise, a.zeta, a.doubts) == (b.status, b.rank, b.noise, b.zeta, b.doubts)
    assert a.history.step == b.history.step


def rows(path):
    """All that a file holds."""
    with sqlite3.connect(path) as db:
        return db.execute("SELECT * FROM checkpoint_2 ORDER BY record, part").fetchall()


def names(path):
    """Those of the recorded questions."""
    file = RecordFile(path, new=False)
    found = [file.read(k)[0][0][0] for k in range(1, file.count)]
    file.close()
    return found


def cut(path, count):
    """Leave so many records, the header among them."""
    file = RecordFile(path, new=False)
    file.cut(count)
    file.close()


def journal_of(engine, path):
    journal = Journal(engine, path, resume=True, begin=True)
    journal.begin({})
    return journal


# The same result.

PLAIN = [name for name, solver in SOLVERS.items() if not solver.features and not solver.needs]
CASES = [
    ("irpca", "exact", {}),
    ("irpca", "noisy", {}),
    ("irpca_iht", "noisy", {"rank": 2}),
    ("irpca_iht", "holes", {"rank": 2, "variant": "paper"}),
    *((name, "alone", {"rank": 2, "max_iter": 6}) for name in PLAIN),
]


@pytest.mark.parametrize(("solver", "kind", "options"), CASES)
def test_every_solver_is_replayed_to_the_bit_without_reading_M(tables, path, solver, kind, options):
    (M, *F), options = tables[kind], {"solver": solver, "sparse": False, **options}
    plain = solve(M, *F, **options)
    assert_same(solve(M, *F, callbacks=keep(path), **options), plain)
    whole, engine = path.read_bytes(), choose(M)
    watched = Watched(M, holes=engine.holes)
    watched.forbidden = READING
    assert_same(solve(M, *F, engine=watched, resume=path, **options), plain)
    assert path.read_bytes() == whole and not path.with_name("run-journal").exists()


IN_CHUNKS = [*CASES, ("irpca", "holes", {}), ("irpca", "rare", {})]


@pytest.mark.parametrize(("solver", "kind", "options"), IN_CHUNKS)
def test_a_whole_replay_reads_one_chunk(large, tables, path, monkeypatch, solver, kind, options):
    """That one by which another M would be noticed; then the final S is made."""
    (M, *F), options, read = tables[kind], {"solver": solver, **options}, []
    stored, corruption = Stored(M), DistributedEngine.corruption

    def noted(*given):
        read.append(stored.read)
        return corruption(*given)

    monkeypatch.setattr(DistributedEngine, "corruption", noted)
    first = solve(stored.chunks(), *F, callbacks=keep(path), **options)
    whole, stored.read = path.read_bytes(), 0
    again = solve(stored.chunks(), *F, resume=path, **options)
    assert_same(again, first)
    assert read[0] > read[1] == 1 and path.read_bytes() == whole
    assert again.reads < first.reads


def on_device(M):
    pytest.importorskip("torch")
    return importlib.import_module("irpca.engines.gpu").GPUEngine(M, device="cpu", kernels="torch")


def in_float32(M):
    return MemoryEngine(M.astype(np.float32))


@pytest.mark.parametrize("make", [observed, ReferenceEngine, in_float32, on_device])
@pytest.mark.parametrize("kind", ["noisy", "holes"])
def test_other_engines_and_precisions(tables, path, make, kind):
    """One that is not told of holes knows them from the recorded answers."""
    M, *F = tables[kind]
    first = solve(M, *F, engine=make(M), callbacks=keep(path), **IHT)
    for count in (99, 5, 2):
        cut(path, count)
        assert_same(solve(M, *F, engine=make(M), resume=path, **IHT), first)


# Cut off.


@pytest.mark.parametrize(
    ("solver", "kind", "chunks"),
    [("irpca_iht", "exact", False), ("accaltproj", "alone", False)]
    + [("irpca", kind, True) for kind in ("exact", "holes")],
)
def test_cut_after_records(large, tables, path, solver, kind, chunks):
    M, *F = tables[kind]
    M = Stored(M).chunks() if chunks else M
    plain = solve(M, *F, rank=2, solver=solver, callbacks=keep(path))
    whole = rows(path)
    count = whole[-1][0] + 1
    assert count > (2 if chunks else 10)
    for left in {1, 2, count // 2} if chunks else range(1, count, 5):
        cut(path, left)
        assert_same(solve(M, *F, rank=2, solver=solver, resume=path), plain)
        assert rows(path) == whole  # it went on in the same file, to the same end


def test_normal_equations_are_made_again_only_when_they_are_asked(tables, path):
    """More than half of M is missing: it is taken as it is, not copied."""
    M, *F = tables["exact"]
    M = np.where(np.random.default_rng(5).random(M.shape) < 0.55, np.nan, M)
    plain = solve(M, *F, engine=Watched(M, holes=True), callbacks=keep(path))
    asked = names(path)
    within = next(k for k, name in enumerate(asked) if name.startswith("normal."))
    cut(path, within + 2)  # the file begins with the header
    engine = Watched(M, holes=True)
    assert_same(solve(M, *F, engine=engine, resume=path), plain)
    assert engine.asked.count("normal") == asked[within:].count("normal") + asked[within + 1].startswith("normal.")


def test_holes_are_known_when_the_answer_that_met_them_is_replayed(tables, path):
    M = tables["exact"][0].copy()
    M[7, 3] = np.nan
    for asked in ("glance", "core"), ("glance",):
        journal = journal_of(Watched(M), path)
        assert not journal.engine.holes
        journal.core(LowRank.zero(M.shape), 1.0, np.ones((80, 1)), np.ones((60, 1)))
        assert journal.engine.holes and journal.n_observed == M.size - 1 and journal.counts[0][7] == 59
        journal.ending()
        assert tuple(journal.engine.asked) == asked


# Damaged, foreign, of something else. Changed bytes are the soak's (lab/soak/checkpoints.py).


def test_parts_that_are_changed_moved_or_lost(tables, path):
    given = tables["exact"]
    solve(*given, callbacks=keep(path), **IHT)
    whole = path.read_bytes()
    for change in (
        "UPDATE checkpoint_2 SET data = zeroblob(length(data)) WHERE record = 3 AND part = 1",
        "UPDATE checkpoint_2 SET record = 3, part = 9 WHERE record = 2 AND part = 1",
        "UPDATE checkpoint_2 SET data = 7 WHERE record = 3 AND part = 1",
        "DELETE FROM checkpoint_2 WHERE record = 3",
        "DELETE FROM checkpoint_2 WHERE record = 0",
        "CREATE TRIGGER t AFTER INSERT ON checkpoint_2 BEGIN DELETE FROM checkpoint_2; END",
    ):
        path.write_bytes(whole)
        with sqlite3.connect(path) as db:
            db.execute(change)
        db.close()
        with pytest.raises(CheckpointError, match=r"run is damaged, or no checkpoint.*restore it from a copy"):
            solve(*given, resume=path, **IHT)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="run is damaged"):
        solve(*given, resume=path, **IHT)


@pytest.mark.parametrize("content", [b"hello", bytes(5000)])
def test_foreign_files(tables, path, content):
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged, or no checkpoint of this version"):
        solve(*tables["exact"], resume=path, **IHT)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"rank": "auto", "solver": "irpca"}, "solver was 'irpca_iht', now 'irpca'; rank was 2, now 'auto'"),
        ({"tol": 1e-8}, "tol was 1e-10, now 1e-08"),
        ({"engine": "reference"}, "engine was 'memory', now 'reference'"),
        ({"F1": lambda F: F + 1e-9}, "the features of the rows changed"),
        ({"F2": lambda F: None}, "the features of the columns changed"),
        ({"M": lambda M: M[:-1], "F1": lambda F: F[:-1]}, r"shape of M was \[80, 60\], now \[79, 60\]; the features"),
        ({"M": lambda M: M.astype(np.float32)}, "the type of M was 'float64', now 'float32'"),
        ({"M": lambda M: M + 1e-9}, "some values of M changed"),
    ],
)
def test_another_solve_is_refused(tables, path, other, message):
    given = dict(zip(("M", "F1", "F2"), tables["exact"], strict=True))
    solve(**given, callbacks=keep(path), **IHT)
    before = path.read_bytes()
    changed = {name: value(given[name]) if callable(value) else value for name, value in other.items()}
    with pytest.raises(CheckpointError, match=f"run is the checkpoint of another solve: .*{message}"):
        solve(**{**given, **IHT, **changed}, resume=path)
    assert path.read_bytes() == before


def test_other_chunks_and_versions_are_refused(tables, path, monkeypatch):
    M, *F = tables["exact"]
    other = Stored(M + 1e-9)
    solve(Stored(M).chunks(), *F, callbacks=keep(path), **IHT)
    for given, message in (
        (other.chunks(), "some values of M changed"),
        (Stored(M).chunks(20), "the division of M into chunks changed"),
        (M, "engine was 'distributed', now 'memory'"),
    ):
        with pytest.raises(CheckpointError, match=message):
            solve(given, *F, resume=path, **IHT)
    assert other.read == 1
    monkeypatch.setattr(irpca, "__version__", "9.9")
    with pytest.raises(CheckpointError, match=r"the version of irpca was '\S+', now '9.9'"):
        solve(Stored(M).chunks(), *F, resume=path, **IHT)


# The path.


def test_paths_that_are_refused(tables, tmp_path, path):
    given = tables["exact"]
    a, b = tmp_path / "a", tmp_path / "b"
    for options, error, message in (
        ({"resume": path}, FileNotFoundError, "no checkpoint to resume from"),
        ({"callbacks": keep(a / "run")}, FileNotFoundError, "the folder of the checkpoint does not exist"),
        ({"callbacks": [keep(a), keep(b)]}, ValueError, "give one checkpoint; got 2"),
        ({"callbacks": keep(a), "resume": b}, ValueError, "goes on in its own file"),
        ({"resume": tmp_path}, OSError, str(tmp_path)),
    ):
        with pytest.raises(error, match=message):
            solve(*given, **options, **IHT)
    for wrong in ({"max_iter": 0}, {"tol": -1}, {"rank": 99}, {"random_state": "x"}):
        with pytest.raises((ValueError, TypeError), match=r"max_iter|tol|rank|random_state"):
            solve(*given, callbacks=keep(path), **{**IHT, **wrong})
    assert not list(tmp_path.iterdir())
    path.write_bytes(b"of someone")
    with pytest.raises(FileExistsError, match=r"pass resume='.*run' to go on from it, or delete it"):
        solve(*given, callbacks=keep(path), **IHT)
    assert path.read_bytes() == b"of someone"


def test_with_both_the_same_call_begins_and_goes_on(tables, path):
    both = {"callbacks": [keep(path), lambda state, history: None], "resume": str(path)}
    path.touch()  # a process was killed when it had begun
    first = solve(*tables["exact"], **both, **IHT)
    again = solve(*tables["exact"], **both, **IHT)
    assert_same(first, again)
    assert (first.reads > 5, again.reads) == (True, 1)


def test_a_file_that_another_solve_uses(tables, path):
    M = tables["exact"][0]
    journal_of(MemoryEngine(M), path).ending()
    first = journal_of(MemoryEngine(M), path)
    with pytest.raises(CheckpointError, match=r"run is used by another solve.*: give each solve a file of its own"):
        Journal(MemoryEngine(M), path, resume=True, begin=False)
    code = f"import irpca.checkpoint as c, pathlib; c.RecordFile(pathlib.Path({str(path)!r}), new=False)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode and "is used by another solve" in done.stderr
    first.ending()
    journal_of(MemoryEngine(M), path).ending()


# Interruptions.


@pytest.mark.parametrize("at", [2, 3, 20])
def test_ctrl_c_while_a_record_is_written(tables, path, monkeypatch, at):
    given, found, parts = tables["exact"], checkpoint._digest_part, []

    def interrupted(*part):
        parts.append(part)
        if len(parts) == at:
            raise KeyboardInterrupt
        return found(*part)

    monkeypatch.setattr(checkpoint, "COMMIT_EVERY", 0)
    monkeypatch.setattr(checkpoint, "_digest_part", interrupted)
    with suppress(KeyboardInterrupt):
        assert solve(*given, callbacks=keep(path), **IHT).status is Status.INTERRUPTED
    monkeypatch.undo()
    assert_same(solve(*given, resume=path, **IHT), solve(*given, **IHT))


@pytest.mark.parametrize("size", [0, 24000])
def test_a_full_disk(tables, path, monkeypatch, size):
    given = tables["alone"][0], None, None
    monkeypatch.setattr(checkpoint, "COMMIT_EVERY", 0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        with pytest.raises(OSError, match=r"the checkpoint cannot be written.*run"):
            solve(*given, rank=2, solver="accaltproj", callbacks=keep(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    plain = solve(*given, rank=2, solver="accaltproj")
    assert_same(solve(*given, rank=2, solver="accaltproj", resume=path), plain)


LIVES = """
import json, os, random, signal, sys
from dataclasses import replace
from pathlib import Path
import dask, dask.array as da
import numpy as np
import irpca
from irpca import checkpoint, constants

folder, chance = Path(sys.argv[1]), random.Random(1)
constants.BUDGET = replace(constants.BUDGET, **json.loads(sys.argv[2]))
constants.MAX_SWEEPS = 12
checkpoint.COMMIT_EVERY = 0
path, target, given = folder / "run", folder / "S.parquet", np.load(folder / "given.npz")
M, *F = (given[name] for name in given)

def solved(**options):
    return irpca.solve(da.from_array(M, chunks=(20, 30)), *F, rank=2, solver="irpca_iht", **options).L.dense()

with dask.config.set(scheduler="sync"):
    plain = solved(outliers_to=folder / "plain.parquet")
    deaths, seconds = 0, 0.5
    while True:
        pid = os.fork()
        if not pid:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0, seconds))  # it is not handled: it kills
            found = solved(outliers_to=target, callbacks=irpca.callbacks.checkpoint(path), resume=path)
            os._exit(0 if np.array_equal(found, plain) else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != -signal.SIGALRM:
            break
        deaths, seconds = deaths + 1, seconds * 1.3
print(code, deaths)
"""


@pytest.mark.timeout(300)
def test_killed_at_any_moment(tables, tmp_path):
    """Processes that fit and write outliers are killed, and others go on, until one comes to the end."""
    np.savez(tmp_path / "given.npz", *tables["holes"])
    source = {"PYTHONPATH": str(Path(irpca.__file__).parent.parent), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LIVES, str(tmp_path), json.dumps(SMALLER)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **source}, timeout=280)
    code, deaths = map(int, done.stdout.split())
    assert code == 0 and deaths
    found, plain = (
        pd.read_parquet(tmp_path / f"{name}.parquet").sort_values(["row", "column"], ignore_index=True)
        for name in ("S", "plain")
    )
    pd.testing.assert_frame_equal(found, plain, check_exact=True)
    assert len(found) > 100


# Other questions than then.


def test_a_replay_ends_where_the_question_is_another(tables, path, caplog, monkeypatch):
    """Then nothing of the rest is used."""
    plain = solve(*tables["exact"], callbacks=keep(path), **IHT)
    whole, describe, asked = rows(path), Journal._describe, []

    def differing(self, name, arguments):
        found = describe(self, name, arguments)
        asked.append(found)
        return [name, "another"] if len(asked) == 5 else found

    monkeypatch.setattr(Journal, "_describe", differing)
    with caplog.at_level(logging.WARNING, "irpca"):
        assert_same(solve(*tables["exact"], resume=path, **IHT), plain)
    (record,) = caplog.records
    assert f"{whole[-1][0] - 4} records from there on are not used" in record.getMessage()


def test_another_question_is_asked(tables, path):
    M, rng = tables["exact"][0], np.random.default_rng(0)
    Q1, Q2 = rng.standard_normal((80, 3)), rng.standard_normal((60, 2))
    L = LowRank.from_product(Q1[:, :2], Q2)
    begun = journal_of(MemoryEngine(M), path)
    begun.core(L, 1.0, Q1, Q2)
    begun.ending()
    whole = path.read_bytes()
    for other, asked in (
        ((L, 1.0, Q1.copy(), Q2), ["glance"]),
        *(((L, 1.0, Q, Q2), ["glance", "core"]) for Q in (np.nextafter(Q1, 9), Q1[::-1].copy(), Q1[:, :2])),
        ((L, 1.001, Q1, Q2), ["glance", "core"]),
        ((LowRank.zero(L.shape), 1.0, Q1, Q2), ["glance", "core"]),
    ):
        again = journal_of(Watched(M), path)
        np.testing.assert_array_equal(again.core(*other)[0], MemoryEngine(M).core(*other)[0])
        again.ending()
        assert again.engine.asked == asked
        path.write_bytes(whole)


def test_integers_seeds_and_looks_are_compared(path):
    rows, cols = np.arange(5), np.arange(3)
    one, other = np.random.SeedSequence(1).spawn(2)
    lines = [(rows, cols), (cols, rows), (rows, cols + 1), (rows.astype(np.int32), cols), (rows, rows)]
    different = [
        *(Look(lines=pair) for pair in lines),
        Look(cells=(rows, rows)),
        *(Look(size=size, seed=seed) for size in (5, 6) for seed in (one, other, np.random.SeedSequence(1), None)),
        *(np.array([np.nan, 1.0]), np.array([np.inf, 1.0]), np.inf, np.nan, 1.0, -0.0, 0.0),
        *(np.zeros((0, 3)), np.zeros((3, 0))),
    ]
    journal = journal_of(MemoryEngine(np.eye(4)), path)
    described = [journal._describe("survey", [value]) for value in different]
    one.spawn(3)  # numbers drawn with it stay the same
    assert described == [journal._describe("survey", [value]) for value in different]
    assert len({digest for _, digest in described}) == len(different)
    for unknown in (object(), np.random.default_rng(0), {1, 2}):  # whether they are the same cannot be told
        with pytest.raises(TypeError, match=r"a checkpoint cannot hold a .*: solve without one"):
            journal._describe("survey", unknown)
    journal.ending()


def test_an_error_after_which_solvers_go_on_is_an_answer(path):
    class Failing(MemoryEngine):
        def core(self, *_):
            raise FloatingPointError("M - L is not finite")

    for engine in (Failing(np.eye(4)), MemoryEngine(np.eye(4))):
        journal = journal_of(engine, path)
        with pytest.raises(FloatingPointError, match="M - L is not finite"):
            journal.core(LowRank.zero((4, 4)), 1.0, np.ones((4, 1)), np.ones((4, 1)))
        journal.ending()


def test_handles_in_place_of_blocks(path):
    class Handle:
        def __init__(self, B):
            self.B = B

    class Elsewhere(Watched):
        def place(self, B):
            return Handle(B)

        def products(self, L, limit, X=None, Y=None, kept=False):
            return X.B * 2, None, Trim(2400, 0, 1.0, np.float64(2.0))

    X, L, asked = np.random.default_rng(0).standard_normal((4, 2)), LowRank.zero((4, 4)), []
    for block in (X, X, X + 1):  # another block is another question
        journal = journal_of(Elsewhere(np.eye(4)), path)
        found, _, trim = journal.products(L, np.inf, X=journal.place(block), kept=True)
        np.testing.assert_array_equal(found, block * 2)
        assert type(trim.largest) is np.float64 and type(trim.energy) is float
        asked.append("products" in journal.engine.asked)
        journal.ending()
    assert asked == [True, False, True] and names(path) == ["products"]


# Records.


def test_answers_come_back_as_they_were(path):
    """Also in memory: to lie in another way may change the rounding of what follows."""
    A = np.random.default_rng(0).standard_normal((5, 3))
    values = [None, True, 3, -(2**70), 0.1, np.inf, "é", np.float32(1.5), np.int64(7), np.bool_(True)]
    kinds = [A, A.T, A[::2, ::-1], A[:0], A[0], np.array(2.0), A.astype(np.float32), A > 0, np.arange(4)]
    kinds += [np.broadcast_to(2.0, (3, 2)), np.moveaxis(np.ones((2, 3, 4)), 0, 1)]
    lines = Lines(A, A, A, A[:, 0], A[:3], None, A[0], Sums(A, A, A[0]))
    given = (*values, *kinds, {"a": lines, "b": Trim(1, 2, 3.0, 4.0)})

    class Odd(MemoryEngine):
        def core(self, *_):
            return given

    found = []
    for _ in range(2):  # what is read, and what is replayed
        journal = journal_of(Odd(np.eye(4)), path)
        found.append(journal.core())
        journal.ending()
    for x, y, z in zip(*found, given, strict=True):
        if isinstance(z, dict):
            np.testing.assert_array_equal(y["a"].sums.cols, A)
            assert y["a"].coefficients is None and y["b"] == x["b"] == Trim(1, 2, 3.0, 4.0)
            continue
        np.testing.assert_array_equal(x, z)
        np.testing.assert_array_equal(y, z)
        assert type(x) is type(y) is type(z) and getattr(x, "dtype", None) == getattr(y, "dtype", None)
        if isinstance(x, np.ndarray):
            assert x.flags.writeable and y.flags.writeable and (x.strides == y.strides or not x.size)
    given = (LowRank.zero((2, 2)),)
    with pytest.raises(TypeError, match=r"a checkpoint cannot hold a .*LowRank.*: solve without one"):
        journal_of(Odd(np.eye(4)), path.with_name("other")).core()


def test_a_large_answer_is_in_memory_once(path):
    answer, turned = np.zeros((1 << 21, 2)), np.arange(6.0).reshape(2, 3).T  # more than one piece; along columns

    class Large(MemoryEngine):
        def products(self, *_):
            return answer, answer[::-1], turned

    for most in (1.3, 2.3):  # times as large; what is reversed is copied, what is read twice
        journal = journal_of(Large(np.eye(4)), path)
        tracemalloc.start()
        found = journal.products(LowRank.zero((4, 4)), 1.0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        journal.ending()
        assert peak <= most * answer.nbytes and found[0].shape == answer.shape
        np.testing.assert_array_equal(found[2], turned)
        assert found[2].strides == turned.strides


# The estimator, and seeds.


def test_the_estimator(large, tables, tmp_path, path):
    M, F1, F2 = tables["noisy"]
    features = {"row_features": F1, "col_features": F2}
    plain = InductiveRobustPCA(rank=2).fit(M, **features)
    first = InductiveRobustPCA(rank=2, callbacks=keep(path)).fit(M, **features)
    cut(path, len(names(path)) // 2)
    again = InductiveRobustPCA(rank=2).fit(M, **features, resume=path)
    for model in (first, again):
        assert_same(model.result_, plain.result_)
    with pytest.raises(CheckpointError, match="rank was 2, now 1"):
        InductiveRobustPCA(rank=1).fit(M, **features, resume=path)


SEEDS = [None, np.random.default_rng(3), np.random.SeedSequence(4).spawn(2)[1], np.int64(2)]


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds(tables, path, seed):
    """None is that of the earlier run."""
    M = tables["noisy"][0]
    first = solve(M, rank=2, solver="pca", callbacks=keep(path), random_state=deepcopy(seed))
    cut(path, 5)
    assert_same(solve(M, rank=2, solver="pca", resume=path, random_state=deepcopy(seed)), first)
