"""Programs that change something before they import torch, in every way and at every place.

Two stand-ins, torch and numpy, note what they find when they are imported. They must find in the
template what they find in a new process, or be left to the ranks.
"""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import sysconfig
from itertools import product
from textwrap import dedent, indent
from typing import TYPE_CHECKING, NamedTuple

import pytest

from undaunted.fault_tolerance.worker.prologue import read_prologue

if TYPE_CHECKING:
    from pathlib import Path

TORCH = """
    import builtins, ctypes, logging, os, sys, warnings, numpy
    c = ctypes.CDLL(None)
    c.getenv.restype = ctypes.c_char_p
    try:
        warnings.warn("old")
        warned = "yes"
    except UserWarning:
        warned = "raised"
    SEEN = [os.environ.get("TORCH_X"), c.getenv(b"TORCH_X"), os.environ.get("TORCH_Y"),
            numpy.ORIGIN, warned, type(logging.getLogger("torch")).__name__, builtins.len([])]
"""
# Ways to set TORCH_X to "v", or to take TORCH_Y away, which is set to "given".
WAYS = {
    "item": 'os.environ["TORCH_X"] = "v"',
    "two targets": 'a = os.environ["TORCH_X"] = "v"',
    "update": 'os.environ.update({"TORCH_X": "v"})',
    "keywords": 'os.environ.update(TORCH_X="v")',
    "default": 'os.environ.setdefault("TORCH_X", "v")',
    "default of what is there": 'os.environ.setdefault("TORCH_Y", "v")',
    "union": 'os.environ |= {"TORCH_X": "v"}',
    "pop": 'os.environ.pop("TORCH_Y", None)',
    "delete": 'del os.environ["TORCH_Y"]',
    "method": 'os.environ.__setitem__("TORCH_X", "v")',
    "imported": 'from os import environ; environ["TORCH_X"] = "v"',
    "renamed": 'import os as system; system.environ["TORCH_X"] = "v"',
    "imported and renamed": 'from os import environ as e; e["TORCH_X"] = "v"',
    "everything imported": 'exec("from os import *"); os.environ["TORCH_X"] = "v"',
    "another name": 'e = os.environ; e["TORCH_X"] = "v"',
    "handed on": '(lambda e: e.update(TORCH_X="v"))(os.environ)',
    "computed value": 'os.environ["TORCH_X"] = "V".lower()',
    "number": 'os.environ["TORCH_X"] = str(1)',
    "longer value": 'os.environ["TORCH_Y"] += "v"',
    "computed name": 'os.environ["TORCH_" + "X"] = "v"',
    "loop": 'for k, v in {"TORCH_X": "v"}.items(): os.environ[k] = v',
    "putenv": 'os.putenv("TORCH_X", "v")',
    "imported by a call": '__import__("os").environ["TORCH_X"] = "v"',
    "imported by name": 'import importlib; importlib.import_module("os").environ["TORCH_X"] = "v"',
    "in the table of modules": 'sys.modules["os"].environ["TORCH_X"] = "v"',
    "through another module": 'os.path.os.environ["TORCH_X"] = "v"',
    "getattr": 'getattr(os, "environ")["TORCH_X"] = "v"',
    "vars": 'vars(os)["environ"]["TORCH_X"] = "v"',
    "from C": 'import ctypes; ctypes.CDLL(None).setenv(b"TORCH_X", b"v", 1)',
    "bound method": 'put = os.environ.__setitem__; put("TORCH_X", "v")',
    "walrus": '(e := os.environ)["TORCH_X"] = "v"',
    "default argument": '(lambda e=os.environ: e.update(TORCH_X="v"))()',
    "star import": "from every import *",
    "path imported by a call": '__import__("sys").path.insert(0, "alt")',
    "bytes": 'os.environb[b"TORCH_X"] = b"v"',
    "patch": 'import unittest.mock as m; m.patch.dict(os.environ, {"TORCH_X": "v"}).start()',
    "run": """exec('os.environ["TORCH_X"] = "v"')""",
    "twice": 'os.environ["TORCH_X"] = "w"; os.environ["TORCH_X"] = "v"',
    "back again": 'os.environ["TORCH_X"] = "w"; del os.environ["TORCH_X"]',
    "path": 'sys.path.insert(0, "alt")',
    "slice of the path": 'sys.path[:0] = ["alt"]',
    "new path": 'sys.path = ["alt", *sys.path]',
    "path under another name": 'from sys import path; path.insert(0, "alt")',
    "end of the path": 'sys.path.append("alt")',
    "longer path": 'sys.path += ["alt"]',
    "less path": "sys.path.pop(0); sys.path.insert(0, 'alt')",
    "module": 'import types; sys.modules["numpy"] = types.SimpleNamespace(ORIGIN="mine")',
    "hook": "sys.meta_path.insert(0, sys.modules['hooks'].Finder)",
    "builtin": "import builtins; builtins.len = lambda _: 7",
    "setattr": 'import builtins; setattr(builtins, "len", lambda _: 7)',
    "warnings": 'import warnings; warnings.simplefilter("error")',
    "logging": "import logging; logging.setLoggerClass(type('L', (logging.Logger,), {}))",
}
# Where that stands; {} is the way, indented as the mark is.
PLACES = {
    "top": "{}",
    "if": "if sys.argv:\n    {}",
    "else": "if not sys.argv:\n    import torch\nelse:\n    {}",
    "main": "if __name__ == '__main__':\n    {}",
    "not main": "if __name__ != '__main__':\n    {}",
    "try": "try:\n    {}\nfinally:\n    pass",
    "after an error": "try:\n    raise OSError\n    {}\nexcept OSError:\n    pass",
    "except": "try:\n    raise OSError\nexcept OSError:\n    {}",
    "with": "import contextlib\nwith contextlib.nullcontext():\n    {}",
    "function": "def f():\n    {}\nf()",
    "class": "class C:\n    {}",
    "decorator": "def f(g):\n    {}\n    return g\n@f\ndef h(): pass",
    "types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}",
    "module": "import mine",
    "module of a package": "import package.mine",
    "package": "from package import name",
    "by its place": "import package.near",
    "function of a module": "import function; function.f()",
    "by name": "import importlib; importlib.import_module('mine')",
    "import first": "import torch\n{}",
}
HOOKS = """
    import importlib.machinery, importlib.util
    class Finder:
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name == "numpy":
                return importlib.util.spec_from_file_location(name, "alt/numpy.py")
"""


