"""Files as tables: what is read, and that nothing but a ReaderError, with a message, comes of what cannot be."""

import bz2
import gzip
import io
import lzma
import struct
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from irpca.readers import Options, ReaderError, Side, Table, align, long, read, wide
from irpca.readers.columns import as_texts
from irpca.readers.csvfiles import MISSING, from_csv
from irpca.readers.matrices import as_labels
from irpca.readers.matrixfiles import from_npy, from_npz
from irpca.readers.mtx import from_mtx

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def table(given, **options):
    content = given if isinstance(given, bytes) else given.encode()
    return from_csv("data.csv", content, Options(**options))


def refused(given, **options):
    with pytest.raises(ReaderError) as caught:
        table(given, **options)
    return str(caught.value)


def test_columns_get_their_kind():
    found = table("name,n,day,ok,gap\na,1,2013-01-01,true,1.5\nb,-2e3,2013-01-02,False,NA\n")
    assert list(found.columns) == ["name", "n", "day", "ok", "gap"]
    assert found.columns["name"].tolist() == ["a", "b"]
    assert found.columns["n"].tolist() == [1.0, -2000.0]
    assert found.columns["day"].dtype == "datetime64[us]"
    assert found.columns["ok"].tolist() == [True, False] and found.columns["ok"].dtype == bool
    np.testing.assert_array_equal(found.columns["gap"], [1.5, np.nan])


@pytest.mark.parametrize("token", sorted(MISSING))
def test_what_stands_for_missing(token):
    found = table(f"a,b,c\n1,x,2013-01-01\n{token},{token},{token}\n")
    assert np.isnan(found.columns["a"][1])
    assert found.columns["b"].tolist() == ["x", None]
    assert np.isnat(found.columns["c"][1])


def test_more_that_stands_for_missing():
    found = table("a,b\n-999.0,x\n1,?\n-999,z\n?,y\n", missing=("-999", "?"))
    np.testing.assert_array_equal(found.columns["a"], [np.nan, 1, np.nan, np.nan])
    assert found.columns["b"].tolist() == ["x", None, "z", "y"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(delimiter):
    text = "a,b,c\nx y,1,2\nz,3,4\n".replace(",", delimiter)
    assert list(table(text).columns) == ["a", "b", "c"]


def test_decimal_comma_with_semicolons():
    found = table("day;a;b\n2013-01-01;1,5;2\n2013-01-02;;-3,25\n")
    np.testing.assert_array_equal(found.columns["a"], [1.5, np.nan])
    assert found.columns["b"].tolist() == [2.0, -3.25]


def test_both_decimal_marks_are_refused_until_one_is_chosen():
    text = "a;b\n1,5;x\n1.234;y\n2,5;z\n"
    assert "line 2" in refused(text) and "line 3" in refused(text) and "--decimal" in refused(text)
    assert "'1.234' is not a number" in refused(text, decimal=",")


def test_quotes_newlines_and_delimiters_inside_fields():
    found = table('name,n\n"a ""b""\nc, d",1\n\'e\',2\n')
    assert found.columns["name"].tolist() == ['a "b"\nc, d', "'e'"]


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
    assert "line 2" in refused("a,b\nä,1\n".encode("latin-1")) and "byte 4 (0xe4)" in refused(b"a,b\n\xe4,1\n")
    assert "no such encoding" in refused("a,b\n1,2\n", encoding="nonsense")


def test_line_ends_of_other_systems():
    for end in ("\r\n", "\r", "\n"):
        assert table(end.join(["a,b", "1,2", "", "3,4", ""])).columns["a"].tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n", "no lines of data"),
        ("a,b\n1,2\n\n1,2,3\n", "line 4: 3 fields, but the header has 2"),
        ("a,b\n1,2\n3\n", "line 3: 1 field, but the header has 2"),
        ('a,b\n1,2\n"3,4\n5,6\n', "line 3"),
        ('a,b\n1,2\n"3"x,4\n', "line 3"),
        ("a,b,a\n1,2,3\n", "the name 'a' stands 2 times"),
        ("a,b\n1,2\n1,\0\n", "zero byte"),
        ("PK\x03\x04", "workbook"),
    ],
)
def test_malformed_files_are_refused_with_the_line(text, words):
    assert words in refused(text)


