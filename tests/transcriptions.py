"""The methods of the field, typed literally in dense NumPy. The fast code is compared with them: never optimise them.

Lists of iterates begin with the starting point where the method's initialisation already has an L. AltProj and
AccAltProj record the S that follows from L; the gradient methods L after its update, beside the S that update used.
"""

import numpy as np


def hard(A, zeta):
    """A where it is larger than zeta in magnitude, strictly; else 0."""
    return np.where(np.abs(A) > zeta, A, 0.0)


def soft(A, t):
    """A moved towards 0 by t."""
    return np.sign(A) * np.maximum(np.abs(A) - t, 0.0)


def svt(A, t):
    """The singular values of A moved towards 0 by t."""
    U, sigma, Vt = np.linalg.svd(A, full_matrices=False)
    return U @ np.diag(soft(sigma, t)) @ Vt


def best(A, r):
    """The best approximation of A of rank r."""
    U, sigma, Vt = np.linalg.svd(A, full_matrices=False)
    return U[:, :r] @ np.diag(sigma[:r]) @ Vt[:r]


def sparsify(A, share):
    """A where it is among the ⌊share · n⌋ largest of its row and of its column, by magnitude; ties at the cut go."""
    n1, n2 = A.shape
    in_row, in_col = int(np.floor(share * n2)), int(np.floor(share * n1))
    falling_rows, falling_cols = -np.sort(-np.abs(A), axis=1), -np.sort(-np.abs(A), axis=0)
    row_kept = np.abs(A) > falling_rows[:, [in_row]] if in_row < n2 else np.full(A.shape, True)
    col_kept = np.abs(A) > falling_cols[[in_col], :] if in_col < n1 else np.full(A.shape, True)
    return np.where(row_kept & col_kept, A, 0.0)


def pcp(M, lam=None, steps=1000, growth=1.5, bound=None, tol=1e-7):
    """Principal component pursuit by inexact ALM (Lin, Chen, Ma): min ‖L‖_* + lam ‖S‖_1 with L + S = M.

    ``bound`` is the box of Hsu, Kakade and Zhang: |M − S| ≤ bound, entry by entry. A penalty that grows by 1.5, as
    is usual, can freeze short of the optimum on hard problems; one that grows by 1.05 comes close to it.
    """
    lam = 1 / np.sqrt(max(M.shape)) if lam is None else lam
    largest_sigma = np.linalg.norm(M, 2)
    penalty = 1.25 / largest_sigma
    last_penalty = 1e7 * penalty
    dual = M / max(largest_sigma, np.abs(M).max() / lam)
    L = np.zeros(M.shape)
    for _ in range(steps):
        S = soft(M - L + dual / penalty, lam / penalty)
        if bound is not None:
            S = M - np.clip(M - S, -bound, bound)
        L = svt(M - S + dual / penalty, 1 / penalty)
        dual = dual + penalty * (M - L - S)
        penalty = min(growth * penalty, last_penalty)
        if np.linalg.norm(M - L - S) < tol * np.linalg.norm(M):
            break
    return L, S


def pcpf(M, X, Y, lam=None, steps=1000, growth=1.5, tol=1e-7):
    """PCP with features (Chiang, Hsieh, Dhillon): min ‖H‖_* + lam ‖S‖_1 with X H Yᵀ + S = M, X and Y orthonormal."""
    np.testing.assert_allclose(X.T @ X, np.eye(X.shape[1]), atol=1e-10)
    np.testing.assert_allclose(Y.T @ Y, np.eye(Y.shape[1]), atol=1e-10)
    lam = 1 / np.sqrt(max(M.shape)) if lam is None else lam
    largest_sigma = np.linalg.norm(M, 2)
    penalty = 1.25 / largest_sigma
    last_penalty = 1e7 * penalty
    dual = M / max(largest_sigma, np.abs(M).max() / lam)
    S = np.zeros(M.shape)
    for _ in range(steps):
        H = svt(X.T @ (M - S + dual / penalty) @ Y, 1 / penalty)
        S = soft(M - X @ H @ Y.T + dual / penalty, lam / penalty)
        dual = dual + penalty * (M - X @ H @ Y.T - S)
        penalty = min(growth * penalty, last_penalty)
        if np.linalg.norm(M - X @ H @ Y.T - S) < tol * np.linalg.norm(M):
            break
    return H, S


def pcpf_raw(M, X, Y, lam=None, steps=50_000, tol=1e-9):
    """The same program for any X and Y, by linearised ADMM of one fixed penalty; the duality gap proves the optimum.

    Its dual: max ⟨M, dual⟩ with |dual| ≤ lam in every entry and ‖Xᵀ dual Y‖_2 ≤ 1.
    """
    lam = 1 / np.sqrt(max(M.shape)) if lam is None else lam
    tau = np.linalg.norm(X, 2) ** 2 * np.linalg.norm(Y, 2) ** 2
    penalty = 1 / (np.abs(M).mean() * np.sqrt(tau))  # any value converges; this one was seldom slow
    H, dual = np.zeros((X.shape[1], Y.shape[1])), np.zeros(M.shape)
    for _ in range(steps):
        L = X @ H @ Y.T
        S = soft(M - L + dual / penalty, lam / penalty)
        H = svt(H - X.T @ (L + S - M - dual / penalty) @ Y / tau, 1 / (penalty * tau))
        dual = dual + penalty * (M - X @ H @ Y.T - S)
        change, infeasible = np.linalg.norm(X @ H @ Y.T - L), np.linalg.norm(M - X @ H @ Y.T - S)
        if max(change, infeasible) < tol * np.linalg.norm(M):
            break
    dual = dual / max(1, np.abs(dual).max() / lam, np.linalg.norm(X.T @ dual @ Y, 2))
    attained = np.linalg.norm(H, "nuc") + lam * np.abs(S).sum()
    np.testing.assert_allclose(np.sum(M * dual), attained, rtol=1e-6)
    np.testing.assert_allclose(X @ H @ Y.T + S, M, atol=1e-7 * np.abs(M).max())
    return H, S


