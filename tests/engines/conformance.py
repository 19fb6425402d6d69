"""What every engine must answer: the same as the reference engine, question by question.

Subclass :class:`EngineSuite`, say how to make your engine from a NumPy array, and pytest does the rest; with holes,
:class:`HolesSuite`. Types, orders and spacings in memory are tested of the kernels, where loops depend on them.
"""

from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from array_api_compat import to_device
from engines.literal import solve_both
from scipy.linalg import block_diag
from scipy.sparse import csr_array

from irpca.engines import Engine, Normal, ReferenceEngine, Trim, body, pieces, regressions, walks
from irpca.engines.base import Lines, Look, Noise, Prior, Standardised
from irpca.lowrank import LowRank
from irpca.model.kinds import kind_of
from irpca.model.maps import ColumnMaps

DTYPES = [np.float32, np.float64]
ORDERS = ["C", "Fortran"]
SPACINGS = ["whole", "padded", "strided", "reversed"]
LAYOUTS = [f"{order} {spacing}" for order in ORDERS for spacing in SPACINGS]
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12}  # of the largest entry of an answer
ZETA = 1.0


def laid_out(M, layout):
    """The same matrix, differently in memory; what is padded is part of a larger one, and read-only."""
    order, spacing = layout.split()
    A = M if order == "C" else M.T
    n1, n2 = A.shape
    match spacing:
        case "whole":
            view = np.empty((n1, n2), M.dtype)
        case "padded":
            view = np.full((n1, n2 + 3), np.nan, M.dtype)[:, 1 : n2 + 1]
        case "strided":
            view = np.full((2 * n1, 3 * n2), np.nan, M.dtype)[::2, ::3]
        case "reversed":
            view = np.full((n1, n2), np.nan, M.dtype)[::-1, ::-1]
    view[:] = A
    view.flags.writeable = spacing != "padded"
    return view if order == "C" else view.T


class Case:
    """A matrix M, a low-rank L and another one, such that no residual is close to the threshold.

    |M − L| is below 0.9 or above 20, or M − L is near −3; ``other`` is L − 3 on a block, so that it keeps
    what L trims there, and trims what L keeps.
    """

    def __init__(self, shape, dtype=np.float64, layout="C whole", rank=2):
        rng = np.random.default_rng(0)
        n1, n2 = shape
        self.dtype = dtype
        self.L = self.low_rank(rng, shape, rank)
        some_rows, some_cols = (np.arange(n) % 2.0 == 0 for n in shape)
        self.other = LowRank(
            np.column_stack([self.L.left, some_rows]),
            block_diag(self.L.core, [[-3.0]]),
            np.column_stack([self.L.right, some_cols]),
        )
        small = rng.uniform(-0.9, 0.9, shape)
        large = rng.choice([-1, 1], shape) * rng.uniform(20, 30, shape)
        kind = rng.permutation(np.arange(n1 * n2) % 3).reshape(shape)
        residual = np.choose(kind, [small, large, small - 3])
        self.M = laid_out((self.L.dense() + residual).astype(dtype), layout)
        self.Q1 = np.linalg.qr(rng.standard_normal((n1, min(n1, 4))))[0]
        self.Q2 = np.linalg.qr(rng.standard_normal((n2, min(n2, 3))))[0]
        self.X, self.Y = rng.standard_normal((n2, 3)), rng.standard_normal((n1, 2))
        self.row_weights, self.col_weights = rng.standard_normal((n1, 4)), rng.standard_normal((n2, 5))

    @staticmethod
    def low_rank(rng, shape, rank):
        left, right = (rng.standard_normal((n, rank)) / max(rank, 1) ** 0.5 for n in shape)
        return LowRank(left, np.diag(np.linspace(1, 2, rank)), right)


shared_case = cache(Case)  # for tests that leave it as it is


# Shape, type and layout of M, and what a test varies besides.
CASES = [
    ((1, 5), np.float64, "C padded", True),
    ((60, 41), np.float64, "C whole", False),
    ((33, 129), np.float32, "Fortran strided", True),
]
# Type and layout of M, whether it has holes, and whether its entries have thresholds of their own.
STORED = [(np.float64, "C whole", False, True), (np.float32, "Fortran reversed", True, False)]


def named(setting):
    return " ".join(getattr(part, "__name__", str(part)) for part in setting)


def given_by(of):
    """A fixture of a suite that gives these settings."""
    return pytest.fixture(params=of, ids=named)(lambda self, request: request.param)


def same(answer, expected, dtype, precision=None):
    """Equal in shape, in type, and to rounding in ``precision`` (that of M, unless told)."""
    assert type(answer) is np.ndarray
    assert answer.dtype == dtype
    assert answer.shape == expected.shape
    tolerance = TOLERANCE[np.dtype(precision or dtype).type]
    np.testing.assert_allclose(answer, expected, rtol=0, atol=tolerance * (1 + np.abs(expected).max(initial=0)))


def same_trim(trim, expected, precision):
    tolerance = TOLERANCE[np.dtype(precision).type]
    assert isinstance(trim, Trim)
    assert (trim.kept, trim.trimmed) == (expected.kept, expected.trimmed)
    assert trim.kept_share == expected.kept_share
    assert trim.energy == pytest.approx(expected.energy, rel=tolerance, abs=0)
    assert trim.largest == pytest.approx(expected.largest, rel=tolerance, abs=0)