def test_a_few_words_among_numbers_are_refused():
    message = refused("day,t\n" + "".join(f"2013-01-{d:02},{'broken' if d == 9 else d}\n" for d in range(1, 20)))
    for words in ("line 10", "column 't'", "'broken' is not a number", "18 of the 19", "--missing=broken", "--drop t"):
        assert words in message
    assert "'soon' is not a date" in refused("d,t\n2013-01-01,1\nsoon,2\n2013-01-02,3\n")


@pytest.mark.parametrize("value", ["1_000", "inf", "1e999", "0x10", "12%"])
def test_what_python_takes_for_a_number_but_is_none(value):
    assert repr(value) in refused(f"a,b\n1,1\n2,2\n{value},3\n")


def test_text_that_is_asked_for():
    assert table("a,b\n1,1\nx,2\n3,3\n", text=("a",)).columns["a"].tolist() == ["1", "x", "3"]
    assert list(table("a,b\n1,1\nx,2\n3,3\n", drop=("a",)).columns) == ["b"]
    assert "has no column 'c'" in refused("a,b\n1,1\n", drop=("c",))


def test_labels_stay_as_they_are_spelt():
    found = table("code,x\n007,1\nNA,2\n12,3\n", labels=("code",))
    assert found.columns["code"].tolist() == ["007", "NA", "12"]


def test_large_files_are_read_in_parts(monkeypatch):
    monkeypatch.setattr("irpca.readers.csvfiles.CELLS_AT_ONCE", 4)
    lines = [f"{k},{k if k < 6 else f'w{k}'}" for k in range(20)]
    found = table("\n".join(["n,late", *lines]))
    assert found.columns["n"].tolist() == list(range(20))
    assert found.columns["late"].tolist()[5:7] == ["5", "w6"]


def test_dates_with_the_year_last():
    assert "year first" in table("d,x\n01/02/2013,1\n02/02/2013,2\n").notes[0]


def test_a_header_of_numbers_and_no_header():
    assert "--no-header" in table("1,2\n3,4\n").notes[0]
    found = table("1,2\n3,4\n", header=False)
    assert found.columns["0"].tolist() == [1.0, 3.0] and not found.named


def test_delimiters_at_the_end_of_lines():
    found = table("a,b,\n1,2,\n3,4,\n")
    assert list(found.columns) == ["a", "b"] and "left out" in found.notes[0]


# ------------------------------------------------------------------------------------------------------ wide and long


def test_wide_takes_the_first_text_as_labels():
    data = wide(table("day,a,b\n2013-01-01,1,\n2013-01-02,3,4\n"))
    assert data.rows.texts == ["2013-01-01", "2013-01-02"] and data.rows.name == "day"
    assert data.rows.labels.levels[0].dtype == "datetime64[us]" and "'day'" in data.notes[0]
    np.testing.assert_array_equal(data.M.values, [[1, np.nan], [3, 4]])


def test_wide_takes_a_first_column_without_a_name():
    data = wide(table(",a,b\n5,1,2\n6,3,4\n"))
    assert data.rows.texts == ["5", "6"] and data.shape == (2, 2)


def test_wide_says_that_a_counter_may_be_a_label():
    text = "year,a\n2001,1\n2002,2\n2003,3\n"
    assert "--index year" in wide(table(text)).notes[0]
    assert wide(table(text, labels=("year",)), "year").rows.labels.levels[0].tolist() == [2001, 2002, 2003]


def test_wide_refuses_other_text_and_lists_it():
    found = table("id,kind,x\na,u,1\nb,u,2\n")
    with pytest.raises(ReaderError, match=r"'kind', such as 'u'.*--feature kind.*--drop kind"):
        wide(found)
    data = wide(found, features=["kind"])
    assert data.features["kind"].tolist() == ["u", "u"] and data.shape == (2, 1)


