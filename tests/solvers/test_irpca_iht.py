"""Algorithm 1: against the oracle, against the theorems, and where the one as printed fails."""

from itertools import islice, pairwise

import numpy as np
import pytest
from oracle import algorithm_1, incoherence
from scipy.linalg import block_diag
from solvers.field import to_solve

import irpca
from irpca import Status
from irpca.datasets import Problem, make_problem
from irpca.diagnostics import iteration_bound
from irpca.features import Features
from irpca.solvers import irpca_iht
from irpca.solvers.irpca_iht import paper_schedule


def run(M, F1, F2, rank, T, **options):
    """The first T iterates as the oracle gives them: ``(W_t, S_t, L_t, zeta_t)``."""
    A, B = Features.of(F1, M.shape[0]), Features.of(F2, M.shape[1])
    iterates, previous = [], np.zeros(M.shape)
    for state in islice(irpca_iht.iterate(to_solve(M, A, B, rank), **options), T):
        L = state.L.dense()
        C = L if A.Q is None else A.Q.T @ L
        C = C if B.Q is None else C @ B.Q
        S = np.where(np.abs(M - previous) > state.zeta, M - previous, 0.0)
        assert np.count_nonzero(S) == state.trim.trimmed
        iterates.append((B.solve(A.solve(C).T).T, S, L, state.zeta))
        previous = L
    return iterates


def assert_same_iterates(mine, theirs, rtol):
    for (W, S, L, zeta), (W_true, S_true, L_true, zeta_true) in zip(mine, theirs, strict=True):
        assert zeta == pytest.approx(zeta_true, rel=1e-12, abs=0)
        np.testing.assert_array_equal(S != 0, S_true != 0)
        assert np.linalg.norm(L - L_true) <= rtol * np.linalg.norm(L_true)
        assert np.linalg.norm(W - W_true) <= rtol * np.linalg.norm(W_true)


# Its thresholds


def test_thresholds_fall_to_nu_as_fast_as_told():
    zetas = list(islice(paper_schedule(3.0, 0.25, 2.0), 30))
    np.testing.assert_allclose(zetas, [3.0 / 2.0**t + 0.25 for t in range(30)], rtol=1e-12, atol=0)


# The oracle


@pytest.mark.parametrize(
    ("features", "noise", "shape"),
    [("literal", 0.0, (120, 120, 5, 5)), ("conditioned", 1e-4, (150, 100, 6, 4)), ("literal", 1e-4, (90, 120, 3, 6))],
)
def test_paper_variant_is_algorithm_1(shape, noise, features):
    problem = make_problem(*shape, rank=2, noise=noise, features=features)
    c_W, nu = np.linalg.norm(problem.W, 2), 5 * noise
    mine = run(problem.M, problem.F1, problem.F2, 2, 10, variant="paper", c_W=c_W, nu=nu)
    theirs = algorithm_1(problem.M, problem.F1, problem.F2, 2, nu, c_W, 10)
    assert_same_iterates(mine, theirs, rtol=1e-12)
    assert any(S.any() for _, S, _, _ in theirs)


def test_paper_variant_is_algorithm_1_where_that_fails():
    problem = make_problem(300, 300, 30, 30)
    c_W = np.linalg.norm(problem.W, 2)
    mine = run(problem.M, problem.F1, problem.F2, 5, 10, variant="paper", c_W=c_W)
    theirs = algorithm_1(problem.M, problem.F1, problem.F2, 5, 0.0, c_W, 10)
    # W = R1⁻¹ C R2⁻ᵀ: rounding errors of L, about 1e-15, may grow by κ².
    assert_same_iterates(mine, theirs, rtol=1e-15 * np.linalg.cond(problem.F1) ** 2)
    assert np.mean(theirs[-1][1] != 0) > 0.9