def same_sparse(S, expected, dtype, precision=None):
    assert isinstance(S, csr_array)
    assert S.dtype == dtype
    assert S.shape == expected.shape
    assert S.indices.dtype == S.indptr.dtype
    assert S.has_canonical_format  # sorted, nothing twice
    np.testing.assert_array_equal(S.indptr, expected.indptr)
    np.testing.assert_array_equal(S.indices, expected.indices)
    np.testing.assert_allclose(S.data, expected.data, rtol=0, atol=31 * TOLERANCE[np.dtype(precision or dtype).type])


def same_answers(answers, expected, case, precision=None):
    """Of ``core``, in double precision, or ``products``, in that of M: arrays, or None for what was not asked."""
    for answer, right in zip(answers[:-1], expected[:-1], strict=True):
        if right is None:
            assert answer is None
        else:
            same(answer, right, np.float64 if len(answers) == 2 else case.dtype, precision or case.dtype)
    same_trim(answers[-1], expected[-1], precision or case.dtype)


def of_T(case):
    """Every way to ask for products with T, and with the kept entries as ones: a question and its blocks."""
    W, V = case.col_weights, case.row_weights
    yield "core", (case.Q1, case.Q2)
    for X, Y, kept in ((case.X, case.Y, False), (W, V, True)):
        yield "products", (X, None, kept)
        yield "products", (None, Y, kept)
        yield "products", (X, Y, kept)


def ask_everything(pair, case, zeta, precision=None):
    """Products with T, S, and normal equations of two sets of kept entries, each asked twice."""
    engine, reference = pair
    for question, asked in of_T(case):
        answers, expected = (getattr(owner, question)(case.L, zeta, *asked) for owner in pair)
        same_answers(answers, expected, case, precision)
        assert answers[-1].kept + answers[-1].trimmed == reference.n_observed
    (S, trim), (S0, trim0) = (owner.corruption(case.L, zeta) for owner in pair)
    same_sparse(S, S0, case.dtype, precision)
    same_trim(trim, trim0, precision or case.dtype)
    assert S.nnz == trim.trimmed
    rng = np.random.default_rng(4)
    for L in case.L, case.other:
        normal, expected = (owner.normal(L, zeta, case.Q1, case.Q2) for owner in pair)
        same(normal.gradient, expected.gradient, np.float64, precision or case.dtype)
        same_trim(normal.trim, expected.trim, precision or case.dtype)
        engine.normal(case.L, 25.0, case.Q1, case.Q2)
        for _ in range(2):
            P = rng.standard_normal(expected.gradient.shape)
            same(normal.times(P), expected.times(P), np.float64, precision or case.dtype)
        asked = LowRank(case.Q1, P, case.Q2), case.X, case.Y
        for answer, right in zip(normal.products(*asked), expected.products(*asked), strict=True):
            same(answer, right, case.dtype, precision)
    assert engine.reads == reference.reads + 2 == 18


PRIORS = ["mean", "constant", "basis", "tied", "partly tied"]
LINES = [
    ("mean", False, (30, 17), "C whole", np.float64),
    ("basis", True, (30, 17), "C strided", np.float64),
    ("partly tied", True, (9, 70), "Fortran whole", np.float32),
]


KINDS = [
    lambda x: x,
    lambda x: np.exp(x / 10),
    lambda x: 1.0 * (x > 0),
    lambda x: np.maximum(x, 0),
    lambda x: np.clip(np.round(x), -2, 3),
]


def of_every_kind(M):
    """A table of numbers, skewed numbers, yes and no, numbers piled up at zero, and scores; the maps of its columns."""
    M = np.column_stack([KINDS[j % len(KINDS)](column) for j, column in enumerate(M.T)]).astype(M.dtype)
    return M, ColumnMaps.of([kind_of(column) for column in M.T])


def same_of_latent_values(engine, M, maps):
    """An engine of M, mapped, answers as the reference does; what was asked before counts, and M stays as it is."""
    reference, lines, dtype = ReferenceEngine(M), LinesCase(M.shape), M.dtype.type
    case, (n1, n2) = Case(M.shape, dtype), M.shape
    engine.core(case.L, ZETA, case.Q1, case.Q2)
    before, latent, right = engine.reads, engine.mapped(maps), reference.mapped(maps)
    assert (latent.name, latent.shape, latent.dtype) == (engine.name, engine.shape, engine.dtype)
    same_answers(*(owner.core(case.L, ZETA, case.Q1, case.Q2) for owner in (latent, right)), case)
    (S, trim), (S0, trim0) = (owner.corruption(case.L, ZETA) for owner in (latent, right))
    same_sparse(S, S0, dtype)
    same_trim(trim, trim0, dtype)
    for answer, expected in ask_lines((latent, right), lines):
        same_lines(answer, expected, 1e-8)
    assert latent.reads == before + 4 and engine.reads == before
    rows, cols = np.arange(n1)[::-2], np.arange(n2)[::-1]
    *at, drawn = latent.draw(40, np.random.default_rng(1))
    for found, expected in (
        (latent.block(rows, cols), right.block(rows, cols)),
        (latent.entries(rows[:9], cols[:9]), right.entries(rows[:9], cols[:9])),
        (drawn, right.entries(*at)),
    ):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype])
    assert latent.n_observed == reference.n_observed
    np.testing.assert_array_equal(engine.block(rows, cols), M[rows][:, cols])


