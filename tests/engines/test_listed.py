"""Matrices with holes, listed or dense, against the reference engine with a mask, and what may be such a matrix."""

import tracemalloc
from functools import partial

import numpy as np
import pandas as pd
import pytest
from engines.conformance import (
    ZETA,
    Case,
    EvenRows,
    HolesSuite,
    LinesCase,
    asked_of_holes,
    few_at_a_time,
    listed,
    pattern,
    with_nan,
)
from scipy import sparse
from scipy.sparse import csr_array

from irpca.engines import (
    MemoryEngine,
    ReferenceEngine,
    as_matrix,
    choose,
    holes,
    observed,
    pieces,
)
from irpca.lowrank import LowRank

# Some entries are observed.

STORAGES = {
    "listed": lambda M, **given: MemoryEngine(M, **given),
    "dense": lambda M, **given: MemoryEngine(with_nan(M), **given),
    "dense, known, Fortran": lambda M, **given: MemoryEngine(np.asfortranarray(with_nan(M)), holes=True, **given),
}


class TestHoles(HolesSuite):
    hole = asked_of_holes(STORAGES, ["2 %", "empty rows", "empty columns", "one entry", "full rows", "last only"])

    def make(self, way, entries):
        return STORAGES[way](entries, threads=2)


class TestHolesFewAtATime(TestHoles):
    hole = asked_of_holes(STORAGES, ["full rows", "95 %", "empty rows"])

    @pytest.fixture(autouse=True)
    def few_at_a_time(self, monkeypatch):
        few_at_a_time(monkeypatch)


def is_dense(engine):
    return isinstance(engine, MemoryEngine) and type(engine.piece) is pieces.Dense


def is_listed(engine):
    return type(engine) is MemoryEngine and type(engine.piece) is pieces.Listed


def test_a_dense_engine_counts_holes_whichever_question_meets_them(tmp_path):
    there = pattern("95 %")
    case, lines_case = Case((60, 41)), LinesCase((60, 41))
    for ask, asked in {
        "core": (case.L, ZETA, case.Q1, case.Q2),
        "products": (case.L, ZETA, case.X),
        "whole": (),
        "corruption": (case.L, ZETA),
        "write": (case.L, ZETA, EvenRows(tmp_path)),
        "block": (np.arange(60), np.arange(41)),
        "draw": (1000, np.random.default_rng(0)),
        "solve_lines": (1, lines_case.U, lines_case.V, lines_case.noise, lines_case.priors[1]),
    }.items():
        engine = MemoryEngine(np.where(there, case.M, np.nan))
        assert engine.n_observed == there.size
        getattr(engine, ask)(*asked)
        assert engine.n_observed == there.sum(), ask
        for counts, axis in zip(engine.counts, (1, 0), strict=True):
            np.testing.assert_array_equal(counts, there.sum(axis=axis))


def test_looks_are_counted_by_what_they_touch():
    there, M = pattern("50 %"), Case((60, 41)).M
    rows, cols = np.arange(0, 60, 7), np.arange(3, 41, 5)
    for make in STORAGES.values():
        engine = make(listed(M, there))
        engine.counts  # noqa: B018  a dense one need not have looked yet
        engine.core(LowRank.zero(M.shape), ZETA, np.ones((60, 1)), np.ones((41, 1)))
        before = engine.reads
        engine.block(rows, cols)
        touched = there[rows][:, cols].sum() / there.sum()
        assert engine.reads - before == pytest.approx(touched, rel=1e-9)
        engine.entries(rows[:8], cols)
        touched += there[rows[:8], cols].sum() / there.sum()
        assert engine.reads - before == pytest.approx(touched, rel=1e-9)


@pytest.mark.parametrize("make", [observed, MemoryEngine])
def test_all_observed_entries_are_drawn_alike(make):
    """A full row beside many short ones has its share of the sample, no more."""
    there = pattern("full rows", (400, 1000))
    rows, _, _ = make(np.where(there, 1.0, np.nan)).draw(4000, np.random.default_rng(0))
    assert len(rows) == 4000
    share = there[there.all(axis=1)].sum() / there.sum()
    assert there.all(axis=1)[rows].mean() == pytest.approx(share, abs=4 * 0.5 / 4000**0.5)


