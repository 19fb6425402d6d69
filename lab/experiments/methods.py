"""Who is compared: how each is called, what it is told, what is promised of it, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .problems import Instance


@dataclass(frozen=True)
class Method:
    """One contender.

    Attributes
    ----------
    name : what ``--methods`` and the CSV call it
    rank : whether it is told the true rank
    options : what else it is told, from the instance
    features : whether it makes use of features
    needs, guarantee, memory : for the table; memory is what it holds beyond M, of an n×n matrix with d features
    """

    name: str
    label: str
    solver: str
    needs: str
    guarantee: str
    memory: str
    color: str
    marker: str
    rank: bool = True
    features: bool = False
    line: str = "-"
    options: Callable[[Instance], dict[str, Any]] = lambda instance: {}


def _iht(variant: str) -> Callable[[Instance], dict[str, Any]]:
    return lambda instance: {"variant": variant, "c_W": instance.W_norm}


def _share(inflation: float) -> Callable[[Instance], dict[str, Any]]:
    """What the sparsifier is told so that, so many times as much, it covers the fullest row and column, and no more."""
    return lambda instance: {"corruption": max(instance.mean_share, instance.worst_share / inflation)}


def _paper(instance: Instance) -> dict[str, Any]:
    """L is exactly ``F1 W F2ᵀ``, as in the paper."""
    return {"extra_rank": 0}


# Colours: Tol's "muted" and "vibrant", which colour-blind people can tell apart, black for ours. Markers differ, too.
METHODS = {
    method.name: method
    for method in (
        Method(
            "irpca",
            "irpca",
            "irpca",
            "features, rank",
            "none proved; says what to doubt",
            "factors n·d, S",
            "#000000",
            "o",
            features=True,
            options=_paper,
        ),
        Method(
            "irpca-auto",
            'irpca, rank="auto"',
            "irpca",
            "features",
            "none proved; says what to doubt",
            "factors n·d, S",
            "#777777",
            "o",
            rank=False,
            features=True,
            line="--",
            options=_paper,
        ),
        Method(
            "trimmed",
            "trimmed",
            "trimmed",
            "features, rank",
            "none proved; says whether its fit is exact",
            "factors n·d, S",
            "#0077BB",
            "p",
            features=True,
        ),
        Method(
            "trimmed-auto",
            'trimmed, rank="auto"',
            "trimmed",
            "features",
            "none proved; says whether its fit is exact",
            "factors n·d, S",
            "#EE7733",
            "p",
            rank=False,
            features=True,
            line="--",
        ),
        Method(
            "iht-whitened",
            "IRPCA-IHT, whitened",
            "irpca_iht",
            "features, rank, ‖W‖₂",
            "share ≤ 1/(20 μ² d), any places (Niranjan et al. 2017, Theorem 1 at κ = 1)",
            "factors n·d, S",
            "#882255",
            "D",
            features=True,
            options=_iht("whitened"),
        ),
        Method(
            "iht-paper",
            "IRPCA-IHT, as printed",
            "irpca_iht",
            "features, rank, ‖W‖₂",
            "share ≤ 1/(20 μ² d κ²), any places (Niranjan et al. 2017, Theorem 1; κ² is what its proof needs)",
            "factors n·d, S",
            "#CC6677",
            "d",
            features=True,
            line="--",
            options=_iht("paper"),
        ),
        Method(
            "pcpf",
            "PCPF",
            "pcpf",
            "features",
            "a constant share, random places, strong incoherence (Chiang et al. 2016)",
            "a multiplier like M, factors n·d, S",
            "#332288",
            "s",
            rank=False,
            features=True,
        ),
        Method(
            "pcp",
            "PCP",
            "pcp",
            "nothing",
            "a constant share, random places, strong incoherence (Candès et al. 2011)",
            "a multiplier like M, factors n·r, S",
            "#88CCEE",
            "P",
            rank=False,
        ),
        Method(
            "altproj",
            "AltProj",
            "altproj",
            "rank",
            "share ≤ 1/(512 μ² r), any places (Netrapalli et al. 2014)",
            "factors n·r, S",
            "#117733",
            "^",
        ),
        Method(
            "accaltproj",
            "AccAltProj",
            "accaltproj",
            "rank",
            "a share that falls with r and κ(L), any places (Cai, Cai and Wei 2019)",
            "factors n·r, S",
            "#44AA99",
            "v",
        ),
        Method(
            "rpca_gd",
            "RPCA-GD",
            "rpca_gd",
            "rank, share of errors",
            "share = O(1/r^1.5), any places (Yi et al. 2016)",
            "a residual like M, factors n·r, S",
            "#999933",
            "<",
            options=_share(1.5),
        ),
        Method(
            "scaledgd",
            "ScaledGD",
            "scaledgd",
            "rank, share of errors",
            "share = O(1/(r^1.5 κ(L))), at a rate without κ(L) (Tong, Ma and Chi 2021)",
            "a residual like M, factors n·r, S",
            "#DDAA33",
            ">",
            options=_share(2.0),
        ),
        Method(
            "ircur",
            "IRCUR",
            "ircur",
            "rank",
            "none given (Cai et al. 2021)",
            "n·r·log n, S",
            "#AA4499",
            "X",
        ),
        Method("pca", "PCA", "pca", "rank", "none: not robust", "factors n·r, S", "#BBBBBB", "*", line=":"),
    )
}

# Knows L, and has only to read M and write S: nobody who returns S can do less.
ORACLE = Method("oracle", "oracle read", "oracle", "L", "", "S", "#BBBBBB", "_", line=":")
EVERYONE = METHODS | {ORACLE.name: ORACLE}
ROBUST = tuple(method for method in METHODS.values() if method.name != "pca")
