"""Every check of a finished fit at its limit: a little beyond it there is a doubt, a little within it there is none."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from irpca import verdict
from irpca.engines import ReferenceEngine
from irpca.features import Features
from irpca.lowrank import LowRank
from irpca.model.entry_scale import Judge
from irpca.result import Certificate, Choice, State, Status
from irpca.verdict import Case, Places, Residuals


def residuals(R, L=None, values=None, kept=None):
    """Residuals of standard deviation 1."""
    R = np.asarray(R, float)
    L = np.zeros(R.shape) if L is None else L
    kept = np.ones(R.shape, bool) if kept is None else kept
    return Residuals(L + R if values is None else values, L, R, np.ones(R.shape), kept)


def case(**fields):
    """What a check looks at, of a fit of rank 2 to a table of 40 × 30."""
    usual = {
        "noiseless": False,
        "exact": False,
        "step": 0.0,
        "tied": (False, False),
        "L": SimpleNamespace(rank=2),
        "engine": SimpleNamespace(shape=(40, 30), counts=(np.full(40, 30), np.full(30, 40)), n_observed=1200),
        "features": (Features.identity(40), Features.identity(30)),
        "state": SimpleNamespace(
            certificate=None, fit=None, shares={}, choices=(), expected=None, scale=None, doubts=()
        ),
    }
    return SimpleNamespace(**usual | fields)


def doubted(check, **fields):
    return [doubt.text for doubt in check(case(**fields))]


def certified(moved=0.0, disagreement=0.0):
    return SimpleNamespace(certificate=Certificate(moved, (("one", 0.0, 0.1),), "one", disagreement))


# How the fit was found


@pytest.mark.parametrize(("statistical", "most"), [(0.0, 0.02), (0.015, 0.02), (0.3, 0.3)])
def test_instability(statistical, most):
    """Two per cent, or what noise does to L."""
    for moved, seen in ((1.02 * most, 1), (most, 0), (0.98 * most, 0)):
        assert len(doubted(verdict.unstable, state=certified(moved), statistical=statistical)) == seen
    far = {"state": certified(9.0), "statistical": 0.0}
    assert doubted(verdict.unstable, **far)
    assert not doubted(verdict.unstable, **far, noiseless=True)
    assert not doubted(verdict.unstable, **far, L=SimpleNamespace(rank=0))
    assert ", or set a lower rank=" in doubted(verdict.unstable, **far)[0]
    assert "lower rank" not in doubted(verdict.unstable, **far, L=SimpleNamespace(rank=1))[0]


@pytest.mark.parametrize(("statistical", "most"), [(0.0, 0.05), (0.04, 0.05), (0.3, 0.3)])
def test_disagreement(statistical, most):
    for apart, seen in ((1.02 * most, 1), (most, 0), (0.98 * most, 0)):
        state = certified(disagreement=apart)
        assert len(doubted(verdict.candidates_disagree, state=state, statistical=statistical)) == seen
    assert not doubted(verdict.candidates_disagree, state=certified(disagreement=9.0), statistical=0, noiseless=True)


def a_fit(shape, rank=2, noise=0.1, seed=0, features=(None, None)):
    """A case on a table, with the noise there is."""
    rng = np.random.default_rng(seed)
    L = LowRank.from_product(*(rng.standard_normal((n, rank)) for n in shape))
    M = L.dense() + noise * rng.standard_normal(shape)
    return Case(
        ReferenceEngine(M),
        tuple(Features.of(F, n) for F, n in zip(features, shape, strict=True)),
        State(L, 1.0, 0.0, noise=noise),
        None,
        Judge(1.0, known=tuple(np.ones(n, bool) for n in shape)),
        Status.CONVERGED,
        0.9,
        np.random.SeedSequence(5),
    )


@pytest.mark.parametrize("shape", [(60, 40), (40, 60)])
def test_the_standard_error_of_least_squares(shape):
    """Against least squares for the factors of one side given the other: its error is that of as many unknowns."""
    fit, rng = a_fit(shape), np.random.default_rng(1)
    Q1, Q2 = (np.linalg.qr(A)[0] for A in fit.L.thin())
    squares = []
    for _ in range(100):
        N = 0.1 * rng.standard_normal(shape)
        moved = Q1 @ (Q1.T @ N) + N @ Q2 @ Q2.T - Q1 @ (Q1.T @ N @ Q2) @ Q2.T  # within the matrices of rank 2
        squares.append(np.mean(moved**2))
    assert fit.error(shape, shape[0] * shape[1]) == pytest.approx(np.sqrt(np.mean(squares)), rel=0.03)
    size = np.sqrt(np.mean(fit.L.dense() ** 2))
    assert fit.statistical == pytest.approx(np.sqrt(np.mean(squares)) / size, rel=0.03)
    assert fit.error(shape, shape[0] * shape[1] / 4) == pytest.approx(2 * fit.error(shape, shape[0] * shape[1]))


@pytest.mark.parametrize("shape", [(1000, 400), (400, 1000), (60, 2000)])
def test_the_standard_error_on_the_part_on_which_fits_are_compared(shape):
    """12,000 entries: as square as the table allows."""
    fit = a_fit(shape)
    short = min(*shape, np.sqrt(12_000))
    unknowns = 2 * (short + 12_000 / short - 2)
    size = np.sqrt(np.mean(fit.L.dense() ** 2))
    assert fit.statistical == pytest.approx(0.1 * np.sqrt(unknowns / 12_000) / size, rel=1e-6)


def test_features_leave_fewer_unknowns():
    rng = np.random.default_rng(3)
    fit = a_fit((60, 40), features=(rng.standard_normal((60, 5)), None))
    assert fit.error((60, 40), 2400) == pytest.approx(0.1 * np.sqrt(2 * (5 + 40 - 2) / 2400))


def test_a_fit_without_noise_is_known_by_its_residuals():
    assert not a_fit((60, 40)).noiseless
    assert a_fit((60, 40), noise=0.0).noiseless
    for noise, expected in ((2e-6, True), (5e-5, False)):  # 1e-5 of the size of L, which is about 1.4
        assert a_fit((60, 40), noise=noise).noiseless == expected


def test_places_are_those_of_the_table():
    places = Places((30, 20), np.random.SeedSequence(1))
    for axis, (n, across) in enumerate(((30, 20), (20, 30))):
        first, near, far, other = places.pairs(axis)
        assert len(first) == 600 and set(first) == set(range(n - 1)) and set(far) == set(range(n))
        np.testing.assert_array_equal(near, first + 1)
        assert set(other) == set(range(across))
    rows, cols = places.lines
    np.testing.assert_array_equal(rows, np.arange(30))
    np.testing.assert_array_equal(cols, np.arange(20))
    cells = [look.cells for look in places.looks() if look.cells is not None]
    assert len(cells) == 6 and all(rows.max() < 30 and cols.max() < 20 for rows, cols in cells)


def test_moments_that_are_kept_against_those_of_all():
    """8 entries along each of two directions, of the second half are kept: 4 / 8, by a share of 12 / 16."""
    B = np.repeat(np.eye(2), 8, axis=0)
    kept = np.arange(16) < np.array([[12], [16], [8], [0]])
    found = verdict._least_moments(B, kept, np.ones((1, 16), bool))
    np.testing.assert_allclose(found, [0.5 / 0.75, 1.0, 0.0, 1.0])


def test_the_lines_with_most_outliers_are_suspects():
    counts = np.array([10, 10, 0, 10, 4])
    found = case(
        outliers=(np.array([1, 0, 0, 5, 3]), None),
        engine=SimpleNamespace(counts=(counts, None)),
        known=(np.array([True, True, True, True, True]), None),
    )
    np.testing.assert_array_equal(verdict._suspects(found, 0), [0, 3, 4])
    found.known = (np.arange(5) != 3, None)
    np.testing.assert_array_equal(verdict._suspects(found, 0), [0, 4])


# The values


def pile(counts):
    """Values 0, 1, … that occur so often, scattered over three columns."""
    values = np.repeat(np.arange(len(counts)), counts).astype(float)
    cols = np.arange(len(values)) % 3
    look = residuals(np.zeros(len(values)), values=values)
    return {"sample": look, "drawn": (cols, cols, values)}


@pytest.mark.parametrize(
    ("counts", "seen"),
    [
        ([1] * 490 + [21] + [1] * 489, True),  # 2.1 % of 1000, and 21 times its neighbours
        ([1] * 490 + [19] + [1] * 489, False),
        ([3] * 100 + [62] + [3] * 100, True),  # 20 times its neighbours
        ([3] * 100 + [58] + [3] * 100, False),
        ([21] + [4] * 50, True),  # at a bound, 5 times
        ([19] + [4] * 50, False),
        ([19] + [4] * 10 + [3] * 40, False),  # next to that end
        ([4] * 50 + [21], True),
        ([4] * 50 + [19], False),
        ([4] * 25 + [30] + [4] * 25, False),  # within, that is not enough
        ([30] * 7 + [70] + [1] * 5, False),  # those before it count
        ([1, 1, 90, 1, 1], False),  # fewer than six values
        ([1, 1, 1, 90, 1, 1], True),
    ],
)
def test_a_value_that_occurs_too_often(counts, seen):
    assert bool(doubted(verdict.piled_up, **pile(counts))) == seen
    assert not doubted(verdict.piled_up, **pile(counts), exact=True)


def test_where_a_piled_up_value_is():
    assert "exactly 0, the smallest value" in doubted(verdict.piled_up, **pile([40] + [4] * 50))[0]
    assert "exactly 50, the largest value" in doubted(verdict.piled_up, **pile([4] * 50 + [40]))[0]
    assert "exactly 25, one value" in doubted(verdict.piled_up, **pile([4] * 25 + [100] + [4] * 25))[0]
    assert doubted(verdict.piled_up, **pile([4] * 25 + [100] + [4] * 25))[0].startswith("33.3% of the cells")


@pytest.mark.parametrize(("elsewhere", "constant"), [(9, True), (10, False)])
def test_columns_of_one_value_hold_most_of_it(elsewhere, constant):
    cols = np.r_[np.zeros(10, int), np.ones(30, int)]
    values = np.r_[np.full(10, 7.0), np.full(elsewhere, 7.0), 100.0 + np.arange(30 - elsewhere)]
    assert verdict._constant_columns(case(drawn=(cols, cols, values)), 7.0) == constant


@pytest.mark.parametrize(("off", "seen"), [(0.49, 1), (0.51, 0)])
def test_steps_beside_residuals(off, seen):
    """A step of two standard deviations: a third of the variance of the residuals is rounding."""
    look = residuals(off * np.array([1, -1] * 50))
    assert len(doubted(verdict.coarse, sample=look, step=1.0)) == seen
    assert not doubted(verdict.coarse, sample=look, step=1.0, noiseless=True)


@pytest.mark.parametrize(("far", "seen"), [(3.05, True), (2.95, False), (-0.05, True), (0.05, False)])
def test_expected_values_beyond_the_range_once_again(far, seen):
    """Entries are from 1 to 2."""
    left = np.full((40, 1), 1.5)
    left[11] = far
    L = LowRank.from_product(left, np.ones((30, 1)))
    none = residuals(np.zeros((40, 30)), kept=np.zeros((40, 30), bool))
    look = residuals(np.zeros(5), values=np.array([1.0, 2.0, 1.5, 1.2, 9.0]), kept=np.arange(5) < 4)
    fields = {"L": L, "sample": look, "across": lambda *lines: none}
    known = np.ones(40, bool), np.ones(30, bool)
    found = list(verdict.out_of_range(case(**fields, known=known)))
    assert bool(found) == seen
    if seen:
        assert found[0].rows == (11,) and f"reach {far:.3g} (row 11, column " in found[0].text
    assert not doubted(verdict.out_of_range, **fields, known=(np.arange(40) != 11, known[1]))
    assert not doubted(verdict.out_of_range, **fields, known=(np.zeros(40, bool), known[1]))


def test_the_longest_lines_first(monkeypatch):
    B, known = np.array([[1.0], [3.0], [-2.0], [3.0], [9.0]]), np.array([True, True, True, True, False])
    np.testing.assert_array_equal(verdict._longest(B, None, known), [1, 3, 2, 0])
    monkeypatch.setattr(verdict.constants, "BUDGET", replace(verdict.constants.BUDGET, lines=2))
    np.testing.assert_array_equal(verdict._longest(B, None, known), [1, 3])
    assert not len(verdict._longest(B, None, np.zeros(5, bool)))


@pytest.mark.parametrize(("number", "seen"), [(2, 1), (3, 1), (4, 0)])
def test_few_values(number, seen):
    fields = {"distinct": (np.arange(number), np.ones(number))}
    assert len(doubted(verdict.few_values, **fields)) == seen
    assert not doubted(verdict.few_values, **fields, noiseless=True)
    assert not doubted(verdict.few_values, **fields, L=SimpleNamespace(rank=0))


# The residuals


def skewed_by(skew, n):
    """Residuals whose tenths are −1, 0 and (1 + skew) / (1 − skew), and 0.3 more."""
    high = (1 + skew) / (1 - skew)
    return residuals(0.3 + np.interp(np.linspace(0, 1, n), [0, 0.1, 0.5, 0.9, 1], [-9, -1, 0, high, 9]))


@pytest.mark.parametrize(
    ("skew", "n", "seen"),
    [
        (0.16, 9001, 1),
        (0.14, 9001, 0),
        (-0.16, 9001, 1),
        (-0.14, 9001, 0),
        (0.28, 401, 1),
        (0.25, 401, 0),
        (0.9, 99, 0),
    ],
)
def test_skewness(skew, n, seen):
    """Of a small sample, five standard errors: 5 · 1.07 / √401 = 0.267."""
    found = doubted(verdict.skewed, sample=skewed_by(skew, n))
    assert len(found) == seen
    if seen:
        assert f"skewness {skew:+.2f}" in found[0] and ("above" in found[0]) == (skew > 0)
    assert not doubted(verdict.skewed, sample=skewed_by(skew, n), step=0.1)
    assert not doubted(verdict.skewed, sample=skewed_by(skew, n), noiseless=True)


def test_skewness_of_a_hundred_entries():
    assert doubted(verdict.skewed, sample=skewed_by(0.9, 100))


def test_the_standard_error_of_the_skewness_is_that_of_gaussian_noise():
    low, middle, high = np.quantile(np.random.default_rng(0).standard_normal((2000, 400)), (0.1, 0.5, 0.9), axis=1)
    simulated = ((high + low - 2 * middle) / (high - low)).std() * 20
    assert pytest.approx(simulated, rel=0.05) == verdict.constants.SKEWNESS_ERROR


def growing(growth, n=4000):
    """The sizes of residuals in the upper quarter of L against those in the lower one."""
    L = np.linspace(-1, 3, n)
    order = np.argsort(np.argsort(np.abs(L))) / n
    return residuals(np.interp(order, [0, 0.25, 0.75, 1], [1, 1, growth, growth]) * (-1) ** np.arange(n), L)


def test_noise_that_grows_by_a_quarter():
    assert "1.3 times" in doubted(verdict.noise_grows, sample=growing(1.29))[0]
    assert not doubted(verdict.noise_grows, sample=growing(1.21))
    assert not doubted(verdict.noise_grows, sample=growing(9.0, n=99))
    assert doubted(verdict.noise_grows, sample=growing(9.0, n=100))
    assert not doubted(verdict.noise_grows, sample=growing(9.0), noiseless=True)
    assert not doubted(verdict.noise_grows, sample=growing(9.0), L=SimpleNamespace(rank=0))


@pytest.mark.parametrize(("r", "n", "seen"), [(0.18, 40_000, 1), (0.12, 40_000, 0), (0.29, 400, 1), (0.2, 400, 0)])
def test_noise_that_grows_by_chance(r, n, seen):
    """A rank correlation of 0.15 or, in a small sample, of five standard errors, 5 / √400."""
    rng = np.random.default_rng(2)
    ranks = np.arange(n)
    for _ in range(200):  # until chance has made it right
        score = r * (ranks - n / 2) * np.sqrt(12) / n + np.sqrt(1 - r * r) * rng.standard_normal(n)
        size = np.exp(2 * score)
        if abs(np.corrcoef(np.argsort(np.argsort(size)), ranks)[0, 1] - r) < 0.02:
            break
    assert len(doubted(verdict.noise_grows, sample=residuals(size, 1.0 + ranks))) == seen


@pytest.mark.parametrize(("r", "n", "seen"), [(0.21, 10**6, 1), (0.19, 10**6, 0), (0.3, 300, 1), (0.3, 260, 0)])
def test_correlation_of_neighbours(monkeypatch, r, n, seen):
    for axis in (0, 1):
        monkeypatch.setattr(verdict, "_neighbours", lambda case, k, axis=axis: (r if k == axis else 0.0, n))
        assert len(doubted(verdict.autocorrelated)) == seen
        assert not doubted(verdict.autocorrelated, noiseless=True)
        if seen:
            assert doubted(verdict.autocorrelated)[0].startswith(f"{('row', 'column')[axis]}s next to each other")
            assert f'{("row", "col")[axis]}_features="index"' in doubted(verdict.autocorrelated)[0]


@pytest.mark.parametrize("axis", [0, 1])
def test_correlation_is_that_of_lines_one_apart_beyond_that_of_any(axis):
    """Row i of the residuals is a_i + b_(i+1) + c: neighbours share b and c, others c alone."""
    rng = np.random.default_rng(0)
    shape = (400, 300) if axis == 0 else (300, 400)
    white = rng.standard_normal((401, 300))
    Z = white[1:] + white[:-1] + rng.standard_normal(300)  # correlation (1 + 1) / 3 with the next, 1 / 3 with others
    M = Z if axis == 0 else Z.T
    full = a_fit(shape, noise=0.0)
    there = SimpleNamespace(
        engine=ReferenceEngine(M),
        places=Places(shape, np.random.SeedSequence(0)),
        at=lambda rows, cols, values: residuals(values),
    )
    r, pairs = verdict._neighbours(there, axis)
    assert r == pytest.approx(1 / 3, abs=0.08) and 4900 < pairs <= 5000
    assert full.noiseless


@pytest.mark.parametrize(("r", "drifts", "seen"), [(0.55, 1, 1), (0.45, 1, 0), (0.55, 2, 0), (0.95, 9, 0)])
def test_drifting_columns(r, drifts, seen):
    """A correlation of one half with the residual before, in a tenth of the columns at most, or in one."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((4000, 9))
    for t in range(1, 4000):
        Z[t, :drifts] = r * Z[t - 1, :drifts] + np.sqrt(1 - r * r) * Z[t, :drifts]
    fields = {"across": lambda *lines: residuals(Z), "engine": SimpleNamespace(shape=Z.shape)}
    found = doubted(verdict.drifting, **fields)
    assert len(found) == seen
    assert not doubted(verdict.drifting, **fields, noiseless=True)
    if seen:
        assert found[0].startswith("1 column drifts: 0. ")


