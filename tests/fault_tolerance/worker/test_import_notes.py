"""What a rank notes of its imports, and tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from undaunted.fault_tolerance.worker import import_notes
from undaunted.fault_tolerance.worker.import_notes import Notes, changes
from undaunted.fault_tolerance.worker.messages import Group

SRC = Path(import_notes.__file__).parents[3]


@pytest.fixture
def installed(tmp_path):
    """A folder of installed packages; a function writes modules into it."""
    folder = tmp_path / "site-packages"

    def write(name, text=""):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return folder

    return write


def told(folder, program, **variables):
    """What a process tells that notes from the beginning of this program."""
    begin = (
        "import json, msgspec, os, sys\n"
        "from undaunted.fault_tolerance.worker import import_notes\n"
        "import_notes.begin(os.environ.copy())\n"
        f"{program}\n"
        "told = import_notes.decode(import_notes.answer())\n"
        "print(json.dumps(msgspec.to_builtins(told)))\n"
        "print(len([f for f in sys.meta_path if isinstance(f, import_notes.Notes)]))\n"
    )
    path = os.pathsep.join([str(SRC), str(folder), str(folder.parent)])
    done = subprocess.run(
        [sys.executable, "-c", begin],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer, left = done.stdout.splitlines()
    assert left == "0", "it goes when it has told"
    return json.loads(answer)


def test_installed_modules_in_the_order_of_their_imports(installed, tmp_path):
    (tmp_path / "mine.py").write_text("import ptwo")
    installed("pone/__init__.py", "from pone import late")
    installed("pone/late.py", "import json")
    folder = installed("ptwo.py", "import pone")
    answer = told(folder, "import mine, pone")
    assert [group["modules"] for group in answer["groups"]] == [["ptwo", "pone", "pone.late"]]
    assert sorted(answer["packages"]) == ["pone", "ptwo"]
    assert answer["own"] == ["mine"]
    assert answer["packages"]["ptwo"] == str(folder / "ptwo.py")


def test_what_is_the_users_own(installed, tmp_path):
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "space").mkdir()
    (tmp_path / "space" / "part.py").write_text("")
    folder = installed("pspace/part.py")  # a package without a file of its own, as google is
    program = (
        "import mine, space.part, pspace.part, sqlite3, sysconfig\nsysconfig.get_config_vars()"
    )
    answer = told(folder, program)
    assert [group["modules"] for group in answer["groups"]] == [["pspace.part"]]
    assert answer["own"] == ["mine", "space"]


def test_modules_that_are_not_there_or_failed_are_not_told(installed):
    folder = installed("pfails.py", "1/0")
    installed("pfine.py")
    program = (
        "for name in ('pnowhere', 'pfails', 'pfine'):\n"
        "  try: __import__(name)\n  except Exception: pass"
    )
    answer = told(folder, program)
    assert [group["modules"] for group in answer["groups"]] == [["pfine"]]


def test_the_environment_at_the_time_of_each_import(installed):
    installed("pone.py", "import os; os.environ['OF_PONE'] = '1'")
    installed("ptwo.py")
    installed("pthree/__init__.py")
    folder = installed("pthree/part.py")
    program = (
        "os.environ['SET'] = 'a'; del os.environ['GONE']\nimport pone\nimport ptwo\n"
        "os.environ['SET'] = 'b'; os.environ['UNDAUNTED_X'] = 'x'\nimport pthree\n"
        "os.environb[b'BYTES'] = b'\\xff'; os.environ['SET'] = 'c'\nimport pthree.part"
    )
    answer = told(folder, program, GONE="1")
    first = {"SET": "a", "GONE": None}
    assert [(group["environment"], group["modules"]) for group in answer["groups"]] == [
        (first, ["pone"]),
        ({**first, "OF_PONE": "1"}, ["ptwo"]),
        ({"SET": "b", "GONE": None, "OF_PONE": "1"}, ["pthree"]),
        ({"SET": "c", "GONE": None, "OF_PONE": "1"}, ["pthree.part"]),
    ]


def test_who_asks_whether_a_module_is_there_has_not_imported_it(installed):
    installed("pone.py")
    folder = installed("ptwo.py")
    program = "import importlib.util\nimportlib.util.find_spec('ptwo')\nimport pone, ptwo"
    answer = told(folder, program)
    assert [group["modules"] for group in answer["groups"]] == [["pone", "ptwo"]]


def test_a_module_that_loads_itself_later_is_left_in_peace(installed):
    folder = installed("plazy.py", "raise RuntimeError('loaded')")
    program = (
        "import importlib.util as u\nspec = u.find_spec('plazy')\n"
        "spec.loader = u.LazyLoader(spec.loader)\nlazy = u.module_from_spec(spec)\n"
        "sys.modules['plazy'] = lazy\nspec.loader.exec_module(lazy)"
    )
    answer = told(folder, program)
    assert [group["modules"] for group in answer["groups"]] == [["plazy"]]


def test_nothing_of_it_raises(monkeypatch):
    monkeypatch.setattr(import_notes, "changes", lambda *_: 1 / 0)
    notes = Notes({})
    assert notes.find_spec("json") is None
    monkeypatch.setattr(import_notes, "_notes", notes)
    monkeypatch.setattr(Notes, "tell", lambda _: 1 / 0)
    assert import_notes.answer() == b""


def test_an_import_that_goes_on_meanwhile_misses_no_finder(monkeypatch):
    begun = list(sys.meta_path)
    monkeypatch.setattr(sys, "meta_path", begun)
    import_notes.begin({})
    import_notes.answer()
    assert len(begun) == len(sys.meta_path) + 1, "who goes through it has it as it was"


def test_the_first_and_the_last_rank_are_asked():
    specs = [SimpleNamespace(local_rank=rank) for rank in range(3)]
    assert import_notes.ranks_to_ask(specs) == {0, 2}
    assert import_notes.ranks_to_ask(specs[1:2]) == {1}


def test_changes():
    before = {"A": "1", "B": "2", "UNDAUNTED_PAGE": "3"}
    assert changes(before, {"A": "1", "C": "4"}) == {"B": None, "C": "4"}
    assert changes(before, before) == {}
    assert changes({}, {"D": "\udcff"}) == {}, "no text"


def test_a_process_that_has_noted_nothing_answers_with_nothing():
    assert import_notes.answer() == b""
    assert import_notes.decode(b"") is None


@pytest.mark.parametrize("answer", [b"x", b"\x78\x9c", b"\x00" * 100])
def test_an_answer_that_nobody_understands(answer):
    assert import_notes.decode(answer) is None


def test_a_finder_that_finds_nothing(monkeypatch):
    notes = Notes(os.environ.copy())
    assert notes.find_spec("json") is None
    assert notes.tell().groups == [], "it is Python's own"
    monkeypatch.setattr(import_notes, "_MOST", 3)
    for number in range(5):
        notes.find_spec(f"m{number}")
    assert len(notes._found) == 3


def test_ours_count_wherever_they_are():
    notes = Notes(os.environ.copy())
    notes.find_spec(import_notes.__name__)
    assert notes.tell().groups == [Group({}, [import_notes.__name__])]
