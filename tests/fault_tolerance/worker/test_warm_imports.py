"""What a template imports of what ranks have, and what it leaves to them: real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from undaunted.fault_tolerance.worker import warm_imports

SRC = Path(warm_imports.__file__).parents[3]
# Imports what it is told to, as a template does, and says what came of it; then it forks a worker.
PROGRAM = """
    import json, os, sys
    import msgspec
    from undaunted.fault_tolerance.worker import warm_imports
    from undaunted.fault_tolerance.worker.messages import Learned

    learned = msgspec.convert(json.loads(sys.argv[1]), Learned, strict=False)
    warm, unfit = warm_imports.WarmImports(), {}
    def own(): return os.getpriority(os.PRIO_PROCESS, 0), sorted(os.listdir("/proc/self/fd"))
    before = own()
    try:
        with warm_imports.lowest_priority():
            warm.load(learned)
    except warm_imports.UnfitError as error:
        unfit = error.left
    assert unfit or own() == before
    worker = {"RANK": "6", "SET": "own"}
    if not unfit:
        warm.begin_worker(worker)
    values = {name: {k: getattr(v, "rank", v) for k, v in vars(sys.modules[name]).items()
                     if k.isupper()}
              for name in warm.modules}
    print(json.dumps({"unfit": unfit, "modules": warm.modules, "worker": worker, "values": values,
                      "environment": {k: os.environ.get(k) for k in ("SET", "OF_PONE")}}))
"""


STARTS = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"


@pytest.fixture
def load(tmp_path):
    folder = tmp_path / "site-packages"

    def run(files, *groups, **learned):
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        told = [{"environment": environment, "modules": names} for environment, names in groups]
        names = {name.partition("/")[0].removesuffix(".py") for name in files}
        first = {name: f"{name}.py" if f"{name}.py" in files else f"{name}/__init__.py"
                 for name in names}  # fmt: skip
        about = {
            "groups": told,
            "packages": {name: str(folder / first[name]) for name in names},
            "gives_way": True,
            **learned,
        }
        path = os.pathsep.join([str(SRC), str(folder)])
        done = subprocess.run(
            [sys.executable, "-c", dedent(PROGRAM), json.dumps(about)],
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.stderr == ""
        assert done.returncode == 0
        return json.loads(done.stdout)

    return run


def test_packages_are_imported_in_the_environment_that_they_had(load):
    packages = {
        "pone.py": "import os; WAS = os.environ.get('SET'); print('loud'); os.write(2, b'loud')",
        "ptwo/__init__.py": "import os; WAS = os.environ.get('SET')",
        "ptwo/part.py": "import ptwo",
    }
    found = load(packages, ({"SET": "a"}, ["pone"]), ({"PATH": None}, ["ptwo", "ptwo.part"]))
    assert found["unfit"] == {}
    assert found["modules"] == ["pone", "ptwo", "ptwo.part"]
    assert found["values"] == {"pone": {"WAS": "a"}, "ptwo": {"WAS": None}, "ptwo.part": {}}
    assert found["environment"]["SET"] is None, "as it was before"


def test_numbers_of_the_rank_and_variables_that_imports_set(load):
    packages = {
        "lightning_utilities/__init__.py": "",
        "lightning_utilities/core/__init__.py": "",
        "lightning_utilities/core/rank_zero.py": """
            import os
            def rank_zero_only(): pass
            rank_zero_only.rank = int(os.environ.get("RANK", 0))
            os.environ["OF_PONE"] = os.environ["SET"] = "1"  # neither is set before
            RANK = rank_zero_only
        """,
    }
    names = ["", ".core", ".core.rank_zero"]
    found = load(packages, ({}, [f"lightning_utilities{name}" for name in names]))
    assert found["unfit"] == {}
    assert found["values"]["lightning_utilities.core.rank_zero"]["RANK"] == 6
    assert found["worker"] == {"RANK": "6", "SET": "own", "OF_PONE": "1"}


@pytest.mark.parametrize(
    "text",
    [
        STARTS,
        "import socket; KEPT = socket.socket()",
        "import select; KEPT = select.epoll()",
        "KEPT = open('/dev/loop-control', 'rb')",
        "1/0",
        "import sys; sys.exit(0)",
        "import os; KEPT = os.pipe()",
        "KEPT = open(__file__)",
        "import subprocess; KEPT = subprocess.Popen(['true'])",
        "import multiprocessing; KEPT = multiprocessing.Lock()",
        "import mmap; KEPT = mmap.mmap(-1, 4096)",
        "import logging; logging.basicConfig()",
        "import signal; signal.signal(signal.SIGUSR1, print)",
        "import os; os.environ['PATH'] += ':/x'",
        "import os; del os.environ['PATH']",
        "import unknown_to_ranks",
    ],
)
def test_a_package_that_a_program_could_tell_is_left_to_the_ranks(load, text):
    if "loop-control" in text and not os.access("/dev/loop-control", os.R_OK):
        pytest.skip("this machine has no device that may be opened")
    packages = {"pone.py": "", "pbad/__init__.py": "", "pbad/part.py": text, "ptwo.py": ""}
    packages["unknown_to_ranks.py"] = ""
    groups = {}, ["pone", "pbad", "pbad.part", "ptwo"]
    found = load(packages, groups)
    assert list(found["unfit"]) == ["pbad"]
    again = load(packages, groups, left=["pbad"])
    assert (again["unfit"], again["modules"]) == ({}, ["pone", "ptwo"])


def test_what_imports_such_a_package_is_left_as_well(load):
    packages = {
        "pfine.py": "",
        "pbad.py": STARTS,
        "pabove/__init__.py": "from pabove import part",
        "pabove/part.py": "def get():\n    import pbad\nget()",
        "plater.py": "import pbad",
    }
    groups = {}, ["pfine", "pabove", "pabove.part", "pbad", "plater"]
    found = load(packages, groups)
    assert sorted(found["unfit"]) == ["pabove", "pbad"]
    found = load(packages, groups, left=sorted(found["unfit"]))
    assert list(found["unfit"]) == ["plater"]
    found = load(packages, groups, left=["pabove", "pbad", "plater"])
    assert (found["unfit"], found["modules"]) == ({}, ["pfine"])


def test_who_only_asks_whether_a_package_is_there_may_be_imported(load):
    asks = "import importlib.util; THERE = importlib.util.find_spec('pbad') is not None"
    found = load({"pone.py": asks, "pbad.py": STARTS}, ({}, ["pone", "pbad"]), left=["pbad"])
    assert (found["unfit"], found["modules"]) == ({}, ["pone"])


def test_what_asks_for_something_that_only_ranks_have_is_left(load):
    asks = "try:\n    import mine\nexcept ImportError:\n    mine = None"
    found = load({"pone.py": asks, "ptwo.py": ""}, ({}, ["pone", "ptwo"]), own=["mine"])
    assert list(found["unfit"]) == ["pone"]


def test_another_file_is_left(load):
    packages = {"pone.py": "", "ptwo.py": ""}
    found = load(
        packages, ({}, ["pone", "ptwo"]), packages={"pone": "/other.py", "ptwo": "/other.py"}
    )
    assert list(found["unfit"]) == ["pone"]
