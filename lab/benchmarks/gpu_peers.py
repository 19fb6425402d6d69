"""PCPF and AccAltProj in plain torch, as fast as one can type them: what the GPU gives to anyone's method.

Both keep what is as long as M in float32, and compute tall thin factors in float64: that costs next to nothing on a
device, and is what lets them reach 1e-5. What is d×d or r×r goes to the host, once in an iteration: a 32×32 SVD takes a
tenth of the time there. No full SVD, no QR of a library: those of tall blocks come from Gram matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from irpca import LowRank

Tensor = torch.Tensor
SPARE = 5  # columns of a block beyond the rank
ROUNDS = 3  # of subspace iteration: the leading values are separated by far, and what follows corrects the rest
MOST_GROWTH = 1e7  # of the penalty of PCPF, as its authors have it
NEGLIGIBLE = 1e-12  # eigenvalues of a Gram matrix in float64, relative to the largest


@dataclass
class Iterate:
    """L after an iteration: the factors on the device, the core on the host."""

    left: Tensor
    core: np.ndarray
    right: Tensor

    def lowrank(self) -> LowRank:
        return LowRank(self.left.cpu().numpy(), self.core, self.right.cpu().numpy())


def pcpf(M: Tensor, F1: Tensor, F2: Tensor, growth: float = 1.5, start: float = 1.25) -> Iterator[Iterate]:
    """min ‖H‖_* + λ ‖S‖₁ with Q1 H Q2ᵀ + S = M, by the inexact method of multipliers; λ = 1/√n.

    ``Y ← clip(Y + p (M − B), ±λ)`` and ``H ← svt(H + Q1ᵀ Y Q2 / p, 1/p)`` with B extrapolated from H: S is never
    stored, and the singular values are those of a d1×d2 matrix. See ``irpca.solvers.convex``.

    Parameters
    ----------
    growth : factor of the penalty p in each iteration
    start : of p · ‖M‖₂
    """
    Q1, Q2 = orthonormal(F1.double()), orthonormal(F2.double())
    thin = Q2.to(M.dtype)
    lam = max(M.shape) ** -0.5
    norm = largest_value(M)
    p, most = start / norm, MOST_GROWTH * start / norm
    # Y starts at M / max(‖M‖₂, ‖M‖∞ / λ): a step from zero with a larger penalty.
    Y = (M * (p + 1 / max(norm, float(torch.linalg.vector_norm(M, torch.inf)) / lam))).clamp_(-lam, lam)
    H = np.zeros((Q1.shape[1], Q2.shape[1]))
    move = _fused(M.device.type)
    while True:
        G = (Q1.T @ (Y @ thin).double()).cpu().numpy()
        u, s, vt = np.linalg.svd(H + G / p)
        s = np.maximum(s - 1 / p, 0)
        before, H = H, (u * s) @ vt
        yield Iterate(Q1, H, Q2)
        last, p = p, min(growth * p, most)
        ahead = H + last / p * (H - before)
        B = Q1 @ torch.from_numpy(ahead).to(Q1)
        Y.addmm_(B.to(M.dtype), thin.T, alpha=-p)
        move(Y, M, *(torch.tensor(value, dtype=M.dtype, device=M.device) for value in (p, lam)))


def _ascent(Y: Tensor, M: Tensor, p: Tensor, lam: Tensor) -> Tensor:
    return Y.copy_((Y + p * M).clamp(-lam, lam))


@cache
def _fused(device: str) -> Callable[..., Any]:
    """The step in one pass instead of three, where torch can compile it."""
    if device != "cuda":
        return _ascent
    compiled = torch.compile(_ascent, dynamic=False)
    try:
        compiled(*(torch.ones(shape, device=device) for shape in ((4, 4), (4, 4), (), ())))
    except Exception as error:  # no compiler there, for one
        print(f"PCPF runs uncompiled: {type(error).__name__}")
        return _ascent
    return compiled


def accaltproj(
    M: Tensor, rank: int, beta: float, beta_init: float, gamma: float = 0.7, seed: int = 0
) -> Iterator[Iterate]:
    """M − S projected onto the tangent space of L, then to rank r; ``ζ = β (σ_{r+1} + γᵗ σ_1)``.

    The singular value decomposition at the start is a randomised one; it ends if numbers overflow. See
    ``irpca.solvers.accaltproj``.
    """
    norm, V = leading(M, rank + SPARE, seed)
    T = trimmed_(M.clone(), beta_init * norm)
    U, s, V = triplets(T, V, rank)
    zeta = beta * s[0]
    for t in range(1, 1 << 30):
        yield Iterate(U, np.diag(s), V)
        scale = torch.from_numpy(s).to(U)
        left, right = U * scale, V * scale
        torch.addmm(M, left.to(M.dtype), V.T.to(M.dtype), alpha=-1, out=T)
        trimmed_(T, zeta)
        # Z = M − S = L + T
        ZV = left + (T @ V.to(M.dtype)).double()
        ZtU = right + (T.T @ U.to(M.dtype)).double()
        inner = U.T @ ZV
        # Vᵀ ZtU is inner, but for rounding in float32, which would add up in V.
        E1, E2 = ZV - U @ inner, ZtU - V @ (V.T @ ZtU)
        core, *grams = torch.stack([inner, E1.T @ E1, E2.T @ E2]).cpu().numpy()
        (R1, back1), (R2, back2) = (_triangle(G) for G in grams)
        small = np.block([[core, R2.T], [R1, np.zeros_like(core)]])
        if not np.isfinite(small).all():
            return
        u, values, vt = np.linalg.svd(small)
        U = _turned(U, E1, u[:, :rank], back1)
        V = _turned(V, E2, vt[:rank].T, back2)
        s = values[:rank]
        zeta = beta * (values[rank] + gamma**t * s[0])


def trimmed_(R: Tensor, zeta: float) -> Tensor:
    """R with every entry of at least zeta in magnitude set to zero, in place and in one pass.

    It is the derivative of clip(R, ±zeta), which torch has as one kernel; abs, compare and fill would be three.
    """
    torch.ops.aten.hardtanh_backward.grad_input(R, R, -zeta, zeta, grad_input=R)
    return R


def _triangle(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From the Gram matrix of E: R, and ``back`` such that Q = E @ back is orthonormal and E = Q @ R."""
    w, X = np.linalg.eigh(G)
    there = w > NEGLIGIBLE * max(w[-1], np.finfo(float).tiny)
    root = np.sqrt(np.where(there, w, 0))
    return root[:, None] * X.T, X * np.where(there, 1 / np.where(there, root, 1), 0)


