"""What is shipped: the wheel's content, its metadata, and the files a user meets first."""

from __future__ import annotations

import importlib
import itertools
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.test_layers import SRC, modules

REPOSITORY = SRC.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from this checkout with the tools that are installed."""
    pytest.importorskip("hatchling", reason="hatchling is in the group 'test': run `make setup`")
    target = tmp_path_factory.mktemp("dist")
    result = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    with zipfile.ZipFile(next(target.glob("*.whl"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile):
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_wheel_has_every_module_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    shipped = {n for n in wheel.namelist() if ".dist-info/" not in n}
    assert {str(path.relative_to(SRC)) for path in modules().values()} <= shipped
    assert "undaunted/py.typed" in shipped
    static = SRC / "undaunted/journal/page/static"
    assert {str(path.relative_to(SRC)) for path in static.iterdir()} <= shipped
    assert all(n.startswith("undaunted/") and "__pycache__" not in n for n in shipped)


def test_wheel_has_the_licence(wheel: zipfile.ZipFile) -> None:
    text = wheel.read(next(n for n in wheel.namelist() if n.endswith("licenses/LICENSE"))).decode()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_metadata(metadata) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    required = metadata.get_all("Requires-Dist")
    core = {re.split(r"[^\w-]", line)[0] for line in required if "extra ==" not in line}
    assert core == {"msgspec", "pyyaml", "rich"}, "core dependencies stay few; the rest are extras"
    torch = next(line for line in required if line.startswith("torch"))
    assert ">=2.8" in torch
    assert "extra == 'torch'" in torch


def test_version_is_one(metadata) -> None:
    package = importlib.import_module("undaunted")
    assert metadata["Version"] == package.__version__
    assert f"## {package.__version__}" in (REPOSITORY / "CHANGELOG.md").read_text()


def test_commands_resolve(wheel: zipfile.ZipFile) -> None:
    name = next(n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    commands = re.findall(r"^([\w-]+) = ([\w.]+):(\w+)$", wheel.read(name).decode(), re.MULTILINE)
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert {command for command, _, _ in commands} == scripts.keys()
    assert scripts.keys() == {"undaunted", "ft_launcher"}
    for _, module, function in commands:
        assert callable(getattr(importlib.import_module(module), function))


def test_constraints_cover_what_is_asked_for() -> None:
    """Two checkouts of one commit must use the same tools."""
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    constraints = (REPOSITORY / "constraints.txt").read_text()
    pinned = {name.lower() for name in re.findall(r"^([\w-]+)==", constraints, re.MULTILINE)}
    project, groups = pyproject["project"], pyproject["dependency-groups"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *itertools.chain(*extras.values(), *groups.values())]
    wanted = {re.match(r"[\w-]+", line)[0].lower() for line in lines}
    assert len(wanted) > 30
    assert wanted <= pinned, f"not pinned in constraints.txt: {sorted(wanted - pinned)}"


@pytest.mark.parametrize("name", ["Makefile", ".ci/run", "scripts/setup.sh"])
def test_no_path_of_a_developers_machine(name: str) -> None:
    assert not re.search(r"/(home|root|work)/", Path(REPOSITORY / name).read_text())
