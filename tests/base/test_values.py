import math
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.base import values as read


def test_booleans():
    assert [read.boolean(value) for value in ("1", "True", "yes", "ON", True, 1)] == [True] * 6
    assert [read.boolean(value) for value in ("0", "false", "No", "off", False, 0)] == [False] * 6
    assert not read.is_boolean("train.py")


def test_times():
    assert [read.seconds(value) for value in ("15m", 3, 2.5, "0")] == [900, 3, 2.5, 0]
    assert read.limit("90s") == read.limit(90) == 90
    assert [read.limit(value) for value in (None, "", "none", "NULL")] == [None] * 4


def test_urls():
    for url in ("http://a", "https://a.b:8443/hook?key=1", "http://[::1]:1/"):
        assert read.web_url(f" {url} ") == url


def test_sections():
    expected = {"step": 60.0, "a:b": 60.0, "checkpoint": None}
    assert read.sections("step:60,a:b:1m, checkpoint:none") == expected
    assert read.sections({"step": 60, "a:b": "1m", "checkpoint": None}) == expected
    assert read.sections("") == read.sections(None) == read.sections({}) == {}


@pytest.mark.parametrize("value", ["sigterm", "Term", "15", 15, signal.SIGTERM])
def test_signals(value):
    assert read.signal_number(value) is signal.SIGTERM


@pytest.mark.parametrize(
    ("value", "level"),
    [("debug", 10), ("DBG", 10), ("INFO", 20), ("warn", 30), ("WARNING", 30), (40, 40), ("15", 15)],
)
def test_log_levels(value, level):
    assert read.log_level(value) == level


def test_other_values():
    assert read.number(1)("2.5") == 2.5
    assert read.whole()("-3") == -3
    assert read.whole(1, 9)(9) == 9
    assert read.optional(read.whole())("None") is None
    assert read.choice("a", "b")("b") == "b"
    assert [read.size(text) for text in ("7", "64m", "1G", "2 KiB", 5)] == [
        7, 64 << 20, 1 << 30, 2048, 5,
    ]  # fmt: skip
    assert read.size_from(9)("0") == 0
    assert read.intensity("3/10m") == (3, 600.0)
    assert read.absolute_paths("/a, /b c,") == "/a,/b c"
    assert read.device_template("/sys/{dev_name}/x") == "/sys/{dev_name}/x"


@pytest.mark.parametrize(
    ("reader", "value", "message"),
    [
        (read.boolean, "maybe", "'maybe' is neither true nor false"),
        (read.boolean, None, "None is neither"),
        (read.size, "1X", "'1X' is not a number of bytes"),
        (read.size, "-1", "'-1' is not a number of bytes"),
        (read.size_from(1 << 20), "1000", "is less than 1048576 bytes"),
        (read.intensity, "3", "'3' is not N/TIME such as 3/10m"),
        (read.intensity, "0/10m", "'0' is not a whole number from 1"),
        (read.intensity, "3/0", "0 is no period"),
        (read.seconds, -1, "'-1' is not a duration"),
        (read.seconds, math.inf, "'inf' is not a duration"),
        (read.seconds, [1], r"\[1\] is not a duration"),
        (read.positive_seconds, 0, "0 is no period of time"),
        (read.limit, 0, "0 would expire at once"),
        (read.limit, True, "True is not a duration"),
        (read.number(1), 0.5, "0.5 is not a number from 1"),
        (read.number(0), math.nan, "nan is not a number from 0"),
        (read.number(0), True, "True is not a number"),
        (read.whole(1, 9), 10, "10 is not a whole number from 1 to 9"),
        (read.whole(), 1.5, "1.5 is not a whole number$"),
        (read.whole(), True, "True is not a whole number"),
        (read.text, 8, "8 is not text; put it into quotes"),
        (read.choice("a", "b"), "c", "'c' is unknown; choose a or b"),
        (read.choice("a"), ["a"], "is unknown; choose a"),
        (read.absolute_paths, "a,/b", "'a' is not an absolute path; begin it with /"),
        (read.absolute_paths, ",", "',' names no path"),
        (read.device_template, "/sys/x", "lacks {dev_name}"),
        (read.sections, "step", "'step' is not NAME:SECONDS"),
        (read.sections, ":3", "not NAME:SECONDS"),
        (read.sections, "a:1,a:2", "section 'a' is given twice"),
        (read.sections, "a:soon", "section 'a': 'soon' is not a duration"),
        (read.sections, {1: 2}, "1 is not the name of a section"),
        (read.sections, [1], r"\[1\] is not a mapping"),
        (read.signal_number, "SIGNONE", "'SIGNONE' is not a signal"),
        (read.signal_number, "0", "is not a signal"),
        (read.signal_number, None, "None is not a signal"),
        (read.signal_number, "SIGCONT", "SIGCONT does not end a process; give SIGKILL"),
        (read.log_level, "loud", "'loud' is not a log level; give DEBUG, INFO"),
        (read.log_level, 5, "5 is not a log level"),
        (read.log_level, "60", "'60' is not a log level"),
        (read.log_level, True, "True is not a log level"),
    ],
)
def test_bad_values_are_named(reader, value, message):
    with pytest.raises(ValueError, match=message):
        reader(value)


