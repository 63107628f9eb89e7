"""What processes have after imports, compared; and what is set again."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.imports import likeness
from tests.imports.likeness import Snapshot, compare

ONE = {"RANK": "1", "LOCAL_RANK": "3", "A": "same", "B": "same", "NAME": "node7", "SIZE": "5"}
ZERO = {"RANK": "0", "LOCAL_RANK": "0", "A": "same", "B": "same", "NAME": "node7", "SIZE": "2"}


def snapshot(pid, variables=None, **values):
    shown = {name: repr(value) for name, value in values.items()}
    return Snapshot(pid, {"pack.part": shown}, variables or {})


def judged(new, again, first, forked):
    of_new = [snapshot(11, **new), snapshot(12, **again), snapshot(14, **first)]
    return compare(of_new, snapshot(13, **forked), (ONE, ZERO))


def alike(value):
    return [{"X": value}] * 4


def different(*values):
    return [{"X": value} for value in values]


@pytest.mark.parametrize(
    "processes",
    [
        [{}] * 4,
        alike(1),
        alike(None),
        alike(0.5),
        alike(float("nan")),
        alike(2**70),
        alike("\udcff"),
        [{}, {}, {}, {"X": None}],  # in new ones it is an object
        different("b1", "c2", "d3", "e4"),  # another one in each process
        different(11, 12, 14, 13),  # its number, after a look in each process
        different("lock-11", "lock-12", "lock-14", "lock-13"),
    ],
)
def test_what_cannot_be_told(processes):
    assert judged(*processes) == {}


@pytest.mark.parametrize(
    ("processes", "variable"),
    [
        (different(1, 1, 0, 0), "RANK"),
        (different(3, 3, 0, None), "LOCAL_RANK"),
        (different("3", "3", "0", ""), "LOCAL_RANK"),
        (different(5, 5, 2, 1), "SIZE"),
        (different("node7", "node7", "node7", ""), "NAME"),
    ],
)
def test_the_variable_that_a_value_follows_is_told(processes, variable):
    ((found,),) = judged(*processes).values()
    assert f"as {variable}," in found


@pytest.mark.parametrize(
    "processes",
    [
        different(11, 12, 14, 9),  # the number of the template
        different("lock-11", "lock-12", "lock-14", "lock-9"),
        different(True, False, True, True),
        different(1, 1, 1, 0),  # whether there is a rank, which is not its number
        different(True, True, True, False),
        different(False, False, True, False),  # LOCAL_RANK == "0"
        different(101, 101, 100, 100),  # 100 + RANK
        different("same", "same", "same", ""),  # of two variables
        [{"X": 1}, {"X": 1}, {"X": 0}, {}],  # nothing that could be set
        different(5, 5, 5, 6),
        different(None, None, None, 3),
    ],
)
def test_what_a_program_could_tell_is_a_difference(processes):
    differences = judged(*processes)
    assert list(differences) == ["pack"]
    assert "pack.part.X" in differences["pack"][0]


@pytest.mark.parametrize(("own", "is_alike"), [(1, True), (0, False)])
def test_a_value_that_is_set_again_has_to_be_that_of_the_rank(own, is_alike):
    of_new = [snapshot(11, X=1), snapshot(12, X=1), snapshot(14, X=0)]
    found = compare(of_new, snapshot(13, X=own), (ONE, ZERO), {("pack.part", "X")})
    assert (found == {}) is is_alike


def test_the_path_of_a_file_of_each_process(tmp_path):
    assert list(judged(*different("/x/b1", "/x/c2", "/x/d3", str(tmp_path)))) == ["pack"]


def test_modules_that_new_processes_do_not_have():
    forked = Snapshot(13, {"pack": {}, "more.part": {}}, {})
    new = Snapshot(11, {"pack": {}}, {})
    assert list(compare([new, new, forked], forked, ({}, {}))) == ["more"]
    assert list(compare([forked, forked, new], forked, ({}, {}))) == ["more"]
    assert compare([forked, forked, forked], forked, ({}, {})) == {}


def test_variables_that_imports_set():
    def left(*values):
        *new, forked = (snapshot(1, {} if v is None else {"V": (v, "pack")}) for v in values)
        return list(compare(new, forked, (ONE, ZERO)))

    assert left("a", "a", "a", "a") == []
    assert left("a", "b", "c", "d") == [], "another one in each process"
    assert left("a", "a", "a", "b") == ["pack"]
    assert left("a", "a", "b", "a") == ["pack"]
    assert left("a", "a", "a", None) == ["pack"]
    assert left("a", "b", "c", None) == ["pack"]
    assert left(None, None, None, "a") == ["pack"]


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


class Raises:
    """What stands for something that is made when it is asked."""

    def __getattribute__(self, name):
        raise RuntimeError(name)


def test_plain_values_of_modules_functions_and_classes(module):
    module.Foreign = OSError  # of another module
    module.Stands_for = Raises()
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
