"""Ctrl-C at random moments of a fit: a model that answers or a clean KeyboardInterrupt, and nothing left behind.

The signal comes from a timer, at moments spread over the time that the fit takes, and raises KeyboardInterrupt as
Ctrl-C does. After each, no thread of this fit works on, BLAS has its threads back, and the next fit in this process
gives the same answer as before.

Everything is compiled before the first signal. While numba compiles, LLVM calls back into Python, and an exception that
is raised in such a callback is printed and lost: a Ctrl-C in the first second of the first fit of a process may have to
be given twice.
"""

from __future__ import annotations

import random
import signal
import threading
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import irpca
from irpca.threads import available_cores, pool, single_threaded_blas

from .tally import Tally

PATIENCE = 20.0  # seconds that threads may need to end


@cache
def problems() -> dict[str, tuple[Any, dict[str, Any], dict[str, Any]]]:
    """A table, arguments of the model and of fit: exact, noisy, with holes, and in chunks, read by threads of dask."""
    import dask.array as da

    rng = np.random.default_rng(4)
    F1, F2 = rng.standard_normal((60, 3)), rng.standard_normal((40, 2))
    exact = F1[:, :2] @ F2.T
    exact[3, 4] += 30
    noisy = exact[:24, :16] + 0.1 * rng.standard_normal((24, 16))
    holes = noisy.copy()
    holes[rng.random(holes.shape) < 0.1] = np.nan
    both = {"row_features": F1, "col_features": F2}
    return {
        "exact": (exact, {"rank": 2}, both),
        "noisy": (noisy, {"rank": 1}, {}),
        "holes": (holes, {"rank": 1}, {"row_features": F1[:24]}),
        "dask": (da.from_array(exact, chunks=(20, 40)), {"rank": 2}, both),
    }


def fit(name: str) -> tuple[Any, Callable[[], Any]]:
    """A model that is not fitted, and what fits it."""
    M, settings, given = problems()[name]
    model = irpca.InductiveRobustPCA(**settings)
    return model, lambda: model.fit(M, **given)


@cache
def alone(name: str) -> tuple[bytes, float]:
    """The answer without a signal, and about how long it takes once all is compiled."""
    fit(name)[1]()
    began = time.perf_counter()
    model = fit(name)[1]()
    return model.low_rank_.dense().tobytes(), time.perf_counter() - began


def run(tally: Tally) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in problems():
            alone(name)
        threads = others()
        for number in tally.numbers():
            if tally.over():
                break
            try_one(tally, number, threads)


def others() -> set[int | None]:
    """Threads beside those of the pool, which wait for work as long as the process lives."""
    return {thread.ident for thread in threading.enumerate() if not thread.name.startswith("irpca")}


def try_one(tally: Tally, number: int, threads: set[int | None]) -> None:
    chance = random.Random(tally.seed * 1_000_003 + number)
    name = chance.choice(list(problems()))
    _, seconds = alone(name)
    moment = chance.uniform(0, 1.1) * seconds + 1e-5
    where = f"lab.soak.interrupts.interrupted({name!r}, {moment:.6f})"
    kind, wrong = interrupted(name, moment)
    tally.outcomes[f"{name}, {kind}"] += 1
    wrong = wrong or left_behind(threads)
    after = name if number % 10 == 0 else "exact"  # the others take as long as a hundred of these
    if not wrong and fit(after)[1]().low_rank_.dense().tobytes() != alone(after)[0]:
        wrong = f"the next fit, {after}, has another answer"
    if wrong:
        tally.fail(f"{name}, {kind}: {wrong}", where)


def interrupted(name: str, moment: float) -> tuple[str, str]:
    """Fit with a Ctrl-C after so many seconds: how it ended, and what is wrong with that."""
    model, fitting = fit(name)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, moment)
            fitting()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        if not hasattr(model, "status_"):
            return "no model", ""
        return "a model", unusable(model)
    except BaseException as error:
        return "broken", f"{type(error).__name__}: {str(error)[:100]}"
    finally:
        signal.signal(signal.SIGALRM, before)
    return "finished first", "" if model.converged_ else f"it ended with {model.status_.name}"


def unusable(model: Any) -> str:
    """What a model that was interrupted does not answer."""
    try:
        fine = np.isfinite(np.asarray(model.expected())).all() and isinstance(model.summary(), str)
        model.outliers()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return "" if fine else "expected values are not finite"


def left_behind(threads: set[int | None]) -> str:
    """What of an interrupted fit is still there."""
    if single_threaded_blas.inside:
        return "BLAS is held to one thread"
    if not single_threaded_blas.lock.acquire(timeout=PATIENCE):
        return "a lock is held"
    single_threaded_blas.lock.release()
    ends = time.monotonic() + PATIENCE
    while (more := others() - threads) and time.monotonic() < ends:
        time.sleep(0.01)
    if more:
        return f"{len(more)} threads more than before: {[thread.name for thread in threading.enumerate()]}"
    try:
        pool(available_cores()).submit(int).result(timeout=PATIENCE)  # it works off nothing that nobody waits for
    except TimeoutError:
        return "the pool of threads is busy"
    return ""
