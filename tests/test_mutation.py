"""``python -m benchmarks.mutation``: what it changes, and that the tests it names are there."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def mutation():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield import_module("benchmarks.mutation")


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("3", ["4", "2", "6", "1"]),
        ("0", ["1", "-1"]),
        ("0.5", ["1.0", "0.25"]),
        ("0.0", ["1.0"]),
        ("True", []),
        ("'text'", []),
        ("a < b", ["a <= b", "a >= b"]),
        ("a == b", ["a != b"]),
        ("a <= b < c", ["a < b < c", "a > b < c", "a <= b <= c", "a <= b >= c"]),
        ("a and b", ["a or b"]),
        ("a + b", ["a - b"]),
        ("a / b", ["a * b"]),
        ("a ** b", []),
        ("not a", ["a"]),
        ("np.minimum", ["np.maximum"]),
        ("max", ["min"]),
    ],
)
def test_what_may_stand_in_the_place_of_an_expression(mutation, code, changes):
    node = ast.parse(code, mode="eval").body
    assert [ast.unparse(new) for new in mutation.variants(node)] == changes


def test_a_mutant_differs_in_one_place(mutation):
    for file in (*mutation.TESTS, mutation.CONSTANTS):
        every = list(mutation.mutants(file))
        assert len({(one.node, one.variant) for one in every}) == len(every) > 50
        plain = ast.unparse(ast.parse((ROOT / mutation.PACKAGE / file).read_text())).splitlines()
        for mutant in mutation.sampled(every, 3, 0):
            lines = mutation.changed(mutant).splitlines()
            assert sum(a != b for a, b in zip(plain, lines, strict=True)) == 1


def test_a_constant_is_tested_where_it_is_used(mutation):
    assert mutation.users_of(["TIE_STANDARD_ERRORS"]) == ("model/choice.py", "verdict.py")
    assert mutation.users_of(["MAX_POSTERIOR_VARIANCE"]) == ()  # not in the files that are changed


def test_a_sample_is_spread_and_repeatable(mutation):
    every = list(mutation.mutants("model/choice.py"))
    some = mutation.sampled(every, 10, 1)
    assert some == mutation.sampled(every, 10, 1) != mutation.sampled(every, 10, 2)
    groups = [every.index(one) * 10 // len(every) for one in some]
    assert groups == list(range(10))
    assert mutation.sampled(every, 10**6, 0) == every


def test_the_tests_it_names_are_there(mutation):
    for test in {test for tests in mutation.TESTS.values() for test in tests}:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file()
        assert not name or f"def {name}(" in (ROOT / path).read_text()


def test_a_report_lists_what_survived(mutation):
    rows = [
        mutation.Row("a.py", 1, "1 → 2", "killed", "tests/test_a.py::test", 0.1),
        mutation.Row("b.py", 7, "x < y → x <= y", "survived", "", 2.0),
        mutation.Row("b.py", 9, "2 → 4", "timeout", "timeout", 9.0),
    ]
    text = mutation.report(rows).splitlines()
    assert [line.split() for line in text[:3]] == [
        ["a.py", "1", "of", "1", "killed,", "100%"],
        ["b.py", "1", "of", "2", "killed,", "50%"],
        ["all", "2", "of", "3", "killed,", "67%"],
    ]
    assert text[3:] == ["survived: b.py:7  x < y → x <= y"]