def altproj(M, r, beta, T):
    """AltProj (Netrapalli et al.), the version of the theorem with T + 1 steps a stage: iterates (L, S, zeta)."""
    zeta = beta * np.linalg.norm(M, 2)
    S = hard(M, zeta)
    iterates = []
    for k in range(1, r + 1):
        for t in range(T + 1):
            sigma = np.linalg.svd(M - S, compute_uv=False)
            L = best(M - S, k)
            zeta = beta * (sigma[k] + 2.0**-t * sigma[k - 1])  # σ_{k+1} and σ_k
            S = hard(M - L, zeta)
            iterates.append((L, S, zeta))
    return iterates


def accaltproj(M, r, beta, beta_init, gamma, T):
    """AccAltProj (Cai, Cai, Wei) without trimming: iterates (L, S, zeta), of which the first is the starting point.

    The authors take the SVD of a 2r × 2r matrix; it has the singular values of the dense ``projected`` below.
    """
    S = hard(M, beta_init * np.linalg.norm(M, 2))
    U, sigma, Vt = np.linalg.svd(M - S)
    L = best(M - S, r)
    zeta = beta * sigma[0]
    S = hard(M - L, zeta)
    iterates = [(L, S, zeta)]
    for t in range(1, T + 1):
        P1, P2 = U[:, :r] @ U[:, :r].T, Vt[:r].T @ Vt[:r]
        projected = P1 @ (M - S) + (M - S) @ P2 - P1 @ (M - S) @ P2  # on the tangent space at L
        U, sigma, Vt = np.linalg.svd(projected)
        L = best(projected, r)
        zeta = beta * (sigma[r] + gamma**t * sigma[0])  # σ_{r+1} and σ_1
        S = hard(M - L, zeta)
        iterates.append((L, S, zeta))
    return iterates


def rpca_gd(M, r, corruption, T, inflation=1.5, step=0.5):
    """RPCA-GD (Yi et al.), fully observed, without projection: iterates (L, S), of which the first is the start."""
    S = sparsify(M, inflation * corruption)
    P, sigma, Qt = np.linalg.svd(M - S)
    U, V = P[:, :r] @ np.diag(np.sqrt(sigma[:r])), Qt[:r].T @ np.diag(np.sqrt(sigma[:r]))
    eta = step / sigma[0]
    iterates = [(U @ V.T, S)]
    for _ in range(T):
        S = sparsify(M - U @ V.T, inflation * corruption)
        E = M - U @ V.T - S
        U_next = U + eta * E @ V - eta / 16 * U @ (U.T @ U - V.T @ V)
        V_next = V + eta * E.T @ U - eta / 16 * V @ (V.T @ V - U.T @ U)
        U, V = U_next, V_next
        iterates.append((U @ V.T, S))
    return iterates


def scaledgd(M, r, corruption, T, step=0.5):
    """ScaledGD (Tong, Ma, Chi): iterates (L, S), of which the first is the starting point."""
    S = sparsify(M, corruption)
    P, sigma, Qt = np.linalg.svd(M - S)
    U, V = P[:, :r] @ np.diag(np.sqrt(sigma[:r])), Qt[:r].T @ np.diag(np.sqrt(sigma[:r]))
    iterates = [(U @ V.T, S)]
    for _ in range(T):
        S = sparsify(M - U @ V.T, 2 * corruption)
        E = U @ V.T + S - M
        U_next = U - step * E @ V @ np.linalg.inv(V.T @ V)
        V_next = V - step * E.T @ U @ np.linalg.inv(U.T @ U)
        U, V = U_next, V_next
        iterates.append((U @ V.T, S))
    return iterates


def ircur(M, r, rows, cols, T, decay=0.7, zeta_0=None, cutoff=1e-12):
    """IRCUR (Cai et al.) on fixed rows and columns: iterates L. ``zeta_0`` is max|M| unless given.

    The authors' code uses ``zeta_0`` itself in its first step: here that is ``zeta_0=np.abs(M).max() / decay``.
    """
    zeta = np.abs(M).max() if zeta_0 is None else zeta_0
    L = np.zeros(M.shape)
    iterates = []
    for _ in range(T):
        zeta = decay * zeta
        clean = M - hard(M - L, zeta)
        C, R = clean[:, cols], clean[rows, :]
        U, sigma, Vt = np.linalg.svd(clean[np.ix_(rows, cols)], full_matrices=False)
        kept = min(r, np.sum(sigma > cutoff * sigma[0]))  # 1/σ of a lost direction would blow up
        L = C @ Vt[:kept].T @ np.diag(1 / sigma[:kept]) @ U[:, :kept].T @ R
        iterates.append(L)
    return iterates
