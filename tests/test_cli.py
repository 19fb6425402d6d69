"""The command ``irpca``, through a few real processes and, since each takes seconds to start, within this one."""

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
from mixed_columns import LABELS, mixed

import irpca
from irpca import cli
from irpca.cli import commands, findings, printed, writers
from irpca.result import LEAST_SKILL

COMMAND = [sys.executable, "-W", "error::DeprecationWarning", "-m", "irpca.cli"]
MONTHS = [f"2013-{month:02}" for month in range(1, 13)]


def run(*words, cwd, given=None, code=0):
    done = subprocess.run([*COMMAND, *map(str, words)], cwd=cwd, input=given, capture_output=True, timeout=110)
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == code, (out, err)
    assert "Traceback" not in err
    return out, err


def within(cwd, *words):
    """The same in this process, which is quicker."""
    before = os.getcwd()
    os.chdir(cwd)
    try:
        return cli.main([str(word) for word in words])
    finally:
        os.chdir(before)


def said(*words, cwd, capsys, code=0):
    """What it says on standard output, and nothing elsewhere."""
    assert within(cwd, *words) == code
    out, err = capsys.readouterr()
    assert err == ""
    return out


def failing(*words, cwd, code, capsys):
    """What is said about an error: one line, on standard error."""
    assert within(cwd, *words) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("irpca: ") and err.count("\n") == 1
    return err


def lines_of(path):
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream))


def table(rows=60, seed=7):
    """Cities × months: one component, some gaps, one cell that is far off; of the second kind twice as much."""
    rng = np.random.default_rng(seed)
    kind = np.arange(rows) % 2
    values = (10 + 10 * kind)[:, None] * (1 + 0.1 * np.arange(12)) + 0.1 * rng.normal(size=(rows, 12))
    values[rng.random(values.shape) < 0.03] = np.nan
    values[5, 5], values[0, 0] = 300, np.nan
    names = ['Köln, "am" Rhein', "zwei\nZeilen", "=1+1", "NA", *(f"город {i}" for i in range(4, rows))]
    return names, ["small" if k == 0 else "large" for k in kind], values


def write(path, header, *columns):
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))
    return path


