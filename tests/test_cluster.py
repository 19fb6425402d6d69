"""Faults of a cluster in the middle of a solve: the result is the undisturbed one, or there is an error and none."""

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client, LocalCluster
from engines.conformance import LinesCase, to_the_end

import irpca
from irpca import constants
from irpca.callbacks import checkpoint
from irpca.engines import MemoryEngine
from irpca.engines.distributed import DistributedEngine, source_of, sources
from irpca.engines.distributed.sources import UnreadableError
from irpca.engines.distributed.workers import ClusterError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests

N_WORKERS = 2  # to start one takes as long as three solves
CHUNKS = 100, 50  # 6 of them
PER_READ = 6


class Faulty:
    """Looks at a chunk; the looks of all workers are numbered, and at some of them something happens.

    Parameters
    ----------
    folder : path that all processes see
    faults : {number of the look: what happens}
        "die", "hoard" memory, or a list of processes to kill.
    always : what happens to whoever looks at the first chunk
    pause : seconds that a look takes
    """

    def __init__(self, folder, faults=None, always=None, pause=0.01):
        self.folder, self.faults, self.always, self.pause = Path(folder), faults or {}, always, pause

    def __call__(self, block, block_info=None):
        number = self.looks()
        while True:  # the next that nobody has taken
            try:
                os.close(os.open(self.folder / f"look-{number}", os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                number += 1
        fault = self.faults.get(number)
        if block_info[0]["chunk-location"] == (0, 0):
            fault = fault or self.always
        if fault == "hoard":
            hoarded = []
            while True:
                hoarded.append(np.ones(1 << 22))  # 32 MiB
                time.sleep(0.05)
        named = [os.getpid()] if fault == "die" else fault or []
        for pid in sorted(named, key=lambda pid: pid == os.getpid()):  # whoever kills itself kills nobody after that
            os.kill(pid, signal.SIGKILL)
        time.sleep(self.pause)
        return block

    def looks(self):
        return sum(name.startswith("look-") for name in os.listdir(self.folder))

    def of(self, M):
        def look(block, block_info=None):  # no name that a worker could try to import
            return self(block, block_info)

        return da.from_array(M, chunks=CHUNKS).map_blocks(look, meta=np.empty((0, 0)), token=uuid.uuid4().hex)

    @contextmanager
    def then(self, number, act):
        """Do something, in another thread, once so many looks have been taken."""

        def wait():
            while self.looks() < number and not over.wait(0.005):
                pass
            if not over.is_set():
                act()

        over = threading.Event()
        thread = threading.Thread(target=wait)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@cache
def problem():
    return irpca.datasets.make_problem(200, 150, d1=6, d2=5, rank=2, corruption=0.1)


@cache
def noisy():
    return problem().M + 1e-3 * np.random.default_rng(0).standard_normal(problem().M.shape)


def in_threads():
    return dask.config.set(scheduler="threads")


@cache
def undisturbed():
    """Features of the rows alone: the factors of columns are regressed, 8 reads."""
    with in_threads():
        return irpca.solve(da.from_array(noisy(), chunks=CHUNKS), problem().F1)


def same_bits(result, right):
    np.testing.assert_equal(result.L.thin(), right.L.thin())
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(result.S, name), getattr(right.S, name))
    assert (result.status, result.engine, result.reads) == (right.status, "distributed", right.reads)


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """What is done for tables that are too large to be held in memory as a whole."""
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=1 << 13))


def local_cluster(**options):
    return LocalCluster(
        processes=True, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL, **options
    )


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(n_workers=N_WORKERS) as opened:
        yield opened


@pytest.fixture
def client(cluster):
    """All workers are there, whatever happened to them before."""
    with Client(cluster) as opened:
        settled(opened)
        yield opened


def pids(client):
    return list(client.run(os.getpid, on_error="ignore").values())


