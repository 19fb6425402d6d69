"""Files as tables: what is read, and that nothing but a ReaderError, with a message, comes of what cannot be."""

import bz2
import gzip
import io
import lzma
import struct
import sys
import zipfile

import numpy as np
import pandas as pd
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

from irpca.readers import Data, FileTable, Options, ReaderError, align, as_labels, long, read, wide
from irpca.readers.csvfiles import MISSING, from_csv
from irpca.readers.table import spell_values

FUZZ = settings(max_examples=150, suppress_health_check=list(HealthCheck))


def table(given, **options):
    return from_csv("data.csv", given if isinstance(given, bytes) else given.encode(), Options(**options))


def refuse(given, **options):
    with pytest.raises(ReaderError) as caught:
        table(given, **options)
    return str(caught.value)


def test_columns_get_their_kind():
    found = table("name,n,day,ok,gap,maybe\na,1,2013-01-01,true,1.5,true\nb,-2e3,2013-01-02,False,NA,\n")
    assert list(found.columns) == ["name", "n", "day", "ok", "gap", "maybe"]
    assert found.columns["name"].tolist() == ["a", "b"]
    assert found.columns["n"].tolist() == [1.0, -2000.0]
    assert found.columns["day"].dtype == "datetime64[us]"
    assert found.columns["ok"].tolist() == [True, False] and found.columns["ok"].dtype == bool
    np.testing.assert_array_equal(found.columns["gap"], [1.5, np.nan])
    np.testing.assert_array_equal(found.columns["maybe"], [1.0, np.nan])


def test_what_stands_for_missing():
    for token in MISSING:
        found = table(f"a,b,c\n1,x,2013-01-01\n{token},{token},{token}\n")
        assert np.isnan(found.columns["a"][1]) and np.isnat(found.columns["c"][1])
        assert found.columns["b"].tolist() == ["x", None]
    found = table("a,b\n-999.0,x\n1,?\n-999,z\n?,y\n", missing=("-999", "?"))
    np.testing.assert_array_equal(found.columns["a"], [np.nan, 1, np.nan, np.nan])
    assert found.columns["b"].tolist() == ["x", None, "z", "y"]


def test_delimiters_line_ends_and_quotes():
    for delimiter in ",;\t|":
        assert list(table("a,b,c\nx y,1,2\nz,3,4\n".replace(",", delimiter)).columns) == ["a", "b", "c"]
    for end in ("\r\n", "\r", "\n"):
        assert table(end.join(["a,b", "1,2", "", "3,4", ""])).columns["a"].tolist() == [1.0, 3.0]
    found = table('name,n\n"a ""b""\nc, d",1\n\'e\',2\n')
    assert found.columns["name"].tolist() == ['a "b"\nc, d', "'e'"]
    found = table("a,b,\n1,2,\n3,4,\n")
    assert list(found.columns) == ["a", "b"] and "left out" in found.notes[0]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_decimal_commas_with_semicolons(end):
    found = table(end.join(["day;a;b", '2013-01-01;"1,5";2', "2013-01-02;;-3,25", ""]))
    np.testing.assert_array_equal(found.columns["a"], [1.5, np.nan])
    assert found.columns["b"].tolist() == [2.0, -3.25]
    text = end.join(["a;b", "1,5;x", "1.234;y", "2,5;z", ""])
    assert "comma, 1,5 in line 2, and with a point, 1.234 in line 3; say" in refuse(text)
    assert "'1.234' is not a number" in refuse(text, decimal=",")
    message = refuse(end.join(["a;b", "1.5;x", "2.5;y", "3,5;z", ""]), decimal=".")
    assert "'3,5' is not a number" in message and message.endswith("With --decimal , a comma is the decimal mark.")


@pytest.mark.parametrize("pack, ending", [(gzip.compress, "gz"), (bz2.compress, "bz2"), (lzma.compress, "xz")])
def test_packed_files(tmp_path, pack, ending):
    file = tmp_path / f"t.csv.{ending}"
    file.write_bytes(pack(b"a,b\n1,2\n"))
    assert read(str(file)).columns["b"].tolist() == [2.0]
    file.write_bytes(pack(b"a,b\n1,2\n")[:-6])
    with pytest.raises(ReaderError, match="cannot be unpacked"):
        read(str(file))


