from hypothesis import given
from hypothesis import strategies as st

from nvidia_resiliency_ext.shared_utils._messages.merge import Merger
from undaunted.fault_tolerance.output.stamps import stamp


def line(seconds, text="x"):
    return f"{stamp(seconds)} {text}\n".encode()


def lines_of(messages):
    return b"".join(message.lines for message in messages)


def test_messages_wait_for_older_ones_of_other_files():
    merger = Merger(hold_s=1.0)
    merger.add("b", 0, line(20, "b"), now=100.0)
    assert merger.next_turn() == 101.0
    merger.add("a", 0, line(10, "a") + line(30, "late"), now=100.5)
    assert merger.take(100.9) == []
    assert lines_of(merger.take(101.0)) == line(10, "a") + line(20, "b")
    assert lines_of(merger.take(101.5)) == line(30, "late")
    assert merger.next_turn() is None


def test_lines_without_a_stamp_belong_to_the_message_before():
    merger = Merger(hold_s=0)
    traceback = b"Traceback:\n    raise\nValueError\n"
    merger.add("a", 7, line(20) + traceback, now=0)
    merger.add("b", 0, b"of nobody\n" + line(10), now=0)
    first, second, third = merger.take(0)
    assert (first.lines, second.lines) == (b"of nobody\n", line(10))
    assert third.lines == line(20) + traceback
    assert third.end == 7 + len(third.lines)


def test_rest_of_a_message_that_comes_later_stays_behind_it():
    merger = Merger(hold_s=0)
    merger.add("a", 0, line(20), now=0)
    merger.add("a", len(line(20)), b"  more\n", now=0)
    merger.add("b", 0, line(30), now=0)
    assert lines_of(merger.take(0)) == line(20) + b"  more\n" + line(30)


def test_what_is_held_is_bounded():
    merger = Merger(hold_s=1000, held_bytes=100)
    merger.add("a", 0, line(1), now=0)
    assert not merger.full
    assert merger.take(0) == []
    merger.add("b", 0, line(2) * 4, now=0)
    assert merger.full
    assert len(merger.take(0)) == 5
    assert not merger.full


def test_everything():
    merger = Merger(hold_s=1000)
    merger.add("a", 0, line(1), now=0)
    assert lines_of(merger.take(0, everything=True)) == line(1)
    assert merger.take(0, everything=True) == []
    merger.forget("a")
    merger.forget("b")


FILES = st.dictionaries(
    st.sampled_from("abc"), st.lists(st.integers(0, 50), min_size=1, max_size=8), min_size=1
)


@given(FILES, st.booleans())
def test_files_in_order_give_a_log_in_order(files, at_once):
    merger = Merger(hold_s=0)
    for name, times in files.items():
        begin = 0
        pieces = [line(t, f"{name}{n}") for n, t in enumerate(sorted(times))]
        for piece in [b"".join(pieces)] if at_once else pieces:
            merger.add(name, begin, piece, now=0)
            begin += len(piece)
    taken = merger.take(0)
    stamps = [message.stamp for message in taken]
    assert stamps == sorted(stamps)
    for name, times in files.items():
        own = [m for m in taken if m.file == name]
        assert [m.lines.split()[1].decode() for m in own] == [
            f"{name}{n}" for n in range(len(times))
        ]
        assert [m.end for m in own] == sorted(m.end for m in own)


@given(st.lists(st.integers(0, 50), max_size=8))
def test_a_file_keeps_its_order_when_the_clock_steps_back(times):
    merger = Merger(hold_s=0)
    merger.add("a", 0, b"".join(line(t, str(n)) for n, t in enumerate(times)), now=0)
    taken = merger.take(0)
    assert [m.lines.split()[1].decode() for m in taken] == [str(n) for n in range(len(times))]
