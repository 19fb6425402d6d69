"""The threshold rules: formulas against numerical integration, estimates against what was planted."""

from itertools import islice, pairwise

import numpy as np
import pytest
from scipy import stats

from irpca.features import Features
from irpca.sample import paper_schedule, paper_start, rounding_floor

N = 1 << 15  # as many as a Judge looks at
MOST = float(np.sqrt(2 * np.log(1e6)))


def residuals(corruption, sigma=1.0, nearest=8.0, farthest=50.0, n=N, seed=0):
    """Sizes of Gaussian noise, some of it replaced by outliers of ``nearest`` to ``farthest`` σ; sorted."""
    rng = np.random.default_rng(seed)
    r = rng.standard_normal(n)
    bad = round(corruption * n)
    r[:bad] = rng.uniform(nearest, farthest, bad) * rng.choice([-1, 1], bad)
    return np.sort(np.abs(sigma * r))


def exact_residuals(corruption, lagging=0.0, n=10_000):
    """Rounding of 1e-16, outliers of 1 to 2, and a share of the clean entries that still are at 1e-8; sorted."""
    rng = np.random.default_rng(0)
    sizes = 1e-16 * rng.random(n)
    bad = round(corruption * n)
    late = round(lagging * (n - bad))
    sizes[:bad] += rng.uniform(1, 2, bad)
    sizes[bad : bad + late] += rng.uniform(0.5e-8, 1e-8, late)
    return np.sort(sizes)


# The paper's rules


def test_paper_start_is_the_formula_of_algorithm_1():
    rng = np.random.default_rng(0)
    F1, F2 = rng.standard_normal((40, 3)), 10 * rng.standard_normal((70, 5))
    mu, sigma = [], []
    for F in (F1, F2):
        n, d = F.shape
        projector = F @ np.linalg.pinv(F)
        mu.append(np.sqrt(projector.diagonal().max() * n / d))
        sigma.append(np.linalg.norm(F, 2))
    expected = mu[0] * mu[1] * sigma[0] * sigma[1] * np.sqrt(3 * 5 / (40 * 70)) * 0.7
    assert paper_start(Features.of(F1, 40), Features.of(F2, 70), 0.7) == pytest.approx(expected, rel=1e-12)


def test_paper_start_bounds_the_entries_of_L():
    rng = np.random.default_rng(1)
    F1, F2, W = (rng.standard_normal(shape) for shape in [(40, 3), (70, 5), (3, 5)])
    bound = paper_start(Features.of(F1, 40), Features.of(F2, 70), np.linalg.norm(W, 2))
    assert np.abs(F1 @ W @ F2.T).max() <= bound
    # Flat features and one direction meet it with equality.
    flat = Features.of(np.ones((9, 1)), 9)
    assert paper_start(flat, flat, 2.5) == pytest.approx(2.5, rel=1e-12)


@pytest.mark.parametrize("decay", [5.0, 2.0])
def test_paper_schedule_falls_to_nu(decay):
    zetas = list(islice(paper_schedule(3.0, 0.25, decay), 30))
    np.testing.assert_allclose(zetas, [3.0 / decay**t + 0.25 for t in range(30)], rtol=1e-12, atol=0)
    assert next(paper_schedule(3.0, 0.25)) == 3.25


def test_paper_schedule_falls_by_five_unless_told():
    assert [a / b for a, b in pairwise(islice(paper_schedule(1.0, 0.0), 4))] == pytest.approx([5, 5, 5], rel=1e-12)


@pytest.mark.parametrize("dtype, eps", [(np.float64, 2.0**-52), (np.float32, 2.0**-23)])
def test_rounding_floor_follows_precision_and_size(dtype, eps):
    assert rounding_floor(np.dtype(dtype), 3.0) == 64 * eps * 3.0
    assert rounding_floor(np.dtype(dtype), 0.0) == 0.0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rounding_stays_below_the_floor(dtype):
    rng = np.random.default_rng(0)
    U, V = rng.standard_normal((200, 20)), rng.standard_normal((300, 20))
    L = U @ V.T
    rounding = np.abs(U.astype(dtype) @ V.astype(dtype).T - L)
    assert rounding.max() < rounding_floor(np.dtype(dtype), np.abs(L).max())


# The Gaussian core


# level(): noise, clean share and threshold


# The most accurate cut


# Two crowds, one crowd, no crowd

ONE_CROWD = {
    "Gaussian": stats.norm(),
    "Laplace": stats.laplace(),
    "Student t3": stats.t(3),
    "Cauchy": stats.cauchy(),
}


# Consensus


# Crowds of their own
