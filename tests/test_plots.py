"""What is drawn is what the model says; titles count what is there; nothing is cut, leaked or left unsaid."""

import copy
import sys
from dataclasses import replace
from itertools import pairwise

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from mixed_columns import KINDS, mixed
from scipy.special import ndtr

import irpca
from irpca import plots
from irpca.plots import images
from irpca.plots.fitting import plain_names

pytestmark = pytest.mark.usefixtures("short_fits")

matplotlib.use("Agg")

ROWS, COLS = 40, 30
DAYS = pd.date_range("2024-01-01", periods=COLS, freq="D", name="day")
WRONG = [(3, 4), (3, 9), (3, 20), (7, 4), (11, 25)]
ON_AXES = [
    plots.cell_map,
    plots.decomposition,
    plots.residuals,
    plots.singular_values,
    plots.candidates,
    plots.convergence,
    lambda model, ax: plots.line(model, row=model.row_labels_[3] if model.row_labels_ else 3, ax=ax),
]


def values(seed=1, n1=ROWS, n2=COLS):
    """Rank 2, noise of 0.1, five outliers of size 5 and more, a hole, and a row of which nothing is known."""
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(n1, 2)) @ rng.normal(size=(2, n2)) + 0.1 * rng.normal(size=(n1, n2))
    for k, at in enumerate(WRONG):
        M[at] += (5 + k) * (-1) ** k
    M[5, 5], M[30] = np.nan, np.nan
    return M


@pytest.fixture(scope="module")
def frame():
    return pd.DataFrame(values(), index=pd.Index([f"sensor {i:02}" for i in range(ROWS)], name="sensor"), columns=DAYS)


@pytest.fixture(scope="module")
def model(frame):
    return irpca.InductiveRobustPCA(2).fit(frame)


@pytest.fixture(scope="module")
def exact():
    problem = irpca.datasets.make_problem(60, 50, d1=5, d2=4, rank=2, corruption=0.05)
    return irpca.InductiveRobustPCA().fit(problem.M, row_features=problem.F1, col_features=problem.F2)


@pytest.fixture
def ax():
    return Figure(figsize=(6.4, 4.8)).subplots()


def heading(ax):
    return ax.get_title(loc="left")


def texts(labels):
    return [label.get_text() for label in labels]


def by_label(ax, label):
    return next(artist for artist in ax.get_children() if artist.get_label() == label)


def drawn_image(ax):
    return np.ma.filled(ax.images[0].get_array().astype(float), np.nan)


# All of them


def test_the_axes_that_come_in_go_out_and_without_any_it_is_those_of_pyplot(model):
    import matplotlib.pyplot as plt

    for draw in ON_AXES:
        ax = Figure().subplots()
        assert draw(model, ax=ax) is ax and heading(ax)
        ax.figure.canvas.draw()
    assert plt.get_fignums() == []
    try:
        ax = plots.convergence(model)
        assert plt.gca() is ax and plots.convergence(model) is ax
    finally:
        plt.close("all")


def test_without_matplotlib_the_message_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "irpca\[plot\]"'):
        plots.convergence(model)


def test_what_is_not_a_fitted_model_is_refused(model, exact, ax):
    with pytest.raises(ValueError, match=r"fitted irpca\.InductiveRobustPCA, got Result"):
        plots.cell_map(model.result_, ax=ax)
    with pytest.raises(ValueError, match="call fit first"):
        plots.residuals(irpca.InductiveRobustPCA(), ax=ax)
    with pytest.raises(ValueError, match=r"no outliers to show\. DIVERGED: the numbers grew .* lower the rank"):
        plots.cell_map(changed(model, S=None, status=irpca.Status.DIVERGED))
    with pytest.raises(ValueError, match="no labels, so give a position from 0 to 59"):
        plots.line(exact, row=60, ax=ax)


