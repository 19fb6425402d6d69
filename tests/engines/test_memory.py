import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest
from all_pairs import all_pairs
from engines.conformance import (
    CASES,
    DTYPES,
    SPACINGS,
    Case,
    EngineSuite,
    EvenRows,
    LeanSuite,
    LinesCase,
    ask_lines,
    few_at_a_time,
    given_by,
    laid_out,
    same_answers,
    same_sparse,
    same_trim,
)
from scipy.sparse import csr_array
from threadpoolctl import threadpool_info, threadpool_limits

from irpca.engines import (
    MemoryEngine,
    ReferenceEngine,
    as_matrix,
    choose,
    memory,
    pieces,
    regressions,
    single_threaded_blas,
    walks,
)
from irpca.engines.arithmetic import Moments, Posteriors
from irpca.lowrank import LowRank
from irpca.threads import in_order


@pytest.fixture
def many_tiles(monkeypatch):
    few_at_a_time(monkeypatch)


class TestOneTile(EngineSuite):
    @pytest.fixture(autouse=True)
    def one_tile(self, monkeypatch):
        monkeypatch.setattr(walks, "TILE_BYTES", 1 << 30)
        monkeypatch.setattr(pieces, "INLINE_ENTRIES", 1 << 30)

    def make(self, M):
        return MemoryEngine(M)


@pytest.mark.usefixtures("many_tiles")
class TestManyTiles(LeanSuite):
    setting = given_by(CASES)

    def make(self, M):
        return MemoryEngine(M, threads=3)


@pytest.mark.usefixtures("many_tiles")
@pytest.mark.parametrize(("spacing", "order", "dtype"), all_pairs(SPACINGS, ["C", "Fortran"], DTYPES))
def test_every_type_and_layout(dtype, order, spacing):
    layout = f"{order} {spacing}"
    case, lines_case = Case((33, 129), dtype, layout), LinesCase((33, 129))
    assert_right(ask(MemoryEngine(case.M, threads=2), case), case.M, case, dtype)
    M = laid_out(lines_case.M.astype(dtype), layout)
    for answer, right in ask_lines((MemoryEngine(M, threads=2), ReferenceEngine(M)), lines_case):
        np.testing.assert_allclose(answer.mean, right.mean, rtol=0, atol=1e-2)  # conjugate gradients stop early
        np.testing.assert_allclose(answer.sums.rows, right.sums.rows, rtol=1e-9)
    A = MemoryEngine(case.M).piece.A
    assert abs(A.strides[0]) > abs(A.strides[1])  # what lies together in memory is read together
    assert np.shares_memory(A, case.M)


def ask(engine, case):
    """Every question that reads all of M."""
    return (
        engine.core(case.L, 1.0, case.Q1, case.Q2),
        engine.products(case.L, 1.0, case.X),
        engine.products(case.L, 1.0, Y=case.Y),
        engine.products(case.L, 1.0, case.col_weights, case.row_weights, kept=True),
        engine.corruption(case.L, 1.0),
    )


def assert_right(answers, M, case, precision=np.float64):
    *answers, (S, trim) = answers
    *expected, (S0, trim0) = ask(ReferenceEngine(M), case)
    for answer, right in zip(answers, expected, strict=True):
        same_answers(answer, right, case, precision)
    same_sparse(S, S0, precision)
    same_trim(trim, trim0, precision)


# Memory.


@pytest.mark.parametrize(("offset", "dtype", "order"), [(128, np.float64, "C"), (3, np.float32, "F")])
def test_a_memory_mapped_file_is_never_copied(tmp_path, dtype, order, offset):
    case = Case((300, 200), dtype)
    path = tmp_path / "M.bin"
    path.write_bytes(bytes(offset) + case.M.tobytes(order))
    M = np.memmap(path, dtype, "r", offset, case.M.shape, order)
    engine = choose(M)
    assert type(engine) is MemoryEngine
    assert type(engine.piece.A) is np.ndarray
    assert np.shares_memory(engine.piece.A, M)
    assert engine.piece.A.nbytes == M.nbytes
    assert M.flags.aligned == (offset != 3)
    assert_right(ask(engine, case), case.M, case, dtype)
    np.testing.assert_array_equal(engine.block(np.array([5, 2]), np.array([7])), case.M[[5, 2]][:, [7]])