def test_wide_refuses_labels_that_repeat_or_lack():
    with pytest.raises(ReaderError, match=r"line 4: 'a' is there for the second time"):
        wide(table("id,x\na,1\nb,1\na,2\n"), "id")
    with pytest.raises(ReaderError, match=r"line 3: no label"):
        wide(table("id,x\na,1\n,1\n"), "id")
    with pytest.raises(ReaderError, match=r"--index: data.csv has no column 'no'"):
        wide(table("id,x\na,1\n"), "no")


def test_wide_puts_columns_in_the_order_of_a_model():
    columns = Side.of(["b", "a"], None)
    data = wide(table("id,a,b\nx,1,2\n"), columns=columns)
    assert data.M.values.tolist() == [[2, 1]] and any("another order" in note for note in data.notes)
    with pytest.raises(ReaderError, match="lacks columns that the model has: 'b'"):
        wide(table("id,a\nx,1\n"), columns=columns)
    with pytest.raises(ReaderError, match="does not have: 'c'; --drop c"):
        wide(table("id,a,b,c\nx,1,2,3\n"), columns=columns)


def test_long():
    found = table("u,i,r,note\n10,x,1,\n9,y,2,q\n10,y,,\n", labels=("u", "i"), only=("u", "i", "r"))
    data = long(found, ("u", "i", "r"))
    assert data.rows.texts == ["9", "10"] and data.columns.texts == ["x", "y"]  # numbers by size
    np.testing.assert_array_equal(data.M.dense(), [[np.nan, 2], [1, np.nan]])
    assert "without a value: 1" in data.notes[0]


def test_long_refuses_cells_that_repeat():
    found = table("u,i,r\na,x,1\nb,x,2\na,x,3\n", labels=("u", "i"))
    with pytest.raises(ReaderError, match=r"row 'a', column 'x' is there twice, in line 2 and line 4"):
        long(found, ("u", "i", "r"))


def test_long_refuses_columns_unknown_to_a_model():
    found = table("u,i,r\na,x,1\nb,z,2\n", labels=("u", "i"))
    with pytest.raises(ReaderError, match=r"line 3: the model has no column 'z'"):
        long(found, ("u", "i", "r"), Side.of(["x", "y"], "i"))


def test_labels_keep_what_tells_them_apart():
    assert as_labels(["2", "10"], None).dtypes == ("int64",)
    assert as_labels(["02", "10"], None).dtypes == ("str",)
    assert as_labels(["1" * 19], None).dtypes == ("str",)
    assert as_labels(["0.5", "1.25"], None).dtypes == ("float64",)
    assert as_labels(["1.0", "1"], None).dtypes == ("str",)
    assert as_labels(["2013-01", "2013-02"], None).dtypes == ("str",)
    assert as_labels(["2013-01-01T00:00Z"], None).dtypes == ("datetime64[us, UTC]",)


def test_features_are_matched_by_label():
    side = Side.of(["b", "a"], "id")
    features, notes = align(table("name,size\na,1\nb,2\nc,3\n"), side, 2, "--rows")
    assert features["size"].tolist() == [2.0, 1.0] and list(features) == ["size"]
    assert any("1 lines of data.csv are not in M" in note for note in notes)
    with pytest.raises(ReaderError, match=r"no line for 1 of the 2 labels, in its column 'name': 'a'"):
        align(table("name,size\nb,2\nc,3\n"), side, 2, "--rows")
    with pytest.raises(ReaderError, match="'a' is there more than once"):
        align(table("name,size\nb,2\na,3\na,4\n"), side, 2, "--rows")
    with pytest.raises(ReaderError, match=r"no column of data.csv holds the labels 'b', 'a'"):
        align(table("name,size\nx,2\ny,3\n"), side, 2, "--rows")