@pytest.mark.parametrize(("n", "seen"), [(6, 0), (7, 1)])
def test_a_pattern_in_the_residuals(n, seen):
    """Residuals all alike have the singular value n, against 2 √n + 1 of noise: 1.02 and 1.11 times."""
    fields = {"block": residuals(np.ones((n, n)))}
    assert len(doubted(verdict.structure_left, **fields)) == seen
    assert not doubted(verdict.structure_left, **fields, step=0.1)
    assert not doubted(verdict.structure_left, **fields, noiseless=True)
    assert not doubted(verdict.structure_left, block=residuals(np.zeros((n, n))))


# The outliers


@pytest.mark.parametrize(
    ("share", "separated", "seen"),
    [(0.26, False, 1), (0.25, False, 0), (0.24, False, 0), (0.46, True, 1), (0.44, True, 0), (0.24, True, 0)],
)
def test_the_share_of_outliers(monkeypatch, share, separated, seen):
    monkeypatch.setattr(verdict, "_separated", lambda case: separated)
    assert len(doubted(verdict.many_outliers, outliers=(np.array([1200 * share, 0]), None))) == seen
    assert not doubted(verdict.many_outliers, outliers=None)


@pytest.mark.parametrize(
    ("near", "apart"),
    [([1.2] * 49, True), ([1.2] * 50, False), ([0.7] * 51, False), ([0.65] * 99, True), ([1.55] * 99, True)],
)
def test_outliers_are_apart_from_the_noise_if_few_are_near_the_limit(near, apart):
    """Five of a hundred, within a factor of 1.5."""
    R = np.r_[np.full(1000 - sum(x > 1 for x in near), -3.0), near, np.zeros(5000)]
    assert verdict._separated(case(sample=residuals(2 * R), judge=Judge(2.0))) == apart


