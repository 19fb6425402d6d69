"""Life expectancy at birth in 202 countries over 50 years, without gaps.

The data are free material from Gapminder.org, licensed CC BY 2.0.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
from numpy.polynomial import legendre

from ..arguments import whole

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class LifeExpectancy:
    """Years a newborn could expect to live, by country and calendar year.

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
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError('frame() needs pandas: pip install "irpca[pandas]", or use M directly.') from error
        return pd.DataFrame(
            self.M,
            index=pd.Index(self.countries, name="country"),
            columns=pd.Index(self.years, name="year"),
        )

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
    source = files(__package__) / "data" / "life_expectancy.csv.gz"
    with source.open("rb") as packed, gzip.open(packed, "rt", encoding="utf-8", newline="") as text:
        header, *rows = csv.reader(text)
    return LifeExpectancy(
        M=np.array([row[2:] for row in rows], dtype=float),
        countries=[row[0] for row in rows],
        regions=[row[1] for row in rows],
        years=np.array(header[2:], dtype=int),
    )