def test_features_are_matched_by_dates_and_numbers_however_spelt():
    side = Side.of(["2013-01-01", "2013-01-02"], "day")
    features, _ = align(table("t,w\n2013-01-02T00:00,5\n2013-01-01T00:00,6\n"), side, 2, "--rows")
    assert features["w"].tolist() == [6.0, 5.0]
    features, _ = align(table("year,w\n2002,5\n2001,6\n"), Side.of(["2001", "2002"], None), 2, "--cols")
    assert features["w"].tolist() == [6.0, 5.0]


def test_features_without_labels_are_matched_by_position():
    features, notes = align(table("w\n5\n6\n"), Side(), 2, "--rows")
    assert features["w"].tolist() == [5.0, 6.0] and "by position" in notes[0]
    with pytest.raises(ReaderError, match="has 2 lines and M has 3"):
        align(table("w\n5\n6\n"), Side(), 3, "--rows")


# -------------------------------------------------------------------------------------------------------- other files


def saved(array, **arrays):
    stream = io.BytesIO()
    if arrays:
        np.savez_compressed(stream, **arrays)
    else:
        np.save(stream, array)
    return stream.getvalue()


def test_npy_and_npz():
    M = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(from_npy("m", saved(M), Options()), M)
    assert from_npy("m", saved(M.astype(">f4")), Options()).dtype == np.float32
    assert from_npy("m", saved(np.ones((2, 2), int)), Options()).dtype == np.float64
    np.testing.assert_array_equal(from_npz("m", saved(None, a=M, b=M + 1), Options(key="b")), M + 1)
    with pytest.raises(ReaderError, match=r"several arrays, 'a', 'b'; .*--key a"):
        from_npz("m", saved(None, a=M, b=M), Options())
    for wrong in (np.ones(3), np.ones((2, 2), complex), np.array([["x"]]), np.empty((0, 3))):
        with pytest.raises(ReaderError, match="m holds"):
            from_npy("m", saved(wrong), Options())


def test_pickled_objects_are_not_loaded():
    stream = io.BytesIO()
    np.save(stream, np.array([[{}]], object), allow_pickle=True)
    with pytest.raises(ReaderError, match="no npy array of numbers"):
        from_npy("m", stream.getvalue(), Options())


def lying_npy(shape="(1000000, 1000000)"):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(64)


def test_a_header_that_lies_allocates_nothing():
    for shape in ("(1000000, 1000000)", "(-1, 8)", f"(1, {2**62})"):
        with pytest.raises(ReaderError, match="the header announces"):
            from_npy("m", lying_npy(shape), Options())
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", lying_npy())
    with pytest.raises(ReaderError, match="the header announces"):
        from_npz("m", stream.getvalue(), Options())


def test_mtx():
    listed = b"%%MatrixMarket matrix coordinate real general\n3 2 2\n1 1 5\n3 2 7\n"
    found = from_mtx("m", listed, Options())
    assert found.shape == (3, 2) and found.nnz == 2 and found[2, 1] == 7
    dense = b"%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n"
    np.testing.assert_array_equal(from_mtx("m", dense, Options()), [[1, 3], [2, 4]])
    mirrored = from_mtx("m", listed.replace(b"general\n3 2", b"symmetric\n3 3"), Options())
    np.testing.assert_array_equal(mirrored.toarray(), [[5, 0, 0], [0, 0, 7], [0, 7, 0]])
    twice = listed.replace(b"3 2 7", b"1 1 7")
    for wrong in (
        b"",
        twice,
        listed.replace(b"3 2 7", b"4 2 7"),
        listed.replace(b"7", b"nan"),
        listed[:-8],
        listed.replace(b"3 2 2", b"3 2 999999999"),
        dense.replace(b"2 2", b"99999 99999"),
    ):
        with pytest.raises(ReaderError, match="m is no Matrix Market file that can be used here, or damaged"):
            from_mtx("m", wrong, Options())
    with pytest.raises(ReaderError, match="almost all rows or columns of it empty"):
        from_mtx("m", listed.replace(b"3 2 2", b"999999999 2 2"), Options())