def small_outliers(beyond=(30, 0), below=(10, 2), error=2.3e-4, side=1, **fields):
    """Residuals just beyond the limit, and just below it, above and below L."""
    sizes = np.repeat([1.4, -1.4, 0.75, -0.75, -2.5], [*beyond, *below, 40])  # the last are beyond twice the limit
    R = side * 0.3 * np.r_[sizes, np.full(9_990 - len(sizes), 0.01), np.zeros(10)]
    fields = {"outliers": (), "sample": residuals(R), "judge": Judge(0.3), "error": lambda *_: error} | fields
    return doubted(verdict.one_sided, **fields)


def test_outliers_of_one_side():
    """16 of 10,000 are hidden, twice those just below the limit: they shift L by 16 / 10,000 of half of it, 0.15."""
    assert "too high" in small_outliers()[0] and "by about +0.00024 (standard error 0.00023)" in small_outliers()[0]
    assert "too low" in small_outliers(side=-1)[0]
    assert not small_outliers(error=2.5e-4)
    assert not small_outliers(beyond=(32, 4))  # 28 of 36: within five standard errors of one half
    assert not small_outliers(below=(9, 3))  # 6 of 12: within two
    assert "+0.00045" in small_outliers(below=(30, 2))[0]  # no more than there are beyond it
    assert not small_outliers(noiseless=True) and not small_outliers(outliers=None)
    assert not small_outliers(L=SimpleNamespace(rank=0))