def test_an_L_that_is_not_finite_matters_only_where_M_is_observed():
    case, there = Case((60, 41)), pattern("empty rows")
    for way in STORAGES.values():
        engine, L = way(listed(case.M, there)), LowRank(case.L.left.copy(), case.L.core, case.L.right)
        L.left[0] = np.nan
        assert np.isfinite(engine.core(L, ZETA, case.Q1, case.Q2)[0]).all()
        L.left[np.flatnonzero(there.any(axis=1))[3]] = np.nan
        with pytest.raises(FloatingPointError, match="not finite although M is"):
            engine.core(L, ZETA, case.Q1, case.Q2)


@pytest.mark.parametrize("way", STORAGES.values(), ids=STORAGES)
def test_blocks_of_the_wrong_length_are_refused(way, tmp_path):
    """The compiled kernels would read whatever lies in memory there."""
    case = Case((60, 41))
    engine = way(listed(case.M, pattern("50 %")))
    for ask in (
        lambda: engine.products(case.L, ZETA, case.Y),
        lambda: engine.products(case.L, ZETA, Y=case.X),
        lambda: engine.products(case.L, ZETA, case.row_weights, kept=True),
        lambda: engine.products(case.L, ZETA, case.X, case.col_weights),
        lambda: engine.core(case.L, ZETA, case.Q2, case.Q1),
        lambda: engine.normal(case.L, ZETA, case.Q2, case.Q1),
        lambda: engine.normal(case.L, ZETA, case.Q1, case.Q2).products(case.L.T, case.X, case.Y),
        lambda: engine.corruption(case.L.T, ZETA),
        lambda: engine.write(case.L.T, ZETA, EvenRows(tmp_path)),
    ):
        with pytest.raises(ValueError, match=r"shape mismatch|could not be broadcast"):
            ask()


# Precision, memory, threads.


def test_long_sums_of_single_precision_are_made_in_double():
    """A sum of so many tenths is off by more than a thousandth if it is added up in single precision."""
    n = 300_000
    M = np.full((2, n), 0.1, np.float32)
    engine, turned, one = observed(M), observed(M.T), np.ones((n, 1), np.float32)
    nothing = LowRank.zero(M.shape)
    for kept in False, True:
        TX, _, trim = engine.products(nothing, 1.0, one, kept=kept)
        _, TY, turned_trim = turned.products(nothing.T, 1.0, Y=one, kept=kept)
        for product in TX, TY:
            if kept:
                np.testing.assert_array_equal(product, n)
            else:
                np.testing.assert_allclose(product, n * float(np.float32(0.1)), rtol=1e-6)
        for rode in trim, turned_trim:
            assert rode.energy == pytest.approx(2 * n * float(np.float32(0.1)) ** 2, rel=1e-9)


def scattered(shape, m, rng):
    at = np.unique(rng.integers(0, shape[0] * shape[1], m))
    rows, cols = np.divmod(at, shape[1])
    return csr_array((rng.standard_normal(len(at)), (rows, cols)), shape=shape)


def test_memory_is_that_of_the_observed_entries(tmp_path):
    """The dense matrix would take 3 GB."""
    rng, shape = np.random.default_rng(0), (8_000, 50_000)
    M = scattered(shape, 100_000, rng)
    engine = MemoryEngine(M, threads=2)
    U, V = (rng.standard_normal((n, 4)) for n in shape)
    L = LowRank(U, np.eye(4), V)
    thin = U.nbytes + V.nbytes + M.data.nbytes + M.indices.nbytes + M.indptr.nbytes
    rows, cols = np.arange(0, shape[0], 1000), np.arange(0, shape[1], 1000)
    for name, ask in {
        "core": lambda: engine.core(L, 1.0, U, V),
        "normal": lambda: engine.normal(L, 1.0, U, V).times(np.eye(4)),
        "products": lambda: engine.products(L, 1.0, V, U),
        "products of the kept": lambda: engine.products(L, 1.0, V, U, kept=True),
        "corruption": lambda: engine.corruption(L, 1.0),
        "write": lambda: engine.write(L, 1.0, EvenRows(tmp_path)),
        "block": lambda: engine.block(rows, cols),
        "draw": lambda: engine.draw(1000, rng),
    }.items():
        ask()
        tracemalloc.start()
        ask()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * thin, name


