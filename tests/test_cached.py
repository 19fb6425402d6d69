"""``irpca.cached``: computed once, and no thread waits for another."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from irpca.cached import cached_property
from irpca.sample import Sample


class Held:
    def __init__(self, meeting):
        self.meeting = meeting

    @cached_property
    def value(self):
        self.meeting.wait(timeout=30)
        return object()


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