@pytest.mark.parametrize(
    ("found", "seen"),
    [([16, 1, 1], (0,)), ([15, 1, 1], ()), ([16, 13, 13], ()), ([30, 13, 13], (0,)), ([0, 1, 16], (2,))],
)
def test_lines_of_outliers(found, seen):
    """Of 30 entries more than half, and more than chance where 13 are usual: 13 + 5 · √(30 · 13/30 · 17/30) = 26.6."""
    engine = SimpleNamespace(counts=(np.full(3, 30), np.full(30, 3)))
    doubts = list(verdict.broken_lines(case(engine=engine, outliers=(np.array(found), np.zeros(30)))))
    assert [doubt.rows for doubt in doubts] == ([seen] if seen else [])


# What L explains


def test_what_is_explained():
    assert doubted(verdict.little_explained, explained=0.49) and not doubted(verdict.little_explained, explained=0.5)


@pytest.mark.parametrize(("share", "seen"), [(0.19, 1), (0.21, 0)])
def test_the_advantage_of_features_over_random_ones(share, seen):
    """Three features of 30 columns explain a tenth by chance; twice that is asked for."""
    F = Features.of(np.random.default_rng(1).standard_normal((30, 3)), 30)
    state = SimpleNamespace(shares={"features": share})
    assert len(doubted(verdict.weak_features, features=(Features.identity(40), F), state=state)) == seen


