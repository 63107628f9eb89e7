"""What processes have after imports, compared; and what is set again."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from undaunted.fault_tolerance.worker import likeness
from undaunted.fault_tolerance.worker.likeness import Snapshot, compare
from undaunted.fault_tolerance.worker.messages import RankValue

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
    assert judged(*processes) == ([], {})


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        (different(1, 1, 0, 0), ("RANK", True)),
        (different(3, 3, 0, None), ("LOCAL_RANK", True)),
        (different("3", "3", "0", ""), ("LOCAL_RANK", False)),
        (different(5, 5, 2, 1), ("SIZE", True)),
        (different("node7", "node7", "node7", ""), ("NAME", False)),
    ],
)
def test_what_follows_a_variable_of_the_rank_is_set(processes, expected):
    verdict = judged(*processes)
    (found,) = verdict.rank_values
    assert verdict.left == {}
    assert (found.module, found.name) == ("pack.part", "X")
    assert (found.variable, found.is_number) == expected


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
def test_what_a_program_could_tell_leaves_the_package_to_the_ranks(processes):
    verdict = judged(*processes)
    assert (verdict.rank_values, list(verdict.left)) == ([], ["pack"])
    assert "pack.part.X" in verdict.left["pack"]


def test_the_path_of_a_file_of_each_process(tmp_path):
    verdict = judged(*different("/x/b1", "/x/c2", "/x/d3", str(tmp_path)))
    assert list(verdict.left) == ["pack"]


def test_modules_that_new_processes_do_not_have():
    forked = Snapshot(13, {"pack": {}, "more.part": {}}, {})
    new = Snapshot(11, {"pack": {}}, {})
    assert list(compare([new, new, forked], forked, ({}, {})).left) == ["more"]
    assert list(compare([forked, forked, new], forked, ({}, {})).left) == ["more"]
    assert compare([forked, forked, forked], forked, ({}, {})).left == {}


def test_variables_that_imports_set():
    def left(*values):
        *new, forked = (snapshot(1, {} if v is None else {"V": (v, "pack")}) for v in values)
        return list(compare(new, forked, (ONE, ZERO)).left)

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


def test_values_are_set_again(module):
    likeness.set_rank_values(
        [
            RankValue("likeness_test", "function.rank", "RANK", is_number=True),
            RankValue("likeness_test", "TEXT", "NAME", is_number=False),
            RankValue("likeness_test", "NUMBER", "NOT_SET", is_number=True),
            RankValue("likeness_test", "NOTHING", "NAME", is_number=True),
            RankValue("likeness_test", "gone.rank", "RANK", is_number=True),
            RankValue("not_there", "X", "RANK", is_number=True),
        ],
        {"RANK": "7", "NAME": "n"},
    )
    assert (module.function.rank, module.TEXT, module.NUMBER) == (7, "n", 1)
    assert module.NOTHING is None