class LinesCase:
    """Factors, noise and priors for the regressions of all rows and of all columns of a matrix."""

    def __init__(self, shape, K=3, units=False, prior="basis", seed=0):
        rng = np.random.default_rng(seed)
        n1, n2 = shape
        self.U, self.V = rng.standard_normal((n1, K)), rng.standard_normal((n2, K))
        R = rng.standard_normal(shape) * rng.choice([0.3, 1.0, 9.0], shape, p=[0.6, 0.3, 0.1])
        R[np.abs(np.abs(R) - 1) < 1e-3] = 0.5  # not close to the threshold, in single precision either
        R.flat[0] = 1e4  # beyond every density but that of gross errors
        self.M = self.U @ self.V.T + R
        self.noise = Noise(
            rng.uniform(0.05, 0.2, n1),
            rng.uniform(0.5, 2.0, n2),
            rng.uniform(0, 0.2, (n1, 2)),
            rng.uniform(0, 2, (n2, 2)),  # some variances of L are beyond what counts
            np.array([0.7, 0.2, 0.1]),
            0.1,
            8.0,
        )
        if units:
            units = 2.0 ** rng.integers(-7, 8, n2)
            self.M, self.noise = self.M * units, replace(self.noise, units=units)
        self.priors = [self.prior(rng, *sizes, K, prior) for sizes in ((n1, n2, self.V), (n2, n1, self.U))]

    @staticmethod
    def prior(rng, n, other, factors, K, kind):
        root = rng.standard_normal((K, K))
        variance = {"tied": np.zeros(K), "partly tied": np.arange(K) % 2.0}.get(kind, rng.uniform(0.1, 3, K))
        given = dict(mean=rng.standard_normal((n, K)))
        if kind != "mean":
            d = 1 if kind == "constant" else min(4, n)
            basis = np.column_stack([np.ones(n), rng.standard_normal((n, d - 1))])
            given = dict(basis=basis, ridge=rng.uniform(0.5, 2, K), coefficients=rng.standard_normal((d, K)))
        common = variance, rng.uniform(0.5, 2, n), 0.05 * root @ root.T, rng.uniform(0, 2, other), factors.T @ factors
        return Prior(*common, **given)


def same_lines(answer, expected, tolerance=1e-9):
    assert isinstance(answer, Lines)
    for name in ("mean", "expected", "variance", "spread", "covariance", "coefficients", "precision"):
        one, other = getattr(answer, name), getattr(expected, name)
        if other is None:
            assert one is None, name
        else:
            assert one.dtype == np.float64 and one.shape == other.shape, name
            size = np.abs(other).max(initial=0)
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * (1e-3 + size), err_msg=name)
    for name in ("rows", "cols", "totals"):
        one, other = getattr(answer.sums, name), getattr(expected.sums, name)
        assert one.shape == other.shape
        size = np.abs(other) if name == "totals" else np.abs(other).max(axis=0)  # of each kind of sum
        assert (np.abs(one - other) <= 1e-10 * (1 + size)).all(), name


def to_the_end(monkeypatch):
    """Conjugate gradients that do not stop early."""
    monkeypatch.setattr(regressions, "CG_DIGITS", 1e-14)
    monkeypatch.setattr(regressions, "CG_STEPS", 500)


def few_at_a_time(monkeypatch):
    """Pieces of a few entries, and threads for the smallest matrix, in memory."""
    for module, limits in {
        walks: {"TILE_BYTES": 512, "TILE_ROWS": 5, "LISTED_ENTRIES": 17},
        pieces: {
            "INLINE_ENTRIES": 0,
            "INLINE_LISTED": 0,
            "WEIGHED_ENTRIES": 64,
            "FLAGGED_BYTES": 512,
            "FEW_SHARES": 0,
        },
        regressions: {"LINES_AT_ONCE": 8, "PARALLEL_FLOPS": -1},
        body: {"WRITTEN_AT_ONCE": 100},
    }.items():
        for name, limit in limits.items():
            monkeypatch.setattr(module, name, limit)


def ask_lines(pair, case):
    """The regressions of the rows, and those of the columns, of each engine."""
    for axis, prior in enumerate(case.priors):
        yield tuple(engine.solve_lines(axis, case.U, case.V, case.noise, prior) for engine in pair)


@cache
def shared_lines(shape, K=3, units=False, prior="basis", dtype=np.float64):
    """A case, its M, and the right answers."""
    case = LinesCase(shape, K, units, prior)
    M = case.M.astype(dtype)
    return case, M, solve_both(M, case)


def standardised(shape):
    """Thresholds that differ between entries, in all lines between the kinds of residuals."""
    rows, cols = (np.arange(n) for n in shape)
    return Standardised(1.0 + rows % 2, np.array([1.0, 1.2, 4.0])[cols % 3], 1.25)


@dataclass(frozen=True)
class EvenRows:
    """A sink that says it keeps even rows; all it is given goes to a file for each place, to be looked at."""

    folder: Path

    def write(self, place, rows, cols, observed, expected):
        top, left = place
        np.savez(self.folder / f"{top} {left}.npz", rows=rows, cols=cols, observed=observed, expected=expected)
        return rows % 2 == 0

    def given(self):
        """Rows, columns, observed and expected values, in the order of rows."""
        files = [np.load(path) for path in sorted(self.folder.iterdir())]
        parts = [np.concatenate([file[name] for file in files]) for name in ("rows", "cols", "observed", "expected")]
        order = np.lexsort((parts[1], parts[0]))
        return [part[order] for part in parts]


def questions(protocol):
    """The names of those of a protocol."""
    return {name for name, asked in vars(protocol).items() if not name.startswith("_") and callable(asked)}


def arrays_of(answer):
    """Those in an answer, and those they are views of."""
    if isinstance(answer, np.ndarray):
        yield answer
        yield from arrays_of(answer.base)
    elif isinstance(answer, tuple | list):
        for part in answer:
            yield from arrays_of(part)
    elif is_dataclass(answer):
        for field in fields(answer):
            yield from arrays_of(getattr(answer, field.name))