def test_many_features_need_not_explain_twice_what_chance_does():
    F = Features.of(np.random.default_rng(1).standard_normal((30, 24)), 30)
    for share, seen in ((0.19, 1), (0.21, 0)):  # the part that is left, 6 / 30
        state = SimpleNamespace(shares={"features": share})
        assert len(doubted(verdict.weak_features, features=(Features.identity(40), F), state=state)) == seen


@pytest.mark.parametrize(("predicted", "seen"), [(0.044, 1), (0.055, 0)])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_adjusted_share_that_features_predict(axis, predicted, seen):
    """1 − (1 − R²) (n − 1) / (n − d − 1), with n = 38 lines that have entries and d = 3 features."""
    n = 40
    F = Features.of(np.random.default_rng(1).standard_normal((n, 3)), n)
    counts = np.r_[np.zeros(2, int), np.full(n - 2, 5)]
    x = np.r_[99.0, 99.0, np.tile([1.0, -1.0], 19)][:, None]
    away = np.sqrt((1 - predicted) * 34 / 37)
    side = SimpleNamespace(mean=5 + x, expected=5 + x - away * np.abs(x), second=np.ones((1, 1)))
    other = SimpleNamespace(mean=np.ones((3, 1)), expected=np.ones((3, 1)), second=np.full((1, 1), 4.0))
    flip = slice(None, None, 1 if axis == 0 else -1)
    rows, cols = (side, other)[flip]
    fields = {
        "features": (F, Features.identity(3))[flip],
        "engine": SimpleNamespace(counts=(counts, np.full(3, 40))[flip]),
        "state": SimpleNamespace(fit=SimpleNamespace(rows=rows, cols=cols)),
    }
    found = doubted(verdict.hardly_predicted, **fields)
    assert len(found) == seen and (not seen or found[0].startswith(f"{('row', 'col')[axis]}_features predict 4%"))
    assert not doubted(verdict.hardly_predicted, **fields, tied=(True, False))