_READERS = [
    read.boolean,
    read.seconds,
    read.limit,
    read.sections,
    read.signal_number,
    read.log_level,
    read.whole(0),
    read.number(0),
    read.absolute_paths,
]
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=5,
)


@given(st.sampled_from(_READERS), _VALUES)
def test_any_value_is_read_or_refused(reader, value):
    try:
        reader(value)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - other exceptions fail the test


def test_streams():
    assert read.streams("3") == 3
    assert read.streams("0:3,1:0,12:2") == {0: 3, 1: 0, 12: 2}


def test_values_of_options():
    assert read.nproc("8") == 8
    assert read.nproc("auto") == "auto"
    assert read.nodes("1:1") == read.nodes("1") == (1, 1)
    assert read.nodes("4:6") == (4, 6)
    assert read.ranks("2,0,2") == [0, 2]
    assert read.ranks("") == []
    assert read.texts("apple,a,,b,,,c") == ["apple", "a,b,", "c"]
    assert read.texts("") == []
    assert read.modules("torch.nn, numpy") == ["torch.nn", "numpy"]
    assert read.pairs("timeout=30, a=b=c") == {"timeout": "30", "a": "b=c"}
    assert read.port("29500") == 29500
    assert read.address("localhost") == "127.0.0.1"
    assert read.address("[::1]") == "::1"
    assert read.signals("term,SIGUSR1,TERM") == (15, 10)
    assert read.node_name("n-1.a_b") == "n-1.a_b"


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        (read.whole(0), "-1", "'-1' is not a whole number from 0"),
        (read.whole(0), "", "not a whole number"),
        (read.nproc, "0", "'0' is not a number of workers; give 1 or more, or auto, cpu, gpu"),
        (read.nproc, "xpu", "cannot be counted yet"),
        (read.nodes, "4:1", "MIN not above MAX"),
        (read.nodes, "0", "with 1 or more"),
        (read.nodes, "two", "neither a number of nodes nor MIN:MAX"),
        (read.streams, "4", "'4' is no choice of streams"),
        (read.streams, "0:4", "no choice of streams"),
        (read.streams, "0:3,", "no choice of streams"),
        (read.ranks, "0-3", "not a list of local ranks"),
        (read.modules, "a b", "'a b' is not the name of a module"),
        (read.pairs, "timeout", "'timeout' is not KEY=VALUE"),
        (read.port, "65536", "not a port number"),
        (read.address, "host7", "is no address such as 10.0.0.7"),
        (read.signals, "KILL", "SIGKILL cannot be passed on"),
        (read.node_name, "a/b", "use letters, digits, dots, dashes"),
        (read.path, "", "name a file or directory"),
        *(
            (read.web_url, text, "is no URL")
            for text in ("http", "ftp://a", "http://", "http://a:x")
        ),
        (read.web_url, "https://user:password@a", "is no URL"),
    ],
)
def test_bad_texts_are_named(reader, text, message):
    with pytest.raises(ValueError, match=message):
        reader(text)


@given(
    st.sampled_from([read.streams, read.nproc, read.ranks, read.pairs]),
    st.text(),
)
def test_any_text_is_read_or_refused(reader, text):
    try:
        reader(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - other exceptions fail the test