def test_byte_order_marks_and_encodings():
    assert list(table(b"\xef\xbb\xbfn\xc3\xa4me,b\nx,1\n").columns) == ["näme", "b"]
    assert list(table("näme,b\nx,1\n".encode("utf-16")).columns) == ["näme", "b"]
    assert list(table("näme,b\nx,1\n".encode("latin-1"), encoding="latin-1").columns) == ["näme", "b"]
    assert "line 2: byte 4 (0xe4) is not UTF-8" in refuse(b"a,b\n\xe4,1\n")
    assert "no such encoding" in refuse("a,b\n1,2\n", encoding="nonsense")


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "is empty"),
        ("a,b\n", "no lines of data"),
        ("a,b\n1,2\n\n1,2,3\n", "line 4: 3 fields, but the header has 2"),
        ("a,b\n1,2\n3\n", "line 3: 1 field, but the header has 2"),
        ("a,b\nx,1,2\n", "If the first column holds the names of the rows, give it a name in the header"),
        ('a,b\n1,2\n"3,4\n5,6\n', "line 3: this record cannot be taken apart"),
        ("a,b,a\n1,2,3\n", "line 1: the name 'a' stands 2 times"),
        ("a,b\n1,2\n1,\0\n", "line 3: a zero byte"),
        ("PK\x03\x04", "workbook"),
        ("d,t\n2013-01-01,1\nsoon,2\n2013-01-02,3\n", "line 3, column 'd': 'soon' is not a date"),
    ],
)
def test_malformed_files_are_refused_with_the_line(text, words):
    assert words in refuse(text)


def test_a_few_words_among_numbers_are_refused():
    message = refuse("day,t\n" + "".join(f"2013-01-{d:02},{'broken' if d == 9 else d}\n" for d in range(1, 20)))
    for words in ("line 10", "column 't'", "'broken' is not a number", "18 of the 19", "--missing=broken", "--drop t"):
        assert words in message
    for value in ("1_000", "inf", "1e999", "0x10", "12%"):
        assert repr(value) in refuse(f"a,b\n1,1\n2,2\n{value},3\n")


def test_columns_that_options_name():
    assert table("a,b\n1,1\nx,2\n3,3\n", text=("a",)).columns["a"].tolist() == ["1", "x", "3"]
    assert list(table("a,b\n1,1\nx,2\n3,3\n", drop=("a",)).columns) == ["b"]
    assert "--drop: data.csv has no column 'c'; it has 'a', 'b'" in refuse("a,b\n1,1\n", drop=("c",))
    assert refuse("a,b\n1,2\n", drop=("a", "b")) == "every column of data.csv is dropped"
    found = table("code,x\n007,1\nNA,2\n12,3\n", labels=("code",))
    assert found.columns["code"].tolist() == ["007", "NA", "12"]


def test_large_files_are_read_in_parts(monkeypatch):
    monkeypatch.setattr("irpca.readers.csvfiles.CELLS_AT_ONCE", 4)
    found = table("\n".join(["n,late", *(f"{k},{k if k < 6 else f'w{k}'}" for k in range(20))]))
    assert found.columns["n"].tolist() == list(range(20))
    assert found.columns["late"].tolist()[5:7] == ["5", "w6"]


def test_notes_on_dates_and_headers():
    assert "year first" in table("d,x\n01/02/2013,1\n02/02/2013,2\n").notes[0]
    assert "--no-header" in table("1,2\n3,4\n").notes[0]
    found = table("1,2\n3,4\n", header=False)
    assert found.columns["0"].tolist() == [1.0, 3.0] and not found.named
    assert "line 2: 3 fields, but the first line has 2" in refuse("1,2\n1,2,3\n", header=False)


def test_wide_tables_find_their_labels():
    data = wide(table("day,a,b\n2013-01-01,1,\n2013-01-02,3,4\n"))
    assert data.rows.spell() == ["2013-01-01", "2013-01-02"] and data.rows.names[0] == "day"
    assert data.rows.levels[0].dtype == "datetime64[us]" and "'day'" in data.notes[0]
    np.testing.assert_array_equal(data.M.values, [[1, np.nan], [3, 4]])
    data = wide(table(",a,b\n5,1,2\n6,3,4\n"))
    assert data.rows.spell() == ["5", "6"] and data.rows.names[0] is None and data.shape == (2, 2)
    data = wide(table("id,kind,x\na,u,1\nb,u,2\n"), features=["kind"])
    assert data.features["kind"].tolist() == ["u", "u"] and data.shape == (2, 1)
    text = "year,a\n2001,1\n2002,2\n2003,3\n"
    assert "--index year" in wide(table(text)).notes[0]
    assert wide(table(text, labels=("year",)), "year").rows.levels[0].tolist() == [2001, 2002, 2003]