@pytest.mark.parametrize(("elsewhere", "seen"), [(0.10, 1), (0.20, 0)])
def test_a_free_part_in_a_corner(elsewhere, seen):
    """Of what features leave, half of the rows hold less than two per cent and of the columns, too."""
    rng = np.random.default_rng(0)
    F = Features.of(rng.standard_normal((400, 1)), 400)
    u, v = (np.where(np.arange(n) < n // 2, 1.0, elsewhere)[:, None] * rng.choice([-1, 1], (n, 1)) for n in (400, 300))
    features = F, Features.identity(300)
    fields = {"features": features, "L": LowRank.from_product(u, v), "state": SimpleNamespace(fit=None)}
    found = doubted(verdict.free_part_in_few, **fields)
    assert len(found) == seen and (not seen or found[0].startswith("about 200 rows and 150 columns share"))
    assert not doubted(verdict.free_part_in_few, **fields, tied=(False, True))


def test_the_largest_rank_there_is():
    F = Features.of(np.random.default_rng(1).standard_normal((30, 2)), 30)
    state = case().state
    assert doubted(verdict.full_rank, features=(Features.identity(40), F))
    assert not doubted(verdict.full_rank, features=(Features.identity(40), F), L=SimpleNamespace(rank=1))
    state.choices = (Choice("rank", 2, "best"),)
    assert not doubted(verdict.full_rank, features=(Features.identity(40), F), state=state)


@pytest.mark.parametrize(("n", "kind"), [(19, "too-small"), (20, "not-validated"), (199, "not-validated"), (200, None)])
def test_the_size_of_a_table(n, kind):
    found = list(verdict.small_table(case(engine=SimpleNamespace(n_observed=n), state=certified())))
    assert [doubt.kind for doubt in found] == ([kind] if kind else [])
