"""Words that messages share."""

import numpy as np
import pytest

from irpca.labels import Labels
from irpca.wording import count, few, quote


@pytest.mark.parametrize(
    "number, words, expected",
    [
        (1, ("row",), "1 row"),
        (0, ("row",), "0 rows"),
        (1234, ("row has", "rows have"), "1,234 rows have"),
        (1, ("entry", "entries"), "1 entry"),
    ],
)
def test_a_number_and_its_noun(number, words, expected):
    assert count(number, *words) == expected


def test_a_few_of_many():
    assert few(["a", "b"]) == "'a', 'b'"
    assert few(np.arange(6)) == few(Labels.of(range(6))) == "0, 1, 2, 3, 4 and 1 more"
    assert few(range(1209), 2) == "0, 1 and 1,207 more"
    assert few({"a": 1}.items(), spell=lambda pair: f"{pair[0]} is {pair[1]}") == "a is 1"


def test_values_as_their_owner_wrote_them():
    values = [np.int64(7), np.str_("Oslo"), np.datetime64("2013-01-01"), ("a", 1), 0.5]
    assert [quote(value) for value in values] == ["7", "'Oslo'", "'2013-01-01'", "('a', 1)", "0.5"]
