"""What must not depend on how a small table is written down; each property is tried on tables that hypothesis draws.

Exact tables, those that features and a rank explain but for a few gross errors, have one answer, and it moves with the
table: through an order of rows and columns, transposition, units, another mixture of features, a row of zeros. Of noisy
tables L is chosen among candidates by cells that chance holds out, so there only what leaves the order of the cells
alone must leave the answer alone: the storage, the engine, powers of two, a file, a second fit.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array

import irpca

from .tally import Tally

EXACT = 1e-8  # of the largest value: rounding of an exact fit
NOISY = 1e-6  # of the same of a noisy one, which goes through a hundred iterations


@dataclass(frozen=True)
class Table:
    """A table, its features, and what it was made of."""

    M: Any
    F1: Any
    F2: Any
    rank: int
    noisy: bool
    seed: int

    @property
    def scale(self) -> float:
        return float(np.nanmax(np.abs(self.M)))

    @property
    def rng(self) -> np.random.Generator:
        """For what is done to it."""
        return np.random.default_rng([self.seed, 1])


@st.composite
def exact_tables(draw: Any) -> Table:
    """Features of both sides, one or two components, at most one gross error in a row or column, some holes."""
    n1, n2 = draw(st.integers(12, 25)), draw(st.integers(12, 25))
    d1, d2, rank = draw(st.integers(2, 4)), draw(st.integers(2, 4)), draw(st.integers(1, 2))
    errors, holes = draw(st.integers(0, 4)), draw(st.booleans())
    chance = draw(st.integers(0, 2**32))
    rng = np.random.default_rng([chance, 0])
    F1, F2 = rng.standard_normal((n1, d1)), rng.standard_normal((n2, d2))
    M = F1 @ rng.standard_normal((d1, rank)) @ rng.standard_normal((rank, d2)) @ F2.T
    rows, cols = rng.permutation(n1)[:errors], rng.permutation(n2)[:errors]
    M[rows, cols] += rng.choice((-1, 1), errors) * rng.uniform(3, 9, errors) * np.abs(M).max()
    if holes:
        M[rng.random(M.shape) < 0.05] = np.nan
    return Table(M, F1, F2, rank, False, chance)


@st.composite
def noisy_tables(draw: Any) -> Table:
    """Any table: features of none, one or both sides, noise, gross errors, holes, single precision."""
    n1, n2 = draw(st.integers(6, 16)), draw(st.integers(6, 16))
    chance = draw(st.integers(0, 2**32))
    sides, holes, single = draw(st.integers(0, 3)), draw(st.booleans()), draw(st.booleans())
    rng = np.random.default_rng([chance, 0])
    F1, F2 = rng.standard_normal((n1, 2)), rng.standard_normal((n2, 2))
    M = F1 @ F2.T + 0.1 * rng.standard_normal((n1, n2))
    M[rng.integers(n1), rng.integers(n2)] += 20
    if holes:
        M[rng.random(M.shape) < 0.08] = np.nan
    M = M.astype(np.float32 if single else np.float64)
    return Table(M, F1 if sides & 1 else None, F2 if sides & 2 else None, 1, True, chance)


def solved(M: Any, F1: Any, F2: Any, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return irpca.solve(M, F1, F2, **more)


def fitted(table: Table, M: Any = None, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = irpca.InductiveRobustPCA(**more)
        return model.fit(table.M if M is None else M, row_features=table.F1, col_features=table.F2)


def trusted(*results: Any) -> bool:
    """Whether all of them say that they found the exact answer. Whether they do is not what is asked here."""
    return all(result.usable == "usable" and result.noise == 0 for result in results)


def same(found: Any, wanted: Any, atol: float) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


def moved(table: Table, change: Callable[[Any], Any], F1: Any, F2: Any, M: Any = None, factor: float = 1.0) -> bool:
    """Solve the table and the changed one, and compare; False if one of them is not trusted."""
    one = solved(table.M, table.F1, table.F2, rank=table.rank)
    other = solved(change(table.M) if M is None else M, F1, F2, rank=table.rank)
    if not trusted(one, other):
        return False
    atol = EXACT * table.scale * factor
    same(other.L.dense(), change(one.L.dense()) * factor, atol)
    same(other.S.toarray(), change(one.S.toarray()) * factor, atol)
    return True


def order(table: Table) -> bool:
    """The order of rows and columns."""
    i, j = (table.rng.permutation(n) for n in table.M.shape)
    return moved(table, lambda A: A[i][:, j], table.F1[i], table.F2[j])


def transposition(table: Table) -> bool:
    return moved(table, np.transpose, table.F2, table.F1)


def units(table: Table) -> bool:
    """A table in other units, by a power of ten."""
    factor = 10.0 ** int(table.rng.integers(-6, 7))
    return moved(table, lambda A: A, table.F1, table.F2, factor * table.M, factor)


def mixture(table: Table) -> bool:
    """Other features that span the same."""
    d = table.F1.shape[1]
    A = np.linalg.qr(table.rng.standard_normal((d, d)))[0] * table.rng.uniform(0.5, 2, d)
    return moved(table, lambda M: M, table.F1 @ A, table.F2)


def row_of_zeros(table: Table) -> bool:
    """A row of zeros whose features are zero."""

    def longer(A: Any) -> Any:
        return np.vstack([A, np.zeros(A.shape[1])])

    return moved(table, longer, longer(table.F1), table.F2)


def empty_row(table: Table) -> bool:
    """A row without observations is what its features say, and changes nothing else."""
    features = table.rng.standard_normal((1, table.F1.shape[1]))
    one = solved(table.M, table.F1, table.F2, rank=table.rank)
    M = np.vstack([table.M, np.full(table.M.shape[1], np.nan)])
    other = solved(M, np.vstack([table.F1, features]), table.F2, rank=table.rank)
    if not trusted(one) or other.noise != 0:  # of the empty row there is a doubt
        return False
    L = other.L.dense()
    same(L[:-1], one.L.dense(), EXACT * table.scale)
    same(L[-1:], features @ one.W @ table.F2.T, 100 * EXACT * table.scale)
    assert other.S[[-1]].nnz == 0
    return True


def storages(table: Table, which: int) -> Any:
    """The same table, stored in another way."""
    M = table.M
    rows, cols = np.nonzero(~np.isnan(M))
    listed = coo_array((M[rows, cols], (rows, cols)), shape=M.shape)
    ways: list[Callable[[], Any]] = [
        lambda: np.asfortranarray(M),
        lambda: np.ma.masked_invalid(M),
        lambda: csr_array(listed),
        lambda: listed,
        lambda: irpca.LongTable(rows, cols, M[rows, cols], M.shape),
        lambda: np.repeat(np.repeat(M, 2, axis=0), 2, axis=1)[::2, ::2],
        lambda: M.tolist() if M.dtype == float else M.copy(),
    ]
    return ways[which % len(ways)]()


def storage(table: Table, **asked: Any) -> bool:
    """Whatever M is stored in; to rounding, since sums run in another order."""
    one = solved(table.M, table.F1, table.F2, **asked)
    other = solved(storages(table, table.seed), table.F1, table.F2, **asked)
    return alike(table, one, other)


def alike(table: Table, one: Any, other: Any) -> bool:
    atol = (NOISY if table.noisy else EXACT) * table.scale * (1e4 if table.M.dtype == np.float32 else 1)
    same(other.L.dense(), one.L.dense(), atol)
    same(other.S.toarray(), one.S.toarray(), atol)
    assert (other.status, other.rank) == (one.status, one.rank)
    return True


def exact_storage(table: Table) -> bool:
    return storage(table, rank=table.rank)


def paper(table: Table) -> bool:
    """The paper's own algorithm, and others of the field, whatever M is stored in."""
    name = ("irpca_iht", "altproj", "pca", "accaltproj")[table.seed % 4]
    return storage(table, rank=table.rank, solver=name)