@pytest.mark.parametrize("side", ["rows", "columns"])
def test_a_side_without_features_has_the_identity(side):
    problem = make_problem(60, 50, 4, 4, rank=2, corruption=0.02, features="conditioned")
    F1, F2 = (problem.F1, None) if side == "rows" else (None, problem.F2)
    eyes = (problem.F1, np.eye(50)) if side == "rows" else (np.eye(60), problem.F2)
    c_W = np.linalg.norm(problem.W, 2)
    mine = run(problem.M, F1, F2, 2, 8, variant="paper", c_W=c_W)
    assert_same_iterates(mine, algorithm_1(problem.M, *eyes, 2, 0.0, c_W, 8), rtol=1e-12)


# The theorems, on problems that meet the assumptions as the proofs need them


def flat_features(n, d, kappa=1.0):
    """Waves: every row has leverage d/n, so μ = 1, the least there is. Mixed, with condition number κ."""
    angle = 2 * np.pi * np.arange(n)[:, None] * np.arange(1, d // 2 + 1) / n
    waves = np.hstack([np.cos(angle), np.sin(angle)]) * np.sqrt(2 / n)
    Q = np.hstack([waves, np.full((n, d % 2), n**-0.5)])
    mix = np.linalg.qr(np.random.default_rng(d).standard_normal((d, d)))[0]
    return (Q * np.geomspace(1, 1 / kappa, d)) @ mix


def proof_constants(F1, F2):
    """1/20 of the product bound: the proof needs √(row · column sparsity) <= this; and μ² d κ²."""
    (n1, d1), (n2, d2) = F1.shape, F2.shape
    product = incoherence(F1) * incoherence(F2) * np.linalg.cond(F1) * np.linalg.cond(F2) * np.sqrt(d1 * d2)
    return np.sqrt(n1 * n2) / (20 * product), product


def sparsity(S):
    return (S != 0).sum(axis=1).max(), (S != 0).sum(axis=0).max()


def provable_problem(F1, F2, rank, noise=0.0, symmetric=False, seed=0):
    """As many outliers as the proof allows, of both signs, from far below to far above the entries of L."""
    rng = np.random.default_rng(seed)
    (n1, d1), (n2, d2) = F1.shape, F2.shape
    W = rng.standard_normal((d1, d2))
    W = W + W.T if symmetric else W
    U, sigma, Vt = np.linalg.svd(W)
    W = (U[:, :rank] * sigma[:rank]) @ Vt[:rank]
    L = F1 @ W @ F2.T
    # Shifted diagonals, as steep as M is wide: they load rows evenly, and columns too.
    slope = max(1, n2 // n1)
    per_row = int(proof_constants(F1, F2)[0] * np.sqrt(n2 / n1) * (1 + 1e-9)) // (2 if symmetric else 1)
    shifts = slope * (1 + rng.choice(n1 // 2 - 1, per_row, replace=False)) + np.arange(per_row) % slope
    rows = np.arange(n1)[:, None]
    sizes = 10 ** rng.uniform(-11, 1.5, size=(n1, per_row)) * rng.choice([-1, 1], size=(n1, per_row))
    S = np.zeros((n1, n2))
    S[rows, (slope * rows + shifts) % n2] = sizes * np.abs(L).max()
    S = S + S.T if symmetric else S
    N = rng.uniform(-noise, noise, size=(n1, n2)) * np.abs(L).max()
    N = np.triu(N) + np.triu(N, 1).T if symmetric else N
    assert np.sqrt(np.prod(sparsity(S))) <= proof_constants(F1, F2)[0] * (1 + 1e-9)
    assert np.count_nonzero(S) >= n1
    return Problem(L + S + N, F1, F2, W, L, S, N)


F_RANDOM = make_problem(600, 600, 2, 2, rank=2, features="conditioned").F1

PROVABLE = {
    "symmetric": lambda **kw: provable_problem(flat_features(400, 2), flat_features(400, 2), 1, symmetric=True, **kw),
    "kappa 2": lambda **kw: provable_problem(flat_features(480, 2, 2.0), flat_features(480, 2, 2.0), 1, **kw),
    "random features": lambda **kw: provable_problem(F_RANDOM, F_RANDOM, 2, **kw),
    "n1 ≠ n2, d1 ≠ d2": lambda **kw: provable_problem(flat_features(800, 3, 1.3), flat_features(400, 2), 2, **kw),
    "wide": lambda **kw: provable_problem(flat_features(200, 1), flat_features(600, 4), 1, **kw),
}

VARIANTS = ["paper", "whitened", "paper", "paper", "whitened"]  # of each of these in turn


def bound(F1, F2, c_W):
    """μ1 μ2 σ1 σ2 √(d1 d2 / (n1 n2)) c_W, the bound on L* that falls by 5 per iteration."""
    (n1, d1), (n2, d2) = F1.shape, F2.shape
    sigma = np.linalg.norm(F1, 2) * np.linalg.norm(F2, 2)
    return incoherence(F1) * incoherence(F2) * sigma * np.sqrt(d1 * d2 / (n1 * n2)) * c_W


@pytest.mark.parametrize(("kind", "variant"), list(zip(PROVABLE, VARIANTS, strict=True)))
def test_noiseless_lemmas(kind, variant):
    problem = PROVABLE[kind]()
    rank, c_W = np.linalg.matrix_rank(problem.W), np.linalg.norm(problem.W, 2)
    start = bound(problem.F1, problem.F2, c_W)
    rounding = 1e-14 * np.abs(problem.M).max()
    before = np.abs(problem.L).max()
    found = 0
    for t, (W, S, L, zeta) in enumerate(run(problem.M, problem.F1, problem.F2, rank, 15, variant=variant, c_W=c_W), 1):
        error_L, error_S = np.abs(problem.L - L).max(), np.abs(problem.S - S).max()
        assert zeta == pytest.approx(start / 5 ** (t - 1), rel=1e-12, abs=0)
        assert before <= zeta + rounding
        assert error_S <= 2 * zeta + rounding  # Lemma 1
        assert not (S[problem.S == 0]).any()  # Lemma 1: no false alarm
        assert error_L <= error_S / 10 + rounding  # equation (llt), the heart of Lemma 2
        assert error_L <= start / 5**t + rounding  # Lemma 2
        assert np.linalg.matrix_rank(W, tol=1e-9 * c_W) <= rank
        before, found = error_L, max(found, np.count_nonzero(S))
    assert found >= 0.8 * np.count_nonzero(problem.S)  # the smallest are below the last ζ


@pytest.mark.parametrize("kind", PROVABLE)
def test_theorem_1_counts_iterations(kind):
    problem = PROVABLE[kind](seed=1)
    rank, c_W = np.linalg.matrix_rank(problem.W), np.linalg.norm(problem.W, 2)
    accuracies = np.array([1e-2, 1e-6, 1e-10]) * np.abs(problem.L).max()
    counts = [iteration_bound(problem.F1, problem.F2, c_W, epsilon) for epsilon in accuracies]
    iterates = run(problem.M, problem.F1, problem.F2, rank, max(counts), variant="paper", c_W=c_W)
    errors = [max(np.abs(problem.L - L).max(), np.abs(problem.S - S).max()) for _, S, L, _ in iterates]
    for T, epsilon in zip(counts, accuracies, strict=True):
        assert errors[T - 1] <= epsilon and errors[T - 2] <= epsilon  # its strict > is one more than its proof needs
        assert errors[T - 5] > epsilon  # and hardly more than needed


@pytest.mark.parametrize(
    ("kind", "variant", "noise"), list(zip(PROVABLE, VARIANTS[::-1], [1e-1, 1e-6, 1e-1, 1e-6, 1e-1], strict=True))
)
def test_theorem_2_with_noise(kind, variant, noise):
    problem = PROVABLE[kind](noise=noise, seed=2)
    rank, c_W = np.linalg.matrix_rank(problem.W), np.linalg.norm(problem.W, 2)
    start, largest = bound(problem.F1, problem.F2, c_W), np.abs(problem.N).max()
    factor = proof_constants(problem.F1, problem.F2)[1]  # μ² d κ²
    nu = (1 + 3 * factor) * largest
    epsilon = 1e-3 * np.abs(problem.L).max()
    T = iteration_bound(problem.F1, problem.F2, c_W, epsilon)
    iterates = run(problem.M, problem.F1, problem.F2, rank, T, variant=variant, c_W=c_W, nu=nu)
    for t, (_, S, L, _) in enumerate(iterates, 1):
        error_L, error_S = np.abs(problem.L - L).max(), np.abs(problem.S - S).max()
        assert not (S[problem.S == 0]).any()
        assert error_S <= 2 * start / 5 ** (t - 1) + 2 * nu  # Lemma 3
        assert error_L <= start / 5**t + 3 * factor * largest  # Lemma 4
    assert error_L <= epsilon + 3 * factor * largest  # Theorem 2
    assert error_S <= epsilon + 8 * factor * largest
    assert largest >= 0.9 * noise * np.abs(problem.L).max()


def embed(A):
    return np.block([[np.zeros((len(A), len(A))), A], [A.T, np.zeros((A.shape[1], A.shape[1]))]])


def test_claim_1_iterates_commute_with_the_symmetric_embedding():
    # It holds exactly when both runs have the same ζ_t, and P_r cuts where σ_r > σ_{r+1}: singular values of
    # the embedding come in pairs, so that it needs rank 2r. The two ζ_t are *not* the same by themselves, see
    # below, hence c_W is chosen so that they are. n2/n1 = d2/d1 is not needed for this.
    problem = make_problem(70, 50, 4, 3, rank=2, corruption=0.02)
    F, c_W = block_diag(problem.F1, problem.F2), np.linalg.norm(problem.W, 2)
    matched = c_W * bound(problem.F1, problem.F2, c_W) / bound(F, F, c_W)
    mine = run(problem.M, problem.F1, problem.F2, 2, 8, variant="paper", c_W=c_W)
    embedded = run(embed(problem.M), F, F, 4, 8, variant="paper", c_W=matched)
    theirs = [(embed(W), embed(S), embed(L), zeta) for W, S, L, zeta in mine]
    assert_same_iterates(embedded, theirs, rtol=1e-10)  # κ² times rounding errors
    assert mine[-1][1].any()


def test_claim_1_needs_features_of_equal_leverage_and_scale():
    # ζ of the embedding is max(leverage) · max(σ)² c_W, of M the geometric means. They agree when the largest
    # leverages (n2/n1 = d2/d1 and μ1 = μ2) and the scales σ_max of F1 and F2 do.
    F1, F2 = flat_features(60, 2), flat_features(90, 3)
    assert bound(block_diag(F1, F2), block_diag(F1, F2), 1.0) == pytest.approx(bound(F1, F2, 1.0), rel=1e-12)
    # Neither κ nor ζ survive the units of the features, which the appendix does not mention.
    scaled = block_diag(10 * F1, F2 / 10)
    assert np.linalg.cond(scaled) == pytest.approx(100, rel=1e-12)
    assert bound(scaled, scaled, 1.0) == pytest.approx(100 * bound(10 * F1, F2 / 10, 1.0), rel=1e-12)


def test_assumption_3_as_printed_is_not_enough():
    # κ in place of κ²: one outlier per row is allowed, and Theorem 1 is false. Outliers stay below ζ_1, and
    # in the coordinates of W the weak direction makes them κ² times larger than they are.
    n, kappa = 1640, 40
    F = np.linalg.qr(flat_features(n, 2))[0] * [1, 1 / kappa]
    W = np.diag([1.0, 0.0])
    L, start = F @ W @ F.T, bound(F, F, 1.0)
    S = np.diag(0.999 * start - np.diag(L))
    assert sparsity(S) == (1, 1)
    assert n / (20 * incoherence(F) ** 2 * 2 * kappa) >= 1  # the printed limit
    printed = run(L + S, F, F, 1, 3, variant="paper", c_W=1.0)
    assert all(np.abs(L - L_t).max() > 4.9 * start / 5**t for t, (_, _, L_t, _) in enumerate(printed, 1))
    assert np.mean(printed[-1][1][S == 0] != 0) > 0.5  # S fills up
    for t, (_, S_t, L_t, _) in enumerate(run(L + S, F, F, 1, 8, variant="whitened", c_W=1.0), 1):
        assert np.abs(L - L_t).max() <= start / 5**t and not S_t[S == 0].any()


def test_a_whole_row_may_be_corrupted():
    # The printed Assumption 3 swaps n1 and n2. That does no harm: only the product of the two limits counts.
    F1, F2 = flat_features(4000, 2), flat_features(40, 2)
    problem = provable_problem(F1[:, :2], F2, 1)
    S = np.zeros((4000, 40))
    S[7] = 10 * np.abs(problem.L).max()
    assert sparsity(S) == (40, 1) and np.sqrt(40) <= proof_constants(F1, F2)[0]
    c_W = np.linalg.norm(problem.W, 2)
    for t, (_, S_t, L, _) in enumerate(run(problem.L + S, F1, F2, 1, 12, variant="paper", c_W=c_W), 1):
        assert np.abs(problem.L - L).max() <= bound(F1, F2, c_W) / 5**t
        assert not S_t[S == 0].any()


def test_the_chain_of_section_3_1_does_not_hold():
    # "‖L*−L_t‖∞ <= 2 ‖S*−S_t‖∞ <= ‖L*−L_{t−1}‖∞ / 5": entries in S_t are wrong by L*−L_{t−1} itself.
    problem = PROVABLE["kappa 2"]()
    c_W = np.linalg.norm(problem.W, 2)
    iterates = run(problem.M, problem.F1, problem.F2, 1, 8, variant="paper", c_W=c_W)
    assert all(
        2 * np.abs(problem.S - S).max() > np.abs(problem.L - L_before).max() / 5
        for (_, _, L_before, _), (_, S, _, _) in pairwise(iterates)
    )


def test_rounding_does_not_decide_the_first_threshold():
    # Constant features and c_W = ‖W‖₂: |L*| = ζ_1 everywhere, and "<=" is a matter of the last bit.
    lost = 0
    for n in range(20, 40):
        F = np.ones((n, 1))
        M = np.full((n, n), 1.1)
        M[0, 0] = 9
        result = irpca.solve(M, F, F, rank=1, solver="irpca_iht", c_W=1.1)
        assert result.converged
        assert np.abs(result.L.dense() - 1.1).max() <= 1e-5
        lost += np.abs(algorithm_1(M, F, F, 1, 0.0, 1.1, 5)[-1][2] - 1.1).max() > 1e-3
    assert lost > 2


# variant="whitened", and what both share


@pytest.mark.parametrize("d", [20, 50])
def test_whitened_recovers_where_the_paper_fails(d):
    problem = make_problem(d1=d, d2=d)
    whitened = irpca.solve(problem.M, problem.F1, problem.F2, rank=5, solver="irpca_iht")
    assert whitened.status is Status.CONVERGED
    assert problem.relative_error(whitened.L) <= 1e-9
    np.testing.assert_array_equal(whitened.S.toarray() != 0, problem.corrupted)
    printed = irpca.solve(problem.M, problem.F1, problem.F2, rank=5, solver="irpca_iht", variant="paper", max_iter=12)
    assert printed.status is Status.SATURATED
    assert problem.relative_error(printed.L) > 1e-3


def test_the_failure_tells_what_to_do():
    problem = make_problem(300, 300, 30, 30)
    result = irpca.solve(problem.M, problem.F1, problem.F2, rank=5, solver="irpca_iht", variant="paper")
    assert result.status is Status.SATURATED
    (doubt,) = (doubt for doubt in result.doubts if doubt.kind == "failure")
    for advice in (
        "variant='whitened'",
        "solver='irpca'",
        f"condition number of the features ({np.linalg.cond(problem.F1):.3g})",
        "nu",
    ):
        assert advice in doubt.text
    noisy = make_problem(300, 300, 5, 5, noise=0.01, features="conditioned")
    result = irpca.solve(noisy.M, noisy.F1, noisy.F2, rank=5, solver="irpca_iht")
    assert result.status is Status.SATURATED
    (told,) = (doubt.text for doubt in result.doubts if doubt.kind == "failure")
    assert "nu" in told and "solver='irpca'" in told and "variant" not in told


def test_whitened_is_invariant_to_mixing_features():
    problem = make_problem(200, 150, 6, 5, rank=2, corruption=0.1, features="conditioned")
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((6, 6)) @ np.diag(10.0 ** np.arange(6)), 1e-3 * rng.standard_normal((5, 5))
    plain = irpca.solve(problem.M, problem.F1, problem.F2, rank=2, solver="irpca_iht")
    mixed = irpca.solve(problem.M, problem.F1 @ A, problem.F2 @ B, rank=2, solver="irpca_iht")
    assert plain.n_iter == mixed.n_iter
    np.testing.assert_allclose(mixed.history.zeta, plain.history.zeta, rtol=1e-9)
    assert np.linalg.norm(mixed.L.dense() - plain.L.dense()) <= 1e-9 * np.linalg.norm(problem.L)
    np.testing.assert_array_equal(mixed.S.toarray() != 0, plain.S.toarray() != 0)
    assert np.linalg.norm(A @ mixed.W @ B.T - plain.W) <= 1e-9 * np.linalg.norm(plain.W)


@pytest.mark.parametrize(("side", "variant"), [("rows", "paper"), ("columns", "whitened")])
def test_one_sided_features_recover(side, variant):
    problem = make_problem(300, 200, 5, 4, rank=2, corruption=0.05, features="conditioned")
    F1, F2 = (problem.F1, None) if side == "rows" else (None, problem.F2)
    result = irpca.solve(problem.M, F1, F2, rank=2, solver="irpca_iht", variant=variant)
    assert result.converged
    assert problem.relative_error(result.L) <= 1e-9
    assert result.W.shape == ((5, 200) if side == "rows" else (300, 4))


@pytest.mark.parametrize("variant", ["paper", "whitened"])
def test_c_W_is_chosen_and_reported(variant):
    problem = make_problem(100, 80, 5, 4, rank=2)
    result = irpca.solve(problem.M, problem.F1, problem.F2, rank=2, solver="irpca_iht", variant=variant)
    (choice,) = result.choices
    W = np.linalg.pinv(problem.F1) @ problem.M @ np.linalg.pinv(problem.F2.T)
    sigma = np.linalg.norm(problem.F1, 2) * np.linalg.norm(problem.F2, 2)
    norm = np.linalg.norm(W if variant == "paper" else problem.F1 @ W @ problem.F2.T, 2)
    expected = 2 * norm / (1 if variant == "paper" else sigma)
    assert choice.name == "c_W" and choice.value == pytest.approx(expected, rel=1e-10)
    assert "‖W‖₂" in choice.reason
    given = irpca.solve(problem.M, problem.F1, problem.F2, rank=2, solver="irpca_iht", variant=variant, c_W=9.0)
    assert given.choices == ()
    assert given.history.zeta[0] == pytest.approx(bound(problem.F1, problem.F2, 9.0), rel=1e-12)


@pytest.mark.parametrize("variant", ["paper", "whitened"])
def test_outliers_towards_zero_do_not_spoil_c_W(variant):
    # ‖F1⁺ M F2⁺ᵀ‖₂ is then below ‖W*‖₂, and with constant features nothing makes up for it.
    rng = np.random.default_rng(0)
    M = np.where(rng.random((200, 150)) < 0.05, rng.uniform(-5, 1, (200, 150)), 3.0)
    result = irpca.solve(M, np.ones((200, 1)), np.ones((150, 1)), rank=1, solver="irpca_iht", variant=variant)
    assert result.converged
    assert np.abs(result.L.dense() - 3).max() <= 1e-9
