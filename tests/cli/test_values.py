import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.cli import values


def test_booleans():
    assert [values.boolean(text) for text in ("1", "True", "yes", "ON")] == [True] * 4
    assert [values.boolean(text) for text in ("0", "false", "No", "off")] == [False] * 4
    assert not values.is_boolean("train.py")


def test_streams():
    assert values.streams("3") == 3
    assert values.streams("0:3,1:0,12:2") == {0: 3, 1: 0, 12: 2}


def test_sections():
    assert values.sections("step:60,a:b:1m,checkpoint:none") == {
        "step": 60.0,
        "a:b": 60.0,
        "checkpoint": None,
    }
    assert values.sections("") == {}


def test_signals():
    assert values.signal_number("sigterm") == signal.SIGTERM
    assert values.signal_number("Kill") == signal.SIGKILL
    assert values.signal_number("15") == signal.SIGTERM


def test_other_values():
    assert values.count("3") == 3
    assert values.nproc("8") == 8
    assert values.nproc("auto") == "auto"
    assert values.one_node("1:1") == values.one_node("1") == 1
    assert values.ranks("2,0,2") == [0, 2]
    assert values.ranks("") == []
    assert values.modules("torch.nn, numpy") == ["torch.nn", "numpy"]
    assert values.settings("timeout=30, a=b=c") == {"timeout": "30", "a": "b=c"}
    assert values.port("29500") == 29500
    assert values.restart_policy("any-failed") == "any-failed"


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (values.boolean, "maybe", "'maybe' is neither true nor false"),
        (values.count, "-1", "'-1' is not a whole number from 0"),
        (values.count, "", "not a whole number"),
        (values.nproc, "0", "'0' is not a number of workers; give 1 or more, or auto, cpu, gpu"),
        (values.nproc, "xpu", "cannot be counted yet"),
        (values.one_node, "1:4", "'1:4': more than one node is not built yet"),
        (values.one_node, "two", "neither a number of nodes nor MIN:MAX"),
        (values.streams, "4", "'4' is no choice of streams"),
        (values.streams, "0:4", "no choice of streams"),
        (values.streams, "0:3,", "no choice of streams"),
        (values.ranks, "0-3", "not a list of local ranks"),
        (values.sections, "step", "'step' is not NAME:SECONDS"),
        (values.sections, ":3", "not NAME:SECONDS"),
        (values.sections, "a:1,a:2", "section 'a' is given twice"),
        (values.sections, "a:soon", "section 'a': 'soon' is not a duration"),
        (values.signal_number, "SIGNONE", "'SIGNONE' is not a signal"),
        (values.signal_number, "0", "is not a signal"),
        (values.modules, "a b", "'a b' is not the name of a module"),
        (values.settings, "timeout", "'timeout' is not KEY=VALUE"),
        (values.port, "65536", "not a port number"),
        (values.restart_policy, "min-healthy", "'min-healthy' is not built yet"),
        (values.restart_policy, "some", "'some' is unknown; choose any-failed"),
        (values.choice("a", "b"), "c", "'c' is unknown; choose a or b"),
    ],
)
def test_bad_values_are_named(read, text, message):
    with pytest.raises(ValueError, match=message):
        read(text)


@given(
    st.sampled_from([values.streams, values.sections, values.nproc, values.ranks, values.settings]),
    st.text(),
)
def test_any_text_is_read_or_refused(read, text):
    try:
        read(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - other exceptions fail the test
