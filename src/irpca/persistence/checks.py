"""Whether the parts of a loaded model belong together: types, shapes, positions. Else it would fail later, oddly."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..lowrank import Array
from .labels import check_labels
from .registry import ModelFileError, conforms, registry, require

# Letters say what an array holds (f: float, i: integer, b: bool), names what its sides must agree on.
RESULT_SHAPES = {
    "L.left": "f n1 k1",
    "L.core": "f k1 k2",
    "L.right": "f n2 k2",
    "W": "f w1 w2",
    "counts.0": "i n1",
    "counts.1": "i n2",
    "known.0": "b n1",
    "known.1": "b n2",
    "scale.rows": "f n1",
    "scale.cols": "f n2",
    "scale.row_spread": "f n1 q",
    "scale.col_spread": "f n2 q",
    "calibration.edges": "f edges",
    "calibration.levels": "f cells",
    "calibration.counts": "f cells",
    "calibration.clean": "f cells",
    "expected.0.offset": "f k1",
    "expected.0.coefficients": "f e1 k1",
    "expected.1.offset": "f k2",
    "expected.1.coefficients": "f e2 k2",
}
MODEL_SHAPES = {
    "components_": "f r n2",
    "singular_values_": "f r",
    "_observed": "f outliers",
    "_rows.expected.offset": "f r",
    "_rows.expected.coefficients": "f d1 r",
    "_cols.expected.offset": "f r",
    "_cols.expected.coefficients": "f d2 r",
    "_placement.columns.mean": "f n2 K",
    "_placement.columns.expected": "f n2 K",
    "_placement.columns.basis": "f n2 b",
    "_placement.columns.coefficients": "f b K",
    "_placement.columns.variance": "f K",
    "_placement.columns.slope_variance": "f K",
    "_placement.columns.covariance": "f K K",
    "_placement.columns.spread": "f n2",
    "_placement.columns.seen": "b n2",
    "_placement.noise.least": "f n2",
    "_placement.noise.rows": "f n1",
    "_placement.noise.cols": "f n2",
    "_placement.noise.shares": "f 3",
    "_placement.unit": "f n2",
    "_placement.turn": "f K r",
    "_placement.average": "f K",
    "_placement.own": "f K K",
    "_placement.whole": "f K K",
    "_placement.posterior": "f K K",
    "_placement.col_variances": "f n2 c",
    "_placement.new_rows": "f K K",
    "_placement.new_cols": "f K K",
}
ALIASES = {  # attributes of a model that repeat those of its result
    "W_": "W",
    "low_rank_": "L",
    "sparse_": "S",
    "rank_": "rank",
    "noise_": "noise",
    "corruption_": "corruption",
    "zeta_": "zeta",
    "explained_": "explained",
    "shares_": "shares",
    "status_": "status",
    "converged_": "converged",
    "n_iter_": "n_iter",
    "history_": "history",
}
CONTAINERS = ("numpy", "pandas", "polars", "pyarrow", "xarray", "torch")


def fitted_types() -> tuple[dict[str, Any], dict[str, Any]]:
    """Types of the attributes that every fitted model has, beside ``ALIASES``, and of those that some have."""
    classes = registry()
    always = {
        "result_": classes["Result"],
        "components_": Array,
        "singular_values_": Array,
        "n_features_in_": int,
        "container_": str,
        "_dims": tuple[str, str],
        "_rows": classes["Described"],
        "_cols": classes["Described"],
        "_placement": classes["Placement"],
        "_observed": Array,
        "_fingerprint": str,
    }
    return always, {"feature_names_in_": Array, "_sklearn_output_config": dict[str, Any]}


def check_result(result: Any, sides: dict[str, int] | None = None) -> None:
    sides = {} if sides is None else sides
    _check_shapes(result, RESULT_SHAPES, sides)
    require(result.rank == min(sides["k1"], sides["k2"]), "the rank is not that of L")
    if result.calibration is not None:
        require(sides["cells"] == sides["edges"] + 1, "the calibration is malformed")
    if result.S is not None:
        require(result.S.shape == (sides["n1"], sides["n2"]), "L and S differ in shape")
    require(len({len(column) for column in vars(result.history).values()}) == 1, "the history is malformed")
    for doubt in result.doubts:
        fine = all(0 <= i < sides["n1"] for i in doubt.rows) and all(0 <= j < sides["n2"] for j in doubt.columns)
        require(fine, "a doubt is about rows or columns that do not exist")


def check_model(model: Any) -> None:
    """Refuse a model that could not have been fitted so."""
    _check_attributes(model)
    result: Any = model.result_
    sides: dict[str, int] = {}
    check_result(result, sides)
    _check_shapes(model, MODEL_SHAPES, sides)
    require(model.rank_ == sides["r"] and model.n_features_in_ == sides["n2"], "components and L do not agree")
    stored = 0 if result.S is None else result.S.nnz
    require(sides["outliers"] == stored, "there are not as many observed values as outliers")
    require(model.container_ in CONTAINERS, f"its container is unknown, {model.container_[:40]!r}")
    for side, n in ((model._rows, sides["n1"]), (model._cols, sides["n2"])):
        _check_side(side, n)
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        fine = names.shape == (sides["n2"],) and all(isinstance(name, str) for name in names)
        require(fine, "feature_names_in_ is malformed")


def _check_attributes(model: Any) -> None:
    held, (always, sometimes) = vars(model), fitted_types()
    lacking = sorted({*always, *ALIASES} - set(held))
    require(not lacking, f"the model lacks {', '.join(lacking)}")
    for name, hint in {**always, **sometimes}.items():
        fits = name not in held or conforms(held[name], hint)
        require(fits, f"{name} is a {type(held.get(name)).__name__}, and should not be")
    for name, field in ALIASES.items():
        require(_same(held[name], getattr(model.result_, field)), f"{name} is not that of the result")


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, float | int | np.number) and isinstance(other, float | int | np.number):
        return bool(one == other or (np.isnan(one) and np.isnan(other)))
    return isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other)


def _check_shapes(root: Any, shapes: dict[str, str], sides: dict[str, int]) -> None:
    """Refuse arrays that do not agree; ``sides`` collects how long each side is."""
    for path, wanted in shapes.items():
        value = _follow(root, path)
        if value is None:
            continue
        kind, *names = wanted.split()
        fine = value.dtype.kind in {"f": "f", "i": "iu", "b": "b", "u": "u"}[kind] and value.ndim == len(names)
        require(fine, f"{path} is an array of another kind")
        for n, name in zip(value.shape, names, strict=True):
            expected = int(name) if name.isdigit() else sides.setdefault(name, n)
            require(n == expected, f"{path} has the shape {value.shape}, which does not go with the others")


def _follow(value: Any, path: str) -> Any:
    for part in path.split("."):
        if value is None:
            return None
        value = value[int(part)] if part.isdigit() else getattr(value, part)
    return value


def _check_side(side: Any, n: int) -> None:
    if side.labels is not None:
        check_labels(side.labels, n)
    if side.columns is not None:
        check_labels(side.columns, None if side.expected is None else len(side.expected.coefficients))
    require(side.encoder is not None or not side.by_index, "features from an index need an encoder")
    if side.encoder is not None:
        try:
            side.encoder.check()
        except Exception as error:  # what is made of numbers that make no sense fails in many ways
            raise ModelFileError(f"the encoder is malformed: {error}") from error
        if side.expected is not None:
            require(len(side.encoder.kept_) == len(side.expected.coefficients), "the encoder makes other features")