class Watched:
    """An engine, or what it hands out, that takes down the size of the largest array in every answer."""

    def __init__(self, owner):
        self.owner, self.largest = owner, {}

    def __getattr__(self, name):
        given = getattr(self.owner, name)
        if not callable(given):
            return self.seen(name, given)
        return lambda *args, **kwargs: self.seen(name, given(*args, **kwargs))

    def seen(self, name, answer):
        sizes = [A.size for A in arrays_of(answer)]
        self.largest[name] = max([self.largest.get(name, 0), *sizes])
        return answer


class Owner:
    """What an engine answers and refuses, without another to compare it with.

    Say in ``make`` how to make it; ``setting`` and ``stored_setting`` may be fewer, or of other shapes.

    Attributes
    ----------
    where : what messages may say about the place of an infinite entry, as a pattern
    border : shape of the matrix by which it is seen that answers are thin
    capabilities : what it can do that not every engine can
    """

    setting = given_by(CASES)
    stored_setting = given_by(STORED)
    where = ""
    border = (160, 120)
    capabilities = frozenset({"whole"})

    def make(self, M: np.ndarray) -> Engine:
        raise NotImplementedError

    @pytest.fixture
    def case(self, setting):
        return shared_case(*setting[:3])

    @pytest.fixture
    def either(self, setting):
        """What a test varies besides the case."""
        return setting[3]

    @pytest.fixture
    def stored(self, stored_setting):
        return stored_setting[:2]

    @pytest.fixture
    def holes(self, stored_setting):
        return stored_setting[2]

    # What it gives of M.

    def test_what_it_owns(self, case):
        engine = self.make(case.M)
        assert isinstance(engine.name, str)
        assert engine.shape == case.M.shape
        assert engine.dtype == case.dtype
        assert engine.n_observed == case.M.size
        for counts, n, each in zip(engine.counts, case.M.shape, case.M.shape[::-1], strict=True):
            np.testing.assert_array_equal(counts, np.full(n, each))
        assert engine.reads == 0

    def test_write(self, stored_setting, tmp_path):
        """All of S goes to the sink, piece by piece; what it does not keep counts as kept."""
        dtype, layout, holes, by_scale = stored_setting
        case = Case((30, 17), dtype)
        limit = standardised(case.M.shape) if by_scale else ZETA
        missing = np.arange(case.M.size).reshape(case.M.shape) % 7 == 3
        M = laid_out(np.where(missing, dtype(np.nan), case.M) if holes else case.M, layout)
        engine, sink = self.make(M), EvenRows(tmp_path)
        counts, trim = engine.write(case.L, limit, sink)
        assert engine.reads == 1
        S, whole = self.make(M).corruption(case.L, limit)
        rows, cols, observed, expected = sink.given()
        np.testing.assert_array_equal(rows, np.repeat(np.arange(30), np.diff(S.indptr)))
        np.testing.assert_array_equal(cols, S.indices)
        assert observed.dtype == dtype
        np.testing.assert_array_equal(observed, M[rows, cols])
        np.testing.assert_allclose(expected, case.L.dense()[rows, cols], rtol=0, atol=31 * TOLERANCE[dtype])
        written = rows % 2 == 0
        assert 0 < written.sum() < S.nnz
        for each, at, n in zip(counts, (rows, cols), M.shape, strict=True):
            np.testing.assert_array_equal(each, np.bincount(at[written], minlength=n))
        assert (trim.kept, trim.trimmed) == (whole.kept + (~written).sum(), written.sum())
        assert (trim.energy, trim.largest) == pytest.approx((whole.energy, whole.largest), rel=TOLERANCE[dtype], abs=0)
        (row_counts, col_counts), trim = engine.write(case.L, np.inf, sink)
        assert not row_counts.any() and not col_counts.any() and trim.trimmed == 0

    def test_draw(self, case, either):
        """As many entries as asked for, or each of them once; in the order of rows."""
        size = 1 << 20 if either else 4
        engine = self.make(case.M)
        rows, cols, values = engine.draw(size, np.random.default_rng(1))
        assert len(rows) == len(cols) == len(values) == min(size, case.M.size)
        assert values.dtype == case.dtype
        np.testing.assert_array_equal(values, case.M[rows, cols])
        at = rows * case.M.shape[1] + cols
        assert (np.diff(at) >= 0).all()
        if size > case.M.size:
            np.testing.assert_array_equal(at, np.arange(case.M.size))
        self.looked_at(engine, len(at) / case.M.size)
        np.testing.assert_array_equal(engine.draw(size, np.random.default_rng(1))[0], rows)

    @staticmethod
    def looked_at(engine, share, before=0.0):
        """What that adds to its reads: that share of M or, where random access is dear, up to all of it."""
        added = engine.reads - before
        if engine.dear:
            assert 0 <= added <= 1 + 1e-9
        else:
            assert added == pytest.approx(share, rel=1e-9)

    def test_survey(self, stored, holes):
        """What was announced is answered as if it had not been, and so is what was not."""
        dtype, layout = stored
        case, rng = Case((30, 17), dtype), np.random.default_rng(1)
        M = laid_out(np.where(rng.random((30, 17)) < 0.1, dtype(np.nan), case.M) if holes else case.M, layout)
        seeds = np.random.SeedSequence(3).spawn(2)
        lines = [(rng.integers(0, 30, 6), rng.integers(0, 17, 4)), (np.arange(30), np.array([16, 0, 3]))]
        cells = rng.integers(0, 30, 25), rng.integers(0, 17, 25)
        announced, plain = self.make(M), self.make(M)
        looks = [Look(size=40, seed=seeds[0]), Look(size=9, seed=seeds[1]), Look(cells=cells)]
        announced.survey([Look(lines[0]), *looks, Look(lines[1])])

        def same_draw(size, seed):
            drawn, right = (engine.draw(size, np.random.default_rng(seed)) for engine in (announced, plain))
            for one, other in zip(drawn, right, strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)

        def same_looks(some, cells):
            block, entries = announced.block(*some), announced.entries(*cells)
            assert block.dtype == entries.dtype == dtype
            np.testing.assert_array_equal(block, M[some[0]][:, some[1]])
            np.testing.assert_array_equal(entries, M[cells])

        same_draw(40, seeds[0])
        same_looks(lines[1], cells)
        same_draw(9, seeds[1])
        np.testing.assert_array_equal(announced.block(*lines[0]), M[lines[0][0]][:, lines[0][1]])
        assert announced.reads <= (1 + 1e-9 if announced.dear else plain.reads + 1)
        same_draw(9, seeds[0])  # none of these was announced
        same_draw(11, np.random.SeedSequence(4))
        same_looks((lines[0][0][::-1], lines[0][1]), (cells[0][:7], cells[1][:7]))
        announced.survey([])
        same_looks(lines[0], cells)

    # What the reference cannot tell, because it might be wrong itself.

    def test_an_entry_at_the_threshold_is_kept(self):
        """The paper's P_zeta is strict, in the precision of M: float32(0.1) is larger than 0.1, and kept."""
        for dtype in DTYPES:
            at = dtype(0.1)
            above, below = np.nextafter(at, dtype(1)), np.nextafter(at, dtype(0))
            M = np.array([[at, above, below], [-at, -above, -below]])
            engine, nothing = self.make(M), LowRank.zero(M.shape)
            for kept in (
                engine.products(nothing, 0.1, np.eye(3), kept=True)[0],
                engine.products(nothing, 0.1, Y=np.eye(2), kept=True)[1].T,
                engine.core(nothing, 0.1, np.eye(2), np.eye(3))[0] != 0,
                engine.normal(nothing, 0.1, np.eye(2), np.eye(3)).times(np.ones((2, 3))),
                engine.corruption(nothing, 0.1)[0].toarray() == 0,
            ):
                np.testing.assert_array_equal(kept, [[1, 0, 1], [1, 0, 1]])
            assert engine.corruption(nothing, 0.1)[1].kept == 4

    def test_extremes_of_single_precision(self):
        """Residuals of zero, a threshold beyond the range of float32, squares beyond it."""
        M = np.zeros((4, 3), np.float32)
        M[1, 2] = 5
        engine, nothing = self.make(M), LowRank.zero(M.shape)
        for zeta, nnz in ((0.0, 1), (-1.0, 12), (1e300, 0)):
            S, trim = engine.corruption(nothing, zeta)
            assert (S.nnz, trim.trimmed, trim.largest) == (nnz, nnz, 0.0 if nnz else 5.0)
        for size in 1e-25, 1e25:
            M = np.full((5, 4), size, np.float32)
            trim = self.make(M).products(LowRank.zero(M.shape), np.inf, np.zeros((4, 1)))[-1]
            assert trim.energy == pytest.approx(20 * size**2, rel=1e-6)

    # The engine as an owner.

    def test_reads(self, stored, tmp_path):
        case = Case((30, 17), *stored)
        engine = self.make(case.M)
        normal = engine.normal(case.L, ZETA, case.Q1, case.Q2)
        for ask in (
            lambda: engine.core(case.L, ZETA, case.Q1, case.Q2),
            lambda: engine.normal(case.L, ZETA, case.Q1, case.Q2),
            lambda: normal.times(np.ones(normal.gradient.shape)),
            lambda: normal.products(case.L, case.X, case.Y),
            lambda: engine.products(case.L, ZETA, case.X, case.Y),
            lambda: engine.products(case.L, ZETA, case.col_weights, case.row_weights, kept=True),
            lambda: engine.corruption(case.L, ZETA),
            lambda: engine.write(case.L, ZETA, EvenRows(tmp_path)),
        ):
            before = engine.reads
            ask()
            assert engine.reads == before + 1
        before = engine.reads
        engine.block(np.arange(3), np.arange(5))
        self.looked_at(engine, 15 / 510, before)
        before = engine.reads
        engine.entries(np.arange(4), np.arange(4))
        self.looked_at(engine, 4 / 510, before)
        before = engine.reads
        engine.place(case.Q1)
        assert (engine.shape, engine.n_observed, engine.reads) == ((30, 17), 510, before)

    def test_an_answer_stays_as_it_was_given(self, stored):
        """No answer lives in memory that the next question writes to; nor does M, nor what a question holds."""
        case, lines = Case((30, 17), *stored), LinesCase((30, 17))
        engine, priors = self.make(case.M), lines.priors
        given = [case.M, lines.U, lines.V, *(getattr(prior, field.name) for prior in priors for field in fields(prior))]
        before = deepcopy(given)
        answers = self.thin_answers(engine, case, lines, ZETA)
        first = deepcopy(answers)
        self.thin_answers(engine, case, lines, 25.0)
        for now, copy in zip((*answers, *given), (*first, *before), strict=True):
            np.testing.assert_array_equal(now, copy)

    def thin_answers(self, engine, case, lines, zeta):
        G, _ = engine.core(case.L, zeta, case.Q1, case.Q2)
        TX, TY, _ = engine.products(case.L, zeta, case.X, case.Y)
        KX, KY, _ = engine.products(case.L, zeta, case.col_weights, case.row_weights, kept=True)
        S, _ = engine.corruption(case.L, zeta)
        return G, TX, TY, KX, KY, S.data, *(answer.mean for (answer,) in ask_lines((engine,), lines))

    def test_what_crosses_the_border_is_thin(self, tmp_path):
        """Every question of the protocol is asked; S, and what is asked for by its size, may be larger."""
        n1, n2 = self.border
        case, lines_case = Case((n1, n2)), LinesCase((n1, n2), 2)
        Q1, Q2 = (np.linalg.qr(np.random.default_rng(n).standard_normal((n, 4)))[0] for n in (n1, n2))
        engine = Watched(self.make(case.M))
        normal = Watched(engine.normal(case.L, ZETA, Q1, Q2))
        assert normal.gradient.shape == (4, 4) and isinstance(normal.trim, Trim)
        normal.times(np.eye(4))
        normal.products(case.L, Q2, Q1)
        found = engine.survey([Look((np.arange(5), np.arange(5)))])
        engine.recall(found)
        engine.forget()
        assert len(engine.glance(100)) == 100
        engine.mapped(of_every_kind(case.M)[1])
        engine.place(Q1)
        engine.core(case.L, ZETA, Q1, Q2)
        engine.products(case.L, ZETA, Q2, Q1)
        engine.products(case.L, ZETA, Q2, Q1, kept=True)
        engine.solve_lines(0, lines_case.U, lines_case.V, lines_case.noise, lines_case.priors[0])
        engine.solve_lines(1, lines_case.U, lines_case.V, lines_case.noise, lines_case.priors[1])
        engine.write(case.L, ZETA, EvenRows(tmp_path))
        assert engine.counts[0].shape == (n1,)
        asked_by_size = {"corruption", "block", "entries", "draw", "whole"}
        for watched, protocol, left_out in ((engine, Engine, asked_by_size), (normal, Normal, set())):
            assert questions(protocol) - left_out <= set(watched.largest)
            for name, size in watched.largest.items():
                assert size <= 16 * (n1 + n2), name

    # What it refuses.

    def test_entries_that_are_not_finite(self, stored_setting, tmp_path):
        """What is infinite is refused whichever question meets it, beside what is missing too."""
        dtype, layout, positive, _ = stored_setting
        bad, zeta = (np.inf, np.inf) if positive else (-np.inf, ZETA)
        case = Case((30, 17), dtype)
        M = np.array(case.M)
        M[2, 3] = M[2, 16] = M[29, 0] = bad
        M[4, 4] = np.nan
        engine, lines = self.make(laid_out(M, layout)), LinesCase(M.shape)
        for ask in (
            *self.reading(engine, case, lines, case.L, (lines.U, lines.V), zeta, tmp_path),
            *([engine.whole] if self.capabilities else []),
            lambda: engine.block(np.arange(30), np.arange(17)),
            lambda: engine.entries(np.array([2, 2, 29]), np.array([3, 16, 0])),
            lambda: engine.draw(1000, np.random.default_rng(0)),
        ):
            with pytest.raises(ValueError, match=f"M holds infinite values{self.where}; replace"):
                ask()
        engine.block(np.arange(2), np.arange(17))
        engine.entries(np.array([2]), np.array([4]))

    def test_an_L_that_is_not_finite_is_not_blamed_on_M(self, tmp_path):
        case, lines = Case((30, 17), np.float32), LinesCase((30, 17), 1)
        L = LowRank(np.full((30, 1), np.nan), np.ones((1, 1)), np.ones((17, 1)))
        for ask in self.reading(self.make(case.M), case, lines, L, (L.left, L.right), ZETA, tmp_path):
            with pytest.raises(FloatingPointError, match="not finite although M is"):
                ask()

    @staticmethod
    def reading(engine, case, lines, L, factors, zeta, folder):
        """Every question that reads all of M."""
        return (
            lambda: engine.core(L, zeta, case.Q1, case.Q2),
            lambda: engine.normal(L, zeta, case.Q1, case.Q2),
            lambda: engine.products(L, zeta, case.X),
            lambda: engine.products(L, zeta, Y=case.Y),
            lambda: engine.products(L, zeta, case.col_weights, case.row_weights, kept=True),
            lambda: engine.corruption(L, zeta),
            lambda: engine.write(L, zeta, EvenRows(folder)),
            lambda: engine.solve_lines(0, *factors, lines.noise, lines.priors[0]),
            lambda: engine.solve_lines(1, *factors, lines.noise, lines.priors[1]),
        )

    def test_capabilities(self):
        """What it cannot do it refuses; what it can do is tested."""
        engine = self.make(Case((7, 3)).M)
        assert isinstance(engine.capabilities, frozenset)
        assert engine.capabilities == self.capabilities
        if "whole" not in self.capabilities:
            with pytest.raises(NotImplementedError, match=f"one dense array.*the {engine.name} engine does not have"):
                engine.whole()
        assert isinstance(engine.dear, bool)
        with pytest.raises(ValueError, match="a block of 8192 × 2049 entries is more than the 16777216"):
            engine.block(np.zeros(1 << 13, int), np.zeros((1 << 11) + 1, int))


