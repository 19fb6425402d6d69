"""What is measured on the GPU, section by section: each takes a bench and its sizes, and says what it found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import irpca
from irpca import LowRank
from irpca.engines import MemoryEngine, single_threaded_blas
from irpca.lowrank import relative_distance
from lab.machine import count_cores

from . import gpu_peers
from .case import Case, Found
from .gpu_clock import Bench, Clocked, breakdown, summed
from .gpu_report import (
    PEERS,
    SOLVE,
    SUM,
    pass_bars,
    peer_bars,
    plain_report,
    solve_bars,
    stream_bars,
    sum_bars,
    table_bars,
)
from .gpu_tasks import Recipe, Task, make
from .runner import interleave

# sum: the unit of everything else


def total(bench: Bench, M: torch.Tensor) -> float:
    """Seconds that the device takes to add M up."""
    return bench.on_device(lambda: torch.sum(M))[1]


def add_up(bench: Bench, n: int, d: int, rank: int, corruption: float, repeats: int) -> Found:
    task = bench.problem(Recipe(n, d, rank, corruption))
    records = interleave({SUM: lambda _: total(bench, task.M)}, repeats, lambda _, took: {"device_seconds": took})
    return {"M_bytes": task.recipe.bytes, "contenders": summed(records, SUM)}


# pass: one fused read


def one_pass(bench: Bench, n: int, d: int, rank: int, corruption: float, widths: list[int], repeats: int) -> Found:
    """``engine.core`` as a whole, with factors from the host, and its kernel alone."""
    task = bench.problem(Recipe(n, d, rank, corruption))
    engine = bench.engine(task.M)
    L = LowRank(task.L.left, 0.9 * task.L.core, task.L.right)  # the truth would leave rounding, and nothing to check
    zeta = task.recipe.smallest / 2
    bases = {width: [basis(n, width, seed) for seed in (1, 2)] for width in widths}
    runs: dict[str, Callable[[int], Any]] = {SUM: lambda _: ((None, None), total(bench, task.M))}
    for width, (Q1, Q2) in bases.items():
        runs[f"core, d = {width}"] = partial(_core, bench, engine, L, zeta, Q1, Q2)
        if (alone := kernel_alone(bench, engine, L, zeta, Q1, Q2)) is not None:
            runs[f"kernel alone, d = {width}"] = alone
    exact = {f"core, d = {width}": core_of(task, L, zeta, *Q, bench.device) for width, Q in bases.items()}

    def check(name: str, answer: Any) -> dict[str, Any]:
        (G, _), took = answer
        error = float(np.linalg.norm(G - exact[name]) / np.linalg.norm(exact[name])) if name in exact else None
        return {"device_seconds": took, "error": error}

    records = interleave(runs, repeats, check)
    return {"M_bytes": task.recipe.bytes, "engine": f"{engine.name} ({engine.ran})", "contenders": summed(records, SUM)}


def _core(bench: Bench, engine: Any, L: LowRank, zeta: float, Q1: Any, Q2: Any, _: int) -> Any:
    return bench.on_device(lambda: engine.core(L, zeta, Q1, Q2))


def kernel_alone(bench: Bench, engine: Any, L: LowRank, zeta: float, Q1: Any, Q2: Any) -> Callable[[int], Any] | None:
    """The same pass, of which only what its kernel takes is counted; None where there is no kernel."""
    if getattr(engine, "triton", None) is None:
        return None

    def run(_: int) -> Any:
        kernels, engine.triton = engine.triton, Clocked(engine.triton, "trimmed", bench)
        try:
            engine.core(L, zeta, Q1, Q2)
            return (None, None), engine.triton.seconds
        finally:
            engine.triton = kernels

    return run


def basis(n: int, width: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((n, width)))[0].astype(np.float32)


def core_of(task: Task, L: LowRank, zeta: float, Q1: np.ndarray, Q2: np.ndarray, device: str) -> np.ndarray:
    """``Q1.T @ T @ Q2``, in float64, a band of rows at a time."""
    U, V, left, right = (torch.from_numpy(B).to(device, torch.float64) for B in (*L.thin(), Q1, Q2))
    G = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64, device=device)
    for _, rows in task.recipe.bands():
        T = gpu_peers.trimmed_(torch.addmm(task.M[rows].to(device, torch.float64), U[rows], V.T, alpha=-1), zeta)
        G += left[rows].T @ (T @ right)
    return G.cpu().numpy()


# exact, noise, float64: whole decompositions


def decompose(bench: Bench, task: Task, repeats: int) -> Found:
    """``irpca.solve``, rank and noise unknown, S left on the device, in units of the sum of M."""

    def run(engine: Any, seed: int = 0) -> Any:
        return irpca.solve(task.M, task.F1, task.F2, extra_rank=0, engine=engine, random_state=seed)

    def solve(seed: int) -> Any:
        return bench.waited(lambda: run(bench.engine(task.M), seed))

    def check(name: str, answer: Any) -> dict[str, Any]:
        return {"device_seconds": answer} if name == SUM else task.judged(answer)

    started = time.perf_counter()
    solve(0)  # kernels are compiled
    first = time.perf_counter() - started
    records = interleave({SUM: lambda _: total(bench, task.M), SOLVE: solve}, repeats, check)
    return {
        "M_bytes": task.recipe.bytes,
        "noise": task.noise,
        "size_of_L": task.recipe.size_of_L,
        "least_error": least_error(task),
        "first_seconds": first,
        "contenders": summed(records, SUM),
        "breakdown": breakdown(bench, bench.engine(task.M), run),
    }


def least_error(task: Task) -> float:
    """What noise alone costs: the error of least squares of rank r on the entries that are not corrupted."""
    recipe = task.recipe
    unknowns = recipe.rank * (2 * recipe.d - recipe.rank)
    return task.noise / recipe.size_of_L * (unknowns / (recipe.n**2 * (1 - recipe.corruption))) ** 0.5


def exact(bench: Bench, n: int, d: int, rank: int, corruption: float, repeats: int, dtype: str = "float32") -> Found:
    return decompose(bench, bench.problem(Recipe(n, d, rank, corruption, dtype)), repeats)


def noisy(bench: Bench, n: int, d: int, rank: int, corruption: float, noise: float, repeats: int) -> Found:
    """``noise``: standard deviation, in units of that of L."""
    recipe = Recipe(n, d, rank, corruption)
    return decompose(bench, bench.problem(recipe, noise * recipe.size_of_L), repeats)


# table: a fit with a free part


def table(
    bench: Bench, n1: int, n2: int, d: int, rank: int, free: int, missing: float, gross: float, repeats: int
) -> Found:
    """A table with holes and features of rows that explain a part: on the GPU, from host memory, and on the CPU."""
    bench.release()
    M, F, L = real_table(n1, n2, d, rank, free, missing, gross)
    engines: dict[str, Callable[[], Any]] = {"GPU": lambda: bench.engine(M, holes=True)}
    for threads in sorted({min(2, count_cores()), count_cores()}):
        engines[f"{threads} threads"] = partial(MemoryEngine, M, threads=threads, holes=True)

    def run(make: Callable[[], Any], seed: int) -> Any:
        return bench.waited(lambda: irpca.solve(M, F, engine=make(), random_state=seed))

    def check(_: str, result: Any) -> dict[str, Any]:
        found = {"error": relative_distance(L, result.L), "rank": result.rank, "status": result.status.name}
        return found | {"reads": result.reads, "engine": result.engine, "corruption": result.corruption}

    records = interleave({name: partial(run, make) for name, make in engines.items()}, repeats, check)
    solve = partial(irpca.solve, M, F, random_state=0)
    return {
        "M_bytes": M.nbytes,
        "contenders": summed(records, "GPU"),
        "breakdown": breakdown(bench, engines["GPU"](), lambda engine: solve(engine=engine)),
    }


def real_table(
    n1: int, n2: int, d: int, rank: int, free: int, missing: float, gross: float
) -> tuple[np.ndarray, np.ndarray, LowRank]:
    """M in float32, features of the rows, and L: a part of it follows from them, as much again does not."""
    rng = np.random.default_rng(0)
    F = rng.standard_normal((n1, d))
    parts = [
        (F @ rng.standard_normal((d, rank)) / d**0.5, rng.standard_normal((n2, rank)) / rank**0.5),
        (rng.standard_normal((n1, free)), rng.standard_normal((n2, free)) / free**0.5),
    ]
    U, V = (np.hstack(side) for side in zip(*parts, strict=True))
    M = U @ V.T + 0.3 * rng.standard_normal((n1, n2))
    wrong = rng.random(M.shape) < gross
    M[wrong] += 10 * rng.standard_normal(int(wrong.sum()))
    M[rng.random(M.shape) < missing] = np.nan
    return M.astype(np.float32), F, LowRank.from_product(U, V)


# peers: what others make of the same GPU

PATIENCE = 60  # iterations; who has not got there by then does not, or is slower than others that do
GROWTHS, STARTS, DECAYS = (1.2, 1.5, 2.0, 3.0), (1.25, 5.0, 20.0), (0.4, 0.5, 0.6, 0.7)


@single_threaded_blas  # as in a solve of ours: threads would only wait for each other in what is small
def peers(bench: Bench, n: int, d: int, rank: int, corruption: float, tolerance: float, repeats: int) -> Found:
    """Each until L is correct to the tolerance, S included: a matrix of the peers, a sparse one of ours.

    The features are orthonormal, the kindest case for both peers. They run as published, and with the parameters of a
    small grid that need the fewest iterations, which nobody knows in advance. How many that are is found outside the
    clock.
    """
    task = bench.problem(Recipe(n, d, rank, corruption, features="conditioned"))
    chosen = {}
    for name in PEERS:
        ways = list(ways_of(name, task, bench.device))
        needed: list[tuple[int | None, float]] = []
        for _, start in ways:
            most = min([count for count, _ in needed[1:] if count], default=PATIENCE)
            needed.append(iterations_needed(task, start(), tolerance, most))
        tuned = min(range(len(ways)), key=lambda k: (needed[k][0] or np.inf, needed[k][1]))
        for kind, k in (("as published", 0), ("tuned", tuned)):
            chosen[f"{name}, {kind}"] = (*ways[k], *needed[k])
    runs: dict[str, Callable[[int], Any]] = {SUM: lambda _: total(bench, task.M)}
    for name, (_, start, count, _) in chosen.items():
        runs[name] = partial(_peer, bench, task, start, count or PATIENCE)
    for name, sparse in (("irpca", True), ("irpca, L alone", False)):
        runs[name] = partial(_ours, bench, task, sparse)

    def check(name: str, answer: Any) -> dict[str, Any]:
        return {"error": None if name == SUM else relative_distance(task.L, answer)}

    contenders = summed(interleave(runs, repeats, check), "irpca")
    for name, (options, _, count, error) in chosen.items():
        contenders[name] |= {"options": options, "iterations": count, "error": error}
    return {"M_bytes": task.recipe.bytes, "contenders": contenders}


def ways_of(name: str, task: Task, device: str) -> Iterator[tuple[dict[str, float], Callable[[], Any]]]:
    """Parameters of a peer, the published ones first, and how to start it with them."""
    recipe = task.recipe
    if name == "PCPF":
        F1, F2 = (torch.from_numpy(F).to(device) for F in (task.F1, task.F2))
        for growth, start in [(1.5, 1.25), *((g, s) for g in GROWTHS for s in STARTS)]:
            options = {"growth": growth, "start": start}
            yield options, partial(gpu_peers.pcpf, task.M, F1, F2, **options)
        return
    code = recipe.n**-0.5 / 2  # of the authors' code; that of their demonstration is from theory, and the true μ
    theory = 1.1 * recipe.rank * incoherence(task.L) / recipe.n / 4
    for beta, gamma in [(code, 0.7), *((b, g) for b in (code, theory) for g in DECAYS)]:
        options = {"beta": beta, "beta_init": 4 * beta, "gamma": gamma}
        yield options, partial(gpu_peers.accaltproj, task.M, recipe.rank, **options)


def incoherence(L: LowRank) -> float:
    """√(μ_U μ_V)."""
    longest = [float((np.linalg.qr(B)[0] ** 2).sum(axis=1).max()) * len(B) / L.rank for B in (L.left, L.right)]
    return float(np.sqrt(longest[0] * longest[1]))


def iterations_needed(task: Task, iterates: Any, tolerance: float, most: int = PATIENCE) -> tuple[int | None, float]:
    """Iterations until L is correct, None if it is not within the most, and the error by then."""
    error = float("inf")
    for k, iterate in zip(range(1, most + 1), iterates, strict=False):
        error = relative_distance(task.L, iterate.lowrank())
        if error <= tolerance:
            return k, error
    return None, error


def _peer(bench: Bench, task: Task, start: Callable[[], Any], count: int, _: int) -> LowRank:
    """So many iterations, and S: half the smallest outlier is told."""
    for _, iterate in zip(range(count), start(), strict=False):
        last = iterate
    left = (last.left @ torch.from_numpy(last.core).to(last.left)).to(task.M.dtype)
    R = torch.addmm(task.M, left, last.right.T.to(task.M.dtype), alpha=-1)
    torch.nn.functional.hardshrink(R, task.recipe.smallest / 2)
    bench.sync()
    return last.lowrank()


def _ours(bench: Bench, task: Task, sparse: bool, seed: int) -> LowRank:
    solve = partial(irpca.solve, task.M, task.F1, task.F2, extra_rank=0, sparse=sparse, random_state=seed)
    found: LowRank = bench.waited(lambda: solve(engine=bench.engine(task.M))).L
    return found


# stream: M in host memory

COPIED = 1 << 30  # bytes of the pinned buffer that is copied over and over: to pin all of M would take longer than all


def stream(bench: Bench, n: int, d: int, rank: int, corruption: float, share: float, width: int, repeats: int) -> Found:
    """One read, and a whole solve, with at most that share of M on the device, against copying as many bytes."""
    bench.release()
    task = make(Recipe(n, d, rank, corruption), bench.device, on_host=True)
    M, recipe = task.M.numpy(), task.recipe
    L, zeta = LowRank(task.L.left, 0.9 * task.L.core, task.L.right), recipe.smallest / 2
    Q1, Q2 = (basis(n, width, seed) for seed in (1, 2))
    memory = int(share * recipe.bytes)
    engine = bench.engine(M, memory=memory)
    runs: dict[str, Callable[[int], Any]] = {
        "pinned copy": pinned_copy(bench, recipe.bytes),
        "core": lambda _: engine.core(L, zeta, Q1, Q2)[0],
        SOLVE: lambda seed: bench.waited(
            lambda: irpca.solve(
                M, task.F1, task.F2, extra_rank=0, engine=bench.engine(M, memory=memory), random_state=seed
            )
        ),
    }
    true = core_of(task, L, zeta, Q1, Q2, bench.device)

    def check(name: str, answer: Any) -> dict[str, Any]:
        if name == SOLVE:
            return task.judged(answer)
        if name == "core":
            return {"error": float(np.linalg.norm(answer - true) / np.linalg.norm(true)), "reads": 1.0}
        return {"error": None, "reads": None}

    records = interleave(runs, repeats, check)
    return {"M_bytes": recipe.bytes, "memory": memory, "contenders": summed(records, "pinned copy")}


def pinned_copy(bench: Bench, size: int) -> Callable[[int], None]:
    """So many bytes from page-locked memory to the device."""
    length = min(size, COPIED)
    source = torch.empty(length, dtype=torch.uint8, pin_memory=bench.cuda).fill_(7)
    target = torch.empty(length, dtype=torch.uint8, device=bench.device)

    def copy(_: int) -> None:
        for first in range(0, size, length):
            part = min(length, size - first)
            target[:part].copy_(source[:part], non_blocking=True)
        bench.sync()

    return copy


LARGE = {"n": 80_000, "d": 32, "rank": 16, "corruption": 0.1}
SMALL = {"n": 300, "d": 8, "rank": 2, "corruption": 0.1}
GOALS = {"": 12.0, ", the goal": 6.0}
CASES = {
    case.name: case
    for case in (
        Case("sum", add_up, {**LARGE, "repeats": 20}, {**SMALL, "repeats": 2}, plain_report, sum_bars),
        Case(
            "pass",
            one_pass,
            {**LARGE, "widths": [32, 64], "repeats": 10},
            {**SMALL, "widths": [8, 12], "repeats": 2},
            plain_report,
            pass_bars,
        ),
        Case(
            "exact",
            exact,
            {**LARGE, "repeats": 5},
            {**SMALL, "repeats": 1},
            plain_report,
            partial(solve_bars, limits=GOALS, error=1e-5),
        ),
        Case(
            "noise",
            noisy,
            {**LARGE, "noise": 1 / 90, "repeats": 5},
            {**SMALL, "noise": 1 / 90, "repeats": 1},
            plain_report,
            partial(solve_bars, limits={"": 30.0}, error=None),
        ),
        Case(
            "float64",
            exact,
            {**LARGE, "n": 20_000, "dtype": "float64", "repeats": 5},
            {**SMALL, "dtype": "float64", "repeats": 1},
            plain_report,
            partial(solve_bars, limits={}, error=1e-10),
        ),
        Case(
            "table",
            table,
            {"n1": 20_000, "n2": 2000, "d": 8, "rank": 4, "free": 4, "missing": 0.1, "gross": 0.03, "repeats": 2},
            {"n1": 100, "n2": 40, "d": 3, "rank": 2, "free": 1, "missing": 0.1, "gross": 0.03, "repeats": 1},
            plain_report,
            table_bars,
        ),
        Case(
            "peers",
            peers,
            {**LARGE, "n": 10_000, "tolerance": 1e-5, "repeats": 5},
            {**SMALL, "tolerance": 1e-5, "repeats": 1},
            plain_report,
            peer_bars,
        ),
        Case(
            "stream",
            stream,
            {**LARGE, "n": 63_240, "corruption": 0.02, "share": 0.125, "width": 32, "repeats": 2},
            {**SMALL, "share": 0.25, "width": 8, "repeats": 1},
            plain_report,
            stream_bars,
        ),
    )
}
