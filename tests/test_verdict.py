"""Every check of a finished fit: it sees what it should, and does not see what is not there."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import irpca
from irpca import constants
from irpca.engines import ReferenceEngine
from irpca.engines.sparse_part import flagged
from irpca.features import Features
from irpca.labels import Labels
from irpca.lowrank import LowRank
from irpca.model.calibration import Calibration
from irpca.model.entry_scale import EntryScale, Judge
from irpca.model.noise import NoiseModel
from irpca.result import FATAL, NOTES, Certificate, Doubt, State, Status, Unseen, about_lines
from irpca.verdict import Case, doubts_of, labelled

NOISE = 0.1
SHAPE = (120, 90)


def low_rank(rng, shape=SHAPE, rank=2):
    return LowRank.from_product(*(rng.standard_normal((n, rank)) for n in shape))


def entry_scale(shape, cols=1.0):
    """The same scale in all rows, and an L that is known well."""
    n1, n2 = shape
    return EntryScale(np.full(n1, NOISE**2), cols * np.ones(n2), np.full((n1, 2), 1e-6), np.full((n2, 2), 1e-6))


def a_case(
    seed=0, noise=None, L=None, M=None, certificate=None, limit=5.0, model=True, cols=1.0, known=None, **changes
):
    """A right fit: M is L, Gaussian noise and 5 % of gross errors."""
    rng = np.random.default_rng(seed)
    L = low_rank(rng) if L is None else L
    if M is None:
        M = L.dense() + (NOISE * rng.standard_normal(L.shape) if noise is None else noise)
        M[rng.random(L.shape) < 0.05] += 10.0
    engine, scale = ReferenceEngine(M), entry_scale(L.shape, cols) if model else None
    known = tuple(np.ones(n, bool) for n in L.shape) if known is None else known
    judge = Judge(limit if model else limit * NOISE, scale, known=known)
    S = judge.outliers(engine.corruption(L, judge.candidates)[0])
    fields = {
        "engine": engine,
        "features": tuple(Features.identity(n) for n in L.shape),
        "state": State(L, 5 * NOISE, 0.0, noise=NOISE, certificate=certificate, scale=scale),
        "outliers": (flagged(S, 0), flagged(S, 1)),
        "judge": judge,
        "status": Status.CONVERGED,
        "seed": np.random.SeedSequence(seed + 1000),
    }
    return Case(**fields | changes)


def kinds(case):
    return [doubt.kind for doubt in doubts_of(case)]


def only(case, kind):
    """The one doubt of this kind; there may be others."""
    (found,) = (doubt for doubt in doubts_of(case) if doubt.kind == kind)
    return found


# A right answer


@pytest.mark.parametrize("model", [True, False])
def test_right_answers_raise_no_doubt(model):
    assert [kinds(a_case(seed, model=model)) for seed in range(20)] == [[]] * 20


@pytest.mark.parametrize("kind", ["laplace", "student", "holes", "unequal", "small", "tall"])
def test_nor_under_other_noise(kind):
    doubted = []
    for seed in range(5):
        rng = np.random.default_rng(seed + 50)
        shape = {"small": (30, 30), "tall": (600, 12)}.get(kind, SHAPE)
        L = low_rank(rng, shape)
        noise = rng.standard_normal(shape)
        if kind == "laplace":
            noise = rng.laplace(size=shape) / np.sqrt(2)
        if kind == "student":
            noise = np.clip(rng.standard_t(4, shape) / np.sqrt(2), -5, 5)
        if kind == "holes":
            noise[rng.random(shape) < 0.5] = np.nan
        case = a_case(seed, NOISE * noise, L)
        if kind == "unequal":
            scale = np.exp(rng.standard_normal(shape[1]))
            M = L.dense() + NOISE * noise * scale
            case = a_case(seed, M=M, L=L, limit=6.0, cols=scale**2)
        doubted += kinds(case)
    assert doubted == []


# Cells that a fit has not seen


def certificate(skill=0.6, half=0.5, most=0.95, agreement=0.8, cells=10_000):
    of_columns = np.full(SHAPE[1], skill)
    unseen = Unseen(skill, of_columns, of_columns, (half, most), np.array([of_columns] * 2), agreement, cells)
    return Certificate((("one", 0.0, 0.1),), "one", unseen)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"skill": -0.01}, "not-predicted"),
        ({"skill": 0.18}, "hardly-better"),
        ({"skill": 0.2}, None),
        ({"most": 0.88}, "intervals"),
        ({"most": 0.99}, "intervals"),
        ({"most": 0.88, "cells": 200}, None),
        ({"agreement": 0.45}, "other-outliers"),
        ({"agreement": np.nan}, None),
    ],
)
def test_what_unseen_cells_say(changed, kind):
    assert kinds(a_case(certificate=certificate(**changed))) == ([kind] if kind else [])


def test_tables_too_small_to_check():
    small = LowRank.from_product(np.ones((4, 1)), np.ones((4, 1)))
    M = small.dense() + NOISE * np.random.default_rng(18).standard_normal((4, 4))
    assert only(a_case(L=small, M=M), "too-small").kind in FATAL


def test_a_table_without_a_pattern():
    zero = a_case(L=LowRank.zero(SHAPE), M=NOISE * np.random.default_rng(0).standard_normal(SHAPE))
    assert "no pattern is stronger" in only(zero, "no-pattern").text


# The residuals


def test_noise_that_grows_with_L():
    rng = np.random.default_rng(6)
    L = low_rank(rng)
    M = L.dense() + NOISE * (0.3 + np.abs(L.dense())) * rng.standard_normal(SHAPE)
    assert "noise-grows" in kinds(a_case(L=L, M=M, limit=100.0))


def test_a_component_left_in_the_residuals():
    rng = np.random.default_rng(9)
    left = np.outer(rng.standard_normal(SHAPE[0]), rng.standard_normal(SHAPE[1]))
    assert kinds(a_case(noise=NOISE * (rng.standard_normal(SHAPE) + 0.8 * left), limit=50.0)) == ["structure-left"]


def described(share):
    """A fit whose features predict a share of the differences between lines."""
    rng = np.random.default_rng(14)
    sides = []
    for n in SHAPE:
        expected, own = rng.standard_normal((2, n, 2))
        mean = np.sqrt(share) * expected + np.sqrt(1 - share) * own
        sides.append(SimpleNamespace(mean=mean, expected=np.sqrt(share) * expected, second=np.eye(2)))
    n1, n2 = (len(side.mean) for side in sides)
    noise = NoiseModel(1.0, np.full(n2, 1e-9), np.ones(n1), np.ones(n2), 10.0)
    return SimpleNamespace(tied=(False, False), rows=sides[0], cols=sides[1], noise=noise, unit=np.ones(n2))


@pytest.mark.parametrize(("share", "doubted"), [(0.0, 2), (0.5, 0)])
def test_features_that_predict_next_to_nothing(share, doubted):
    rng = np.random.default_rng(12)
    case = a_case(features=tuple(Features.of(rng.standard_normal((n, 3)), n) for n in SHAPE))
    case = replace(case, state=replace(case.state, fit=described(share)))
    found = [doubt for doubt in doubts_of(case) if doubt.kind == "hardly-predicted"]
    assert len(found) == doubted
    if doubted:
        assert found[0].text.startswith("row_features predict 0% of the differences between rows")
        assert found[1].text.startswith("col_features predict 0% of the differences between columns")


@pytest.mark.parametrize("side", ["above", "below"])
def test_noise_that_is_not_symmetric(side):
    rng = np.random.default_rng(16)
    for noise, skewed in ((rng.exponential(size=20_000) - np.log(2), True), (rng.laplace(size=20_000), False)):
        case = a_case()
        judge = replace(case.judge, calibration=Calibration(noise if side == "above" else -noise))
        judge = replace(judge, scale=replace(judge.scale, tail=float(noise.std())))
        found = [doubt.text for doubt in doubts_of(replace(case, judge=judge)) if doubt.kind == "skewed-noise"]
        assert len(found) == skewed
        assert not found or (f"0.0% {side}" not in found[0] and "% of the clean cells are above" in found[0])


def test_a_free_part_where_few_rows_and_columns_meet():
    rng = np.random.default_rng(12)
    features = tuple(Features.of(rng.standard_normal((n, 3)), n) for n in SHAPE)
    inside = LowRank(features[0].Q, 30 * rng.standard_normal((3, 3)), features[1].Q).dense()
    rows, cols = (np.where(np.arange(n) < n // 3, rng.standard_normal(n), 0.0) for n in SHAPE)
    everywhere = np.outer(*(rng.standard_normal(n) for n in SHAPE))
    fit = described(1.0)
    for free, expected in ((np.outer(rows, cols), True), (everywhere, False)):
        L = LowRank.from_product(inside + free, np.eye(SHAPE[1]), 4)
        case = a_case(L=L, features=features)
        case = replace(case, state=replace(case.state, fit=fit))
        assert ("free-part-in-few" in kinds(case)) == expected


# The outliers


@pytest.mark.parametrize(("share", "doubted"), [(0.4, []), (0.48, ["many-outliers"])])
def test_many_outliers(share, doubted):
    rng = np.random.default_rng(10)
    L = low_rank(rng)
    wrong = (rng.random(SHAPE) < share) * rng.uniform(4 * NOISE, 60 * NOISE, SHAPE)
    assert kinds(a_case(L=L, M=L.dense() + NOISE * rng.standard_normal(SHAPE) + wrong)) == doubted


@pytest.mark.parametrize("every", [8, 12])
def test_lines_with_errors_throughout_are_named(every):
    """Half of the cells of every eighth or twelfth row are wrong: that looks like noise where components are many."""
    rng = np.random.default_rng(1)
    M = rng.standard_normal((600, 12)) @ rng.standard_normal((12, 40)) + rng.standard_normal((600, 40))
    wrong = range(0, 600, every)
    shape = len(wrong), 40
    M[wrong] += np.where(rng.random(shape) < 0.5, 9.0 * rng.standard_normal(shape), 0.0)
    result = irpca.solve(M)
    (doubt,) = (doubt for doubt in result.doubts if doubt.kind == "noisy-rows")
    assert set(doubt.rows) <= set(wrong) and len(doubt.rows) >= 0.9 * len(wrong)
    assert result.usable != "usable"


@pytest.mark.parametrize("axis", [0, 1])
def test_broken_lines_are_named(axis):
    rng = np.random.default_rng(11)
    L = low_rank(rng)
    M = L.dense() + NOISE * rng.standard_normal(SHAPE)
    (M if axis == 0 else M.T)[[5, 17]] += 10.0
    doubt = only(a_case(L=L, M=M), "broken-lines")
    assert (doubt.rows, doubt.columns) == (((5, 17), ()) if axis == 0 else ((), (5, 17)))
    assert doubt.text.startswith(f"in 2 {('row', 'column')[axis]}s more than half of the cells are outliers: 5, 17. ")


def test_lines_of_few_entries_break_by_chance():
    rng = np.random.default_rng(12)
    noise = NOISE * rng.standard_normal(SHAPE)
    noise[rng.random(SHAPE) < 0.95] = np.nan
    assert "broken-lines" not in kinds(a_case(noise=noise))


# What is known, and what L explains


def test_lines_of_which_nothing_is_known():
    known = (np.arange(120) > 1, np.ones(90, bool))
    doubt = only(a_case(known=known), "unknown-lines")
    assert doubt.rows == (0, 1) and doubt.text.startswith("2 rows have fewer than 2 values: 0, 1.")


def test_lines_for_which_features_speak():
    noise = NOISE * np.random.default_rng(0).standard_normal(SHAPE)
    noise[:, 4] = np.nan
    F = Features.of(np.random.default_rng(1).standard_normal((90, 3)), 90, "F2", "columns")
    doubt = only(a_case(noise=noise, features=(Features.identity(120), F)), "unseen-lines")
    assert doubt.columns == (4,)
    assert doubt.text.startswith("1 column has no values: 4. What is expected there rests on the features")


def test_a_failure_is_told_however_the_run_ended():
    case = a_case()
    failed = replace(case, state=replace(case.state, failure="because"), status=Status.STOPPED)
    assert doubts_of(failed) == (Doubt("failure", "because"),)


def test_a_run_that_was_stopped_is_not_judged():
    assert kinds(a_case(certificate=certificate(skill=-1.0), status=Status.STOPPED)) == []


def test_an_exact_fit_is_not_asked_about_its_noise():
    """What is left is rounding, and rounding follows L."""
    rng = np.random.default_rng(13)
    L = low_rank(rng)
    case = a_case(L=L, M=L.dense() * (1 + 1e-16), certificate=Certificate((), "one"))
    assert set(kinds(replace(case, state=replace(case.state, noise=0.0)))) <= set(NOTES)
    far_below = a_case(L=L, M=L.dense() + 1e-9 * np.abs(L.dense()))
    assert set(kinds(far_below)) <= set(NOTES)


# Labels


def test_labels_take_the_place_of_positions():
    rows = about_lines("broken-lines", 0, np.arange(10), "in 10 rows: {lines}")
    cols = about_lines("broken-lines", 1, np.array([1]), "in a column {that}: {lines}")
    plain = Doubt("no-pattern", "no pattern")
    assert rows.text == "in 10 rows: 0, 1, 2, 3, 4, 5, 6, 7, …"
    assert cols.text == "in a column {that}: 1"
    named = labelled((rows, cols, plain), Labels.of([f"r{i}" for i in range(10)]), Labels.of(["a", "b"]))
    assert [doubt.text for doubt in named] == [
        "in 10 rows: r0, r1, r2, r3, r4, r5, r6, r7, …",
        "in a column {that}: b",
        "no pattern",
    ]
    assert [(d.kind, d.rows, d.columns) for d in named] == [(d.kind, d.rows, d.columns) for d in (rows, cols, plain)]
    assert labelled((rows,), None, None)[0] is rows
    assert labelled((rows, cols), None, Labels.of(["a", "b"]))[0].text == rows.text
    cell = Doubt("stuck", "from 3 on, column 1", (3, 4), (1,), "from {row} on, column {columns}")
    assert labelled((cell,), None, Labels.of(["a", "b"]))[0].text == "from 3 on, column b"


# What checks compare with


@pytest.mark.parametrize(("noise", "expected"), [(0.1, False), (5e-5, False), (2e-6, True), (0.0, True)])
def test_a_fit_without_noise_is_known_by_its_residuals(noise, expected):
    """Less than 1e-5 of the size of L, which is about 1.4, is none."""
    assert a_case(noise=noise * np.random.default_rng(1).standard_normal(SHAPE), model=False).noiseless == expected


def test_the_standard_error_of_the_skewness_is_that_of_gaussian_noise():
    low, middle, high = np.quantile(np.random.default_rng(0).standard_normal((2000, 400)), (0.1, 0.5, 0.9), axis=1)
    simulated = ((high + low - 2 * middle) / (high - low)).std() * 20
    assert pytest.approx(simulated, rel=0.05) == constants.SKEWNESS_ERROR