def write_table(path, **options):
    names, kinds, values = table(**options)
    cells = [["" if np.isnan(x) else f"{x:.3f}" for x in column] for column in values.T]
    return write(path, ["Stadt", "kind", *MONTHS], names, kinds, *cells)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with umlauts in its name, a table, and what a fit with a report made of it."""
    folder = tmp_path_factory.mktemp("Übung mit Leerzeichen")
    write_table(folder / "städte.csv")
    out, err = run("fit", "städte.csv", "--feature", "kind", "--report", cwd=folder)
    return folder, out, err


def test_fit_says_what_was_found_and_where_it_is(fitted):
    _, out, err = fitted
    for words in ("usable: ", "'Stadt'", "1 cell (0.14%)", "город 5", "2013-06", "300", "--fdr"):
        assert words in out
    for name in ("outliers.csv", "repaired.csv", "model.irpca", "report.html"):
        assert f"städte-irpca/{name}" in out
    assert err == ""  # no progress where nobody looks


def test_outliers_and_the_repaired_table_have_the_labels_of_the_file(fitted):
    folder, _, _ = fitted
    found = lines_of(folder / "städte-irpca" / "outliers.csv")
    wanted = "row column observed expected difference std lower upper score probability kind"
    assert found[0] == wanted.split()
    assert found[1][:3] == ["город 5", "2013-06", "300"] and len(found) == 2
    names, _, values = table()
    header, *lines = lines_of(folder / "städte-irpca" / "repaired.csv")
    assert header == ["Stadt", *MONTHS]
    assert [line[0] for line in lines] == names
    repaired = np.array([line[1:] for line in lines], float)
    kept = ~np.isnan(values) & (values != 300)
    np.testing.assert_array_equal(repaired[kept], np.round(values[kept], 3))
    assert abs(repaired[5, 5] - 30) < 1 and abs(repaired[0, 0] - 10) < 1


def test_the_model_and_the_report_are_whole(fitted):
    folder, _, _ = fitted
    model = irpca.load(folder / "städte-irpca" / "model.irpca")
    assert model.row_labels_[5] == "город 5" and model.result_.usable == "usable"
    page = (folder / "städte-irpca" / "report.html").read_text(encoding="utf-8")
    assert "</html>" in page and "irpca fit" in page
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_nothing_is_replaced_without_force(fitted, capsys):
    outliers = fitted[0] / "städte-irpca" / "outliers.csv"
    before = outliers.stat().st_mtime_ns
    assert "--force" in failing("fit", "städte.csv", "--feature", "kind", cwd=fitted[0], code=5, capsys=capsys)
    assert outliers.stat().st_mtime_ns == before


def test_pipes_json_and_force(fitted):
    """Packed or not, from a pipe into a pipe."""
    folder, _, _ = fitted
    given = (folder / "städte.csv").read_bytes()
    (folder / "piped").mkdir()
    (folder / "piped" / "outliers.csv").write_text("old")
    words = ["fit", "-", "--drop", "kind", "--out", "piped", "--json", "--force", "--probability", "0.9"]
    out, _ = run(*words, cwd=folder, given=given)
    facts = json.loads(out)
    assert facts["verdict"] == "usable" and facts["exit_code"] == 0 and facts["shape"] == [60, 12]
    assert facts["first_outliers"][0]["row"] == "город 5" and facts["outliers"] == 1
    assert set(facts["files"]) == {"outliers.csv", "repaired.csv", "model.irpca"}
    assert lines_of(folder / "piped" / "outliers.csv")[1][0] == "город 5"


def test_check_finds_what_is_new(fitted, capsys):
    folder, _, _ = fitted
    names, kinds, values = table(rows=10, seed=8)
    values[5, 5] = 30 * 1.0
    values[7, 3] = -50
    order = [3, 2, 1, 0, *range(4, 12)]  # columns in another order are matched by name
    header = ["Stadt", "kind", *(MONTHS[j] for j in order)]
    cells = [["" if np.isnan(x) else f"{x:.3f}" for x in values[:, j]] for j in order]
    write(folder / "neu.csv", header, names, kinds, *cells)
    words = ["check", "städte-irpca/model.irpca", "neu.csv", "--feature", "kind"]
    out = said(*words, cwd=folder, code=1, capsys=capsys)
    assert "1 outlier by" in out and "another order" in out
    assert [line[:3] for line in lines_of(folder / "neu-outliers.csv")[1:]] == [["город 7", "2013-04", "-50"]]
    cells[0][7] = ""  # column 3 comes first
    write(folder / "gut.csv", header, names, kinds, *cells)
    assert within(folder, "check", "städte-irpca/model.irpca", "gut.csv", "--feature", "kind", "--json") == 0
    assert json.loads(capsys.readouterr().out)["outliers"] == 0
    write(folder / "wenig.csv", ["Stadt", MONTHS[0]], names, cells[3])
    err = failing("check", "städte-irpca/model.irpca", "wenig.csv", cwd=folder, code=3, capsys=capsys)
    assert "lacks columns that the model has: '2013-02'" in err


def test_predict_for_rows_of_which_only_features_are_known(fitted, capsys):
    folder, _, _ = fitted
    write(folder / "new.csv", ["name", "kind"], ["Ulm", "Bonn"], ["large", "small"])
    out = said("predict", "städte-irpca/model.irpca", "--rows", "new.csv", cwd=folder, capsys=capsys)
    header, *lines = csv.reader(out.splitlines())
    assert header == ["row", "column", "expected", "std"] and len(lines) == 24
    assert lines[0][:2] == ["Ulm", "2013-01"] and abs(float(lines[0][2]) - 20) < 1 and float(lines[0][3]) > 0
    assert lines[12][0] == "Bonn" and abs(float(lines[12][2]) - 10) < 1
    assert within(folder, "predict", "städte-irpca/model.irpca", "--rows", "new.csv", "--out", "p.csv", "--quiet") == 0
    assert lines_of(folder / "p.csv") == [header, *lines]
    assert "--rows, --cols" in failing("predict", "städte-irpca/model.irpca", cwd=folder, code=2, capsys=capsys)


def test_predict_by_a_model_of_plain_numbers(tmp_path, capsys):
    rng = np.random.default_rng(9)
    F = rng.normal(size=(50, 2))
    irpca.InductiveRobustPCA(rank=2).fit(F @ rng.normal(size=(2, 9)), row_features=F).save(tmp_path / "m.irpca")
    for names, columns in ((["id", "a", "b"], (["x", "y"], *F[:2].T)), (["a", "b"], F[:2].T)):
        write(tmp_path / "f.csv", names, *columns)
        assert within(tmp_path, "predict", "m.irpca", "--rows", "f.csv") == 0
        lines = list(csv.reader(capsys.readouterr().out.splitlines()))
        assert lines[1][0] == ("x" if len(names) == 3 else "0") and len(lines) == 19
    write(tmp_path / "f.csv", ["a"], F[:2, 0])
    words = ["predict", "m.irpca", "--rows", "f.csv"]
    assert "1 columns but had 2" in failing(*words, cwd=tmp_path, code=3, capsys=capsys)


def test_report_of_a_model_that_was_saved(fitted, capsys):
    folder, _, _ = fitted
    words = ["report", "städte-irpca/model.irpca", "städte.csv", "--feature", "kind", "--out", "r.html"]
    out = said(*words, cwd=folder, capsys=capsys)
    assert "r.html" in out and "город 5" in (folder / "r.html").read_text(encoding="utf-8")
    failing("report", "städte.csv", "städte.csv", "--out", "s.html", cwd=folder, code=3, capsys=capsys)
    assert not (folder / "s.html").exists()


def test_without_any_library_of_frames_or_pictures(tmp_path):
    """What ``pip install .`` gives: a fit with features and a report, and pandas nowhere to be found."""
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "matplotlib", "pyarrow", "polars", "zarr"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
from irpca.cli import main
sys.exit(main(sys.argv[1:]))
"""
    write_table(tmp_path / "t.csv")
    with open(tmp_path / "t.csv", "rb") as plain, gzip.open(tmp_path / "t.csv.gz", "wb") as packed:
        packed.write(plain.read())
    words = ["fit", "t.csv.gz", "--feature", "kind", "--cols", "months.csv", "--report", "--quiet", "--fdr", "0.1"]
    write(tmp_path / "months.csv", ["month", "season"], MONTHS, ["cold"] * 3 + ["warm"] * 6 + ["cold"] * 3)
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    names = sorted(path.name for path in (tmp_path / "t-irpca").iterdir())
    assert names == ["model.irpca", "outliers.csv", "repaired.csv", "report.html"]