class EngineSuite(Owner):
    """Every answer against that of the reference engine."""

    def pair(self, M):
        return self.make(M), ReferenceEngine(M)

    def test_every_question(self, case):
        """Along rows, along columns, and both at once; of T, and of the kept entries as ones; and all of M."""
        pair = engine, reference = self.pair(case.M)
        ask_everything(pair, case, ZETA)
        *nothing, trim = engine.products(case.L, ZETA)
        assert nothing == [None, None] and trim == engine.products(case.L, ZETA, case.X)[-1]
        if "whole" in self.capabilities:
            same(np.asarray(to_device(engine.whole(), "cpu")), reference.whole(), case.dtype)
            assert engine.reads == 21

    @pytest.mark.parametrize(("prior", "units", "shape", "layout", "dtype"), LINES)
    def test_lines(self, monkeypatch, prior, units, shape, layout, dtype):
        to_the_end(monkeypatch)
        case, M, right = shared_lines(shape, units=units, prior=prior, dtype=dtype)
        engine = self.make(laid_out(M, layout))
        for (answer,), expected in zip(ask_lines((engine,), case), right, strict=True):
            same_lines(answer, expected)
        assert engine.reads == 2

    def test_lines_of_any_number_of_directions(self, monkeypatch):
        """None is a model, too: noise alone. More than there are entries in a line are held by the prior.

        Conjugate gradients that stop early are close: the coefficients to the digits asked for, the rest better.
        """
        case, M, right = shared_lines((65, 33))
        for (answer,), expected in zip(ask_lines((self.make(M),), case), right, strict=True):
            np.testing.assert_allclose(answer.coefficients, expected.coefficients, rtol=0, atol=1e-3)
            np.testing.assert_allclose(answer.mean, expected.mean, rtol=0, atol=1e-4)
        to_the_end(monkeypatch)
        for K, prior, shape in ((0, "basis", (7, 3)), (8, "constant", (7, 3)), (11, "basis", (65, 33))):
            case, M, right = shared_lines(shape, K, prior=prior)
            for (answer,), expected in zip(ask_lines((self.make(M),), case), right, strict=True):
                same_lines(answer, expected, 1e-8)

    def test_corruption(self, case, either):
        """By one threshold, and by residuals in units of their scale."""
        M = np.where(np.arange(case.M.size).reshape(case.M.shape) % 7 == 3, np.nan, case.M) if either else case.M
        for limit in ZETA, standardised(M.shape):
            engine, reference = self.pair(M)
            S, trim = engine.corruption(case.L, limit)
            expected, expected_trim = reference.corruption(case.L, limit)
            same_sparse(S, expected, case.dtype)
            same_trim(trim, expected_trim, case.dtype)
            assert S.nnz == trim.trimmed and engine.reads == 1
        turned, turned_trim = self.make(M.T).corruption(case.L.T, limit.T)
        same_sparse(turned, S.T.tocsr(), case.dtype)
        assert turned_trim.kept == trim.kept

    def test_mapped(self, stored, holes, monkeypatch):
        dtype, layout = stored
        to_the_end(monkeypatch)
        M, maps = of_every_kind(Case((30, 17), dtype).M)
        if holes:
            M[np.arange(M.size).reshape(M.shape) % 7 == 3] = np.nan
        same_of_latent_values(self.make(laid_out(M, layout)), M, maps)

    @pytest.mark.parametrize(
        ("kind", "dtype"),
        [
            ("everything in S", np.float32),
            ("rank 0", np.float32),
            ("more than columns", np.float64),
            ("wide core", np.float64),
            ("single precision", np.float64),
        ],
    )
    def test_thresholds_and_kinds_of_L(self, kind, dtype):
        case = Case((30, 17), dtype, rank={"rank 0": 0, "more than columns": 20}.get(kind, 2))
        if kind == "wide core":
            extra = np.random.default_rng(2).standard_normal((17, 2))
            core = np.hstack([case.L.core, np.full((2, 2), 1e-3)])  # small: residuals stay away from the threshold
            case.L = LowRank(case.L.left, core, np.hstack([case.L.right, extra]))
        elif kind == "single precision":
            case.L = LowRank(*(B.astype(np.float32) for B in (case.L.left, case.L.core, case.L.right)))
        zeta = -1.0 if kind == "everything in S" else ZETA
        ask_everything(self.pair(case.M), case, zeta, np.float32 if "single" in kind else dtype)


