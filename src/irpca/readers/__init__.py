"""Files as tables, without a data frame library: csv, tsv, parquet, feather, npy, npz, mtx and zarr."""

from .files import PACKED, read
from .matrices import Data, Side, align, as_labels, long, wide
from .table import Options, ReaderError, Table

__all__ = ["PACKED", "Data", "Options", "ReaderError", "Side", "Table", "align", "as_labels", "long", "read", "wide"]
