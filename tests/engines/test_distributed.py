"""The engine for an M in chunks, against the reference engine: whatever the chunks, the storage and the scheduler."""

import re
from concurrent.futures import CancelledError
from dataclasses import replace

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from distributed import Client
from engines.conformance import (
    CASES,
    Case,
    HolesSuite,
    LeanSuite,
    LinesCase,
    asked_of_holes,
    given_by,
    listed,
    with_nan,
)

import irpca
from irpca import constants
from irpca.engines import MemoryEngine, ReferenceEngine, choose
from irpca.engines.base import Look
from irpca.engines.distributed import DistributedEngine, observations, source_of, workers
from irpca.engines.distributed.distributed_engine import MAX_REDRAWS
from irpca.lowrank import LowRank
from irpca.solvers import SOLVERS


def ragged(n, parts=3):
    """Lengths of chunks, no two alike, one of them of a single line."""
    edges = sorted({0, n, *(n * k * k // parts**2 for k in range(1, parts)), n - 1} - {-1})
    return tuple(np.diff(edges).tolist())


def in_tiles(M):
    return da.from_array(M, chunks=(ragged(M.shape[0]), ragged(M.shape[1], 2)))


def in_rows(M):
    return da.from_array(M, chunks=(ragged(M.shape[0]), M.shape[1]))


def in_sparse_tiles(entries, rows, cols):
    """A dask array whose chunks are CSR arrays: only what they store is observed."""
    ends = [np.append(0, np.cumsum(sizes)) for sizes in (rows, cols)]

    def tile(i, j):
        some = entries[ends[0][i] : ends[0][i + 1]][:, ends[1][j] : ends[1][j + 1]]
        made = delayed(some, pure=False, traverse=False)
        return da.from_delayed(made, some.shape, meta=entries[:0, :0])

    return da.block([[tile(i, j) for j in range(len(cols))] for i in range(len(rows))])


def parquet_file(path, M):
    """The entries of a matrix, in no order, in two row groups."""
    rows, cols = np.nonzero(~np.isnan(M))
    frame = pd.DataFrame({"row": rows, "column": cols, "value": M[rows, cols]})
    frame.sample(frac=1, random_state=0).to_parquet(path, row_group_size=len(frame) // 2 + 1)
    return path


# Every entry is observed.


class DistributedSuite(LeanSuite):
    capabilities = frozenset()
    test_whole = None
    where = r" in rows \d+ to \d+, columns \d+ to \d+"
    surveyed = False

    def make(self, M):
        engine = DistributedEngine(source_of(in_tiles(M)))
        if self.surveyed:
            engine.survey([])
            engine.reads = 0.0
        return engine

    def test_what_it_owns(self, case):
        """To count what is observed takes one read, unless a survey was made."""
        engine = self.make(case.M)
        assert (engine.name, engine.shape, engine.dtype, engine.reads) == ("distributed", case.M.shape, case.dtype, 0)
        assert engine.n_observed == case.M.size
        for counts, n, each in zip(engine.counts, case.M.shape, case.M.shape[::-1], strict=True):
            np.testing.assert_array_equal(counts, np.full(n, each))
        assert engine.reads == pytest.approx(0.0 if self.surveyed else 1.0)
        assert engine.edges == (engine.source.row_edges, engine.source.col_edges)
        assert tuple(edge[-1] for edge in engine.edges) == case.M.shape

    def test_reads(self, stored, tmp_path):
        self.surveyed = True
        super().test_reads(stored, tmp_path)

    def test_survey(self, stored):
        super().test_survey(stored, holes=False)

    def test_survey_of_a_matrix_with_holes(self, stored):
        """What is drawn and not observed is drawn again, which takes some more reads."""
        rng = np.random.default_rng(1)
        M = np.where(rng.random((30, 17)) < 0.2, stored[0](np.nan), Case((30, 17), stored[0]).M)
        seeds = np.random.SeedSequence(3).spawn(2)
        lines, cells = (np.arange(30), np.array([16, 0, 3])), (rng.integers(0, 30, 25), rng.integers(0, 17, 25))
        looks = [Look(lines), Look(cells=cells), Look(size=40, seed=seeds[0]), Look(size=9, seed=seeds[1])]
        engine, memory = self.make(M), MemoryEngine(M, holes=True)
        engine.survey(looks)
        assert engine.n_observed == memory.n_observed
        for size, seed in ((40, seeds[0]), (9, seeds[1])):
            np.testing.assert_equal(*(owner.draw(size, np.random.default_rng(seed)) for owner in (engine, memory)))
        np.testing.assert_array_equal(engine.entries(*cells), memory.entries(*cells))
        np.testing.assert_array_equal(engine.block(*lines), memory.block(*lines))
        assert engine.reads <= 1 + MAX_REDRAWS + 1e-9
        again = self.make(M)
        again.recall(self.make(M).survey(looks))
        np.testing.assert_array_equal(again.block(*lines), memory.block(*lines))
        np.testing.assert_array_equal(again.counts[1], memory.counts[1])
        assert again.reads == 0


class TestTiles(DistributedSuite):
    setting = given_by(CASES)


@pytest.fixture(scope="class")
def client():
    """Workers that are threads of this process, and talk to each other as if they were not."""
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0") as opened:
        yield opened


def test_factors_that_change_in_place_are_sent_again_and_bases_are_not(client):
    """Fits change their factors in place; a basis is placed anew for every question."""
    case = LinesCase((30, 17))
    engine = choose(da.from_array(case.M.astype(np.float32), chunks=(11, 9)))
    prior = case.priors[0]
    engine.solve_lines(0, case.U, case.V, case.noise, prior)
    case.U[3] += 1.0
    case.noise.rows[5] = 2.0
    expected = ReferenceEngine(case.M.astype(np.float32)).solve_lines(0, case.U, case.V, case.noise, prior)
    found = engine.solve_lines(0, case.U, case.V, case.noise, prior)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=0, atol=1e-3)
    np.testing.assert_allclose(found.sums.rows, expected.sums.rows, rtol=1e-6)
    L, sent = LowRank.zero(case.M.shape), []
    for scale in (1.0, 2.0):
        engine.core(L, scale, case.U.copy(), case.V.copy())
        sent.append(set(engine.workers.sent))
    assert sent[0] == sent[1]


@pytest.mark.usefixtures("client")
class TestCluster(DistributedSuite):
    setting = given_by([((30, 17), np.float64, "Fortran whole", True)])
    stored_setting = given_by([(np.float64, "C whole", True, True)])
    test_reads = None
    test_capabilities = None
    test_an_answer_stays_as_it_was_given = None
    test_an_L_that_is_not_finite_is_not_blamed_on_M = None
    test_what_crosses_the_border_is_thin = None


# Some entries are observed.

WAYS = {
    "dense": lambda M: in_tiles(with_nan(M)),
    "dense rows": lambda M: in_rows(with_nan(M)),
    "CSR": lambda M: in_sparse_tiles(M, ragged(M.shape[0]), ragged(M.shape[1], 2)),
    "CSR rows": lambda M: in_sparse_tiles(M, ragged(M.shape[0]), M.shape[1:]),
}


class TestHoles(HolesSuite):
    hole = asked_of_holes(WAYS, ["50 %", "empty rows", "empty columns", "one entry", "last only"])

    def make(self, way, entries):
        return DistributedEngine(source_of(WAYS[way](entries)))

    def test_draw(self, hole, case, there):
        """What is dense, and a list that is cut by rows, draws as one in memory does."""
        super().test_draw(hole, case, there)
        engine, _ = self.pair(case.M, there, hole)
        if hole[1] != "CSR":
            M = listed(case.M, there) if engine.source.listed else np.where(there, case.M, case.dtype(np.nan))
            both = engine, MemoryEngine(M)
            np.testing.assert_equal(*(owner.draw(13, np.random.default_rng(2)) for owner in both))


# What is told, and what is refused.


@pytest.fixture(scope="module")
def problem():
    return irpca.datasets.make_problem(60, 45, d1=4, d2=3, rank=2, corruption=0.1)


def watched_chunks(M):
    """A dask array that takes down which chunks were read."""
    seen = []

    def block(x, block_info=None):
        seen.append(block_info[0]["chunk-location"])
        return x

    return da.from_array(M, chunks=(20, 15)).map_blocks(block, meta=np.empty((0, 0))), seen


@pytest.mark.parametrize("solver", ["irpca", "altproj", "pca"])
def test_infinite_cells_are_refused_with_their_place(problem, solver):
    M = problem.M.copy()
    M[45, 40], M[3, 3] = -np.inf, np.nan
    given = (problem.F1, problem.F2) if SOLVERS[solver].features else ()
    with pytest.raises(ValueError, match="M holds infinite values in rows 40 to 59, columns 30 to 44; replace them"):
        irpca.solve(da.from_array(M, chunks=(20, 15)), *given, rank=2, solver=solver)


@pytest.mark.parametrize("solver", [name for name, solver in SOLVERS.items() if solver.needs])
def test_a_solver_that_needs_more_is_refused_before_M_is_read(problem, solver):
    M, seen = watched_chunks(problem.M)
    with pytest.raises(
        NotImplementedError, match=f"solver='{solver}' works on all of M .* the distributed engine does not have"
    ):
        irpca.solve(M, problem.F1, problem.F2, rank=2, solver=solver)
    assert not seen


@pytest.mark.parametrize("way", WAYS)
def test_a_matrix_without_any_cell_is_refused(way):
    nothing = listed(np.ones((30, 20)), np.zeros((30, 20), bool))
    with pytest.raises(ValueError, match="every cell of M is missing"):
        irpca.solve(WAYS[way](nothing), rank=2)
    with pytest.raises(ValueError, match="every cell of M is missing"):
        _ = DistributedEngine(source_of(WAYS[way](nothing))).n_observed


def test_engines_by_name(problem):
    M = in_tiles(problem.M)
    for name in ("auto", "distributed"):
        assert type(choose(M, name)) is DistributedEngine
    with pytest.raises(ValueError, match="engine='memory' needs M in memory, and M is a dask array; leave engine out"):
        irpca.solve(M, engine="memory")
    said = re.escape("engine='distributed' reads M from a dask or zarr array, a path or a dask DataFrame, got ndarray")
    with pytest.raises(ValueError, match=said):
        irpca.solve(problem.M, engine="distributed")


def test_the_labels_of_a_table_are_those_of_its_outliers(tmp_path, problem, monkeypatch):
    rows, cols = np.nonzero(np.ones(problem.M.shape))
    frame = pd.DataFrame({"user": [f"u{i:02}" for i in rows], "item": 100 + cols, "rating": problem.M[rows, cols]})
    frame.to_parquet(tmp_path / "M.parquet", row_group_size=700)
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=1 << 8))
    monkeypatch.setattr(observations, "BAND_ENTRIES", 700)
    result = irpca.solve(tmp_path / "M.parquet", problem.F1, problem.F2, outliers_to=tmp_path / "S.parquet")
    written = pd.read_parquet(result.outliers_path)
    at = written["row"].str[1:].astype(int), written["column"] - 100
    assert sorted(zip(*at, strict=True)) == sorted(zip(*problem.S.nonzero(), strict=True))
    np.testing.assert_allclose(written["observed"] - written["expected"], problem.S[at], rtol=0, atol=1e-9)
    assert result.S is None and len(list((tmp_path / "S.parquet").iterdir())) == 4  # one for each band


@pytest.mark.parametrize("clustered", [False, True])
def test_progress_within_a_read(clustered, request):
    """Every chunk is told once, on a cluster by the worker that has read it."""
    if clustered:
        request.getfixturevalue("client")
    case, told = Case((30, 17)), []
    engine = DistributedEngine(source_of(in_tiles(case.M)))
    engine.watch = lambda done, total: told.append((done, total))
    chunks = int(np.prod(engine.grid))
    for ask in (lambda: engine.core(case.L, 1.0, case.Q1, case.Q2), lambda: engine.counts):
        told.clear()
        ask()
        assert told == [(k + 1, chunks) for k in range(chunks)]


class LostWorkers:
    """A client of a cluster that loses its workers; ``back``: whether new ones are started in time."""

    status = "running"

    def __init__(self, back):
        self.back, self.waits = back, 0

    def wait_for_workers(self, n_workers, timeout):
        self.waits += 1
        if not self.back:
            raise TimeoutError


@pytest.mark.parametrize("back", [True, False])
def test_a_cluster_that_lost_all_workers_has_time_to_start_others(back, monkeypatch):
    monkeypatch.setattr(workers, "PAUSE_SECONDS", 0.0)
    client, asked = LostWorkers(back), []

    def run():
        asked.append(1)
        if len(asked) < 3:
            raise CancelledError
        return "an answer"

    asking = workers.Workers(source_of(da.ones((4, 4))))
    if back:
        assert asking.try_again(run, client) == "an answer"
        assert client.waits == 2
    else:
        with pytest.raises(workers.ClusterError, match="no worker for 60 seconds while M was read: start some"):
            asking.try_again(run, client)
        assert asked == [1]