def test_files_that_are_not_there(tmp_path):
    for name in ("no.csv", "no.npy", "no.zarr", "no.csv.gz"):
        with pytest.raises(ReaderError, match="No such file"):
            read(str(tmp_path / name))
    with pytest.raises(ReaderError, match="is a folder"):
        read(str(tmp_path))


def test_libraries_that_are_not_installed(tmp_path, monkeypatch):
    for name, library in (("t.parquet", "pyarrow"), ("t.feather", "pyarrow"), ("t.zarr", "zarr")):
        (tmp_path / name).write_bytes(b"x")
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ReaderError, match=rf'read by {library}, .* pip install "irpca\[files\]"'):
            read(str(tmp_path / name))


def test_parquet_and_feather(tmp_path):
    import pyarrow
    from pyarrow import feather, parquet

    days = np.array(["2013-01-01", "2013-01-02"], "datetime64[us]")
    made = pyarrow.table({"day": days, "x": [1, None], "k": ["a", None], "b": [True, False], "l": [[1], [2]]})
    for name, write in (("t.parquet", parquet.write_table), ("t.feather", feather.write_feather)):
        write(made, str(tmp_path / name))
        found = read(str(tmp_path / name), Options(drop=("l",)))
        assert found.columns["day"].tolist() == days.tolist() and found.columns["b"].dtype == bool
        np.testing.assert_array_equal(found.columns["x"], [1, np.nan])
        assert found.columns["k"].tolist() == ["a", None]
        with pytest.raises(ReaderError, match="column 'l' holds list"):
            read(str(tmp_path / name))
        (tmp_path / name).write_bytes(b"PAR1 is not enough")
        with pytest.raises(ReaderError, match="or damaged"):
            read(str(tmp_path / name))


def test_texts_of_all_kinds():
    assert as_texts(np.array([1.0, 2.5, np.nan])) == ["1", "2.5", ""]
    assert as_texts(np.array(["2013-01-01T12:00", "NaT"], "datetime64[us]")) == ["2013-01-01T12:00:00.000000", ""]
    assert as_texts(np.array(["x", None], object)) == ["x", ""]


# ------------------------------------------------------------------------------------------------------------ fuzzing


def survives(reader, content):
    """Anything may be read or refused, but by a ReaderError that says something."""
    try:
        found = reader("data.csv", content, Options())
        if isinstance(found, Table):
            wide(found)
    except ReaderError as error:
        assert len(str(error)) > 10


PIECES = st.sampled_from(
    (
        "a",
        "b",
        "1",
        "2.5",
        "-3e4",
        ",",
        ";",
        "\t",
        "|",
        "\n",
        "\r\n",
        '"',
        "'",
        "NA",
        "2013-01-01",
        " ",
        "é",
        "\ufeff",
        "true",
    )
) | st.sampled_from(
    ("1,5", "inf", "_", "\0", "1" * 400, "2013-13-01", "9999-12-31T23:59:59-23:59", "\u2028", "=1+1", "Unnamed: 1")
)


@FUZZ
@given(st.lists(PIECES, max_size=60))
def test_any_text(pieces):
    survives(from_csv, "".join(pieces).encode())


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes(content):
    for reader in (from_csv, from_npy, from_npz, from_mtx):
        survives(reader, content)


WHOLE = {
    from_npy: saved(np.arange(12.0).reshape(3, 4)),
    from_npz: saved(None, a=np.arange(12.0).reshape(3, 4)),
    from_mtx: b"%%MatrixMarket matrix coordinate real general\n% c\n3 2 3\n1 1 5\n3 2 7.5\n2 2 1e3\n",
    from_csv: 'day;a;näme\n2013-01-01;1,5;"x\ny"\n2013-01-02;2,5;z\n'.encode(),
}


@pytest.mark.parametrize("reader", WHOLE, ids=lambda reader: reader.__name__)
@FUZZ
@given(data=st.data())
def test_damaged_files(reader, data):
    content = bytearray(WHOLE[reader])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    survives(reader, bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content))


# Texts that only odd files bring