def test_a_model_without_its_table_asks_for_it(model, frame):
    import pickle

    loaded = pickle.loads(pickle.dumps(model))
    for draw in plots.cell_map, plots.residuals, plots.singular_values:
        with pytest.raises(ValueError, match="pass M="):
            draw(loaded, ax=Figure().subplots())
        with pytest.raises(ValueError, match=r"M has shape \(39, 30\) and the fitted table \(40, 30\)"):
            draw(loaded, M=frame[1:], ax=Figure().subplots())
        with pytest.raises(ValueError, match="rows of M have other labels, or another order"):
            draw(loaded, M=frame[::-1], ax=Figure().subplots())
        one, other = draw(loaded, M=frame, ax=Figure().subplots()), draw(model, ax=Figure().subplots())
        assert heading(one) == heading(other)
        if one.images:
            np.testing.assert_array_equal(drawn_image(one), drawn_image(other))


@pytest.mark.parametrize(
    "make",
    [
        lambda M: pd.DataFrame(
            M,
            pd.MultiIndex.from_product([["north", "south"], range(20)], names=["side", "sensor"]),
            [f"a rather long name of column {j}" for j in range(COLS)],
        ),
        lambda M: pd.DataFrame(
            M, DAYS.tz_localize("Europe/Berlin").repeat(2)[:ROWS], pd.period_range("2024", periods=COLS, freq="M")
        ),
        lambda M: irpca.LongTable(*np.nonzero(np.isfinite(M)), M[np.isfinite(M)], shape=M.shape),
    ],
    ids=["nested", "moments", "long"],
)
def test_any_labels_and_containers(make):
    M = make(values())
    model = irpca.InductiveRobustPCA(2).fit(M)
    for draw in ON_AXES[:-1]:
        draw(model, ax=Figure().subplots()).figure.canvas.draw()
    labels = model.col_labels_
    ax = plots.line(model, column=4 if labels is None else labels[4], ax=Figure().subplots())
    ax.figure.canvas.draw()
    assert len(by_label(ax, "observed, an outlier").get_xdata()) == 2


@pytest.mark.parametrize("outliers", [0, 1])
def test_no_outlier_and_one(outliers):
    rng = np.random.default_rng(3)
    M = rng.normal(size=(30, 1)) @ np.ones((1, 20)) + 0.1 * rng.normal(size=(30, 20))
    M[2, 3] += 8 * outliers
    model = irpca.InductiveRobustPCA(1).fit(M)
    assert model.sparse_.nnz == outliers
    for draw in ON_AXES:
        draw(model, ax=Figure().subplots())
    ax = plots.cell_map(model, ax=Figure().subplots())
    assert heading(ax) == ("1 outlier in 600 cells" if outliers else "No outliers in 600 cells")
    name = heading(plots.line(model, row=2, ax=Figure().subplots()))
    assert name == ("row 2: 1 of 20 values is an outlier" if outliers else "row 2: none of 20 values is an outlier")


def test_rank_zero():
    M = np.random.default_rng(5).normal(size=(60, 50))
    with pytest.warns(irpca.DoNotUseWarning):
        model = irpca.InductiveRobustPCA().fit(M)
    assert model.rank_ == 0
    for draw in ON_AXES:
        draw(model, ax=Figure().subplots())
    ax = plots.singular_values(model, ax=Figure().subplots())
    assert heading(ax).startswith("Rank 0") and len(ax.lines[0].get_xdata()) == 0
    assert (drawn_image(plots.decomposition(model, "expected", Figure().subplots())) == 0).all()


# cell_map


def test_cells_have_their_scores_and_holes_none(model, frame, ax):
    plots.cell_map(model, order="given", ax=ax)
    image = drawn_image(ax)
    table = model.outliers()
    signed = pd.Series(table.score.to_numpy() * np.sign(table.difference.to_numpy()), [table.row, table.column])
    at = [(i, j) for i, j in np.argwhere(np.nan_to_num(image))]
    assert len(at) == len(table)
    for i, j in at:
        assert image[i, j] == pytest.approx(signed[frame.index[i], frame.columns[j]], rel=1e-12)
    np.testing.assert_array_equal(np.isnan(image), frame.isna())
    assert heading(ax) == f"{len(table)} outliers in 1,169 cells"
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("sensor", "day")