class LeanSuite(EngineSuite):
    """Without what a piece decides alone, and what is read of it."""

    setting = given_by(CASES[1:])
    stored_setting = given_by(STORED[1:])
    test_lines_of_any_number_of_directions = None
    test_thresholds_and_kinds_of_L = None
    test_an_entry_at_the_threshold_is_kept = None
    test_extremes_of_single_precision = None


PATTERNS = ["2 %", "50 %", "95 %", "empty rows", "empty columns", "one entry", "full rows", "last only"]


def pattern(kind, shape=(60, 41)):
    """Where a matrix is observed."""
    rng = np.random.default_rng(5)
    at = rng.random(shape)
    rows, cols = np.indices(shape)
    match kind:
        case "empty rows":
            return (at < 0.3) & (rows % 7 > 2) & (rows > 3) & (rows < shape[0] - 5)
        case "empty columns":
            return (at < 0.3) & (cols % 7 > 2) & (cols > 3) & (cols < shape[1] - 5)
        case "one entry":
            return (rows == 17) & (cols == 5)
        case "full rows":  # longer than a tile, and than all the others together
            return (at < 0.02) | (rows % 25 == 4)
        case "last only":
            return (rows == shape[0] - 1) & (cols > 30)
        case _:
            return at < float(kind.split()[0]) / 100


