"""What processes have after imports, compared; and what is set again."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from undaunted.fault_tolerance.worker import likeness
from undaunted.fault_tolerance.worker.likeness import Seen, compare
from undaunted.fault_tolerance.worker.messages import Renewed

ENVIRONMENT = {"RANK": "1", "LOCAL_RANK": "3", "A": "same", "B": "same", "NAME": "node7"}


def seen(pid, variables=None, **values):
    shown = {name: repr(value) for name, value in values.items()}
    return Seen(pid, {"pack.part": shown}, variables or {})


def judged(new, another, forked):
    return compare(seen(11, **new), seen(12, **another), seen(13, **forked), ENVIRONMENT)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"X": 1, "Y": "text", "Z": None, "F": 0.5},
        {"X": float("nan"), "Y": 2**70, "Z": "\udcff"},
    ],
)
def test_what_is_the_same_everywhere(values):
    assert judged(values, values, values) == ([], {})


def test_what_only_the_forked_one_has_is_of_no_importance():
    assert judged({}, {}, {"LOCK": None}) == ([], {}), "in new ones it is an object"


def test_what_is_another_one_in_each_process():
    assert judged({"ID": "b1"}, {"ID": "c2"}, {"ID": "d3"}) == ([], {})


def test_the_path_of_a_file_of_each_process(tmp_path):
    verdict = judged({"DIR": "/x/b1"}, {"DIR": "/x/c2"}, {"DIR": str(tmp_path)})
    assert list(verdict.left) == ["pack"]


def test_the_number_of_the_process():
    assert judged({"PID": 11}, {"PID": 12}, {"PID": 13}) == ([], {}), "it looks after each fork"
    assert list(judged({"PID": 11}, {"PID": 12}, {"PID": 9}).left) == ["pack"]


def test_what_comes_from_a_variable_of_the_rank_is_set_again():
    new = {"rank": 1, "local": 3, "name": "node7"}
    verdict = judged(new, new, {"rank": 0, "local": None, "name": ""})
    assert verdict == (
        [
            Renewed("pack.part", "rank", "RANK", number=True),
            Renewed("pack.part", "local", "LOCAL_RANK", number=True),
            Renewed("pack.part", "name", "NAME", number=False),
        ],
        {},
    )


@pytest.mark.parametrize(
    ("new", "forked"),
    [
        ({"X": "same"}, {"X": ""}),  # two variables have this value
        ({"X": 1}, {}),  # there is no such name
        ({"X": True}, {"X": False}),
        ({"X": 1.0}, {"X": 0.0}),
        ({"X": 5}, {"X": 6}),
        ({"X": None}, {"X": 3}),
    ],
)
def test_what_nobody_can_explain_is_left_to_the_ranks(new, forked):
    verdict = judged(new, new, forked)
    assert (verdict.renewed, list(verdict.left)) == ([], ["pack"])
    assert "pack.part.X" in verdict.left["pack"]


def test_modules_that_new_processes_do_not_have():
    forked = Seen(13, {"pack": {}, "more.part": {}}, {})
    new = Seen(11, {"pack": {}}, {})
    assert list(compare(new, new, forked, {}).left) == ["more"]
    assert compare(forked, forked, new, {}).left == {}, "nothing plain is missing"


def test_variables_that_imports_set():
    def of(*values):
        each = [seen(1, {} if value is None else {"V": (value, "pack")}) for value in values]
        return list(compare(*each, ENVIRONMENT).left)

    assert of("a", "a", "a") == []
    assert of("a", "b", "c") == [], "another one in each process"
    assert of("a", "a", "b") == ["pack"]
    assert of("a", "a", None) == ["pack"]
    assert of(None, None, "a") == ["pack"]


@pytest.fixture
def module(monkeypatch):
    module = ModuleType("likeness_test")
    text = """
        import os
        NUMBER, TEXT, NOTHING, LIST = 1, "t", None, []
        os_name = os
        def function(): pass
        function.rank = 0
        class Class:
            size = 2.5
            other = os
    """
    exec("\n".join(line[8:] for line in text.splitlines()), module.__dict__)
    monkeypatch.setitem(sys.modules, "likeness_test", module)
    return module


def test_plain_values_of_modules_functions_and_classes(module):
    module.Foreign = OSError  # of another module
    module.__doc__ = "About."
    found = likeness.values(["likeness_test", "not_there"])
    assert list(found) == ["likeness_test"]
    values = {k: v for k, v in found["likeness_test"].items() if not k.startswith("__")}
    assert values == {
        "NUMBER": "1",
        "TEXT": "'t'",
        "NOTHING": "None",
        "function.rank": "0",
        "Class.size": "2.5",
    }


def test_values_are_set_again(module):
    likeness.renew(
        [
            Renewed("likeness_test", "function.rank", "RANK", number=True),
            Renewed("likeness_test", "TEXT", "NAME", number=False),
            Renewed("likeness_test", "NUMBER", "NOT_SET", number=True),
            Renewed("likeness_test", "NOTHING", "NAME", number=True),
            Renewed("likeness_test", "gone.rank", "RANK", number=True),
            Renewed("not_there", "X", "RANK", number=True),
        ],
        {"RANK": "7", "NAME": "n"},
    )
    assert (module.function.rank, module.TEXT, module.NUMBER) == (7, "n", 1)
    assert module.NOTHING is None