def test_a_hundred_thousand_lines(tmp_path, capsys):
    rng, m = np.random.default_rng(5), 10**5
    rows, cols = np.divmod(rng.permutation(400 * 300)[:m], 300)
    values = (rng.normal(size=(400, 1)) @ rng.normal(size=(1, 300)))[rows, cols] + 0.1 * rng.normal(size=m)
    values[:500] += 20
    with open(tmp_path / "long.csv", "w") as stream:
        stream.write("user,item,score,note\n")
        stream.writelines(f"u{i},{j},{x:.3f},\n" for i, j, x in zip(rows, cols, values, strict=True))
    words = ["fit", "long.csv", "--long", "user,item,score", "--rank", "1", "--json"]
    facts = json.loads(said(*words, cwd=tmp_path, capsys=capsys))
    assert facts["shape"] == [400, 300] and 495 <= facts["outliers"] <= 520
    repaired = lines_of(tmp_path / "long-irpca" / "repaired.csv")
    assert repaired[0] == ["user", "item", "score"] and len(repaired) == m + 1
    assert repaired[1][:2] == [f"u{rows[0]}", str(cols[0])] and abs(float(repaired[1][2]) - values[0] + 20) < 1
    assert float(repaired[-1][2]) == round(values[-1], 3)


@pytest.mark.timeout(120)
def test_interrupt_ends_with_130_and_nothing_written(tmp_path):
    rng = np.random.default_rng(6)
    noise = rng.normal(size=(4000, 3000))
    np.save(tmp_path / "large.npy", rng.normal(size=(4000, 30)) @ rng.normal(size=(30, 3000)) + noise)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*COMMAND, "fit", "large.npy"], cwd=tmp_path, **pipes)
    while not any(tmp_path.glob(".irpca-*")):  # made before the fit begins
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1.5)
    try:
        while process.returncode is None:  # what Ctrl-C raises is lost while numba compiles: callbacks of LLVM drop it
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=10)
    finally:
        process.kill()  # if it is still there
    assert (process.returncode, out, err) == (130, "", "irpca: stopped; nothing was written\n")
    assert [path.name for path in tmp_path.iterdir()] == ["large.npy"]


