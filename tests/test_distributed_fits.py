"""Whole fits of an M in chunks: those of the same M in memory."""

from dataclasses import replace
from functools import cache

import dask.array as da
import numpy as np
import pytest
from engines.test_distributed import in_sparse_tiles, parquet_file
from engines.test_listed import listed, with_nan

import irpca
from irpca import Status, constants
from irpca.engines.distributed import observations
from irpca.solvers import SOLVERS

SHAPE = 200, 150
CHUNKS = {
    "rows": (70, 150),
    "columns": (200, 40),
    "tiles": ((3, 97, 100), (100, 50)),
}
OTHERS = [name for name, solver in SOLVERS.items() if name != "irpca" and not solver.needs]


@cache
def problem():
    return irpca.datasets.make_problem(*SHAPE, d1=6, d2=5, rank=2, corruption=0.1)


@cache
def table(kind):
    """M: exact, noisy, noisy with a fifth missing, or the list of a fifth."""
    rng = np.random.default_rng(1)
    M = problem().M + (0 if "exact" in kind else 1e-3 * rng.standard_normal(SHAPE))
    some = rng.random(SHAPE) < 0.2
    return listed(M, some) if "listed" in kind else np.where(some, np.nan, M) if "holes" in kind else M


def asked(kind, which):
    """Features; without any, a rank, except for lists: to compare ranks takes many fits of noisy tables."""
    given = {"rank": 2} if which == "none" and kind in ("noisy", "holes") else {}
    return features(which), given


def features(which):
    return problem().F1 if which in ("both", "rows") else None, problem().F2 if which == "both" else None


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """What is done for tables that are too large to be held in memory as a whole."""
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=1 << 13))


@cache
def fit_in_memory(kind, which, **options):
    return irpca.solve(table(kind), *features(which), **options)


def same_fit(result, right, tolerance=1e-10):
    """L is the same to rounding, and S has the same entries."""
    assert (result.engine, right.engine) == ("distributed", "memory")
    assert (result.status, result.rank, result.solver) == (right.status, right.rank, right.solver)
    expected = right.L.dense()
    assert np.abs(result.L.dense() - expected).max() <= tolerance * np.abs(expected).max()
    np.testing.assert_equal(result.counts, right.counts)
    np.testing.assert_equal((result.S.indptr, result.S.indices), (right.S.indptr, right.S.indices))
    scale = np.abs(right.S.data).max(initial=0)
    np.testing.assert_allclose(result.S.data, right.S.data, rtol=0, atol=10 * tolerance * scale)
    noise = right.noise if right.noise is None else pytest.approx(right.noise, rel=1e-6, abs=1e-15)
    assert result.noise == noise
    assert [doubt.kind for doubt in result.doubts] == [doubt.kind for doubt in right.doubts]


FITS = [  # every kind with all features, by rows alone and without any; every kind of chunks
    ("exact", "both", "tiles"),
    ("exact", "rows", "columns"),
    ("exact", "none", "tiles"),
    ("noisy", "both", "columns"),
    ("noisy", "rows", "tiles"),
    ("noisy", "none", "rows"),
    ("holes", "both", "tiles"),
    ("holes", "rows", "rows"),
    ("holes", "none", "columns"),
]


@pytest.mark.parametrize(("kind", "which", "chunks"), FITS)
def test_dense_chunks(kind, which, chunks):
    F, given = asked(kind, which)
    result = irpca.solve(da.from_array(table(kind), chunks=CHUNKS[chunks]), *F, **given)
    same_fit(result, fit_in_memory(kind, which, **given), 1e-10 if kind == "exact" else 1e-9)
    assert result.status is Status.CONVERGED
    assert problem().relative_error(result.L) < (1e-10 if kind == "exact" else 0.1)
    if (kind, which) == ("exact", "both"):
        assert result.reads == 2


@pytest.mark.parametrize("which", ["both", "rows", "none"])
@pytest.mark.parametrize("kind", ["listed, exact", "listed"])
def test_listed_chunks(kind, which):
    M = table(kind)
    result = irpca.solve(in_sparse_tiles(M, (70, 1, 129), (150,)), *features(which))
    same_fit(result, fit_in_memory(kind, which), 1e-10 if "exact" in kind else 1e-9)
    assert result.status is Status.CONVERGED and problem().relative_error(result.L) < 0.2


def test_listed_tiles():
    """Entries are drawn in the order of chunks, which are others than in memory: the same fit, not to the last bit."""
    result = irpca.solve(in_sparse_tiles(table("listed, exact"), (70, 130), (100, 50)), *features("both"))
    same_fit(result, fit_in_memory("listed, exact", "both"))
    noisy = irpca.solve(in_sparse_tiles(table("listed"), (70, 130), (100, 50)), *features("both"))
    right = fit_in_memory("listed", "both")
    assert np.abs(noisy.L.dense() - right.L.dense()).max() < 0.1 * right.noise
    assert noisy.rank == right.rank


def test_a_parquet_file(tmp_path, monkeypatch):
    monkeypatch.setattr(observations, "BAND_ENTRIES", 2500)
    result = irpca.solve(parquet_file(tmp_path / "M.parquet", with_nan(table("listed"))), *features("rows"))
    same_fit(result, fit_in_memory("listed", "rows"), 1e-9)


@pytest.mark.parametrize("kind", ["exact", "holes, exact"])
@pytest.mark.parametrize("solver", OTHERS)
def test_other_solvers(solver, kind):
    if (solver, kind) == ("ircur", "holes, exact"):
        with pytest.raises(ValueError, match="needs complete rows and columns"):
            irpca.solve(da.from_array(table(kind), chunks=CHUNKS["tiles"]), rank=2, solver=solver)
        return
    which, options = "both" if SOLVERS[solver].features else "none", {"rank": 2, "solver": solver, "tol": 1e-6}
    result = irpca.solve(da.from_array(table(kind), chunks=CHUNKS["tiles"]), *features(which), **options)
    same_fit(result, fit_in_memory(kind, which, **options))


@pytest.mark.parametrize("which", ["both", "rows", "none"])
@pytest.mark.parametrize("kind", ["exact", "noisy"])
def test_all_looks_at_a_small_table_are_one_read(kind, which, monkeypatch):
    """The others are those of the fit in memory: its sweeps, and that for S."""
    monkeypatch.undo()
    M = da.from_array(table(kind), chunks=CHUNKS["tiles"])
    F, given = asked(kind, which)
    result, right = irpca.solve(M, *F, **given), irpca.solve(table(kind), *F, **given)
    same_fit(result, right, 1e-10)
    assert result.reads <= 1 + right.reads
