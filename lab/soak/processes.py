"""Fits in other processes and threads, and in those of other libraries: the same answer as alone, and no deadlock.

Each way runs in a child process with a time limit, since a deadlock cannot be interrupted from within.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .tally import Tally

LONGEST = 300  # seconds of one way, on a machine that has other work
TABLES = 8


def fit(number: int) -> Any:
    """L of one of several tables: exact with features, noisy without, with holes."""
    import irpca

    rng = np.random.default_rng(number)
    F1, F2 = rng.standard_normal((40, 3)), rng.standard_normal((30, 2))
    M = F1[:, :2] @ F2.T
    M[3, 4] += 30
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if number % 4 == 3:
            noisy = M[:20, :15] + 0.1 * rng.standard_normal((20, 15))
            noisy[rng.random(noisy.shape) < 0.05] = np.nan
            return irpca.solve(noisy, rank=1).L.dense()
        if number % 4 == 2:
            return irpca.solve(M, rank=2, solver="altproj").L.dense()
        return irpca.solve(M, F1, F2, rank=2).L.dense()


def fit_many(numbers: list[int]) -> list[Any]:
    return [fit(number) for number in numbers]


def alone() -> list[Any]:
    return fit_many(list(range(TABLES)))


def by_method(method: str) -> list[Any]:
    """Processes of multiprocessing, begun after a fit in this one: its pool and its BLAS are warm."""
    import multiprocessing

    fit(0)
    with multiprocessing.get_context(method).Pool(2) as workers:
        return workers.map(fit, range(TABLES), chunksize=2)


def in_threads() -> list[Any]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(TABLES) as workers:
        return list(workers.map(fit, range(TABLES)))


def fork_from_threads() -> list[Any]:
    """A fork while other threads fit: the child has their locks and none of their work."""
    import multiprocessing
    from concurrent.futures import ThreadPoolExecutor

    fit(0)
    with ThreadPoolExecutor(4) as threads:
        busy = [threads.submit(fit, number % TABLES) for number in range(12)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with multiprocessing.get_context("fork").Pool(2) as workers:
                found = workers.map(fit, range(TABLES), chunksize=2)
        for one in busy:
            one.result()
    return found


def by_joblib(backend: str) -> list[Any]:
    from joblib import Parallel, delayed

    return list(Parallel(n_jobs=2, backend=backend)(delayed(fit)(number) for number in range(TABLES)))


def nested_joblib() -> list[Any]:
    """Threads within processes."""
    from joblib import Parallel, delayed

    halves = [list(range(0, TABLES, 2)), list(range(1, TABLES, 2))]
    found = Parallel(n_jobs=2, backend="loky")(delayed(threaded)(half) for half in halves)
    return [found[number % 2][number // 2] for number in range(TABLES)]


def threaded(numbers: list[int]) -> list[Any]:
    from joblib import Parallel, delayed

    return list(Parallel(n_jobs=2, backend="threading")(delayed(fit)(number) for number in numbers))


def by_dask(scheduler: str) -> list[Any]:
    import dask

    tasks = [dask.delayed(fit)(number) for number in range(TABLES)]
    return list(dask.compute(*tasks, scheduler=scheduler))


def in_cluster() -> list[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        return client.gather(client.map(fit, range(TABLES)))


WAYS: dict[str, Callable[[], list[Any]]] = {
    "threads": in_threads,
    "fork": lambda: by_method("fork"),
    "joblib threading": lambda: by_joblib("threading"),
    "dask threads": lambda: by_dask("threads"),
    "fork from threads": fork_from_threads,
    "spawn": lambda: by_method("spawn"),
    "forkserver": lambda: by_method("forkserver"),
    "joblib loky": lambda: by_joblib("loky"),
    "threads in loky": nested_joblib,
    "dask processes": lambda: by_dask("processes"),
    "dask cluster": in_cluster,
}


def compared(way: str) -> dict[str, Any]:
    """How the answers of this way differ from those alone; asked in a child process."""
    from threadpoolctl import threadpool_info

    before = [(one["user_api"], one["num_threads"]) for one in threadpool_info()]
    wanted = alone()
    found = WAYS[way]()
    bits = [one.tobytes() == other.tobytes() for one, other in zip(found, wanted, strict=True)]
    error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, wanted, strict=True))
    after = [(one["user_api"], one["num_threads"]) for one in threadpool_info()][: len(before)]
    return {"bits": sum(bits), "of": len(bits), "error": error, "threads": before == after}


def asked(way: str, seconds: float = LONGEST) -> dict[str, Any]:
    """The same in a child process; with ``wrong`` if that fails or takes too long."""
    words = [sys.executable, "-m", "lab.soak.processes", way]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        printed, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # its own children, too, of which one may be what hangs
        child.communicate()
        return {"wrong": f"no answer within {seconds:.0f} s"}
    if child.returncode:
        return {"wrong": " ".join(errors.split())[-300:]}
    return dict(json.loads(printed.splitlines()[-1]))


def run(tally: Tally) -> None:
    for way in list(WAYS)[: tally.count]:
        if tally.over():
            break
        found = asked(way)
        wrong = found.get("wrong", "")
        if not wrong and found["error"] > 1e-12:
            wrong = f"answers differ from those alone by {found['error']:.1e}"
        if not wrong and not found["threads"]:
            wrong = "BLAS has another number of threads than before"
        tally.outcomes["the same bits" if not wrong and found["bits"] == found["of"] else "other"] += 1
        if wrong:
            tally.fail(f"{way}: {wrong}", f"python -m lab.soak.processes {way!r}")


if __name__ == "__main__":
    from lab.soak.processes import compared as _compared  # functions that other processes can import by name

    print(json.dumps(_compared(sys.argv[1])))