def listed(M, there):
    """The observed entries as a list; zeros stay."""
    rows, cols = np.nonzero(there)
    rows, cols = rows.astype(np.int32), cols.astype(np.int32)
    return csr_array((M[rows, cols], (rows, cols)), shape=M.shape)


def with_nan(M):
    """A list of entries as a dense matrix."""
    dense = np.full(M.shape, np.nan, M.dtype)
    dense[np.repeat(np.arange(M.shape[0]), np.diff(M.indptr)), M.indices] = M.data
    return dense


def asked_of_holes(ways, patterns=PATTERNS):
    """A fixture of a HolesSuite: every pattern by one of the ways, in turn, in one of the precisions."""
    settings = [(kind, way, DTYPES[(k + k // len(ways)) % 2]) for k, (kind, way) in enumerate(in_turn(patterns, ways))]
    return pytest.fixture(params=settings, ids=named)(lambda self, request: request.param)


def in_turn(patterns, ways):
    n = max(len(patterns), len(ways))
    return [(patterns[k % len(patterns)], list(ways)[k % len(ways)]) for k in range(n)]


class HolesSuite:
    """Some entries are observed. Say in ``make`` how to make an engine from a list of these, a CSR array."""

    shape = (60, 41)

    def make(self, way: str, entries: csr_array) -> Engine:
        raise NotImplementedError

    @pytest.fixture
    def there(self, hole):
        return pattern(hole[0], self.shape)

    @pytest.fixture
    def case(self, hole):
        return shared_case(self.shape, hole[2])

    def pair(self, M, there, hole):
        """The engine, and the reference."""
        return self.make(hole[1], listed(M, there)), ReferenceEngine(np.where(there, M, M.dtype.type(np.nan)))

    def test_every_question(self, hole, case, there):
        for zeta in ZETA, np.inf, -1.0:
            ask_everything(self.pair(case.M, there, hole), case, zeta)

    def test_write(self, hole, case, there, tmp_path):
        pair, answers = self.pair(case.M, there, hole), []
        sinks = [EvenRows(tmp_path / name) for name in ("engine", "reference")]
        for owner, sink in zip(pair, sinks, strict=True):
            sink.folder.mkdir()
            answers.append(owner.write(case.L, ZETA, sink))
        (counts, trim), (expected_counts, expected_trim) = answers
        for each, right in zip(counts, expected_counts, strict=True):
            np.testing.assert_array_equal(each, right)
        same_trim(trim, expected_trim, case.dtype)
        (*at, values, fitted), (*right_at, right_values, right_fitted) = (sink.given() for sink in sinks)
        for one, other in zip((*at, values), (*right_at, right_values), strict=True):
            np.testing.assert_array_equal(one, other)
        assert there[tuple(at)].all() and values.dtype == case.dtype
        np.testing.assert_allclose(fitted, right_fitted, rtol=0, atol=31 * TOLERANCE[case.dtype])
        assert pair[0].reads == pair[1].reads == 1

    def test_lines(self, hole, there, monkeypatch):
        to_the_end(monkeypatch)
        k = PATTERNS.index(hole[0])
        case = LinesCase(there.shape, units=bool(k % 2), prior=PRIORS[k % len(PRIORS)])
        M = np.where(there, case.M, np.nan).astype(hole[2])
        engine, _ = self.pair(M, there, hole)
        for (answer,), expected in zip(ask_lines((engine,), case), solve_both(M, case), strict=True):
            same_lines(answer, expected, 1e-8)
            assert answer.sums.n_observed == there.sum()
        assert engine.reads == 2

    def test_mapped(self, hole, case, there, monkeypatch):
        to_the_end(monkeypatch)
        M, maps = of_every_kind(case.M)
        engine, _ = self.pair(M, there, hole)
        same_of_latent_values(engine, np.where(there, M, M.dtype.type(np.nan)), maps)

    def test_what_is_observed(self, hole, case, there):
        engine, _ = self.pair(case.M, there, hole)
        rng = np.random.default_rng(1)
        n1, n2 = there.shape
        rows, cols = rng.integers(0, n1, 300), rng.integers(0, n2, 300)  # in no order, many twice
        M = np.where(there, case.M, case.dtype(np.nan))
        for some in (rows, cols), (np.arange(n1), np.arange(n2)), (rows[:0], cols), (rows, cols[:0]):
            block = engine.block(*some)
            assert block.dtype == case.dtype
            np.testing.assert_array_equal(block, M[some[0]][:, some[1]])
        entries = engine.entries(rows, cols)
        assert entries.dtype == case.dtype
        np.testing.assert_array_equal(entries, M[rows, cols])
        assert engine.entries(rows[:0], cols[:0]).shape == (0,)
        assert (engine.shape, engine.dtype, engine.n_observed) == (there.shape, case.dtype, there.sum())
        for counts, axis in zip(engine.counts, (1, 0), strict=True):
            np.testing.assert_array_equal(counts, there.sum(axis=axis))
        if "whole" in engine.capabilities:
            np.testing.assert_array_equal(np.asarray(to_device(engine.whole(), "cpu")), M)

    def test_draw(self, hole, case, there):
        for size in 1, 13, 10_000:
            engine, _ = self.pair(case.M, there, hole)
            rows, cols, values = engine.draw(size, np.random.default_rng(2))
            assert len(rows) == len(cols) == len(values) == min(size, there.sum())
            assert values.dtype == case.dtype and there[rows, cols].all()
            np.testing.assert_array_equal(values, case.M[rows, cols])
            if size > there.sum():
                assert len(set(zip(rows.tolist(), cols.tolist(), strict=True))) == there.sum()