def test_rows_and_columns_stand_in_the_order_of_trouble(model, frame):
    ax = Figure(figsize=(8, 12)).subplots()
    image = drawn_image(plots.cell_map(model, ax=ax))
    for axis in (0, 1):
        seen = np.nan_to_num(image)
        counts, sizes = (seen != 0).sum(axis=1 - axis), np.abs(seen).sum(axis=1 - axis)
        assert sorted(zip(-counts, -sizes, strict=True)) == list(zip(-counts, -sizes, strict=True))
    assert texts(ax.get_yticklabels())[0] == "sensor 03"
    assert texts(ax.get_xticklabels())[0] == "2024-01-05"


def test_a_large_table_shows_the_worst_lines_and_counts_the_others(model, ax):
    plots.cell_map(model, most=2, ax=ax)
    image = drawn_image(ax)
    assert image.shape == (2, 2)
    assert heading(ax).splitlines() == [
        f"{len(model.outliers())} outliers in 1,169 cells, {len(model.outliers()) - np.count_nonzero(image)} not shown",
        "worst 2 of 40 rows, worst 2 of 30 columns",
    ]
    assert np.count_nonzero(image) == 2
    assert texts(ax.get_yticklabels()) == ["sensor 03", "sensor 11"]


def test_named_rows_and_columns(model, ax):
    plots.cell_map(
        model, rows=["sensor 05", "sensor 03"], columns=["2024-01-05", pd.Timestamp("2024-01-06")], order="given", ax=ax
    )
    assert texts(ax.get_yticklabels()) == ["sensor 05", "sensor 03"]
    image = drawn_image(ax)
    assert image[1, 0] != 0 and np.isnan(image[0, 1]) and image.shape == (2, 2)
    assert heading(ax).splitlines()[1].startswith("2 of 40 rows, 2 of 30 columns")
    plots.cell_map(model, rows=["sensor 05", "sensor 03"], ax=(second := Figure().subplots()))
    assert texts(second.get_yticklabels()) == ["sensor 03", "sensor 05"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"order": "size"}, "order must be"),
        ({"most": 0}, "most must be a whole number, at least 1; got 0"),
        ({"rows": "sensor 03"}, r"pass \['sensor 03'\]"),
        ({"rows": []}, "rows is empty"),
        ({"rows": ["sensor 3"]}, "'sensor 3' is not the label of a row; did you mean 'sensor 3"),
    ],
)
def test_cell_map_refuses(model, ax, wrong, message):
    with pytest.raises(ValueError, match=message):
        plots.cell_map(model, ax=ax, **wrong)


# line


def test_a_row_is_observed_expected_and_a_band_of_95_percent(model, frame, ax):
    plots.line(model, row="sensor 03", ax=ax)
    expected, std = (table.loc["sensor 03"].to_numpy() for table in model.expected(return_std=True))
    days = matplotlib.dates.date2num(DAYS)
    line = by_label(ax, "expected")
    np.testing.assert_array_equal(matplotlib.dates.date2num(line.get_xdata()), days)
    np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-12)
    band = by_label(ax, "95 % of clean measurements").get_paths()[0].vertices
    for k in (0, 10, COLS - 1):
        edges = band[np.isclose(band[:, 0], days[k]), 1]
        assert edges.min() == pytest.approx(expected[k] - 1.96 * std[k], rel=1e-9)
        assert edges.max() == pytest.approx(expected[k] + 1.96 * std[k], rel=1e-9)
    table = model.outliers()
    table = table[table.row == "sensor 03"].sort_values("column")
    flagged = by_label(ax, "observed, an outlier")
    np.testing.assert_array_equal(flagged.get_xdata(), table.column.to_numpy())
    np.testing.assert_array_equal(flagged.get_ydata(), table.observed)
    assert {DAYS[4], DAYS[9], DAYS[20]} <= set(table.column)
    clean = by_label(ax, "observed")
    np.testing.assert_array_equal(clean.get_ydata(), frame.loc["sensor 03"].drop(table.column))
    assert heading(ax) == f"sensor 03: {len(table)} of 30 values are outliers"


