"""A table of eight kinds of columns: six cells are wrong by a factor of ten, three are empty."""

import numpy as np
import pandas as pd

LABELS = ("income", "rent", "area", "rooms", "garage", "pool", "score", "year")
KINDS = {"income": "logarithm", "rooms": "ordered"}  # asked for: few rows leave the choice to chance
ASKED = [KINDS.get(name, "auto") for name in LABELS]
WRONG = [(7, 0, 10.0), (30, 1, 0.1), (80, 2, 10.0), (111, 7, 0.1), (100, 2, 0.1), (50, 1, 10.0)]


def mixed(n: int = 150) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    z = rng.standard_normal((n, 3))
    columns = [
        np.exp(10 + 0.8 * z[:, 0] + 0.3 * rng.standard_normal(n)),
        np.exp(6.5 + 0.6 * z[:, 0] + 0.2 * rng.standard_normal(n)),
        np.exp(4.2 + 0.4 * z[:, 1] + 0.1 * rng.standard_normal(n)),
        np.clip(np.round(1 + np.exp(0.9 + 0.4 * z[:, 1] + 0.1 * rng.standard_normal(n))), 1, 9),
        (z[:, 0] + 0.5 * rng.standard_normal(n) > 1.0).astype(float),
        np.maximum(0, 30 * (z[:, 1] - 1.2) + 10 * rng.standard_normal(n)),
        np.minimum(10, np.round(9 + 2 * z[:, 2] + 0.5 * rng.standard_normal(n))),
        np.round(1980 + 12 * z[:, 2] + 5 * rng.standard_normal(n)),
    ]
    M = np.column_stack(columns)
    for i, j, factor in WRONG:
        M[i, j] *= factor
    M[5, 2] = M[9, 4] = M[17, 5] = np.nan
    return pd.DataFrame(M, columns=LABELS, index=[f"flat {i}" for i in range(n)])
