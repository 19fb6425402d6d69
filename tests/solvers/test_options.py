import numpy as np
import pytest

from irpca.solvers.options import number


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.5), np.int64(3), True + 1])
def test_numbers_of_every_kind(value):
    found = number("beta", value, 0)
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf, "x", None, True, 1j, np.ones(2)])
def test_what_is_no_positive_number_is_named(value):
    with pytest.raises(ValueError, match=r"beta must be a number, positive and finite; got"):
        number("beta", value, 0)


def test_limits():
    assert number("share", 0, 0, 1, closed=True) == 0
    for value in (-0.1, 1, 1.5):
        with pytest.raises(ValueError, match=f"share must be a number, at least 0 and below 1; got {value}"):
            number("share", value, 0, 1, closed=True)
    with pytest.raises(ValueError, match="growth must be a number, larger than 1 and finite; got 1"):
        number("growth", 1, 1)