def settled(client):
    """Wait until all workers answer, and are the same a moment later: of a killed one the scheduler learns late."""
    before = None
    while len(now := pids(client)) < N_WORKERS or now != before:
        before = now
        time.sleep(0.3)


def test_the_number_of_workers_does_not_change_a_bit(client):
    M = da.from_array(noisy(), chunks=CHUNKS)
    same_bits(irpca.solve(M, problem().F1), undisturbed())
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0"):
        same_bits(irpca.solve(M, problem().F1), undisturbed())


def test_workers_that_are_killed_in_the_middle_of_reads(client, tmp_path):
    """All of them in a regression, and one while S is found."""
    before = set(pids(client))
    faulty = Faulty(tmp_path, {2 * PER_READ + 3: list(before), 8 * PER_READ + 2: "die"})
    same_bits(irpca.solve(faulty.of(noisy()), problem().F1), undisturbed())
    assert faulty.looks() > 8 * PER_READ
    settled(client)
    assert not before & set(pids(client))


def test_workers_that_are_killed_while_they_keep_a_regression(client, monkeypatch):
    """What they keep between the questions of a regression is made again."""
    to_the_end(monkeypatch)
    case, asked, original = LinesCase((30, 17)), [], DistributedEngine.ask_lines

    def ask_lines(self, *given):
        ask, sums = original(self, *given)

        def disturbed(*question):
            asked.append(question[0])
            if len(asked) == 3:
                for pid in pids(client):
                    os.kill(pid, signal.SIGKILL)
            return ask(*question)

        return disturbed, sums

    monkeypatch.setattr(DistributedEngine, "ask_lines", ask_lines)
    engine = DistributedEngine(source_of(da.from_array(case.M, chunks=(10, 9))))
    lines = engine.solve_lines(0, case.U, case.V, case.noise, case.priors[0])
    expected = MemoryEngine(case.M).solve_lines(0, case.U, case.V, case.noise, case.priors[0])
    assert len(asked) > 3
    np.testing.assert_allclose(lines.mean, expected.mean, rtol=0, atol=1e-9)


def test_a_cluster_that_is_restarted(client, tmp_path):
    faulty = Faulty(tmp_path, pause=0.05)
    with faulty.then(3 * PER_READ + 2, lambda: client.restart(wait_for_workers=False)):
        same_bits(irpca.solve(faulty.of(noisy()), problem().F1), undisturbed())
    assert faulty.looks() > 8 * PER_READ


def test_a_client_that_is_closed(client, tmp_path):
    faulty = Faulty(tmp_path, pause=0.1)
    with (
        faulty.then(2 * PER_READ + 2, client.close),
        pytest.raises(ClusterError, match=r"client of dask was closed.*there is no result.*callbacks\.checkpoint"),
    ):
        irpca.solve(faulty.of(noisy()), problem().F1)


