"""Hourly weather at the three airports of New York, January to March 2013, as measured, errors and gaps included."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Weather:
    """Measurements by hour.

    Attributes
    ----------
    M : ndarray of shape (2157, 15)
        One row per hour, one column per airport and quantity; NaN where nothing was recorded.
    times : ndarray of datetime64, shape (2157,)
        In universal time.
    columns : list of str
        ``"EWR temperature"`` and so on: temperature and dew point in °F, humidity in %, wind in miles per hour,
        pressure in millibars, at Newark (EWR), Kennedy (JFK) and LaGuardia (LGA).
    """

    M: np.ndarray
    times: np.ndarray
    columns: list[str]

    def frame(self) -> pd.DataFrame:
        """Return M as a pandas DataFrame, labelled by time and column."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError('frame() needs pandas: pip install "irpca[pandas]", or use M directly.') from error
        return pd.DataFrame(self.M, index=pd.DatetimeIndex(self.times, name="time"), columns=self.columns)

    def to_csv(self, path: str | Path) -> Path:
        """Write the table as the CSV file that it came in, and return its path."""
        target = Path(path)
        target.write_text(_text(), encoding="utf-8")
        return target

    def __repr__(self) -> str:
        return f"Weather({len(self.times)} hours × {len(self.columns)} measurements)"


def load_weather() -> Weather:
    """Load the bundled table of weather; nothing is downloaded.

    It holds an error that everybody can see, a wind of 1048 miles per hour, and many that nobody sees.

    Returns
    -------
    Weather

    Examples
    --------
    >>> data = load_weather()
    >>> data
    Weather(2157 hours × 15 measurements)
    >>> float(np.nanmax(data.M[:, data.columns.index("EWR wind")]))
    1048.4
    """
    (_, *columns), *rows = csv.reader(_text().splitlines())
    return Weather(
        M=np.array([[float(cell) if cell else np.nan for cell in row[1:]] for row in rows]),
        times=np.array([row[0].replace(" ", "T") for row in rows], "datetime64[s]"),
        columns=columns,
    )


def _text() -> str:
    source = files(__package__) / "data" / "weather.csv.gz"
    return gzip.decompress(source.read_bytes()).decode()
