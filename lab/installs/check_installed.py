"""Check the irpca that is installed: each part does its work, or says which extra it needs.

    python -W error check_installed.py pandas     # these optional libraries, and no others, are to be there

Run by ``installs.py`` in environments of its own. The first line printed holds the versions, as JSON.
"""

import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

OPTIONAL = ["pandas", "matplotlib", "pyarrow", "zarr", "dask", "torch"]
CORE = ["numpy", "scipy", "scikit-learn", "narwhals", "threadpoolctl", "array-api-compat", "numba"]
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def there(library):
    return importlib.util.find_spec(library) is not None


def refused(action, extra):
    """Whether the message of what ``action`` raises names the extra."""
    try:
        action()
    except Exception as error:
        advice = f'pip install "irpca[{extra}]"'
        assert advice in str(error), f"does not say {advice}: {type(error).__name__}: {error}"
    else:
        raise AssertionError(f"was not refused, and needs irpca[{extra}]")


def problem(noise=0.0):
    import irpca

    return irpca.datasets.make_problem(60, 40, d1=5, d2=4, rank=2, corruption=0.1, noise=noise, random_state=3)


def noisy_model():
    import irpca

    return irpca.InductiveRobustPCA(random_state=0).fit(problem(noise=0.02).M)


def command(*words, cwd, limit=600):
    """Run the command ``irpca`` of this environment; warnings are errors by PYTHONWARNINGS."""
    script, before = next(Path(sys.executable).parent.glob("irpca*")), os.times()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([script, *words], cwd=cwd, env={**os.environ, "PYTHONFAULTHANDLER": "1"}, **pipes) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as late:
            process.send_signal(signal.SIGABRT)  # each of its threads says where it is
            process.send_signal(signal.SIGCONT)  # also if it was stopped
            _, err = process.communicate()
            computed = os.times().children_user - before.children_user  # hardly any: it waited, or was stopped
            raise AssertionError(f"{words} took more than {limit} s, {computed:.0f} s of them busy\n{err}") from late
    assert not err, err
    return subprocess.CompletedProcess(words, process.returncode, out)


@check
def it_is_the_installed_package(folder):
    import irpca

    place = Path(irpca.__file__).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"irpca was imported from {place}"
    assert irpca.__version__ == importlib.metadata.version("irpca")
    assert all(getattr(irpca, name) is not None for name in irpca.__all__)


@check
def an_exact_table(folder):
    import irpca

    exact = problem()
    for F1, F2 in ((exact.F1, exact.F2), (None, None)):
        result = irpca.solve(exact.M, F1, F2, random_state=0)
        assert exact.relative_error(result.L) < 1e-8, f"relative error {exact.relative_error(result.L)}"


@check
def a_noisy_table(folder):
    import irpca

    noisy = problem(noise=0.02)
    for F1, F2 in ((noisy.F1, noisy.F2), (None, None)):
        result = irpca.solve(noisy.M, F1, F2, random_state=0)
        error = noisy.relative_error(result.L)
        floor = float(((noisy.N**2).sum() / (noisy.L**2).sum()) ** 0.5)  # of an L that holds all of the noise
        assert error < floor, f"relative error {error}, noise {floor}"
    paper = irpca.solve(noisy.M, noisy.F1, noisy.F2, rank=2, solver="irpca_iht")
    assert noisy.relative_error(paper.L) < floor


@check
def a_model_is_saved_and_loaded(folder):
    import numpy as np

    import irpca

    model = noisy_model()
    model.save(folder / "model.irpca")
    again = irpca.load(folder / "model.irpca")
    np.testing.assert_array_equal(again.expected(), model.expected())
    assert again.summary() == model.summary()


@check
def scikit_learn_takes_the_estimator(folder):
    from sklearn.base import clone
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import irpca

    estimator = clone(irpca.InductiveRobustPCA(2, random_state=0))
    scores = make_pipeline(StandardScaler(), estimator).fit_transform(problem(noise=0.02).M)
    assert scores.shape == (60, 2)


@check
def a_report(folder):
    import irpca

    page = irpca.report.write(noisy_model(), folder / "report.html")
    assert "</html>" in page.read_text(encoding="utf-8")