def test_folders_that_cannot_be_written_to(tmp_path, capsys):
    """Found before anything is read: the table is not even there."""
    (tmp_path / "file").write_text("in the way")
    for place in ("file", "file/below", "/proc/1/no"):
        assert "--out" in failing("fit", "no.csv", "--out", place, cwd=tmp_path, code=5, capsys=capsys)
    assert (tmp_path / "file").read_text() == "in the way"
    failing("fit", "no.csv", "--out", "deep/er", cwd=tmp_path, code=3, capsys=capsys)
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    "text, words, message",
    [
        ("a,b\n1,2\n3\n", [], "t.csv, line 3: 1 field, but the header has 2"),
        ("a,b\nx,1\ny,2\n", ["--rows", "f.csv"], "no line for 1 of the 2 labels, in its column 'a': 'y'"),
        ("a,b\nx,1\ny,2\n", ["--rows", "no.csv"], "no.csv cannot be read: No such file"),
    ],
)
def test_input_that_does_not_fit(tmp_path, capsys, text, words, message):
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "f.csv").write_text("a,size\nx,1\nz,2\n")
    assert message in failing("fit", "t.csv", *words, cwd=tmp_path, code=3, capsys=capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.csv", "t.csv"]


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "COMMAND"),
        (["fit"], "DATA"),
        (["fit", "t.csv", "--rank", "0"], "--rank"),
        (["fit", "t.csv", "--fdr", "0.1", "--threshold", "3"], "not allowed with"),
        (["fit", "t.csv", "--long", "a,b,c", "--index", "a"], "--long takes one line"),
        (["fit", "t.csv", "--feature", "a", "--rows", "f"], "not both"),
        (["fit", "t.csv", "--delimiter", "ab"], "--delimiter: one character, or tab, or space; got 'ab'"),
        (["fit", "t.csv", "--time-budget", "0"], "--time-budget: a number above 0 is needed; got '0'"),
        (["fit", "t.csv", "--threshold", "far"], "--threshold: invalid number value: 'far'"),
        (["fit", "t.csv", "--column", "rent"], "--column: the name of a column and its kind are needed, NAME=KIND"),
        (
            ["fit", "t.csv", "--column", "rent=money"],
            "--column rent=money: there is no such kind; the kinds are auto, as",
        ),
        (["fit", "t.csv", "--column", "a=auto", "--column", "a=number"], "--column a: it is named 2 times"),
        (["fit", "t.csv", "--column", "a=auto", "--columns", "as-they-are"], "not allowed with argument --column"),
    ],
)
def test_wrong_usage(tmp_path, capsys, words, message):
    assert message in failing(*words, cwd=tmp_path, code=2, capsys=capsys)


