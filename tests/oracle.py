"""Algorithm 1 of the paper, typed literally. The fast code is compared with it: never optimise it."""

import numpy as np


def algorithm_1(M, F1, F2, r, nu, c_W, T):
    """The iterates ``(W_t, S_t, L_t, zeta_t)``, t = 1 … T. F1 is stored n1×d1: it is the paper's F1ᵀ."""
    (n1, d1), (n2, d2) = F1.shape, F2.shape
    scale = incoherence(F1) * incoherence(F2) * np.linalg.norm(F1, 2) * np.linalg.norm(F2, 2)
    L = np.zeros((n1, n2))  # step 3, whose ζ_0 is never used
    iterates = []
    for t in range(1, T + 1):
        zeta = scale * np.sqrt(d1 * d2) * c_W / (5.0 ** (t - 1) * np.sqrt(n1 * n2)) + nu  # step 5
        S = np.where(np.abs(M - L) > zeta, M - L, 0.0)  # step 6
        U, sigma, Vt = np.linalg.svd(np.linalg.pinv(F1) @ (M - S) @ np.linalg.pinv(F2.T))  # step 7
        W = U[:, :r] @ np.diag(sigma[:r]) @ Vt[:r]
        L = F1 @ W @ F2.T  # step 8
        iterates.append((W, S, L, zeta))
    return iterates


def incoherence(F):
    """Assumption 2: the longest row of the n×d singular vectors, in units of √(d/n)."""
    n, d = F.shape
    V = np.linalg.svd(F, full_matrices=False)[0]
    return np.linalg.norm(V, axis=1).max() * np.sqrt(n / d)