def test_every_column_is_dropped(tmp_path):
    assert refused("a,b\n1,2\n", drop=("a", "b")) == "every column of data.csv is dropped"
    import pyarrow
    from pyarrow import parquet

    file = str(tmp_path / "t.parquet")
    parquet.write_table(pyarrow.table({"a": [1.0]}), file)
    with pytest.raises(ReaderError, match=r"every column of .*t\.parquet is dropped"):
        read(file, Options(drop=("a",)))


def test_arrow_files_without_rows_or_with_one_name_twice(tmp_path):
    import pyarrow
    from pyarrow import feather

    file = str(tmp_path / "t.feather")
    feather.write_feather(pyarrow.table({"a": pyarrow.array([], pyarrow.float64())}), file)
    with pytest.raises(ReaderError, match=r"t\.feather has no rows of data"):
        read(file)
    feather.write_feather(pyarrow.table([[1.0], [2.0]], names=["a", "a"]), file)
    with pytest.raises(ReaderError, match="several columns named 'a'; give every column its own name"):
        read(file)


def test_lines_of_another_length_where_there_is_no_header():
    assert "line 2: 3 fields, but the first line has 2" in refused("1,2\n1,2,3\n", header=False)


def test_a_decimal_comma_among_points():
    text = refused("a;b\n1.5;x\n2.5;y\n3,5;z\n", decimal=".")
    assert "'3,5' is not a number" in text and text.endswith("With --decimal , a comma is the decimal mark.")


def test_standard_input_is_named(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a,b\n1,2\n3\n")))
    with pytest.raises(ReaderError, match="standard input, line 3: 1 field, but the header has 2"):
        read("-")


def test_a_column_that_might_label_the_rows_is_named():
    with pytest.raises(ReaderError, match="--index name if it labels the rows, --feature name to use it"):
        wide(table("n,name\n1,a\n2,\n3,c\n"))


def test_long_tables_without_values():
    with pytest.raises(ReaderError, match=r"data\.csv has no value in the column 'v'"):
        long(table("r,c,v\na,x,NA\nb,y,\n", text=("r",)), ("r", "c", "v"))
    with pytest.raises(ReaderError, match=r"--long: the column 'v' of data\.csv holds no numbers, but 'high'"):
        long(table("r,c,v\na,x,high\nb,y,low\n"), ("r", "c", "v"))


def test_labels_without_features():
    with pytest.raises(
        ReaderError, match=r"--rows: data\.csv has labels, in the column 'name', but no features beside"
    ):
        align(table("name\na\nb\n"), Side.of(["a", "b"], None), 2, "--rows")


def archive(size=None, **members):
    """An npz file by hand; its directory may lie about the size of its members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
        for info in made.filelist if size else ():
            info.file_size = size
    return stream.getvalue()


def test_archives_of_arrays():
    with pytest.raises(ReaderError, match="m holds no array"):
        from_npz("m", archive(), Options())
    with pytest.raises(ReaderError, match=r"--key: m has no array 'b'; it has 'a'"):
        from_npz("m", archive(a=saved(np.eye(2))), Options(key="b"))
    with pytest.raises(ReaderError, match=r"m is damaged: the size of 'a\.npy' cannot be 99999999 bytes"):
        from_npz("m", archive(99999999, a=b"few"), Options())


def test_a_zarr_store_that_is_none(tmp_path):
    (tmp_path / "m.zarr").mkdir()
    with pytest.raises(ReaderError, match=r"m\.zarr is no zarr array, or damaged: "):
        read(str(tmp_path / "m.zarr"))


def test_a_symmetric_array_of_matrix_market():
    with pytest.raises(ReaderError, match="all entries must be there; save it as general"):
        from_mtx("m", b"%%MatrixMarket matrix array real symmetric\n2 2\n1\n2\n3\n", Options())


def test_what_a_sparse_file_does_not_store():
    from irpca.readers.matrices import Data

    listed = from_mtx("m.mtx", b"%%MatrixMarket matrix coordinate real general\n3 2 1\n3 2 7\n", Options())
    assert Data.of_matrix("m.mtx", listed).notes == ("entries that m.mtx does not store are unknown, not zero",)
