"""Matrix Market files. That of SciPy is faster, but damaged files can crash it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..lowrank import Array
from .columns import Options, ReaderError, short
from .matrixfiles import checked

MOST_EMPTY_LINES = 10**7  # rows or columns beyond those that the entries can fill
LAYOUTS = ("coordinate", "array")
FIELDS = ("real", "integer", "double")
SYMMETRIES = {"general": 0.0, "symmetric": 1.0, "skew-symmetric": -1.0}  # and the sign of what is mirrored


def from_mtx(name: str, content: bytes, options: Options) -> Any:
    """A dense array, or a sparse one whose stored entries are the observed ones."""
    try:
        layout, symmetry, sizes, numbers = _parts(content)
        return checked(name, _dense(sizes, numbers)) if layout == "array" else _sparse(sizes, numbers, symmetry)
    except (ValueError, OverflowError, IndexError) as error:
        raise ReaderError(
            f"{name} is no Matrix Market file that can be used here, or damaged: {short(error)}"
        ) from error


def _parts(content: bytes) -> tuple[str, str, list[int], Array]:
    """The layout, the symmetry, the numbers of the line of sizes, and all numbers after it."""
    first, _, rest = content.partition(b"\n")
    words = first.decode("ascii").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError("it does not begin with %%MatrixMarket matrix …")
    _, _, layout, kind, symmetry = words
    if layout not in LAYOUTS or kind not in FIELDS or symmetry not in SYMMETRIES:
        raise ValueError(
            f"it holds {layout} {kind} {symmetry}; a matrix of real numbers, general or symmetric, is needed"
        )
    if layout == "array" and symmetry != "general":
        raise ValueError("of an array all entries must be there; save it as general")
    line = b""
    while rest and (not line.strip() or line.startswith(b"%")):
        line, _, rest = rest.partition(b"\n")
    sizes = [int(word) for word in line.split()]
    if len(sizes) != (2 if layout == "array" else 3) or min(sizes) < 1:
        raise ValueError(f"its sizes are {short(ValueError(line.decode('ascii', 'replace')))!r}")
    return layout, symmetry, sizes, np.array(rest.split(), float)


def _dense(sizes: list[int], numbers: Array) -> Array:
    n1, n2 = sizes
    if n1 * n2 != len(numbers):
        raise ValueError(f"it announces {n1} × {n2} entries, and has {len(numbers)}")
    return numbers.reshape(n2, n1).T


def _sparse(sizes: list[int], numbers: Array, symmetry: str) -> Any:
    from scipy.sparse import csr_array

    n1, n2, count = sizes
    if 3 * count != len(numbers):
        raise ValueError(f"it announces {count} entries, and has {len(numbers) / 3:.12g}")
    if max(n1, n2) > MOST_EMPTY_LINES + count:
        raise ValueError(f"it announces {n1} × {n2}, almost all rows or columns of it empty")
    places, values = numbers.reshape(count, 3)[:, :2], numbers[2::3]
    if not (np.isfinite(values).all() and (places == np.floor(places)).all()):
        raise ValueError("an entry is not finite, or its place no whole number; leave out what is not known")
    if not ((places >= 1) & (places <= [n1, n2])).all():
        raise ValueError(f"an entry lies outside of {n1} × {n2}")
    rows, cols = (places.astype(np.intp) - 1).T
    if SYMMETRIES[symmetry]:
        rows, cols, values = _mirrored(rows, cols, values, SYMMETRIES[symmetry])
    if len(np.unique(rows * n2 + cols)) < len(values):
        raise ValueError("a cell is there more than once")
    return csr_array((values, (rows, cols)), shape=(max(n1, int(rows.max()) + 1), max(n2, int(cols.max()) + 1)))


def _mirrored(rows: Array, cols: Array, values: Array, sign: float) -> tuple[Array, Array, Array]:
    off = rows != cols
    return (
        np.concatenate([rows, cols[off]]),
        np.concatenate([cols, rows[off]]),
        np.concatenate([values, sign * values[off]]),
    )
