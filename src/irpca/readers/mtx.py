"""Matrix Market files. SciPy's own reader ends the process where a file breaks off within a number (seen in 1.17)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..lowrank import Array

MOST_EMPTY_LINES = 10**7  # rows or columns beyond those that the entries can fill
FIELDS = ("real", "integer", "double")
SIGNS = {"general": 0.0, "symmetric": 1.0, "skew-symmetric": -1.0}  # of entries that are mirrored


def parse_mtx(content: bytes) -> Any:
    """Return a dense array, or a sparse one whose stored entries are the observed ones; ValueError if it is neither."""
    first, _, rest = content.partition(b"\n")
    words = first.decode("ascii").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError("it does not begin with %%MatrixMarket matrix …")
    layout, kind, symmetry = words[2:]
    if layout not in ("coordinate", "array") or kind not in FIELDS or symmetry not in SIGNS:
        raise ValueError(
            f"it holds {layout} {kind} {symmetry}; a matrix of real numbers, general or symmetric, is needed"
        )
    line = b""
    while rest and (not line.strip() or line.startswith(b"%")):
        line, _, rest = rest.partition(b"\n")
    sizes, numbers = [int(word) for word in line.split()], np.array(rest.split(), float)
    if len(sizes) != (2 if layout == "array" else 3) or min(sizes) < 1:
        raise ValueError(f"its sizes are {line[:80].decode('ascii', 'replace')!r}")
    if layout == "coordinate":
        return _sparse(sizes, numbers, SIGNS[symmetry])
    if symmetry != "general":
        raise ValueError("of an array all entries must be there; save it as general")
    if sizes[0] * sizes[1] != len(numbers):
        raise ValueError(f"it announces {sizes[0]} × {sizes[1]} entries, and has {len(numbers)}")
    return numbers.reshape(sizes[::-1]).T


def _sparse(sizes: list[int], numbers: Array, sign: float) -> Any:
    from scipy.sparse import csr_array

    n1, n2, stored = sizes
    if 3 * stored != len(numbers):
        raise ValueError(f"it announces {stored} entries, and has {len(numbers) / 3:.12g}")
    if max(n1, n2) > MOST_EMPTY_LINES + stored:
        raise ValueError(f"it announces {n1} × {n2}, almost all rows or columns of it empty")
    places, values = numbers.reshape(stored, 3)[:, :2], numbers[2::3]
    if not (np.isfinite(values).all() and (places == np.floor(places)).all()):
        raise ValueError("an entry is not finite, or its place no whole number; leave out what is not known")
    if not ((places >= 1) & (places <= [n1, n2])).all():
        raise ValueError(f"an entry lies outside of {n1} × {n2}")
    places = places.astype(np.intp) - 1
    off = places[:, 0] != places[:, 1]
    if sign:
        places, values = np.vstack([places, places[off, ::-1]]), np.concatenate([values, sign * values[off]])
    if len(np.unique(places, axis=0)) < len(values):
        raise ValueError("a cell is there more than once")
    return csr_array((values, places.T), shape=(n1, n2))