def test_sums_that_threads_keep_for_themselves_stay_small():
    """Few entries of a wide matrix, many threads: a sum for each of them would be 64 times the answer."""
    rng = np.random.default_rng(0)
    M = scattered((1000, 50_000), 60_000, rng)
    engine, Y, nothing = MemoryEngine(M, threads=64), np.ones((1000, 10)), LowRank.zero(M.shape)
    right = engine.products(nothing, np.inf, Y=Y)[1]
    np.testing.assert_allclose(right, M.T @ Y, rtol=0, atol=1e-12)
    tracemalloc.start()
    engine.products(nothing, np.inf, Y=Y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * right.nbytes + 4 * 8 * M.nnz


def test_nothing_is_copied_and_nothing_can_be_written():
    M = listed(np.ones((5, 4)), pattern("50 %", (5, 4)))
    engine = MemoryEngine(M)
    assert np.shares_memory(engine.piece.M.values, M.data)
    assert np.shares_memory(engine.piece.M.indices, M.indices)
    with pytest.raises(ValueError, match="read-only"):
        engine.piece.M.values[0] = 2
    M.data[0] = 2
    assert engine.draw(1 << 10, np.random.default_rng(0))[2][0] == 2


def test_it_refuses_what_it_cannot_own():
    twice = csr_array((np.ones(3), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    with pytest.raises(ValueError, match="columns of M must be sorted in each row, and none may occur twice"):
        MemoryEngine(twice)
    with pytest.raises(ValueError, match="every cell of M is missing"):
        MemoryEngine(csr_array((3, 2)))
    with pytest.raises(ValueError, match="1 of the observed entries of M are NaN or infinite"):
        MemoryEngine(csr_array(np.array([[1.0, np.nan]])))


# What may be a matrix with holes.

M = np.array([[1.0, 0.0, np.nan], [np.nan, 5.0, 2.0], [np.nan, np.nan, np.nan], [-3.0, np.nan, 0.0]])
THERE = ~np.isnan(M)


class Listed:
    """As a long table: entries in no order."""

    def __init__(self, M=M, order=(5, 0, 3, 1, 2, 4)):
        self.rows, self.cols = (at[list(order)] for at in np.nonzero(~np.isnan(M)))
        self.values, self.shape = M[self.rows, self.cols], M.shape

    def __irpca_observed__(self):
        return self.rows, self.cols, self.values, self.shape


def sparse_kinds():
    """The observed entries, zeros among them, in every format of SciPy."""
    rows, cols = np.nonzero(THERE)
    coo = sparse.coo_array((M[rows, cols], (rows, cols)), shape=M.shape)
    backwards = sparse.coo_array((M[rows, cols][::-1], (rows[::-1], cols[::-1])), shape=M.shape)
    csr = csr_array((M[rows, cols], (rows, cols)), shape=M.shape)
    unsorted = csr_array((csr.data.copy(), csr.indices.copy(), csr.indptr.copy()), shape=M.shape)
    for first, last in zip(csr.indptr[:-1], csr.indptr[1:], strict=True):
        for part, whole in ((unsorted.indices, csr.indices), (unsorted.data, csr.data)):
            part[first:last] = whole[first:last][::-1]
    dok = sparse.dok_array(M.shape)
    dok._dict.update({(int(i), int(j)): M[i, j] for i, j in zip(rows, cols, strict=True)})  # zeros too
    spare = csr_array((csr.data.copy(), csr.indices.copy(), csr.indptr.copy()), shape=M.shape)
    spare.data, spare.indices = np.append(spare.data, np.nan), np.append(spare.indices, 0)  # room that is not used
    return {
        "coo backwards": backwards,
        "csr unsorted": unsorted,
        "csr with room to spare": spare,
        "csr 64 bit": csr_array((csr.data, csr.indices.astype(np.int64), csr.indptr.astype(np.int64)), shape=M.shape),
        "csc": csr.tocsc(),
        "dok": dok,
        "csr_matrix": sparse.csr_matrix(csr),
        "coo_matrix": sparse.coo_matrix(coo),
    }


def kinds():
    frame = pd.DataFrame(M)
    return sparse_kinds() | {
        "NaN, Fortran": np.asfortranarray(M),
        "NaN, list": M.tolist(),
        "None": np.where(THERE, M, None),
        "masked and NaN": np.ma.masked_array(M, mask=~THERE & (np.arange(4)[:, None] > 1)),
        "masked integers": np.ma.masked_array(np.where(THERE, M, 7).astype(int), mask=~THERE),
        "frame of nullable floats": frame.astype("Float64"),
        "frame of nullable integers": frame.astype("Int64"),
        "long": Listed(),
    }


def test_whatever_has_holes_is_observed_where_it_is_and_stays_as_it_was():
    for (kind, given), fresh in zip(kinds().items(), kinds().values(), strict=True):
        for make in choose, partial(choose, engine="memory"), observed, partial(choose, engine="reference"):
            engine = make(given)
            assert is_listed(engine) or type(engine) is ReferenceEngine, kind
            assert (engine.shape, engine.n_observed, engine.dtype) == (M.shape, 6, np.float64), kind
            np.testing.assert_array_equal(engine.block(np.arange(4), np.arange(3)), M, err_msg=kind)
        for name in "data", "indices", "indptr", "mask", "rows", "values":
            if isinstance(before := getattr(fresh, name, None), np.ndarray) and before.dtype != object:
                np.testing.assert_array_equal(getattr(given, name), before, err_msg=kind)


def test_formats_that_store_blocks_and_diagonals_store_their_zeros():
    """A diagonal is stored as a whole: what SciPy leaves out when it converts it is there all the same."""
    data = np.array([[1.0, 0.0, 3.0, 9.0], [9.0, 0.0, 6.0, 9.0]])
    dia = sparse.dia_array((data, [0, 1]), shape=(4, 3))
    right = np.array([[1, 0, np.nan], [np.nan, 0, 6], [np.nan, np.nan, 3], [np.nan, np.nan, np.nan]])
    np.testing.assert_array_equal(observed(dia).block(np.arange(4), np.arange(3)), right)
    narrow = sparse.dia_array((data[:, :2], [-1, 1]), shape=(4, 3))
    right = np.array([[np.nan, 0, np.nan], [1, np.nan, np.nan], [np.nan, 0, np.nan], [np.nan] * 3])
    np.testing.assert_array_equal(observed(narrow).block(np.arange(4), np.arange(3)), right)
    bsr = sparse.bsr_array((np.array([[[1.0, 0.0], [0.0, 2.0]]]), np.array([1]), np.array([0, 1, 1])), shape=(4, 4))
    assert observed(bsr).n_observed == 4


def test_precision():
    for dtype in np.float32, int, bool, np.float16, ">f8":
        dense = np.array([[1, 0], [0, 1]], dtype=dtype)
        kinds = [np.ma.masked_array(dense, dense == 0)]
        if dtype not in (np.float16, ">f8"):  # of which SciPy has no sparse arrays
            kinds += [csr_array(dense), sparse.coo_array(dense)]
        for given in kinds:
            engine = choose(given)
            assert engine.n_observed == 2
            assert engine.dtype == (np.float32 if dtype == np.float32 else np.float64)
            assert engine.dtype.isnative
            np.testing.assert_array_equal(engine.draw(9, np.random.default_rng(0))[2], [1, 1])


@pytest.mark.parametrize("form", ["coo", "csr unsorted", "csc", "long"])
def test_an_entry_that_is_told_twice_is_refused(form):
    """SciPy would add them up."""
    rows, cols, values = np.array([2, 0, 2, 1, 2, 0]), np.array([1, 0, 1, 0, 1, 2]), np.arange(6.0)
    match form:
        case "csr unsorted":
            given = csr_array((values, np.array([2, 0, 0, 1, 0, 1]), np.array([0, 2, 3, 6])), shape=(3, 3))
        case "csc":
            given = sparse.csc_array((values, np.array([0, 1, 2, 2, 2, 0]), np.array([0, 2, 5, 6])), shape=(3, 3))
        case "coo":
            given = sparse.coo_array((values, (rows, cols)), shape=(3, 3))
        case "long":
            given = Listed()
            given.rows, given.cols, given.values, given.shape = rows, cols, values, (3, 3)
    number = 1 if form == "csr unsorted" else 2
    told = f"M holds {number} values too many: .* such as the one in row 2, column 1; keep one value of each"
    for name in "auto", "memory", "reference":
        with pytest.raises(ValueError, match=told):
            choose(given, name)
    with pytest.raises(ValueError, match="ratings holds"):
        observed(given, "ratings")


def test_without_any_observed_entry():
    nothing = np.full((3, 2), np.nan)
    for given in nothing, np.ma.masked_invalid(nothing), pd.DataFrame(nothing), Listed(nothing, ()), csr_array((3, 2)):
        for name in "auto", "memory", "reference":
            with pytest.raises(ValueError, match="every cell of M is missing"):
                choose(given, name)
    for ask in (
        lambda engine: engine.n_observed,
        lambda engine: engine.counts,
        lambda engine: engine.corruption(LowRank.zero((30, 20)), 1.0),
        lambda engine: engine.draw(10, np.random.default_rng(0)),
    ):
        with pytest.raises(ValueError, match="every cell of M is missing"):
            ask(MemoryEngine(np.full((30, 20), np.nan), holes=True))


def test_infinite_entries_are_told_from_missing_ones():
    endless = M.copy()
    endless[0, 0], endless[3, 0] = np.inf, -np.inf
    rows, cols = np.nonzero(THERE)
    masked = np.ma.masked_array(endless, mask=~THERE)
    stored = csr_array((endless[rows, cols], (rows, cols)), shape=M.shape)
    for given in endless, masked, stored, sparse.coo_array(stored), Listed(endless), pd.DataFrame(endless):
        for name in "auto", "memory", "reference":
            with pytest.raises(ValueError, match="M holds infinite values; replace them"):
                choose(given, name)
    masked.mask[[0, 3], 0] = True
    assert choose(masked).n_observed == 4
    stored.data[:] = [1, np.nan, 3, 4, np.nan, 5]
    with pytest.raises(ValueError, match="2 entries that M stores are NaN; leave out what was not observed"):
        choose(stored)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (sparse.coo_array(np.ones(3)), r"M must have two dimensions, got shape \(3,\)"),
        (csr_array((0, 3)), r"M is empty: its shape is \(0, 3\)"),
        (csr_array(np.eye(2) * 1j), "M is complex"),
        (np.ma.masked_array([["a", "b"]], mask=[[0, 1]]), "does not convert to numbers"),
        (pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": ["x", "y"]}), "does not convert to numbers"),
    ],
)
def test_what_is_no_matrix_of_numbers_is_refused(given, told):
    with pytest.raises(ValueError, match=told):
        choose(given)
    with pytest.raises(ValueError, match=told):
        observed(given)


def test_places_outside_are_refused():
    for side, rows, cols in (
        ("rows", [0, 4], [0, 0]),
        ("rows", [0, -1], [0, 0]),
        ("columns", [0, 0], [0, 3]),
        ("columns", [0, 0], [0, -1]),
    ):
        given = Listed()
        given.rows, given.cols, given.values = np.array(rows), np.array(cols), np.ones(2)
        with pytest.raises(ValueError, match=f"{side} of M must be from 0 to"):
            observed(given)


def test_complete_matrices_of_any_kind():
    complete = np.arange(6.0).reshape(2, 3)
    for given in complete, np.ma.masked_array(complete), np.ma.masked_array(complete, mask=np.zeros((2, 3), bool)):
        assert is_dense(choose(given)) and is_listed(observed(given)) and observed(given).n_observed == 6
        assert as_matrix(given).tolist() == complete.tolist()
    assert is_dense(choose(pd.DataFrame(complete).astype("Float32")))


def test_rare_holes_are_met_on_the_first_read(monkeypatch):
    """To look at all of M in search of them would be a read more."""
    monkeypatch.setattr(holes, "LOOK", 512)
    rare = np.zeros((600, 500))
    rare[123, 456] = np.nan
    engine = choose(rare)
    assert is_dense(engine)
    assert engine.reads == 0
    assert engine.n_observed == rare.size
    TX, _, trim = engine.products(LowRank.zero(rare.shape), 1.0, np.ones((500, 1)))
    assert np.isfinite(TX).all() and (trim.kept, trim.trimmed) == (rare.size - 1, 0)
    assert (engine.n_observed, engine.reads) == (rare.size - 1, 1)


def test_the_engine_follows_from_how_much_is_missing():
    for missing in (0.05, 0.4, 0.6, 0.95):
        there = np.random.default_rng(0).random((600, 500)) >= missing
        M = np.where(there, 1.0, np.nan)
        engine = choose(M)
        assert is_dense(engine) if missing < 0.5 else is_listed(engine)
        assert engine.n_observed == there.sum() == MemoryEngine(M, holes=True).n_observed


def test_the_look_for_holes_goes_everywhere(monkeypatch):
    """A hundredth of the entries is enough to be seen, wherever they are; columns are not looked at in a period."""
    monkeypatch.setattr(holes, "LOOK", 2048)
    for order, some in (("C", slice(0, 5)), ("F", slice(250, 255)), ("C", slice(495, 500))):
        for at in ((some, slice(None)), (slice(None), some)):
            part = np.zeros((500, 500), order=order)
            part[at] = np.nan
            assert holes.seem_there(part)
    assert not holes.seem_there(np.zeros((500, 500)))
    monkeypatch.setattr(holes, "LOOK", 4096)
    for first in range(0, 64, 4):
        M = np.zeros((4096, 64))
        M[:, first : first + 4] = np.nan
        assert holes.seem_there(M) == pytest.approx(4 / 64, abs=0.001)


def test_a_dense_matrix_is_converted_a_few_rows_at_a_time(monkeypatch):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((3000, 1000)).astype(np.float32)
    dense[rng.random(dense.shape) < 0.9] = np.nan
    masked = np.ma.masked_array(dense, mask=rng.random(dense.shape) < 0.1)
    monkeypatch.setattr(holes, "ROWS_AT_ONCE", 10_000)
    for given in dense, masked:
        there = ~np.isnan(np.ma.getdata(given)) & ~np.ma.getmaskarray(given)
        tracemalloc.start()
        found = holes.observed_entries(given)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.2 * (found.data.nbytes + found.indices.nbytes) + 200_000
        np.testing.assert_array_equal(found.data, dense[there])
        np.testing.assert_array_equal(found.indices, np.nonzero(there)[1])
        np.testing.assert_array_equal(np.diff(found.indptr), there.sum(axis=1))


def test_a_long_table_becomes_an_engine():
    from irpca.longtable import LongTable

    engine = choose(LongTable([0, 0, 2], [1, 0, 1], [5, 3, 4], shape=(4, 2)))
    assert (is_listed(engine), engine.shape, engine.n_observed) == (True, (4, 2), 3)
    np.testing.assert_array_equal(engine.entries(np.array([0, 2, 2]), np.array([1, 1, 0])), [5, 4, np.nan])