@pytest.mark.parametrize(
    "text, index, message",
    [
        ("id,kind,x\na,u,1\nb,u,2\n", None, r"'kind' such as 'u'.*: --feature kind .*--drop kind"),
        ("n,name\n1,a\n2,\n3,c\n", None, "--index name if it labels the rows, --feature name to use it"),
        ("id\na\nb\n", None, "has no column of numbers beside the labels of the rows"),
        ("id,x\na,1\nb,1\na,2\n", "id", "line 4: 'a' is there for the second time"),
        ("id,x\na,1\n,1\n", "id", "line 3: no label"),
        ("id,x\na,1\n", "no", "--index: data.csv has no column 'no'"),
    ],
)
def test_wide_tables_that_are_refused(text, index, message):
    with pytest.raises(ReaderError, match=message):
        wide(table(text), index)


def test_columns_in_the_order_of_a_model():
    columns = as_labels(["b", "2013-01-01"], None)
    data = wide(table("id,2013-01-01T00:00,b\nx,1,2\n"), columns=columns)
    assert data.M.values.tolist() == [[2, 1]] and any("another order" in note for note in data.notes)
    with pytest.raises(ReaderError, match="lacks columns that the model has: 'b'"):
        wide(table("id,2013-01-01\nx,1\n"), columns=columns)
    with pytest.raises(ReaderError, match="does not have: 'c'; --drop c"):
        wide(table("id,2013-01-01,b,c\nx,1,2,3\n"), columns=columns)


def test_long_tables():
    found = table("u,i,r,note\n10,x,1,\n9,y,2,q\n10,y,,\n", labels=("u", "i"), only=("u", "i", "r"))
    data = long(found, ("u", "i", "r"))
    assert data.rows.spell() == ["9", "10"] and data.columns.spell() == ["x", "y"]  # numbers by size
    np.testing.assert_array_equal(data.M.dense(), [[np.nan, 2], [1, np.nan]])
    assert "without a value: 1" in data.notes[0]


@pytest.mark.parametrize(
    "text, message",
    [
        ("u,i,r\na,x,1\nb,x,2\na,x,3\n", "row 'a', column 'x' is there twice, in line 2 and line 4"),
        ("u,i,r\na,x,1\nb,z,2\n", "line 3: the model has no column 'z'; labels in the column 'i' .* not know: 1"),
        ("u,i,r\na,x,NA\nb,y,\n", r"data\.csv has no value in the column 'r'"),
        ("u,i,r\na,x,high\nb,y,low\n", r"--long: the column 'r' of data\.csv holds no numbers, but 'high'"),
        ("u,i,s\na,x,1\n", r"--long: data\.csv has no column 'r'"),
    ],
)
def test_long_tables_that_are_refused(text, message):
    with pytest.raises(ReaderError, match=message):
        long(table(text, labels=("u", "i")), ("u", "i", "r"), as_labels(["x", "y"], "i"))


def test_labels_keep_what_tells_them_apart():
    for texts, dtype in (
        (["2", "10"], "int64"),
        (["0.5", "1.25"], "float64"),
        (["2013-01-01", "2013-01-02"], "datetime64[us]"),
        (["2013-01-01T00:00Z"], "datetime64[us, UTC]"),
        *((texts, "str") for texts in (["02", "10"], ["1" * 19], ["1.0", "1"], ["2013-01", "2013-02"])),
    ):
        assert as_labels(texts, None).dtypes == (dtype,)


def test_features_are_matched_by_label_however_spelt():
    side = as_labels(["b", "a"], "id")
    features, notes = align(table("name,size\na,1\nb,2\nc,3\n"), side, 2, "--rows")
    assert features["size"].tolist() == [2.0, 1.0] and list(features) == ["size"]
    assert "1 line of data.csv is not in M, and not used" in notes
    days = as_labels(["2013-01-01", "2013-01-02"], "day")
    features, _ = align(table("t,w\n2013-01-02T00:00,5\n2013-01-01T00:00,6\n2013-01-03T12:00,7\n"), days, 2, "--rows")
    assert features["w"].tolist() == [6.0, 5.0]
    features, notes = align(table("year,w\n2002,5\n2001,6\n"), as_labels(["2001", "2002"], None), 2, "--cols")
    assert features["w"].tolist() == [6.0, 5.0] and notes == ("data.csv is matched by its column 'year'",)
    features, notes = align(table("w\n5\n6\n"), None, 2, "--rows")
    assert features["w"].tolist() == [5.0, 6.0] and "by position" in notes[0]


