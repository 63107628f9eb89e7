from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance.output.stamps import STAMP, STAMP_BYTES, stamp


def test_stamp():
    assert stamp(1_763_708_412.25) == "2025-11-21T07:00:12.250000Z"


@given(*[st.integers(0, 4_000_000_000_000_000)] * 2)
def test_stamps_have_the_order_of_their_times(one, other):
    first, second = stamp(one / 1e6), stamp(other / 1e6)
    assert (first < second) == (int(one / 1e6 * 1e6) < int(other / 1e6 * 1e6))
    line = f"{first} x".encode()
    assert STAMP.match(line)
    assert len(first) + 1 == STAMP_BYTES
