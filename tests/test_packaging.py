"""What is shipped: the wheel's content, its metadata, and the files a user meets first."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.test_layers import SRC, modules

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = SRC.parent


COMPAT = REPOSITORY / "compat/nvidia-resiliency-ext"
PROJECTS = {"undaunted": REPOSITORY, "compat": COMPAT}


def build(project: Path, target: Path) -> dict[str, Path]:
    """Build sdist and wheel with the tools that are installed; return them by their suffix."""
    pytest.importorskip("hatchling", reason="hatchling is in the group 'test': run `make setup`")
    result = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(target)],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return {path.suffix: path for path in target.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """What is shipped of each project, built from this checkout."""
    place = tmp_path_factory.mktemp("dist")
    return {name: build(project, place / name) for name, project in PROJECTS.items()}


@pytest.fixture(scope="module")
def wheel(built: dict[str, dict[str, Path]]) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(built["undaunted"][".whl"]) as opened:
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


@pytest.mark.parametrize("name", PROJECTS)
@pytest.mark.slow
def test_another_build_has_the_same_bytes(
    built: dict[str, dict[str, Path]], tmp_path: Path, name: str
) -> None:
    """From the sdist, elsewhere and later, with other times and rights of the files."""
    with tarfile.open(built[name][".gz"]) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    (unpacked / "PKG-INFO").unlink()  # it is made by the build, and no source
    for path in unpacked.rglob("*"):
        if path.is_file():
            path.chmod(0o600 | path.stat().st_mode & 0o100)
            os.utime(path, (1, 1))
    again = build(unpacked, tmp_path / "dist")
    assert again.keys() == built[name].keys() == {".gz", ".whl"}
    for suffix, path in again.items():
        assert path.name == built[name][suffix].name
        assert path.read_bytes() == built[name][suffix].read_bytes(), path.name


def test_the_sdist_has_what_is_under_version_control(built: dict[str, dict[str, Path]]) -> None:
    with tarfile.open(built["undaunted"][".gz"]) as sdist:
        shipped = {name.partition("/")[2] for name in sdist.getnames()}
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("no git, or no repository")
    wanted = {name for name in listed.stdout.split("\0") if name and (REPOSITORY / name).exists()}
    assert wanted - shipped == set()
    assert not [name for name in shipped if ".venv" in name or "__pycache__" in name]


def test_wheel_has_the_licence(wheel: zipfile.ZipFile) -> None:
    text = wheel.read(next(n for n in wheel.namelist() if n.endswith("licenses/LICENSE"))).decode()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert (COMPAT / "LICENSE").read_text() == text, "a link would lead out of the sdist"


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
