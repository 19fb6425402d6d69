"""Where real data lie: in a given folder, under IRPCA_DATA, in the user's cache, or at their public source."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "IRPCA_DATA"
TIMEOUT = 60  # seconds without an answer


@dataclass(frozen=True)
class Source:
    """A folder of files, and the public zip archive that holds it.

    Attributes
    ----------
    name : str
        What the folder is called, under IRPCA_DATA, in the cache and in the archive.
    files : tuple of str
        The files in it that are needed.
    url, md5 : str
        The archive, and its checksum as published.
    """

    name: str
    files: tuple[str, ...]
    url: str
    md5: str


def locate(source: Source, path: str | os.PathLike[str] | None = None, *, download: bool = False) -> Path:
    """Return the folder that holds the files of a source.

    Looks at ``path`` alone if it is given; if not, under the environment variable IRPCA_DATA, then in
    :func:`cache_folder`. Only if it is in neither and ``download`` is True, the archive is fetched, checked and
    unpacked into the cache.
    """
    if path is not None:
        folder = Path(path)
        if problem := _problem(folder, source):
            raise FileNotFoundError(
                f"path={str(path)!r} {problem}: give the folder that holds {', '.join(source.files)}"
            )
        return folder
    cached = cache_folder() / source.name
    given = os.environ.get(VARIABLE)
    tried = []
    for folder in [Path(given) / source.name, cached] if given else [cached]:
        problem = _problem(folder, source)
        if not problem:
            return folder
        tried.append(f"{folder} {problem}")
    if download:
        _fetch(source, cached)
        return cached
    unset = "" if given else f"{VARIABLE} is not set; "
    raise FileNotFoundError(
        f"{source.name} was not found: {unset}{'; '.join(tried)}. Pass its folder as path, set {VARIABLE} to the "
        f"folder that {source.name} lies in, or pass download=True to fetch it from {source.url}"
    )


def cache_folder() -> Path:
    """The folder for what this library keeps for its user, where the platform wants such things; not created."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "irpca"


def _problem(folder: Path, source: Source) -> str:
    """What keeps a folder from being used; nothing if it can be."""
    if not folder.is_dir():
        return "is not a folder"
    missing = [file for file in source.files if not (folder / file).is_file()]
    return f"has no {', '.join(missing)}" if missing else ""


def _fetch(source: Source, folder: Path) -> None:
    """Download the archive, check it, and put its files into the folder."""
    from http.client import HTTPException  # here, because these load much and few need them
    from urllib.request import urlopen

    advice = f"fetch it by other means, unpack it, and pass the folder as path or set {VARIABLE}"
    try:
        with urlopen(source.url, timeout=TIMEOUT) as answer:
            archive = answer.read()
    except (OSError, HTTPException) as error:
        raise ConnectionError(f"{source.url} could not be downloaded ({error}): {advice}") from error
    found = hashlib.md5(archive, usedforsecurity=False).hexdigest()
    if found != source.md5:
        raise ValueError(
            f"{source.url} was downloaded, but is not what was published: its MD5 is {found}, not {source.md5}. "
            f"Nothing was kept. Try again, or {advice}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(archive)) as packed, tempfile.TemporaryDirectory(dir=folder) as scratch:
        # Names are ours, never the archive's, so that nothing is written elsewhere; and no file is ever half written.
        for file in source.files:
            (Path(scratch) / file).write_bytes(packed.read(f"{source.name}/{file}"))
        for file in source.files:
            os.replace(Path(scratch) / file, folder / file)