@check
def the_command(folder):
    import irpca

    table = problem(noise=0.02).M
    lines = [",".join(["row", *(f"c{j}" for j in range(table.shape[1]))])]
    lines += [",".join([f"r{i}", *map(repr, map(float, row))]) for i, row in enumerate(table)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    assert irpca.__version__ in command("--version", cwd=folder).stdout
    done = command("fit", "table.csv", "--report", cwd=folder)
    assert done.returncode in (0, 4), done.stdout  # 4: "do not use", which is for the tests to judge
    made = {path.name for path in (folder / "table-irpca").iterdir()}
    assert made == {"model.irpca", "outliers.csv", "repaired.csv", "report.html"}, made


@check
def pandas_frames(folder):
    import irpca

    weather = irpca.datasets.load_weather()
    if not there("pandas"):
        refused(weather.frame, "pandas")
        refused(lambda: irpca.LongTable.from_frame({"row": ["a"], "column": ["b"], "value": [1.0]}, "row"), "pandas")
        return
    import pandas as pd

    frame = weather.frame().iloc[:200]
    model = irpca.InductiveRobustPCA(random_state=0).fit(frame, row_features="index")
    expected, found = model.expected(), model.outliers()
    assert isinstance(found, pd.DataFrame) and expected.index.equals(frame.index)
    assert list(expected.columns) == list(frame.columns)
    model.save(folder / "frame.irpca")
    pd.testing.assert_frame_equal(irpca.load(folder / "frame.irpca").expected(), expected)


@check
def pictures(folder):
    import irpca

    model = noisy_model()
    if not there("matplotlib"):
        refused(lambda: irpca.plots.convergence(model), "plot")
        return
    import matplotlib

    matplotlib.use("Agg")
    for draw, options in (("convergence", {}), ("cell_map", {}), ("line", {"row": 0})):
        getattr(irpca.plots, draw)(model, **options).figure.savefig(folder / "picture.png")
        matplotlib.pyplot.close("all")


@check
def parquet_files(folder):
    import irpca
    from irpca.readers import read

    noisy, lists = problem(noise=0.02), folder / "outliers"
    if not there("pyarrow"):
        (folder / "table.parquet").write_bytes(b"")
        refused(lambda: read(str(folder / "table.parquet")), "files")
        refused(lambda: irpca.solve(noisy.M, outliers_to=lists), "files")
        return
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.table({f"c{j}": noisy.M[:, j] for j in range(noisy.M.shape[1])}), folder / "table.parquet"
    )
    done = command("fit", "table.parquet", "--out", "parquet", cwd=folder)
    assert done.returncode in (0, 4), done.stdout
    irpca.solve(noisy.M, outliers_to=lists, random_state=0)
    assert pyarrow.parquet.read_table(lists).num_rows > 0


@check
def zarr_files(folder):
    import numpy as np

    from irpca.readers import read

    if not there("zarr"):
        (folder / "table.zarr").mkdir()
        refused(lambda: read(str(folder / "table.zarr")), "files")
        return
    import zarr

    M = problem().M
    stored = zarr.create_array(store=str(folder / "table.zarr"), shape=M.shape, chunks=(16, 16), dtype=M.dtype)
    stored[...] = M
    np.testing.assert_array_equal(read(str(folder / "table.zarr")), M)


@check
def tables_in_chunks(folder):
    import numpy as np

    import irpca

    exact = problem()
    (folder / "chunks").mkdir()
    np.save(folder / "chunks" / "0.npy", exact.M)
    if not there("dask"):
        refused(lambda: irpca.solve(folder / "chunks"), "dask")
        return
    import dask.array as da

    result = irpca.solve(da.from_array(exact.M, chunks=(20, 40)), exact.F1, exact.F2, random_state=0)
    assert exact.relative_error(result.L) < 1e-8


@check
def tensors(folder):
    import irpca

    exact = problem()
    if not there("torch"):
        refused(lambda: irpca.solve(exact.M, engine="gpu"), "gpu")
        return
    import torch

    result = irpca.solve(torch.from_numpy(exact.M), exact.F1, exact.F2, random_state=0)
    assert exact.relative_error(result.L.dense()) < 1e-8


def versions():
    for name in (*CORE, *OPTIONAL):
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


def main(expected):
    print(json.dumps({"python": sys.version.split()[0], **dict(versions())}), flush=True)
    found = {name for name in OPTIONAL if there(name)}
    if found != set(expected):
        print(f"installed: {sorted(found)}; expected: {sorted(expected)}")
        return 1
    failed = []
    for one in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                one(Path(folder))
            except Exception:
                traceback.print_exc(file=sys.stdout)
                failed.append(one.__name__)
    if failed:
        print("failed:", ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