def test_holes_are_gaps_and_a_row_without_values_is_unknown(model, ax):
    plots.line(model, row="sensor 05", ax=ax)
    assert np.isnan(by_label(ax, "observed").get_ydata()[5])
    assert heading(ax).endswith(", 1 missing")
    plots.line(model, row="sensor 30", ax=(empty := Figure().subplots()))
    assert np.isnan(by_label(empty, "expected").get_ydata()).all()
    assert heading(empty) == "sensor 30: none of 0 values is an outlier, 30 missing"


def test_labels_without_order_are_not_joined_and_thinned(model, ax):
    plots.line(model, column=DAYS[4], ax=ax)
    marks = by_label(ax, "expected")
    assert marks.get_linestyle() == "None" and len(marks.get_xdata()) == ROWS
    ticks = [label for label in ax.get_xticklabels()]
    assert texts(ticks)[0] == "sensor 00"
    ax.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in ticks]
    assert all(one.x1 <= other.x0 for one, other in pairwise(boxes))


def test_numbers_and_dates_are_drawn_to_scale_with_long_gaps_open():
    M = pd.DataFrame(values()[:30], columns=np.r_[np.arange(20), 1000 + np.arange(10)][::-1])
    model = irpca.InductiveRobustPCA(2).fit(M)
    x = by_label(plots.line(model, row=4, ax=Figure().subplots()), "expected").get_xdata()
    y = by_label(plots.line(model, row=4, ax=Figure().subplots()), "expected").get_ydata()
    assert len(x) == 31 and (np.diff(x) > 0).all() and x[-1] == 1009
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(y)), [20])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "give either row or column, got row=None and column=None"),
        ({"row": 1, "column": 1}, "give either row or column"),
        ({"row": 999}, "there are 'sensor 00', 'sensor 01', 'sensor 02', 'sensor 03', 'sensor 04' and 35 more"),
        ({"column": "yesterday"}, "'yesterday' is not the label of a column"),
    ],
)
def test_line_refuses_what_is_not_there(model, ax, wrong, message):
    with pytest.raises(ValueError, match=message):
        plots.line(model, ax=ax, **wrong)


# decomposition


def test_the_parts_are_those_of_the_model(model, frame):
    axes = {part: plots.decomposition(model, part, Figure().subplots()) for part in plots.images.PARTS}
    assert all(heading(ax).startswith(plots.images.PARTS[part]) for part, ax in axes.items())
    image = {part: drawn_image(ax) for part, ax in axes.items()}
    expected = model.expected().to_numpy()
    np.testing.assert_array_equal(image["observed"], frame)
    np.testing.assert_allclose(image["expected"], expected, rtol=1e-9, atol=1e-12)
    S = np.where(frame.isna(), np.nan, model.sparse_.toarray())
    np.testing.assert_array_equal(image["outliers"], S)
    np.testing.assert_allclose(image["residual"], np.where(S != 0, np.nan, frame - expected), rtol=1e-9, atol=1e-12)
    low, high = axes["residual"].images[0].get_clim()
    assert axes["observed"].images[0].get_clim() == axes["expected"].images[0].get_clim() and low == -high
    with pytest.raises(ValueError, match="part must be one of 'observed', 'expected', 'outliers', 'residual', got 'L'"):
        plots.decomposition(model, "L")


def test_pixels_of_large_tables_are_blocks_of_cells():
    M = values(2, 901, 60)
    M[4, 4] -= 20  # in one block with a smaller one
    model = irpca.InductiveRobustPCA(2).fit(M)
    axes = {part: plots.decomposition(model, part, Figure(figsize=(9, 5)).subplots()) for part in plots.images.PARTS}
    image = {part: drawn_image(ax) for part, ax in axes.items()}
    expected = model.expected()
    np.testing.assert_array_equal(image["observed"], M[::3])
    np.testing.assert_allclose(image["expected"], expected[::3], rtol=1e-9, atol=1e-12)
    S = model.sparse_.toarray()
    assert S[3, 4] != 0 and S[4, 4] < -10
    largest = S[3:6][np.abs(S[3:6]).argmax(axis=0), np.arange(60)]
    np.testing.assert_array_equal(image["outliers"][1], largest)
    assert heading(axes["outliers"]).endswith("each pixel is the largest of a block of 3 × 1 cells")
    assert heading(axes["residual"]).endswith("each pixel is the first of a block of 3 × 1 cells")
    assert axes["observed"].get_ylim() == (900.5, -0.5)


