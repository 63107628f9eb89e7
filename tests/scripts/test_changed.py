"""What `.ci/run` makes of a change: whether adapters are tried with their frameworks."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Nothing of the machine's own settings counts.
PLAIN = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(clone: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", *command], cwd=clone, env=PLAIN, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(clone: Path, name: str) -> str:
    (clone / name).write_text(name)
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", name)
    return git(clone, "rev-parse", "HEAD")


def changed(clone: Path, *paths: str, base: str = "") -> bool:
    script = ROOT / "scripts" / "changed.sh"
    done = subprocess.run([script, *paths], cwd=clone, env={**PLAIN, "BASE": base}, check=False)
    assert done.returncode in (0, 1)
    return done.returncode == 0


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone of a repository with the files a and b."""
    origin = tmp_path / "origin"
    git(tmp_path, "init", "--quiet", "--initial-branch", "main", str(origin))
    commit(origin, "a")
    commit(origin, "b")
    git(tmp_path, "clone", "--quiet", str(origin), "clone")
    return tmp_path / "clone"


def test_on_main_nobody_knows_where_a_change_begins(clone: Path) -> None:
    assert changed(clone, "a")
    assert changed(clone, "c")


def test_a_base_that_is_given(clone: Path) -> None:
    base = git(clone, "rev-parse", "HEAD~1")
    assert changed(clone, "b", base=base)
    assert changed(clone, "a", "b", base=base)
    assert not changed(clone, "a", base=base)
    assert not changed(clone, "a", "b", base="HEAD")
    assert changed(clone, "a", base="0" * 40)  # not here, as in a clone of the last commits


def test_what_a_branch_has_changed(clone: Path) -> None:
    git(clone, "checkout", "--quiet", "-b", "mine")
    commit(clone, "c")
    assert changed(clone, "c")
    assert not changed(clone, "a", "b")
    (clone / "a").write_text("not committed")
    assert changed(clone, "a")
    (clone / "new").touch()
    assert changed(clone, "new")
    assert not changed(clone, "b")


def test_without_an_origin_all_has_changed(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, "a")
    assert changed(tmp_path, "a")


def test_ci_knows_what_adapters_stand_on() -> None:
    found = re.search(
        r"^integrations=\((.*?)^\)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    printed = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {' '.join(found[1].split())}"],
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / line for line in printed.stdout.splitlines()]
    assert [path for path in paths if not path.exists()] == []
    sources = [path.read_text() for path in (ROOT / "src/undaunted/integrations").rglob("*.py")]
    for name in set(re.findall(r"from (undaunted\.[\w.]+) import", "\n".join(sources))):
        module = ROOT / "src" / name.replace(".", "/")
        assert any(path in (module, *module.parents) for path in paths), name
