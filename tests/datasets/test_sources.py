import hashlib
import http.client
import io
import sys
import urllib.request
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from irpca.datasets.sources import Source, cache_folder, locate

CONTENT = {"table.csv": b"1,2\n", "names.txt": b"one\ntwo\n"}


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No data, no cache and no network: a test makes what it needs."""
    monkeypatch.delenv("IRPCA_DATA", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def archive(folder, members=None):
    """A source whose archive is a file on this machine."""
    members = members or {f"tables/{file}": content for file, content in CONTENT.items()}
    file = folder / "tables.zip"
    with zipfile.ZipFile(file, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return Source("tables", tuple(CONTENT), file.as_uri(), hashlib.md5(file.read_bytes()).hexdigest())


@pytest.fixture
def source(tmp_path):
    return archive(tmp_path)


def make(folder, files=tuple(CONTENT)):
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_bytes(CONTENT[file])
    return folder


# The order in which it looks.


def test_a_given_path_comes_first(source, tmp_path, monkeypatch):
    make(tmp_path / "data" / "tables")
    monkeypatch.setenv("IRPCA_DATA", str(tmp_path / "data"))
    mine = make(tmp_path / "mine")
    assert locate(source, mine) == mine
    assert locate(source, str(mine)) == mine


def test_then_the_environment_then_the_cache(source, tmp_path, monkeypatch):
    cached = make(tmp_path / "cache" / "irpca" / "tables")
    assert locate(source) == cached
    monkeypatch.setenv("IRPCA_DATA", str(tmp_path / "data"))
    assert locate(source) == cached  # the variable may name a folder with other data
    given = make(tmp_path / "data" / "tables")
    assert locate(source) == given
    assert locate(source, download=True) == given


def test_a_given_path_is_not_replaced_by_another_place(source, tmp_path):
    make(tmp_path / "cache" / "irpca" / "tables")
    with pytest.raises(FileNotFoundError, match="absent' is not a folder: give the folder that holds table"):
        locate(source, tmp_path / "absent")
    half = make(tmp_path / "half", ["names.txt"])
    with pytest.raises(FileNotFoundError, match=r"half' has no table\.csv: give the folder"):
        locate(source, half, download=True)


def test_without_being_asked_nothing_is_downloaded(source, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="tables was not found: IRPCA_DATA is not set") as caught:
        locate(source)
    told = str(caught.value)
    assert f"{tmp_path / 'cache' / 'irpca' / 'tables'} is not a folder" in told
    assert "download=True" in told
    assert source.url in told
    assert not (tmp_path / "cache").exists()

    make(tmp_path / "data" / "tables", ["table.csv"])
    monkeypatch.setenv("IRPCA_DATA", str(tmp_path / "data"))
    with pytest.raises(FileNotFoundError, match=r"tables was not found: .*data.tables has no names\.txt; .*cache"):
        locate(source)


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/var/caches"}, "/var/caches/irpca"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/me/.cache/irpca"),
        ("darwin", {"XDG_CACHE_HOME": "/var/caches"}, "/home/me/Library/Caches/irpca"),
        ("win32", {"LOCALAPPDATA": "/users/me/local"}, "/users/me/local/irpca"),
        ("win32", {"LOCALAPPDATA": ""}, "/home/me/AppData/Local/irpca"),
    ],
)
def test_the_cache_is_where_the_platform_wants_it(monkeypatch, platform, variables, expected):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


# Downloads.


def test_a_download_is_unpacked_into_the_cache_and_found_again(source, tmp_path):
    folder = locate(source, download=True)
    assert folder == tmp_path / "cache" / "irpca" / "tables"
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == CONTENT
    Path(urllib.request.url2pathname(source.url.removeprefix("file:"))).unlink()
    assert locate(source, download=True) == locate(source) == folder


def test_a_download_completes_a_folder_that_lacks_files(source, tmp_path):
    folder = make(tmp_path / "cache" / "irpca" / "tables", ["names.txt"])
    assert locate(source, download=True) == folder
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == CONTENT


def test_another_archive_than_the_published_is_refused(source, tmp_path):
    with pytest.raises(ValueError, match=f"its MD5 is {source.md5}, not 00ff. Nothing was kept"):
        locate(replace(source, md5="00ff"), download=True)
    assert not (tmp_path / "cache").exists()


def test_without_a_network_it_says_what_to_do(source):
    absent = replace(source, url=source.url.replace("tables.zip", "absent.zip"))
    with pytest.raises(
        ConnectionError, match=r"absent\.zip could not be downloaded .*: fetch it by other means, .* path"
    ):
        locate(absent, download=True)


def test_an_answer_that_breaks_off_is_no_answer(source, monkeypatch):
    class Broken(io.BytesIO):
        def read(self, *_):
            raise http.client.IncompleteRead(b"PK", 1000)

    asked = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: asked.append((url, timeout)) or Broken())
    with pytest.raises(ConnectionError, match="could not be downloaded"):
        locate(source, download=True)
    assert asked == [(source.url, 60)]


def test_nothing_is_written_outside_the_folder(tmp_path):
    members = {f"tables/{file}": content for file, content in CONTENT.items()}
    evil = {"../evil.txt": b"!", "tables/../../evil.txt": b"!", "/evil.txt": b"!", "tables/surplus.txt": b"!"}
    folder = locate(archive(tmp_path, members | evil), download=True)
    assert {file.name for file in folder.iterdir()} == set(CONTENT)
    assert not list(tmp_path.rglob("evil*"))
