from itertools import combinations, product

import pytest
from all_pairs import all_pairs


@pytest.mark.parametrize(
    ("sizes", "most"),
    [((2, 3), 6), ((2, 2, 2), 4), ((4, 2, 2, 4, 2, 2), 16), ((8, 4, 2, 2, 2, 4), 32), ((1, 5), 5), ((3, 3, 3, 3), 12)],
)
def test_every_two_values_of_every_two_parameters_meet(sizes, most):
    parameters = [[f"{k}{chr(97 + v)}" for v in range(size)] for k, size in enumerate(sizes)]
    rows = all_pairs(*parameters)
    assert rows == all_pairs(*parameters)  # xdist wants the same tests in the same order from all workers
    assert all(value in parameter for row in rows for value, parameter in zip(row, parameters, strict=True))
    for i, j in combinations(range(len(sizes)), 2):
        assert {(row[i], row[j]) for row in rows} == set(product(parameters[i], parameters[j]))
    assert len(set(rows)) == len(rows) <= most
