"""Other packages on one table: what each is given, told and asked for.

A method gets the table as it is, or, if it has no scaling of its own, columns standardised by median and MAD. Where it
refuses missing values, the medians stand in for them. ``settings`` are tried one after the other, and the one with the
least error *by the truth* counts, with its own seconds: what a method must be told is told in its favour.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .methods import METHODS, Method
from .problems import Instance

CUTOFF = 3.0  # standard deviations: the usual rule for scores and residuals
RANKS = (1, 2, 3, 5, 8, 12)

Settings = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Given:
    """What a method may see; ``instance`` is what solvers of the field are told of a synthetic table."""

    X: np.ndarray
    F1: np.ndarray | None = None
    F2: np.ndarray | None = None
    rows_spoilt: float = 0.0  # the share that detectors of rows are told
    instance: Instance | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """An estimate of every cell, the cells flagged, the rows flagged: whatever a method has of these."""

    expected: np.ndarray | None = None
    cells: np.ndarray | None = None
    rows: np.ndarray | None = None


@dataclass(frozen=True)
class Peer:
    """One contender; ``package`` is what must be installed, ``needs`` which tables or kinds it is for."""

    label: str
    package: str
    solve: Callable[..., Answer]
    settings: tuple[Settings, ...] = ({},)
    needs: str = ""


@dataclass(frozen=True, eq=False)
class Scale:
    """Columns less their median, over their MAD as that of a normal distribution (standard deviation where it is 0)."""

    centre: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray) -> Scale:
        centre = np.nanmedian(X, axis=0)
        spread = 1.4826 * np.nanmedian(np.abs(X - centre), axis=0)
        spread = np.where(spread > 0, spread, np.nanstd(X, axis=0))
        return cls(centre, np.where(spread > 0, spread, 1.0))

    def standard(self, X: np.ndarray) -> np.ndarray:
        return (X - self.centre) / self.spread

    def back(self, Z: np.ndarray) -> np.ndarray:
        return Z * self.spread + self.centre


def irpca_default(given: Given, features: bool) -> Answer:
    import irpca

    F1, F2 = (given.F1, given.F2) if features else (None, None)
    model = irpca.InductiveRobustPCA().fit(given.X, row_features=F1, col_features=F2)
    found = model.outlier_rows()
    rows = np.zeros(len(given.X), bool)
    rows[found["row"][found["broken"]]] = True
    for doubt in model.result_.doubts:
        if doubt.kind in ("broken-lines", "noisy-lines", "noisy-rows"):
            rows[list(doubt.rows)] = True
    return Answer(model.low_rank_.dense(), model.sparse_.toarray() != 0, rows)


def field(given: Given, method: Method) -> Answer:
    import irpca

    told = given.instance
    assert told is not None
    result = irpca.solve(
        given.X,
        given.F1 if method.features else None,
        given.F2 if method.features else None,
        rank=told.rank if method.rank else "auto",
        solver=method.solver,
        **method.options(told),
    )
    if result.L is None or result.S is None:
        raise ArithmeticError(result.status.name)
    return Answer(result.L.dense(), result.S.toarray() != 0)


def medians(given: Given) -> Answer:
    """No model at all: what any other must beat."""
    scale = Scale.of(given.X)
    return Answer(np.broadcast_to(scale.centre, given.X.shape), np.abs(scale.standard(given.X)) > CUTOFF)


def ddc(given: Given) -> Answer:
    model = _ddc(given.X)
    return Answer(model.rescaled_predictions_, np.asarray(model.cellwise_outliers_), np.asarray(model.row_outliers_))


def _ddc(X: np.ndarray) -> Any:
    import pandas as pd
    from robpy.outliers import DDC

    return DDC().fit(pd.DataFrame(X))


def robpca(given: Given, **settings: Any) -> Answer:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from robpy.pca import ROBPCA

    scale = Scale.of(given.X)
    Z = np.nan_to_num(scale.standard(given.X))
    model = ROBPCA(random_seed=0, **settings).fit(Z)
    score, orthogonal, score_cutoff, cutoff = model.plot_outlier_map(Z, return_distances=True)  # the only way to them
    plt.close("all")
    rows = (score > score_cutoff) | (orthogonal > cutoff)
    return Answer(scale.back(model.project(Z) + model.location_), rows=rows)


def rpca_noisy(given: Given, noise: float | None = None) -> Answer:
    """``noise``: its standard deviation, for the penalties of the paper it cites (Chen et al. 2021)."""
    from qolmat.imputations.rpca.rpca_noisy import RpcaNoisy

    told = {} if noise is None else {"tau": noise * np.sqrt(max(given.X.shape)), "lam": CUTOFF * noise}
    # Of its 10,000 iterations: on one table all of them took 40 times as long, and changed the error by 2 %.
    return _qolmat(given, RpcaNoisy(random_state=0, verbose=False, max_iterations=500, **told))


def rpca_pcp(given: Given) -> Answer:
    from qolmat.imputations.rpca.rpca_pcp import RpcaPcp

    return _qolmat(given, RpcaPcp(random_state=0, verbose=False))


def _qolmat(given: Given, model: Any) -> Answer:
    scale = Scale.of(given.X)
    observed = np.isfinite(given.X)
    L, anomalies = model.decompose(scale.standard(given.X), observed)
    return Answer(scale.back(L), observed & (anomalies != 0))


def pca(given: Given, n_components: int) -> Answer:
    from sklearn.decomposition import PCA

    scale = Scale.of(given.X)
    Z = np.nan_to_num(scale.standard(given.X))
    model = PCA(min(n_components, min(Z.shape) - 1))
    L = model.inverse_transform(model.fit_transform(Z))
    return Answer(scale.back(L), np.abs(Z - L) > CUTOFF * np.std(Z - L, axis=0))


def imputed_after_scores(given: Given) -> Answer:
    return _imputed(given.X, np.abs(Scale.of(given.X).standard(given.X)) > CUTOFF)


def imputed_after_ddc(given: Given) -> Answer:
    return _imputed(given.X, np.asarray(_ddc(given.X).cellwise_outliers_))


def _imputed(X: np.ndarray, cells: np.ndarray) -> Answer:
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    scale = Scale.of(X)
    filled = IterativeImputer(random_state=0).fit_transform(np.where(cells, np.nan, scale.standard(X)))
    return Answer(scale.back(filled), cells)


def cmfrec(given: Given, **settings: Any) -> Answer:
    from cmfrec import CMF

    scale = Scale.of(given.X)
    model = CMF(nthreads=1, verbose=False, **settings)
    model.fit(scale.standard(given.X), U=given.F1, I=given.F2)
    rows, columns = np.indices(given.X.shape).reshape(2, -1)
    return Answer(scale.back(np.asarray(model.predict(rows, columns), float).reshape(given.X.shape)))


def detector(given: Given, name: str) -> Answer:
    from importlib import import_module

    module = import_module(f"pyod.models.{name.lower()}")
    model = getattr(module, name)(contamination=given.rows_spoilt)
    model.fit(np.nan_to_num(Scale.of(given.X).standard(given.X)))
    return Answer(rows=np.asarray(model.labels_) == 1)


SYNTHETIC, ROWS, FEATURES = "synthetic tables", "rows spoilt", "features"

PEERS = {
    "irpca": Peer("irpca", "irpca", partial(irpca_default, features=True)),
    "irpca-bare": Peer("irpca, no features given", "irpca", partial(irpca_default, features=False), needs=FEATURES),
    "ddc": Peer("robpy DDC", "robpy", ddc),
    "robpca": Peer("robpy ROBPCA", "robpy", robpca, ({}, *({"n_components": r} for r in (2, 5, 10)))),
    "rpca-noisy": Peer("qolmat RpcaNoisy", "qolmat", rpca_noisy),
    "rpca-noisy-told": Peer(
        "qolmat RpcaNoisy, told the noise", "qolmat", rpca_noisy, tuple({"noise": s} for s in (0.1, 0.3, 1.0))
    ),
    "rpca-pcp": Peer("qolmat RpcaPcp", "qolmat", rpca_pcp),
    "pca": Peer("scikit-learn PCA, 3σ", "scikit-learn", pca, tuple({"n_components": r} for r in RANKS)),
    "z-impute": Peer("scores, then IterativeImputer", "scikit-learn", imputed_after_scores),
    "ddc-impute": Peer("DDC, then IterativeImputer", "robpy", imputed_after_ddc),
    "cmfrec": Peer("cmfrec CMF", "cmfrec", cmfrec, ({}, *({"k": r} for r in (1, 2, 3, 5, 8)))),
    "medians": Peer("column medians, scores > 3", "numpy", medians),
    **{
        f"pyod-{name.lower()}": Peer(f"pyod {name}", "pyod", partial(detector, name=name), needs=ROWS)
        for name in ("ECOD", "IForest", "PCA")
    },
    **{
        name: Peer(f"our {one.label}", "irpca", partial(field, method=one), needs=SYNTHETIC)
        for name, one in METHODS.items()
        if one.solver not in ("irpca", "pca")
    },
}


def attempt(peer: Peer, given: Given, settings: Settings) -> Answer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peer.solve(given, **settings)