def engines(table: Table) -> bool:
    """The engine in memory and the one that is written to be read."""
    one = solved(table.M, table.F1, table.F2, rank=table.rank, engine="memory")
    return alike(table, one, solved(table.M, table.F1, table.F2, rank=table.rank, engine="reference"))


def again(table: Table) -> bool:
    """The same call, the same bits; and what was handed in stays as it was."""
    before = table.M.tobytes(), table.F1.tobytes()
    one, other = (solved(table.M, table.F1, table.F2, rank=table.rank) for _ in range(2))
    assert one.L.dense().tobytes() == other.L.dense().tobytes()
    assert one.S.toarray().tobytes() == other.S.toarray().tobytes()
    assert before == (table.M.tobytes(), table.F1.tobytes())
    return True


def answers(table: Table) -> bool:
    """What a model says is well formed, and the same after a file."""
    model = fitted(table, **({} if table.noisy else {"rank": table.rank}))
    assert isinstance(model.status_, irpca.Status) and model.result_.usable in ("usable", "use with care", "do not use")
    expected, std = model.expected(return_std=True)
    seen = ~np.isnan(table.M)
    known = np.ix_(*model.result_.known)
    assert np.isfinite(expected[known][seen[known]]).all() and (std[known] >= 0).all()
    found = model.outliers()
    sure = found["probability"]
    assert ((sure >= 0) & (sure <= 1) | np.isnan(sure)).all() and seen[found["row"], found["column"]].all()
    assert (np.diff(np.nan_to_num(sure)) <= 0).all()
    repaired = model.repaired()
    assert np.isfinite(repaired[known]).all()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.irpca")
        model.save(path)
        loaded = irpca.load(path)
    assert loaded.expected().tobytes() == model.expected().tobytes()
    assert loaded.transform(table.M).tobytes() == model.transform(table.M).tobytes()
    assert loaded.outliers().tobytes() == found.tobytes() and loaded.summary() == model.summary()
    return True