@pytest.mark.parametrize(
    "text, message",
    [
        ("name,size\nb,2\nc,3\n", "no line for 1 of the 2 labels, in its column 'name': 'a'"),
        ("name,size\nb,2\na,3\na,4\n", "'a' is there more than once"),
        ("name,size\nx,2\ny,3\n", r"no column of data.csv holds the labels 'b', 'a'; its columns are 'name', 'size'"),
        ("name\na\nb\n", "data.csv has labels, in the column 'name', but no features beside"),
    ],
)
def test_features_that_do_not_match(text, message):
    with pytest.raises(ReaderError, match=f"--rows: .*{message}"):
        align(table(text), as_labels(["b", "a"], "id"), 2, "--rows")
    with pytest.raises(ReaderError, match=r"has \d lines and M has 9"):
        align(table(text), None, 9, "--rows")


M = np.arange(12.0).reshape(3, 4)
SPARSE = b"%%MatrixMarket matrix coordinate real general\n% c\n3 2 2\n1 1 5\n3 2 7\n"
DENSE = b"%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n"


def save(save_by, *arrays, **named):
    stream = io.BytesIO()
    save_by(stream, *arrays, **named)
    return stream.getvalue()


@pytest.fixture
def reading(tmp_path):
    def reading(name, content, **options):
        (tmp_path / name).write_bytes(content)
        return read(str(tmp_path / name), Options(**options))

    return reading


def test_matrices(reading):
    np.testing.assert_array_equal(reading("m.npy", save(np.save, M)), M)
    np.testing.assert_array_equal(reading("m.npy.gz", gzip.compress(save(np.save, M))), M)
    assert reading("m.npy", save(np.save, M.astype(">f4"))).dtype == np.float32
    assert reading("m.npy", save(np.save, np.ones((2, 2), int))).dtype == np.float64
    np.testing.assert_array_equal(reading("m.npz", save(np.savez_compressed, a=M, b=M + 1), key="b"), M + 1)
    with pytest.raises(ReaderError, match=r"--key: .*m\.npz has no array 'c'; it has 'a', 'b'"):
        reading("m.npz", save(np.savez, a=M, b=M), key="c")
    found = reading("m.mtx", SPARSE)
    assert found.shape == (3, 2) and found.nnz == 2 and found[2, 1] == 7
    assert Data.of_matrix("m", found).notes == ("entries that m does not store are unknown, not zero",)
    np.testing.assert_array_equal(reading("m.mtx", DENSE), [[1, 3], [2, 4]])