@pytest.mark.parametrize("layout", ["strided", "memmap"])
def test_nothing_of_the_size_of_M_is_made(tmp_path, layout):
    n, d = 2000, 8
    rng = np.random.default_rng(0)
    M = rng.standard_normal((n, n))
    if layout == "strided":
        M = np.repeat(M, 2, axis=1)[:, ::2]
    else:
        path = tmp_path / "M.bin"
        M.tofile(path)
        M = np.memmap(path, M.dtype, "r", 0, M.shape)
    Q1, Q2 = (np.linalg.qr(rng.standard_normal((n, d)))[0] for _ in range(2))
    L = LowRank.from_core(Q1, np.eye(d), Q2)
    engine = MemoryEngine(M, threads=2)
    engine.core(L, 1.0, Q1, Q2)  # whatever is loaded and compiled once
    questions = {
        "core": lambda: engine.core(L, 1.0, Q1, Q2),
        "normal": lambda: engine.normal(L, 1.0, Q1, Q2).times(np.eye(d)),
        "products": lambda: engine.products(L, 1.0, Q2, Q1),
        "products of the kept": lambda: engine.products(L, 1.0, Q2, Q1, kept=True),
        "corruption": lambda: engine.corruption(L, 4.0),
        "write": lambda: engine.write(L, 4.0, EvenRows(tmp_path)),
    }
    peak = {}
    for name, question in questions.items():
        question()
        tracemalloc.start()
        question()
        peak[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert max(peak.values()) < 0.25 * M.nbytes, peak
    assert min(peak.values()) > 8 * n * d  # else the allocations of NumPy were not seen


@pytest.mark.parametrize(("where", "order"), [("everywhere", "C"), ("last rows", "F"), ("one row", "F")])
def test_S_is_right_wherever_it_is_and_has_no_room_left_over(monkeypatch, order, where):
    for name in "FLAGGED_BYTES", "FEW_SHARES":
        monkeypatch.setattr(pieces, name, getattr(pieces, name) // 8)  # as if M were eight times as large
    n1, n2 = 1000, 750
    rng = np.random.default_rng(0)
    M = rng.uniform(-0.5, 0.5, (n1, n2)).astype(np.float32)
    at = {
        "everywhere": rng.random(M.shape) < 0.6,
        "last rows": (np.arange(n1) >= 400)[:, None],
        "one row": (np.arange(n1) == 233)[:, None],
    }[where]
    M = np.asarray(np.where(at, M + 9, M), order=order)
    engine, L = MemoryEngine(M, threads=2), LowRank.zero(M.shape)
    S, trim = engine.corruption(L, 1.0)
    same_sparse(S, csr_array(np.where(np.abs(M) > 1, M, 0)), np.float32)
    assert trim.trimmed == S.nnz == np.count_nonzero(np.broadcast_to(at, M.shape))
    for part in S.data, S.indices:
        assert len(part) == S.nnz and (part.base is None or part.base.nbytes == part.nbytes)  # no room left over


def test_M_cannot_be_written_through_the_engine_but_by_its_owner():
    M = np.ones((3, 2))
    engine = MemoryEngine(M)
    with pytest.raises(ValueError, match="read-only"):
        engine.piece.A[0, 0] = 2
    M[0, 0] = 2
    assert engine.block(np.array([0]), np.array([0])) == 2
    for M in (np.ones((7, 3)), np.ones((7, 3), order="F")):
        whole = MemoryEngine(M).whole()
        assert np.shares_memory(whole, M) and not whole.flags.writeable


# Threads.


@pytest.mark.usefixtures("many_tiles")
def test_equal_questions_get_equal_answers_to_the_last_bit():
    case = Case((300, 200), np.float32)
    engine = MemoryEngine(case.M, threads=3)
    first, second = ask(engine, case), ask(engine, case)
    for one, other in zip(first[:-1], second[:-1], strict=True):
        for A, B in zip(one[:-1], other[:-1], strict=True):
            np.testing.assert_array_equal(A, B)
        assert one[-1] == other[-1]


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.mark.usefixtures("many_tiles")
def test_two_engines_at_work_in_two_threads():
    cases = [Case((60, 41), np.float64), Case((35, 80), np.float32, "Fortran whole")]
    answers = [[], []]
    start = threading.Barrier(2)

    def work(k):
        engine = MemoryEngine(cases[k].M, threads=2)
        start.wait()
        answers[k] += [ask(engine, cases[k]) for _ in range(5)]

    with threadpool_limits(2, user_api="blas"):
        workers = [threading.Thread(target=work, args=(k,)) for k in (0, 1)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert set(blas_threads()) == {2}  # back to what it was
    for case, several in zip(cases, answers, strict=True):
        assert len(several) == 5
        for one in several:
            assert_right(one, case.M, case, case.dtype)


@pytest.mark.usefixtures("many_tiles")
def test_blas_is_held_to_one_thread_while_any_pass_is_under_way_and_let_go_when_one_fails():
    engine = MemoryEngine(np.full((30, 20), np.nan), threads=2)
    with threadpool_limits(2, user_api="blas"):
        with single_threaded_blas:
            with single_threaded_blas:
                pass
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {2}
        with pytest.raises(ValueError, match="every cell of M is missing"):
            engine.corruption(LowRank.zero((30, 20)), 1.0)
        with pytest.raises(ValueError, match="mismatch"):
            engine.products(LowRank.zero((30, 20)), np.inf, np.zeros((7, 1)))
        assert set(blas_threads()) == {2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_threads_do_not_keep_a_forked_process_waiting():
    code = """
import os
import numpy as np
from irpca.engines import MemoryEngine
from irpca.lowrank import LowRank
M = np.ones((600, 600))
ask = lambda: MemoryEngine(M, threads=2).corruption(LowRank.zero(M.shape), 0.5)[0].nnz
assert ask() == 360_000
import threading
from irpca.engines import single_threaded_blas
ready, done = threading.Event(), threading.Event()
def read():  # in another thread, which the child does not have
    with single_threaded_blas:
        ready.set()
        done.wait()
threading.Thread(target=read).start()
ready.wait()
with single_threaded_blas:  # as in a callback
    child = os.fork()
    if child == 0:
        assert single_threaded_blas.inside == 1
if child == 0:
    os._exit(ask() != 360_000 or single_threaded_blas.inside != 0)
done.set()
print(os.waitpid(child, 0)[1], ask())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0", "360000"], done.stderr


def test_an_interrupted_read_leaves_nobody_at_work():
    busy = threading.Event()

    def work(share):
        busy.set()
        time.sleep(0.2)
        busy.clear()

    answers = in_order(work, range(1), threads=2, ahead=1)
    interrupt = threading.Thread(target=lambda: (busy.wait(), time.sleep(0.05), os.kill(os.getpid(), signal.SIGINT)))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell in the background ignores
    try:
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            next(answers)
        interrupt.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not busy.is_set()


def test_solving_while_the_interpreter_shuts_down():
    code = """
import atexit, irpca
problem = irpca.datasets.make_problem(300, 200, d1=4, d2=3, rank=2, corruption=0.1)
solve = irpca.solve  # nothing can be imported later
atexit.register(lambda: print(solve(problem.M, problem.F1, problem.F2, rank=2).status.name))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["CONVERGED"], done.stderr


# Kernels.


@pytest.mark.parametrize(("n", "K"), [(1, 2), (64, 1), (70, 5)])  # around a block of lanes
def test_compiled_posteriors_equal_the_arithmetic(n, K):
    rng = np.random.default_rng(0)
    prior = LinesCase.prior(rng, n, 9, rng.standard_normal((9, K)), K, "basis")
    roots, (p, q) = rng.standard_normal((n, K, 2 * K)), np.tril_indices(K)
    packed = (roots @ roots.transpose(0, 2, 1))[:, p, q]
    given = Moments(packed, rng.standard_normal((n, K)), rng.uniform(0, 1, n)), rng.standard_normal((n, K)), prior
    A = rng.standard_normal((prior.basis.shape[1], K))
    answers = [
        (*band.prepare(), band.through(A), *band.posterior(A))
        for band in (regressions.Band(*given), Posteriors(*given))
    ]
    for one, two in zip(*answers, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-11 * np.abs(one).max())


def test_memory_that_is_used_again_does_not_mix_answers(monkeypatch):
    """Of several threads, and of questions of other sizes in between."""
    monkeypatch.setattr(pieces, "INLINE_LISTED", 0)
    monkeypatch.setattr(regressions, "PARALLEL_FLOPS", -1)
    cases = [LinesCase(shape) for shape in ((300, 17), (20, 100), (65, 33))]
    alone = [[answer.mean for (answer,) in ask_lines((MemoryEngine(case.M, threads=1),), case)] for case in cases]
    many = [MemoryEngine(case.M, threads=5) for case in cases]
    for _ in range(3):
        for engine, case, right in zip(many, cases, alone, strict=True):
            for (answer,), mean in zip(ask_lines((engine,), case), right, strict=True):
                np.testing.assert_allclose(answer.mean, mean, rtol=0, atol=1e-6)


def test_dense_matrices_larger_than_the_memory_are_refused(monkeypatch):
    """One beside M for what a solver keeps, and one more for an M that is a list of its observed entries."""
    monkeypatch.setattr(memory, "machine_memory", lambda: 799e6)
    with pytest.raises(MemoryError, match=r"another of that size: 0\.8 GB more, and this machine has 0\.799 GB; take"):
        MemoryEngine(np.broadcast_to(1.0, (10_000, 10_000))).whole()
    with pytest.raises(MemoryError, match=r"0\.8 GB more"):
        MemoryEngine(csr_array(([1.0], ([0], [0])), shape=(10_000, 5_000))).whole()


def test_a_place_without_a_cache_on_disk():
    """numba finds nowhere to write: the kernels are compiled all the same."""
    code = """
import numba
from numba.core.caching import FunctionCache
def refuse(*args, **kwargs):
    raise RuntimeError("cannot cache function: no locator available")
FunctionCache.__init__ = refuse
from irpca.engines import kernels
print(kernels.pairs.signatures == [])
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"


# The choice of an engine.


def test_choose():
    M = np.ones((3, 2))
    assert choose(M).name == choose(M, "memory").name == "memory"
    assert type(choose(M, "reference")) is ReferenceEngine
    engine = MemoryEngine(M)
    assert choose(None, engine) is engine
    for former in "cpu", "observed":
        with pytest.raises(ValueError, match=f"engine='{former}' is unknown"):
            choose(M, former)
    with pytest.raises(
        ValueError, match="engine='abacus' is unknown; choose one of 'auto', 'memory', 'gpu', 'distributed'"
    ):
        choose(M, "abacus")


def test_as_matrix_takes_floats_as_they_are_and_makes_float64_of_the_rest():
    for dtype in DTYPES:
        M = np.ones((3, 2), dtype)
        assert as_matrix(M) is M
    for M in [[1, 2], [3, 4]], np.eye(2, dtype=bool), np.eye(2, dtype=np.float16), [["1", "2"]]:
        assert as_matrix(M).dtype == np.float64
        np.testing.assert_array_equal(as_matrix(M), np.asarray(M).astype(float))


@pytest.mark.parametrize(
    ("M", "message"),
    [
        (np.ones(3), r"M must have two dimensions, got shape \(3,\)"),
        (np.ones((2, 0)), r"M is empty: its shape is \(2, 0\)"),
        (np.ones((2, 2), complex), "M is complex"),
        (np.array([["a", "b"]]), "M has dtype <U1 and does not convert to numbers"),
        (np.ma.masked_array(np.ones((2, 2)), mask=np.eye(2)), "M is a masked array: some entries are missing"),
        (csr_array(np.eye(3)), r"M is a sparse matrix: .* all are needed; pass M.toarray\(\)"),
    ],
)
def test_as_matrix_refuses(M, message):
    with pytest.raises(ValueError, match=message):
        as_matrix(M)