def powers_of_two(table: Table) -> bool:
    """A table in units that binary numbers know changes nothing but the units, to rounding, noise or not."""
    factor = 2.0 ** int(table.rng.integers(-20, 21))
    one = solved(table.M, table.F1, table.F2)
    other = solved((table.M * factor).astype(table.M.dtype), table.F1, table.F2)
    atol = NOISY * table.scale * (1e4 if table.M.dtype == np.float32 else 1)
    same(other.L.dense() / factor, one.L.dense(), atol)
    same(other.S.toarray() / factor, one.S.toarray(), atol)
    return True


def noisy_storage(table: Table) -> bool:
    return storage(table)


# Properties, of which tables, and which share of the examples each has. A noisy fit takes fifty times as long.
PROPERTIES: dict[str, tuple[Callable[[Table], bool], Any, float]] = {
    "order": (order, exact_tables(), 0.14),
    "transposition": (transposition, exact_tables(), 0.12),
    "units": (units, exact_tables(), 0.12),
    "mixture": (mixture, exact_tables(), 0.1),
    "row of zeros": (row_of_zeros, exact_tables(), 0.07),
    "empty row": (empty_row, exact_tables(), 0.07),
    "storage": (exact_storage, exact_tables(), 0.12),
    "other solvers": (paper, exact_tables(), 0.09),
    "engines": (engines, exact_tables(), 0.06),
    "again": (again, exact_tables(), 0.05),
    "answers": (answers, exact_tables(), 0.03),
    "noise: storage": (noisy_storage, noisy_tables(), 0.01),
    "noise: powers of two": (powers_of_two, noisy_tables(), 0.01),
    "noise: answers": (answers, noisy_tables(), 0.01),
}


def run(tally: Tally) -> None:
    for name, (holds, tables, share) in PROPERTIES.items():
        if tally.over():
            break
        attempt(tally, name, holds, tables, max(1, round(share * len(tally.numbers()))))


def attempt(tally: Tally, name: str, holds: Callable[[Table], bool], tables: Any, count: int) -> None:
    """Try one property; hypothesis makes what fails small."""
    smallest: list[Table] = []
    kept = {"examples": 0}

    @seed(tally.seed * 1000 + tally.part[0])
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(tables)
    def check(table: Table) -> None:
        if tally.over():
            return
        smallest[:] = [table]
        held = holds(table)
        if not kept.get("failed"):
            kept["examples"] += 1
            tally.outcomes[name if held else f"{name}, not trusted"] += 1

    def counted(table: Table) -> bool:
        try:
            return inner(table)
        except BaseException:
            kept["failed"] = 1
            raise

    inner, holds = holds, counted
    try:
        check()
    except Exception as error:
        tally.outcomes[f"{name}, failed"] += 1
        tally.fail(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}", described(smallest[0]))


def described(table: Table) -> str:
    sides = [None if F is None else F.shape for F in (table.F1, table.F2)]
    M = f"M {table.M.shape} {table.M.dtype}, {np.isnan(table.M).sum()} holes"
    return f"{M}, F1 {sides[0]}, F2 {sides[1]}, rank {table.rank}, seed {table.seed}"