def lie(shape):
    """An npy file whose header announces more than there is."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(64)


def pack(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("m.npz", save(np.savez, a=M, b=M), r"several arrays, 'a', 'b'; .*--key a"),
        ("m.npz", pack(a=lie("(1000000, 1000000)")), "is no npz file of numbers, or damaged"),
        ("m.npy", lie("(9, 9)"), "is no npy file of numbers, or damaged"),
        ("m.npy", save(np.save, np.array([[{}]], object)), "is no npy file of numbers, or damaged"),
        ("m.npy", save(np.save, np.ones(3)), r"holds an array of shape \(3,\)"),
        ("m.npy", save(np.save, np.ones((2, 2), complex)), "holds complex128; real numbers are needed"),
        ("m.mtx", SPARSE.replace(b"3 2 7", b"1 1 7"), "a cell is there more than once"),
        ("m.mtx", SPARSE.replace(b"3 2 7", b"4 2 7"), "exceeds matrix dimension 3"),
        ("m.mtx", SPARSE.replace(b"7", b"nan"), "an entry is not finite"),
        ("m.mtx", SPARSE.replace(b"3 2 2", b"0 2 2"), "its sizes are 0.0, 2.0, 2.0"),
        ("m.mtx", SPARSE[:-8], "it announces 2 entries, and has"),
        ("m.mtx", SPARSE[:-2] + b"1e", "could not convert"),  # ends the process in SciPy
        ("m.mtx", SPARSE.replace(b"3 2 2", b"999999999 2 2"), "almost all rows or columns of it empty"),
        ("m.mtx", DENSE.replace(b"2 2", b"99999 99999"), "it announces 9999800001 entries, and has 4"),
        ("m.mtx", SPARSE.replace(b"general", b"symmetric"), "coordinate real symmetric; a .*saved as general"),
        ("m.zarr", b"", "is no zarr array, or damaged"),
        ("m.parquet", b"PAR1 is not enough", "is no parquet file, or damaged"),
    ],
)
def test_matrices_that_are_refused(reading, name, content, message):
    with pytest.raises(ReaderError, match=message):
        reading(name, content)


def test_files_that_are_not_there(tmp_path, monkeypatch):
    for name in ("no.csv", "no.npy", "no.zarr", "no.csv.gz"):
        with pytest.raises(ReaderError, match="No such file"):
            read(str(tmp_path / name))
    with pytest.raises(ReaderError, match="is a folder"):
        read(str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a,b\n1,2\n3\n")))
    with pytest.raises(ReaderError, match="standard input, line 3: 1 field, but the header has 2"):
        read("-")


def test_a_pandas_index_in_a_parquet_file(tmp_path):
    pd.DataFrame({"x": [1.0, 2.0]}, index=["a", "b"]).to_parquet(tmp_path / "t.parquet")
    data = wide(read(str(tmp_path / "t.parquet")))
    assert data.rows.spell() == ["a", "b"] and data.rows.names[0] is None and data.columns.spell() == ["x"]


def test_libraries_that_are_not_installed(reading, monkeypatch):
    for name, library in (("t.parquet", "pyarrow"), ("t.feather", "pyarrow"), ("t.zarr", "zarr")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ReaderError, match=rf'read by {library}, .* pip install "irpca\[files\]"'):
            reading(name, b"x")


@pytest.mark.parametrize("name, write", [("t.parquet", parquet.write_table), ("t.feather", feather.write_feather)])
def test_parquet_and_feather(tmp_path, name, write):
    def reading(columns, **options):
        write(pyarrow.table(columns, names=None if isinstance(columns, dict) else ["a", "a"]), str(tmp_path / name))
        return read(str(tmp_path / name), Options(**options))

    days = np.array(["2013-01-01", "2013-01-02"], "datetime64[us]")
    columns = {"day": days, "x": [1, None], "k": ["a", None], "b": [True, False], "l": [[1], [2]], "id": [2**60, 7]}
    found = reading(columns, drop=("l",), labels=("id",))
    assert found.columns["day"].tolist() == days.tolist() and found.columns["b"].dtype == bool
    np.testing.assert_array_equal(found.columns["x"], [1, np.nan])
    assert found.columns["k"].tolist() == ["a", None] and found.spell("id") == [str(2**60), "7"]
    assert (found.spell("x"), found.spell("k"), found.spell("day")[0]) == (["1", ""], ["a", ""], "2013-01-01")
    assert spell_values(days + np.timedelta64(12, "h"))[0] == "2013-01-01T12:00:00.000000"
    for wrong, options, message in (
        (columns, {}, "column 'l' holds list"),
        ({"a": [1.0]}, {"drop": ("a",)}, f"every column of .*{name} is dropped"),
        ({"a": pyarrow.array([], pyarrow.float64())}, {}, "has no rows of data"),
        ([[1.0], [2.0]], {}, "several columns named 'a'; give every column its own name"),
    ):
        with pytest.raises(ReaderError, match=message):
            reading(wrong, **options)


def survives(reading, name, content):
    """Anything may be read or refused, but by a ReaderError that says something."""
    try:
        found = reading(name, content)
        if isinstance(found, FileTable):
            wide(found)
    except ReaderError as error:
        assert len(str(error)) > 10


PIECES = ["\t", "\n", "\r\n", " ", "\0", "1" * 400, "\u2028", "\ufeff", *"""ab12,;|"'_é"""]
PIECES += ["2.5", "-3e4", "NA", "2013-01-01", "true", "1,5", "inf", "2013-13-01", "9999-12-31T23:59:59-23:59", "=1+1"]
WHOLE = {
    "m.npy": save(np.save, M),
    "m.npz": save(np.savez_compressed, a=M),
    "m.mtx": SPARSE,
    "m.csv": 'day;a;näme\n2013-01-01;1,5;"x\ny"\n2013-01-02;2,5;z\n'.encode(),
}


@FUZZ
@given(st.lists(st.sampled_from(PIECES), max_size=60))
def test_any_text(reading, pieces):
    survives(reading, "m.csv", "".join(pieces).encode())


@pytest.mark.parametrize("name", WHOLE)
@FUZZ
@given(data=st.data())
def test_damaged_files(reading, name, data):
    content = bytearray(WHOLE[name])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    survives(reading, name, bytes(content[:end]))
