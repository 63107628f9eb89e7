import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.cli import values


def test_streams():
    assert values.streams("3") == 3
    assert values.streams("0:3,1:0,12:2") == {0: 3, 1: 0, 12: 2}


def test_other_values():
    assert values.count("3") == 3
    assert values.nproc("8") == 8
    assert values.nproc("auto") == "auto"
    assert values.nodes("1:1") == values.nodes("1") == (1, 1)
    assert values.nodes("4:6") == (4, 6)
    assert values.ranks("2,0,2") == [0, 2]
    assert values.ranks("") == []
    assert values.texts("apple,a,,b,,,c") == ["apple", "a,b,", "c"]
    assert values.texts("") == []
    assert values.event_log_handler("null") == "null"
    assert values.modules("torch.nn, numpy") == ["torch.nn", "numpy"]
    assert values.settings("timeout=30, a=b=c") == {"timeout": "30", "a": "b=c"}
    assert values.port("29500") == 29500


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (values.count, "-1", "'-1' is not a whole number from 0"),
        (values.count, "", "not a whole number"),
        (values.nproc, "0", "'0' is not a number of workers; give 1 or more, or auto, cpu, gpu"),
        (values.nproc, "xpu", "cannot be counted yet"),
        (values.nodes, "4:1", "MIN not above MAX"),
        (values.nodes, "0", "with 1 or more"),
        (values.nodes, "two", "neither a number of nodes nor MIN:MAX"),
        (values.streams, "4", "'4' is no choice of streams"),
        (values.streams, "0:4", "no choice of streams"),
        (values.streams, "0:3,", "no choice of streams"),
        (values.ranks, "0-3", "not a list of local ranks"),
        (values.event_log_handler, "console", "the journal has every event of the run"),
        (values.modules, "a b", "'a b' is not the name of a module"),
        (values.settings, "timeout", "'timeout' is not KEY=VALUE"),
        (values.port, "65536", "not a port number"),
    ],
)
def test_bad_values_are_named(read, text, message):
    with pytest.raises(ValueError, match=message):
        read(text)


@given(
    st.sampled_from([values.streams, values.nproc, values.ranks, values.settings]),
    st.text(),
)
def test_any_text_is_read_or_refused(read, text):
    try:
        read(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - other exceptions fail the test