class Program(NamedTuple):
    way: str
    place: str


def written(folder: Path, program: Program) -> None:
    """Write a program and all that it may import."""
    way = WAYS[program.way]
    head = "import os, sys, hooks\n"
    body = head + way + "\n"
    files = {
        "alt/numpy.py": "ORIGIN = 'alt'\n",
        "hooks.py": dedent(HOOKS),
        "every.py": 'import os\nos.environ["TORCH_X"] = "v"\n',
        "mine.py": body,
        "function.py": f"{head}def f():\n    {way}\n",
        "package/__init__.py": body + "name = 1\n" if program.place == "package" else "name = 1\n",
        "package/mine.py": body,
        "package/near.py": "from . import mine\n",
    }
    lines = PLACES[program.place].split("\n")
    text = "\n".join(line.replace("{}", indent(way, "")) for line in lines)
    files["train.py"] = f"{head}{text}\nimport torch\nprint(torch.SEEN)\n"
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)


def seen(folder: Path, env: dict[str, str], *first: str) -> str:
    """Run the program; ``first`` are lines that go before, as the template's."""
    code = "import sys, runpy; sys.argv = ['train.py']; "
    code += f"{'; '.join((*first, ''))}sys.path.insert(0, sys.path.pop(0) or {str(folder)!r}); "
    command = [sys.executable, "-S", "-c", code + "runpy.run_path('train.py', run_name='__main__')"]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, timeout=60, check=False
    )
    return done.stdout.decode() + done.stderr.decode().rpartition("\n  File")[2]


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    site = tmp_path_factory.mktemp("stand-ins")
    (site / "torch.py").write_text(dedent(TORCH))
    (site / "numpy.py").write_text("ORIGIN = 'installed'\n")
    return {"PYTHONPATH": str(site), "TORCH_Y": "given"}


PROGRAMS = [Program(*each) for each in product(WAYS, PLACES)]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_torch_finds_in_the_template_what_it_finds_in_a_new_process(tmp_path, stand_ins, way):
    left = []
    for number, place in enumerate(PLACES):
        folder = tmp_path / str(number)
        folder.mkdir()
        written(folder, Program(way, place))
        found = read_prologue("script", "train.py", str(folder), stand_ins)
        left.append(found.obstacle)
        if found.obstacle:
            continue
        set_first = f"import os; given = dict(os.environ); v = {found.variables!r}"
        set_first += "; [os.environ.pop(k, 0) if w is None else os.environ.update({k: w})"
        set_first += " for k, w in v.items()]; import torch"
        back = "os.environ.clear(); os.environ.update(given)"
        assert seen(folder, stand_ins, set_first, back) == seen(folder, stand_ins), place
    assert not left[list(PLACES).index("import first")]
    assert not left[list(PLACES).index("types")]


@pytest.mark.parametrize(
    "way",
    [
        *("item", "two targets", "update", "keywords", "default", "union", "pop", "delete"),
        *("method", "imported", "renamed", "twice", "back again", "end of the path", "number"),
    ],
)
@pytest.mark.parametrize("place", ["top", "main", "with", "class", "module", "package"])
def test_what_is_certain_is_done_in_advance(tmp_path, stand_ins, way, place):
    written(tmp_path, Program(way, place))
    assert read_prologue("script", "train.py", str(tmp_path), stand_ins).obstacle == ""


def read(tmp_path: Path, source: str, **environ: str):
    (tmp_path / "train.py").write_text(dedent(source))
    return read_prologue("script", "train.py", str(tmp_path), environ)