# residuals and singular values


def test_residuals_are_counted_and_the_noise_is_that_of_the_calibration(model, ax):
    plots.residuals(model, ax=ax)
    counts, edges, _ = by_label(ax, "all cells").get_data()
    assert counts.sum() == 1169
    limit = model.result_.calibration.limit
    wrong = by_label(ax, "more likely outliers").get_data().values
    assert wrong.sum() == len(model.outliers())
    assert limit in edges and -limit in edges
    assert {line.get_xdata()[0] for line in ax.lines} == {-limit, limit}
    clean = by_label(ax, "clean noise, as fitted").get_data().values
    assert clean.sum() == pytest.approx(1169 - wrong.sum(), rel=0.03)
    np.testing.assert_allclose(clean, clean[::-1], rtol=1e-3)  # of tails of 1e-12 no more digits are there
    assert f"Beyond ±{limit:.3g} a cell is called an outlier" in heading(ax)


def test_a_fit_without_noise_has_a_plain_histogram_and_says_why(exact, ax):
    plots.residuals(exact, ax=ax)
    assert "The fit is exact" in heading(ax)
    assert ax.patches[0].get_data().values.sum() == 3000
    assert by_label(ax, "outliers").get_data().values.sum() == len(exact.outliers())


def test_residuals_of_a_method_without_a_model_of_the_noise():
    M = np.nan_to_num(values())
    model = irpca.InductiveRobustPCA(2, solver="pca").fit(M)
    plots.residuals(model, ax=(ax := Figure().subplots()))
    assert "solver='pca' has no model of the noise" in heading(ax).replace("\n", " ")


def test_what_is_left_of_a_good_fit_is_below_the_edge_of_noise(model, ax):
    plots.singular_values(model, ax=ax)
    edge = by_label(ax, "largest to expect of noise alone").get_ydata()[0]
    assert by_label(ax, "left over").get_ydata().max() < edge < ax.lines[0].get_ydata().min()
    scale = model.result_.scale
    units = np.sqrt(np.outer(scale.rows, scale.cols))
    L = np.linalg.svd(model.low_rank_.dense() / units, compute_uv=False)[:2]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), L, rtol=1e-9)
    R = np.where(model.sparse_.toarray() != 0, 0, np.nan_to_num(model._M - model.expected()))
    left = np.linalg.svd(R / units, compute_uv=False)[:15]
    np.testing.assert_allclose(by_label(ax, "left over").get_ydata(), left, rtol=1e-9)
    np.testing.assert_array_equal(by_label(ax, "left over").get_xdata(), 3 + np.arange(15))
    assert ax.get_ylabel() == "singular value, in units of the noise" and heading(ax).startswith("Rank 2")


# candidates and convergence


def test_candidates_are_those_of_the_certificate(model, ax):
    plots.candidates(model, ax=ax)
    certificate = model.result_.certificate
    best_first = sorted(certificate.candidates, key=lambda candidate: -candidate[1])
    others, chosen = ax.lines
    drawn = np.full(len(best_first), np.nan)
    for line in (others, chosen):
        drawn[np.asarray(line.get_ydata())] = line.get_xdata()
    np.testing.assert_array_equal(drawn, [density for _, density, _ in best_first])
    assert best_first[chosen.get_ydata()[0]][0] == certificate.chosen
    assert texts(ax.get_yticklabels()) == [f"{error:.3g}" for *_, error in best_first]
    assert [text.get_text().endswith("(chosen)") for text in ax.texts].index(True) == chosen.get_ydata()[0]
    assert heading(ax).startswith(f"{len(best_first)} candidate fit")


def test_names_of_candidates_are_in_plain_words():
    from irpca.solvers.race import Recipe

    first = Recipe((False, False), few=True)
    second = Recipe((False, False), first, shifted=True)
    third = Recipe((True, False), Recipe((True, False), "earlier", piles=True), afresh=False)
    assert plain_names([first.name, second.name, third.name]) == [
        "1: few components, started at column medians",
        "2: all components, started at fit 1, moved to the densest residuals",
        "3: features only, started at (features only, started at an earlier fit, repeated values left out), "
        "noise estimated once",
    ]