def test_errors_that_should_not_happen(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("irpca.cli.commands._read_data", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in failing("fit", "t.csv", cwd=tmp_path, code=70, capsys=capsys)
    with pytest.raises(ZeroDivisionError):
        cli.main(["fit", "t.csv", "--out", str(tmp_path / "o"), "--debug"])


def test_help_is_quick_and_names_the_exit_codes(tmp_path):
    code = (
        "import sys; from irpca.cli import main; main(['--help']); "
        "print([n for n in ('sklearn', 'numba', 'scipy', 'pandas') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    assert out.endswith("[]\n") and "130  stopped by Ctrl-C" in out
    assert run("--version", cwd=tmp_path)[0] == f"irpca {irpca.__version__}\n"


def test_a_reader_who_leaves_early_is_no_error(tmp_path):
    process = subprocess.Popen([*COMMAND, "--help"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(timeout=60) == 0
    process.stderr.close()


def test_demo_writes_its_report(tmp_path, capsys):
    files = json.loads(said("demo", "--json", cwd=tmp_path, capsys=capsys))["files"]
    page = (tmp_path / files["report.html"]).read_text(encoding="utf-8")
    assert "Rwanda" in page and "--cols index" in page


def test_staged_files_come_together_or_not_at_all(tmp_path):
    with pytest.raises(ZeroDivisionError), writers.staged(tmp_path / "new", ["a"]) as place:
        (place / "a").write_text("half")
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()
    with writers.staged(tmp_path / "new", ["a", "b"]) as place:
        (place / "a").write_text("1")
        (place / "b").write_text("2")
    assert sorted(os.listdir(tmp_path / "new")) == ["a", "b"]
    with pytest.raises(writers.OutputError, match="--force"), writers.staged(tmp_path / "new", ["b"]):
        pass
    with writers.staged(tmp_path / "new", ["b"], force=True) as place:
        (place / "b").write_text("3")
    assert (tmp_path / "new" / "b").read_text() == "3"


def test_numbers_as_text():
    assert writers.full([1.0, 0.1, float("nan"), -2.5, 1e300]) == ["1", "0.1", "", "-2.5", "1e+300"]
    assert writers.full(writers.exact_list(np.array([0.1], np.float32))) == ["0.1"]
    assert writers.rounded([1 / 3, float("nan")]) == ["0.3333333333", ""]
    assert json.loads(writers.as_json({"a": np.float64("nan"), "b": [np.int64(3)]})) == {"a": None, "b": [3]}


# Texts that few ever see


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder with a model without features or labels, and the array that it was fitted to."""
    folder = tmp_path_factory.mktemp("plain")
    M = np.outer(np.arange(1.0, 21), np.arange(1.0, 9))
    M[3, 4] = 500
    np.save(folder / "m.npy", M)
    irpca.InductiveRobustPCA(rank=1).fit(M).save(folder / "m.irpca")
    return folder


@pytest.mark.parametrize(
    "words, code, message",
    [
        (["fit", "m.npy", "--index", "a"], 2, "--index: m.npy holds a matrix, whose columns have no names"),
        (["fit", "m.npy", "--rows", "f.mtx"], 3, "f.mtx is a sparse matrix; features need a value in every cell: save"),
        (["report", "m.irpca", "cut.npy"], 3, "cut.npy is 19 × 8, and the model was fitted to 20 × 8: give that table"),
        (
            ["predict", "m.irpca", "--rows", "f.csv"],
            3,
            "m.irpca was fitted without features (--rows, --cols): it cannot",
        ),
        (["check", "no.irpca", "m.npy"], 3, "no.irpca cannot be read: No such file"),
    ],
)
def test_what_models_and_matrices_cannot_do(plain, capsys, words, code, message):
    (plain / "f.mtx").write_text("%%MatrixMarket matrix coordinate real general\n20 1 1\n3 1 7\n")
    (plain / "f.csv").write_text("size\n1\n2\n")
    np.save(plain / "cut.npy", np.ones((19, 8)))
    assert message in failing(*words, "--out", "new", cwd=plain, code=code, capsys=capsys)


def test_a_fit_and_a_check_that_are_not_to_be_used(plain, capsys):
    assert within(plain, "fit", "m.npy", "--rank", "1", "--out", "short", "--time-budget", "1e-9") == 4
    out = capsys.readouterr().out
    assert "The files are written all the same, to look at what went wrong:" in out and out.count("do not use") == 1
    assert (plain / "short" / "repaired.csv").exists()
    assert within(plain, "check", "short/model.irpca", "m.npy", "--out", "o.csv") == 4
    assert "The model itself is not to be used (do not use: " in capsys.readouterr().out


def test_what_a_fit_prints(plain, capsys):
    assert within(plain, "fit", "m.npy", "--rank", "1", "--out", "one") == 0
    out = capsys.readouterr().out
    assert "Outliers: 1 cell (0.62%), probability above 0.5; for more or fewer: --fdr, --probability" in out
    assert "The outliers, the most certain first:" in out and "written all the same" not in out
    found = {name: list(range(12)) for name in findings.FIELDS}
    head, *lines = printed._list_outliers(found)
    assert head == "The 10 most certain of 12 outliers:" and len(lines) == 11


@pytest.mark.parametrize(
    "error, code, message",
    [
        (MemoryError("8 GB"), 3, "not enough memory for this table (8 GB); leave"),
        (KeyboardInterrupt(), 130, "stopped; nothing was written"),
    ],
)
def test_ends_from_outside(tmp_path, capsys, monkeypatch, error, code, message):
    def stopped(*_):
        raise error

    monkeypatch.setattr(commands, "fit", stopped)
    assert message in failing("fit", "t.csv", cwd=tmp_path, code=code, capsys=capsys)


# Kinds of columns


@pytest.fixture(scope="module")
def flats(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flats")
    mixed().to_csv(folder / "flats.csv", index_label="flat")
    np.save(folder / "flats.npy", mixed().to_numpy())
    return folder


def test_kinds_of_columns_are_asked_for_and_said(flats, capsys):
    asked = ("--column", "income=logarithm", "--column", "rooms=ordered", "--rank", "2", "--out")
    out = said("fit", "flats.csv", *asked, "a", cwd=flats, capsys=capsys)
    assert "Columns: income: logarithm; rent: " in out and "; rooms: 7 ordered values; garage: yes or no; " in out
    facts = json.loads(said("fit", "flats.csv", *asked, "b", "--json", cwd=flats, capsys=capsys))
    assert facts["columns"]["income"] == "logarithm" and [*facts["columns"]] == list(LABELS)
    for cell in facts["first_outliers"]:
        assert cell["lower"] <= cell["expected"] <= cell["upper"]
    plain = ("--columns", "as-they-are", "--rank", "2", "--json", "--out")
    facts = json.loads(said("fit", "flats.csv", *plain, "c", cwd=flats, capsys=capsys))
    assert facts["columns"] is None and facts["verdict"] == "use with care"
    assert facts["cells_left_out"]["skill"] < LEAST_SKILL and [*facts["cells_left_out"]["columns"]] != []
    where = ("--column", "0=as-it-is", "--column", "1=logarithm", "--rank", "2", "--out", "d")
    assert "Columns: 0: as it is; 1: logarithm; " in said("fit", "flats.npy", *where, cwd=flats, capsys=capsys)


@pytest.mark.parametrize(
    "file, column, message",
    [
        ("flats.csv", "rnet=number", "--column: flats.csv has no column 'rnet'; it has 'income', 'rent'"),
        (
            "flats.csv",
            "income=ordered",
            "--column income=ordered: it has 150 different values; a column of ordered values",
        ),
    ],
)
def test_kinds_that_columns_cannot_be(flats, capsys, short_fits, file, column, message):
    err = failing("fit", file, "--column", column, "--rank", "3", "--out", "no", cwd=flats, code=3, capsys=capsys)
    assert message in err