def test_a_chunk_that_a_worker_cannot_read_is_named(client, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SMALL_BYTES", 1)
    array = zarr.create_array(tmp_path / "M.zarr", shape=(200, 150), dtype="f8", chunks=CHUNKS)
    array[:] = noisy()
    (tmp_path / "M.zarr" / "c" / "1" / "2").write_bytes(b"not a chunk")
    with pytest.raises(UnreadableError, match=r"M cannot be read: rows 100 to 199, columns 100 to 149 of .*M\.zarr"):
        irpca.solve(array, problem().F1, problem().F2)


# Outliers in files


@cache
def right_outliers():
    with in_threads():
        S = irpca.solve(da.from_array(problem().M, chunks=CHUNKS), problem().F1, problem().F2).S.tocoo()
    return S.coords


def same_outliers(path):
    table = pd.read_parquet(path).sort_values(["row", "column"], ignore_index=True)
    for name, right in zip(("row", "column"), right_outliers(), strict=True):
        np.testing.assert_array_equal(table[name], right)


def test_a_worker_that_is_killed_while_it_writes_outliers(client, tmp_path):
    """The survey is one read, the outliers are the other."""
    (tmp_path / "looks").mkdir()
    faulty = Faulty(tmp_path / "looks", {PER_READ + 3: "die"})
    result = irpca.solve(faulty.of(problem().M), problem().F1, problem().F2, outliers_to=tmp_path / "S.parquet")
    assert result.reads == 2 and faulty.looks() > 2 * PER_READ
    same_outliers(tmp_path / "S.parquet")


def limit_files(size):
    """No file may become larger; to write more is an error, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_full_disk(client, tmp_path):
    """There is no folder of that name; when there is room again, the same call goes on."""
    M, path = da.from_array(problem().M, chunks=CHUNKS), tmp_path / "S.parquet"
    client.run(lambda: limit_files(100))
    with pytest.raises(OSError, match="outliers cannot be written"):
        irpca.solve(M, problem().F1, problem().F2, outliers_to=path)
    assert not path.exists()
    client.run(lambda: limit_files(resource.RLIM_INFINITY))
    irpca.solve(M, problem().F1, problem().F2, outliers_to=path)
    same_outliers(path)
    assert [file.name for file in tmp_path.iterdir()] == ["S.parquet"]


# The process that solves


def drive(address, folder, path, result):
    """Solve on a cluster, with a checkpoint; for a process of its own."""
    constants.BUDGET = replace(constants.BUDGET, memory=1 << 13)
    with Client(address):
        solved = irpca.solve(
            Faulty(folder).of(noisy()), problem().F1, callbacks=checkpoint(path), resume=path if path.exists() else None
        )
    np.savez(result, *solved.L.thin())


def test_the_process_that_solves_is_killed(client, cluster, tmp_path):
    looks, path, result = tmp_path / "looks", tmp_path / "solve.checkpoint", tmp_path / "result.npz"
    looks.mkdir()
    here = os.pathsep.join([os.fspath(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    code = (
        "import json, sys, pathlib, test_cluster\n"
        "address, *paths = json.loads(sys.argv[1])\n"
        "test_cluster.drive(address, *map(pathlib.Path, paths))"
    )
    command = [sys.executable, "-c", code, json.dumps([cluster.scheduler_address, *map(str, (looks, path, result))])]
    faulty = Faulty(looks)
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": here})
    while process.poll() is None and faulty.looks() < 3 * PER_READ + 2:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL and not result.exists()
    drive(cluster.scheduler_address, looks, path, result)  # another process goes on: this one
    with np.load(result) as found:
        np.testing.assert_equal(tuple(found.values()), undisturbed().L.thin())


# Memory, and the scheduler


def test_chunks_that_are_too_large_for_workers(tmp_path):
    """A worker is killed when it takes more than 600 MB, half of them for libraries; a task may fail once."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1, "distributed.worker.memory.spill": False}),
        local_cluster(n_workers=1, memory_limit="600MB") as cluster,
        Client(cluster),
        pytest.raises(ClusterError, match=r"memory was used up, make the chunks smaller \(the largest has 0\.04 MB"),
    ):
        irpca.solve(Faulty(tmp_path, always="hoard").of(noisy()), problem().F1)


SERVE = """
import time
from distributed import LocalCluster
with LocalCluster(1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None) as cluster:
    print(cluster.scheduler_address, flush=True)
    time.sleep(600)
"""


def test_a_scheduler_that_is_killed(tmp_path):
    faulty, command = Faulty(tmp_path, pause=0.1), [sys.executable, "-c", SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as scheduler:
        try:
            with Client(scheduler.stdout.readline().strip()) as client:
                client.wait_for_workers(1, timeout=60)
                with faulty.then(PER_READ + 2, scheduler.kill), pytest.raises(ClusterError, match="lost its scheduler"):
                    irpca.solve(faulty.of(noisy()), problem().F1)
        finally:
            scheduler.kill()
