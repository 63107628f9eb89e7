"""What a confined program can read, and what it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from undaunted.base import landlock
from undaunted.base.landlock import confined, is_there
from undaunted.base.process import code_command

SEEN = """
import json, os, sys
from pathlib import Path

def said(call):
    try:
        return call()
    except OSError as error:
        return type(error).__name__

folder, outside = map(Path, sys.argv[1:])
print(json.dumps({
    "inside": said((folder / "a.log").read_text),
    "link": said((folder / "link").read_text),
    "outside": said((outside / "secret").read_text),
    "listed": said(lambda: os.listdir(outside)),
    "written": said(lambda: (folder / "new").touch()),
    "nothing": said(lambda: Path("/dev/null").write_text("")),
}))
"""


def seen(tmp_path: Path, *places: str) -> Any:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "a.log").write_text("content")
    (outside / "secret").write_text("secret")
    (folder / "link").symlink_to(outside / "secret")
    command = code_command(SEEN, str(folder), str(outside))
    done = subprocess.run(
        confined([str(folder), *places], command), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(not is_there(), reason="this kernel has no Landlock")
def test_only_what_is_named_is_read_and_nothing_is_written(tmp_path: Path) -> None:
    assert seen(tmp_path, "/gone") == {
        "inside": "content",
        **dict.fromkeys(("link", "outside", "listed", "written"), "PermissionError"),
        "nothing": 0,
    }


def test_a_kernel_without_it_confines_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "_CREATE_RULESET", 100_000)  # no such call
    assert not landlock.is_there()
    assert not landlock.read_only(["/usr"])
    assert Path(sys.executable).read_bytes()