def test_a_candidate_far_behind_is_not_to_scale(model, ax):
    tried = (("from earlier", -1.0, 0.1), ("from columns", -1.2, 0.2), ("few directions, from columns", -500.0, 9.0))
    certificate = replace(model.result_.certificate, candidates=tried, chosen="from earlier")
    plots.candidates(changed(model, certificate=certificate), ax=ax)
    assert ax.lines[0].get_xdata().min() > -3
    assert ax.texts[2].get_text().endswith("(-500, not to scale)")


def test_convergence_is_the_history_of_the_last_fit(model, exact):
    result = irpca.solve(np.nan_to_num(values()), rank=2, solver="altproj")
    for against, x in (("seconds", result.history.seconds), ("reads", result.history.reads)):
        ax = plots.convergence(result, Figure().subplots(), against=against)
        np.testing.assert_array_equal(by_label(ax, "change").get_xdata(), x)
        np.testing.assert_array_equal(by_label(ax, "change").get_ydata(), result.history.step)
    assert ax.get_yscale() == "log" and f"after {result.n_iter} iterations" in heading(ax)
    ax = plots.convergence(model, Figure().subplots(), against="iterations")
    of_last = np.array([not stage for stage in model.history_.stage])
    np.testing.assert_array_equal(by_label(ax, "change").get_ydata(), np.array(model.history_.step)[of_last])
    assert not of_last.all() and by_label(ax, "comparing candidate fits")
    with pytest.raises(ValueError, match="against must be one of 'seconds', 'reads', 'iterations', got 'time'"):
        plots.convergence(model, ax, against="time")


def test_steps_of_zero_are_marked_and_no_steps_are_a_sentence(model):
    history = irpca.History(seconds=[1.0, 2.0], reads=[1.0, 2.0], step=[1e-3, 0.0], stage=["", ""])
    ax = plots.convergence(replace(model.result_, history=history), Figure().subplots())
    assert by_label(ax, "no change at all (not to scale)").get_xdata() == [2.0]
    ax = plots.convergence(replace(model.result_, history=irpca.History()), Figure().subplots())
    assert "no steps to show" in ax.texts[0].get_text().replace("\n", " ")


# reliability


def test_reliability_is_the_share_in_every_bin_with_its_interval(ax):
    from scipy.stats import binomtest

    rng = np.random.default_rng(7)
    p = np.r_[rng.random(400) ** 3, 1.0, 0.0]
    wrong = rng.random(402) < p
    plots.reliability(p, wrong, ax, bins=5)
    points = ax.lines[1]
    x, y = points.get_data()
    segments = ax.collections[0].get_segments()
    for k in range(5):
        inside = (p >= k / 5) & ((p < (k + 1) / 5) | (k == 4))
        assert x[k] == pytest.approx(p[inside].mean()) and y[k] == pytest.approx(wrong[inside].mean())
        interval = binomtest(int(wrong[inside].sum()), int(inside.sum())).proportion_ci()
        np.testing.assert_allclose(segments[k][:, 1], interval, atol=1e-9)
    assert heading(ax).replace("\n", " ").endswith(f"402 cells, {wrong.sum()} of them wrong")
    counts = np.histogram(p, 5, (0, 1))[0]
    assert texts(ax.child_axes[0].get_xticklabels()) == [str(count) for count in counts]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.1], [True, False]), "must be of the same cells"),
        (([], []), "probability is empty"),
        (([0.1, np.nan, 1.2], [True] * 3), "2 of 3 values are not, or are NaN"),
        (([0.1], [2]), "wrong must be boolean"),
        (([0.1], [True], None, 0), "bins must be a whole number, at least 1 and at most 1000; got 0"),
    ],
)
def test_reliability_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.reliability(*arguments)


# Labels on ticks


