"""``irpca.cached``: computed once, and no thread waits for another."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from irpca.cached import cached_property
from irpca.sample import Sample


class Held:
    def __init__(self, meeting=None):
        self.meeting, self.computed = meeting, 0

    @cached_property
    def value(self):
        """Something dear."""
        if self.meeting is not None:
            self.meeting.wait(timeout=30)
        self.computed += 1
        return object()


def test_it_is_computed_once_and_then_an_attribute():
    held, other = Held(), Held()
    assert held.value is held.value and held.computed == 1
    assert other.value is not held.value
    del held.value
    assert held.value is held.value and held.computed == 2
    assert Held.value.__doc__ == "Something dear."


def test_two_objects_compute_at_the_same_time():
    """With one lock for both, neither would meet the other; and a fork meanwhile has that lock, held forever."""
    meeting = Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda held: held.value, [Held(meeting), Held(meeting)])
    assert one is not other


def test_two_threads_get_the_same_answer():
    held = Held(Barrier(2))
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda held: held.value, [held, held])
    assert one is other is held.value


def test_what_fits_compute_is_of_this_kind():
    assert isinstance(vars(Sample)["distinct"], cached_property)
