"""Real tables that come with the package."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import legendre

from ..arguments import whole

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class LifeExpectancy:
    """Years a newborn could expect to live, in 202 countries over 50 years, without gaps.

    The data are free material from Gapminder.org, licensed CC BY 2.0.

    Attributes
    ----------
    M : ndarray of shape (202, 50)
        One row per country, one column per year.
    countries, regions : list of str
        Name of each row, and the one of six world regions it lies in.
    years : ndarray of shape (50,)
        The calendar year of each column, 1964 to 2013.
    """

    M: np.ndarray
    countries: list[str]
    regions: list[str]
    years: np.ndarray

    def col_features(self, degree: int = 3) -> np.ndarray:
        """Return Legendre polynomials of the year, of degree 0 to ``degree``.

        Parameters
        ----------
        degree : int
            The default is a compromise, and a matter of judgement. ``irpca.solve(M, None, col_features(degree),
            extra_rank=0)`` converges for degrees 2 to 6, flags 0.3 to 2 % of the entries, and finds some 40 years
            missing in Rwanda in 1994 and 30 in Cambodia in 1977; the noise it leaves falls from 0.4 years at degree 2
            to 0.13 at 6. All of them are used with care: residuals drift, and components are left in them.

            The slow fall and rise of southern Africa asks for a high degree; as it is not sparse, it is taken for
            noise of seven countries there, and none of their entries is flagged at any of these. The ten years that
            Cambodia lost ask for a low one.

        Returns
        -------
        ndarray of shape (50, degree + 1)
            The first column is the constant.
        """
        whole(degree, "degree", least=0, below=self.years.size)
        first, last = self.years[[0, -1]]
        return legendre.legvander((2 * self.years - first - last) / (last - first), degree)

    def row_features(self) -> np.ndarray:
        """Return region indicators: a one per row, in a column per region, regions in alphabetical order.

        Returns
        -------
        ndarray of shape (202, 6)
        """
        names, column = np.unique(self.regions, return_inverse=True)
        return np.eye(names.size)[column]

    def frame(self) -> pd.DataFrame:
        """Return M as a pandas DataFrame, labelled by country and year."""
        return _labelled(self.M, self.countries, self.years).rename_axis(index="country", columns="year")

    def __repr__(self) -> str:
        return f"LifeExpectancy({len(self.countries)} countries × {self.years[0]}–{self.years[-1]})"


def load_life_expectancy() -> LifeExpectancy:
    """Load the bundled table of life expectancy; nothing is downloaded.

    Wars, famines and earthquakes stand in it as single entries far below what the years around them suggest.

    Returns
    -------
    LifeExpectancy

    Examples
    --------
    >>> data = load_life_expectancy()
    >>> data
    LifeExpectancy(202 countries × 1964–2013)
    >>> rwanda = data.M[data.countries.index("Rwanda")]
    >>> print(*rwanda[(data.years >= 1992) & (data.years <= 1996)])
    47.2 46.0 6.0 40.0 41.5285
    """
    header, *rows = csv.reader(_text("life_expectancy").splitlines())
    return LifeExpectancy(
        M=np.array([row[2:] for row in rows], dtype=float),
        countries=[row[0] for row in rows],
        regions=[row[1] for row in rows],
        years=np.array(header[2:], dtype=int),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Weather:
    """Hourly weather at the three airports of New York, January to March 2013, as measured, errors and gaps included.

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
        return _labelled(self.M, self.times, self.columns).rename_axis(index="time")

    def to_csv(self, path: str | Path) -> Path:
        """Write the table as the CSV file that it came in, and return its path."""
        target = Path(path)
        target.write_text(_text("weather"), encoding="utf-8")
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
    (_, *columns), *rows = csv.reader(_text("weather").splitlines())
    return Weather(
        M=np.array([[float(cell) if cell else np.nan for cell in row[1:]] for row in rows]),
        times=np.array([row[0].replace(" ", "T") for row in rows], "datetime64[s]"),
        columns=columns,
    )


def _text(name: str) -> str:
    return gzip.decompress((files(__package__) / "data" / f"{name}.csv.gz").read_bytes()).decode()


def _labelled(M: np.ndarray, rows: Any, columns: Any) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError('frame() needs pandas: pip install "irpca[pandas]", or use M directly.') from error
    return pd.DataFrame(M, rows, columns)
