"""Files as tables, without a data frame library: csv, tsv, parquet, feather, npy, npz, mtx and zarr."""

from .columns import Options, ReaderError, Table
from .files import read
from .matrices import Data, Side, align, as_labels, long, wide

__all__ = ["Data", "Options", "ReaderError", "Side", "Table", "align", "as_labels", "long", "read", "wide"]
