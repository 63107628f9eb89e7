"""Messages of etcd, as they are on the wire."""

from __future__ import annotations

import pytest

from undaunted.coordinator.etcd import messages

# What etcd 3.4 has answered: to a transaction that read a key and one that is not there, and to a
# watch of which a key was written and one was deleted.
HEADER = "0a0408011007"  # field 1: numbers in fields 1 and 2
KEY = "0a016b1003180520012a0176"  # k = v, made at 3, last written at 5


def message(*parts: str) -> bytes:
    return bytes.fromhex("".join(parts))


def test_a_key_is_read_and_written():
    assert messages.get(b"k") == message("0a03", "0a016b")
    assert messages.put(b"k", b"v", 300) == message("1209", "0a016b", "120176", "18ac02")
    assert messages.delete(b"k") == message("1a03", "0a016b")


def test_a_transaction_compares_the_revision_also_where_there_is_no_key():
    asked = messages.transaction([messages.get(b"k")], unchanged=[(b"k", 0)])
    assert asked == message("0a07", "1002", "1a016b", "3000", "1205", "0a030a016b")


def test_the_answer_to_a_transaction():
    found = message("0a0e", "120c", KEY)
    nothing = message("0a02", "2000")
    answer = message("0a021807", "1001", "1a10") + found + message("1a04") + nothing
    done = messages.done(answer)
    assert (done.revision, done.succeeded) == (7, True)
    assert done.found == (messages.KeyValue(b"k", b"v", 5), None)


def test_what_a_watch_says():
    written = message("5a0e", "120c", KEY)
    deleted = message("5a09", "0801", "1205", "0a016b", "1809")
    change = messages.change(message("0a021809") + written + deleted)
    assert (change.revision, change.ended) == (9, False)
    assert change.keys == ((b"k", messages.KeyValue(b"k", b"v", 5)), (b"k", None))
    assert messages.change(message("2001")).ended


def test_leases_and_tokens():
    assert messages.grant(300, 5) == message("0805", "10ac02")
    assert messages.seconds_left(message("10ac02", "1805")) == 5
    assert messages.seconds_left(message("10ac02")) == 0
    assert messages.token(message("1203", b"abc".hex())) == "abc"


@pytest.mark.parametrize("reader", [messages.done, messages.change, messages.token])
def test_garbage_is_refused_and_nothing_else_happens(reader):
    whole = message("0a021807", "1001", "5a0e120c", KEY, "1a10", "0a0e", "120c", KEY)
    spoilt = [whole[:length] for length in range(len(whole))]
    spoilt += [bytes([*whole[:at], 0xFF, *whole[at + 1 :]]) for at in range(len(whole))]
    for data in spoilt:
        try:
            reader(data)
        except ValueError:
            continue


def test_fields_that_are_not_known_are_skipped():
    more = message("8906", "0000000000000000", "8d06", "00000000", "f80701")
    assert messages.seconds_left(more + message("1805")) == 5