def _turned(U: Tensor, E: Tensor, u: np.ndarray, back: np.ndarray) -> Tensor:
    """``[U, Q] @ u`` with Q = E @ back."""
    r = U.shape[1]
    first, second = torch.from_numpy(np.stack([u[:r], back @ u[r:]])).to(U)
    return U @ first + E @ second


def orthonormal(B: Tensor) -> Tensor:
    """An orthonormal basis of a tall block, by Gram matrices; twice, since once loses half the digits."""
    for _ in range(2):
        B = B @ torch.from_numpy(_triangle((B.T @ B).cpu().numpy())[1]).to(B)
    return B


def largest_value(M: Tensor) -> float:
    """The largest singular value of M, to a per cent or so."""
    return leading(M, 1 + SPARE)[0]


def leading(M: Tensor, columns: int, seed: int = 0) -> tuple[float, Tensor]:
    """The largest singular value of M, and a block of right vectors."""
    draw = torch.Generator(M.device).manual_seed(seed)
    V = torch.randn(M.shape[1], min(columns, *M.shape), generator=draw, device=M.device, dtype=torch.float64)
    _, s, V = triplets(M, V, 1, rounds=2, keep=True)
    return float(s[0]), V


def triplets(
    A: Tensor, V: Tensor, rank: int, rounds: int = ROUNDS, keep: bool = False
) -> tuple[Tensor, np.ndarray, Tensor]:
    """Leading singular triplets by subspace iteration from V; ``keep``: all columns of V, not only ``rank``."""
    for _ in range(rounds):
        U = orthonormal((A @ V.to(A.dtype)).double())
        V = (A.T @ U.to(A.dtype)).double()
    # V = Aᵀ U: its own decomposition is that of U Uᵀ A.
    w, X = np.linalg.eigh((V.T @ V).cpu().numpy())
    order = np.arange(len(w))[::-1][: len(w) if keep else rank]
    s = np.sqrt(np.maximum(w[order], np.finfo(float).tiny))
    turn = torch.from_numpy(X[:, order].copy()).to(V)
    return U @ turn, s, V @ turn / torch.from_numpy(s).to(V)