@pytest.mark.parametrize(
    "source",
    [
        "import argparse, os\nprint(os.environ['HOME'], os.environ.get('A'), 'B' in os.environ)",
        "import os\nchild = dict(os.environ, A='b')\nother = {**os.environ, 'A': 'b'} | os.environ",
        "import os, subprocess\ndef f(): subprocess.run(['a'], env=os.environ)",
        "import sys\nfor place in sys.path: print(place)\nprint(sys.path[0], 'a' in sys.path)",
        "import sys\nprint(sys.modules[__name__], 'torch' in sys.modules, len(sys.modules))",
        "import os\ndef main():\n    os.environ['MASTER_ADDR'] = input()",
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']",
        "import os\nos.environ['TOKENIZERS_PARALLELISM'] = str(False).lower()",
        "import numpy as np\nnp.random.seed(0)",
        "import sys\nsys.stdout = open('/dev/null', 'w')",
        "import os\nos.environ['OMP_NUM_THREADS'] = '1'",
    ],
)
def test_what_usual_programs_do_leaves_torch_in_the_template(tmp_path, source):
    found = read(tmp_path, source + "\nimport torch\n", OMP_NUM_THREADS="1")
    assert (found.variables, found.obstacle) == ({}, "")


def test_what_comes_after_torch_does_not_count(tmp_path):
    source = """
        import torch
        import os, sys
        def main():
            os.environ["TORCH_LOGS"] = str(sys.argv)
        sys.path.insert(0, "x")
    """
    assert read(tmp_path, source) == ({}, "", False)


@pytest.mark.parametrize("name", ["numpy.py", "typing.py", "sympy/__init__.py"])
def test_a_module_beside_the_program_that_torch_would_import(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    found = read(tmp_path, "import torch\n")
    assert name.partition("/")[0] in found.obstacle


def test_the_statement_is_named(tmp_path):
    (tmp_path / "settings.py").write_text("import os\n\nos.environ['TORCH_X'] = str(os.getpid())")
    assert read(tmp_path, "import settings\nimport torch\n").obstacle.startswith("settings.py:3 ")


def test_threads_of_another_number_are_for_the_ranks_alone(tmp_path):
    source = "import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n"
    found = read(tmp_path, source, OMP_NUM_THREADS="1")
    assert "OMP_NUM_THREADS" in found.obstacle
    assert found.lasting


def test_variables_that_a_call_of_a_package_may_set(tmp_path):
    found = read(tmp_path, "from dotenv import load_dotenv\nload_dotenv()\nimport torch\n")
    assert "load_dotenv" in found.obstacle


def test_a_module_is_read_with_its_packages(tmp_path):
    for name in ("a/__init__.py", "a/b/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a/b/__main__.py").write_text("import os\nos.environ['TORCH_X'] = 'v'\n")
    found = read_prologue("module", "a.b", str(tmp_path), {})
    assert found == ({"TORCH_X": "v"}, "", False)
    (tmp_path / "a/__init__.py").write_text("import sys\nsys.path.insert(0, 'x')\n")
    assert "sys.path" in read_prologue("module", "a.b", str(tmp_path), {}).obstacle


SETS = "import os\nos.environ['TORCH_X'] = 'v'\n"


@pytest.mark.parametrize("name", ["a.b", "b"])
def test_the_main_part_of_a_module_that_is_run(tmp_path, name):
    path = tmp_path / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    body = indent(f"{SETS}import torch\n", "    ")
    path.write_text(f"if __name__ == '__main__':\n{body}")
    assert read_prologue("module", name, str(tmp_path), {}).variables == {"TORCH_X": "v"}
    assert read(tmp_path, f"import {name}\nimport torch\n").variables == {}


@pytest.mark.parametrize(
    "name", ["mine.pyc", f"mine{sysconfig.get_config_var('EXT_SUFFIX')}", "a/mine.pyc"]
)
def test_a_module_without_a_source_may_do_anything(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    (path.parent / "source.py").write_text(SETS)
    py_compile.compile(str(path.parent / "source.py"), cfile=str(path))
    source = "import mine" if path.parent == tmp_path else "from a import mine"
    assert path.name in read(tmp_path, f"{source}\nimport torch\n").obstacle


def test_what_an_installed_package_sets_counts_and_nothing_else_of_it(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    (site / "bought").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(site))
    (site / "bought/__init__.py").write_text("import sys\nsys.modules['x'] = 1\n" + SETS)
    (site / "bought/cli.py").write_text("import os\nos.environ['BOUGHT'] = str(os.getpid())\n")
    entry = "import sys\nfrom bought.cli import main\nsys.exit(main())\n"
    assert read(tmp_path, entry) == ({"TORCH_X": "v"}, "", False)
    (site / "bought/cli.py").write_text(f"def main():\n{indent(SETS, '    ')}    import torch\n")
    (site / "bought/__init__.py").write_text("")
    assert "cli.py:3 sets TORCH_X" in read(tmp_path, entry).obstacle


def test_the_environment_of_the_test_is_not_changed():
    assert "TORCH_X" not in os.environ