@pytest.mark.parametrize(
    ("count", "which", "text"),
    [(3, "x", "a label that is much too long to be shown {}"), (300, "x", "label {}"), (300, "y", "{}")],
)
def test_tick_labels_do_not_overlap(ax, which, count, text):
    ax.set(xlim=(-0.5, count - 0.5), ylim=(-0.5, count - 0.5))
    plots.drawing.label_ticks(ax, which, np.arange(count), [text.format(k) for k in range(count)])
    ax.figure.canvas.draw()
    ticks = ax.get_xticklabels() if which == "x" else ax.get_yticklabels()
    boxes = [label.get_window_extent() for label in ticks]
    assert len(boxes) >= min(count, 3)
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))


# What is said in rare cases


def changed(model, **changes):
    """The same model, with another result."""
    other = copy.copy(model)
    other.result_ = replace(model.result_, **changes)
    return other


def test_why_there_are_no_candidates(model):
    for changes, words in (
        ({"noise": 0.0}, "The fit is exact: it meets most cells"),
        ({"noise": 0.1}, "One fit was made, so"),
        ({"solver": "pca"}, "solver='pca' makes one fit"),
    ):
        ax = plots.candidates(changed(model, certificate=None, **changes), ax=Figure().subplots())
        assert words in ax.texts[0].get_text().replace("\n", " ")


def test_samples_are_called_so(ax, model, monkeypatch):
    monkeypatch.setattr("irpca.plots.remainder.ENTRIES", 500)
    plots.residuals(model, ax=ax)
    assert "500 cells at random. Beyond ±" in heading(ax)
    monkeypatch.setattr("irpca.plots.remainder.BLOCK", 20)
    ax.clear()
    plots.singular_values(model, ax=ax)
    assert heading(ax).endswith("of a random block of 20 × 20 cells")


# Mapped columns


@pytest.fixture(scope="module")
def mapped(short_fits):
    return irpca.InductiveRobustPCA(3, columns=KINDS).fit(mixed())


def test_mapped_columns_are_scored_by_their_latent_values(mapped, ax):
    plots.cell_map(mapped, order="given", most=400, ax=ax)
    image, found = drawn_image(ax), mapped.outliers()
    at = mixed().index.get_indexer(found["row"]), mixed().columns.get_indexer(found["column"])
    np.testing.assert_allclose(image[at], np.sign(found["difference"]) * found["score"], rtol=1e-9)


def test_a_mapped_column_has_the_band_of_its_interval(mapped, ax):
    plots.line(mapped, column="pool", ax=ax)
    bars = by_label(ax, "95 % of clean measurements").get_segments()
    lower, upper = (table["pool"] for table in mapped.interval(2 * ndtr(1.96) - 1))
    np.testing.assert_allclose([bar[:, 1] for bar in bars], np.column_stack([lower, upper]), rtol=1e-9)
    assert lower.min() == 0.0
    np.testing.assert_allclose(by_label(ax, "expected").get_ydata(), mapped.expected()["pool"], rtol=1e-9)


def test_images_of_a_mapped_table_are_in_its_units(mapped, monkeypatch):
    image = drawn_image(plots.decomposition(mapped, "expected", ax=Figure().subplots()))
    np.testing.assert_allclose(image, mapped.expected(), rtol=1e-9)
    monkeypatch.setattr(images, "PIXELS", 75)
    blocks = drawn_image(plots.decomposition(mapped, "expected", ax=Figure().subplots()))
    np.testing.assert_allclose(blocks, mapped.expected()[::2], rtol=1e-9)


def test_what_is_left_of_a_mapped_table_is_that_of_latent_values(mapped):
    ax = plots.residuals(mapped, ax=Figure().subplots())
    counts = by_label(ax, "all cells").get_data()
    clean = by_label(ax, "clean noise, as fitted").get_data()
    middle = np.abs(counts.edges[:-1] + counts.edges[1:]) < 1
    assert counts.values.sum() == mapped.result_.n_observed == 1197
    assert counts.values[middle].sum() == pytest.approx(clean.values[middle].sum(), rel=0.1)
    ax = plots.singular_values(mapped, ax=Figure().subplots())
    assert by_label(ax, "left over").get_ydata().max() < by_label(ax, "kept: 3 components").get_ydata().min()
