"""The words of every command: help, mistakes, what is shown of a run.

Each file in ``transcripts`` is a terminal session: ``$`` and a command line, what it prints, and in
brackets its exit code, if that is not 0. Commands run in a directory of their own, DIR; launchers
are not started. HH:MM:SS is the time of day. Write a command line there, and ``pytest
tests/cli/test_transcripts.py --update`` adds the rest.
"""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_flight import make as make_dumps
from tests.journal import sample
from undaunted.cli import checkpoint, ctl
from undaunted.cli.main import COMMANDS, main
from undaunted.journal.events import EventsLost
from undaunted.journal.lines import encode

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).with_name("transcripts")
FILES = sorted(FOLDER.glob("*.txt"))
LINES = [line for file in FILES for line in file.read_text().splitlines() if line[:2] == "$ "]
ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
JOURNAL = b"".join(map(encode, sample.RUN))
ENDLESS = b"".join(map(encode, sample.RUN[:-1]))
UNWRITTEN = encode(EventsLost(t=1, count=145, reason="No space left on device"))
TO_N1 = (b'"n0"', b'"n1"')
JOURNALS = {
    "run/journal-n0.jsonl": JOURNAL,
    "two/journal-n0.jsonl": JOURNAL,
    "two/journal-n1.jsonl": JOURNAL.replace(*TO_N1),
    "again/journal-n0.jsonl": JOURNAL + JOURNAL.replace(b'"pid":42', b'"pid":43'),
    "half/journal-n0.jsonl": JOURNAL.replace(b'"world_size":2', b'"world_size":4'),
    "damaged/journal-n0.jsonl": b"".join(
        [b"junk\n", JOURNAL, UNWRITTEN, b'{"event":"teleported","t":1}\n{"ev']
    ),
    "going/journal-n0.jsonl": ENDLESS,
    "lost/journal-n0.jsonl": JOURNAL,
    "lost/journal-n1.jsonl": ENDLESS.replace(*TO_N1),
}
STACKS = """\
rank 0; sleeping

--- rank 1, pid 3 ---
Current thread 0x1 (most recent call first):
  File "/home/me/train.py", line 12 in load

--- rank 0, pid 2 ---
Current thread 0x1 (most recent call first):
  File "/home/me/train.py", line 12 in load
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with scripts, a run and other files; nothing is started in it."""
    here = tmp_path / "here"
    for name in ("empty", "folder", "app", "bin", "config"):
        (here / name).mkdir(parents=True)
    for name in ("train.py", "mine.py", "file", "app/__main__.py", "bin/tool"):
        (here / name).touch()
    for name, journal in JOURNALS.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_bytes(journal)
    (here / "run" / "stacks-round1.txt").write_text(STACKS)
    for name, content in (("token", "0123456789abcdef"), ("short", "01234")):
        (here / name).write_text(content)
        (here / name).chmod(0o600)
    make_dumps(here / "dumps")
    monkeypatch.chdir(here)
    for name, value in (("HOME", here), ("XDG_CONFIG_HOME", here / "config"), ("COLUMNS", 80)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATH", str(here / "bin"), prepend=":")
    front = types.SimpleNamespace(run=lambda config, end_for_script: 0)
    monkeypatch.setitem(sys.modules, "undaunted.fault_tolerance.front", front)
    return here


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_words_of_a_command(
    file: Path,
    place: Path,
    golden: Callable[[Path, str], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    session = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            session += f"{line}\n\n"
        elif line.startswith("$ "):
            code = run(line[2:])
            printed = "".join(capfd.readouterr())
            session += f"{line}\n{printed}" + (f"[{code}]\n" if code else "") + "\n"
    golden(file, normalised(session, place))


def normalised(text: str, place: Path) -> str:
    """Replace what differs from one run to another, and the words of a library."""
    text = re.sub(r"\b\d\d:\d\d:\d\d$", "HH:MM:SS", text, flags=re.MULTILINE)
    text = re.sub("is not YAML: .*", "is not YAML: ...", text)
    return text.replace(str(place), "DIR")


def run(line: str) -> int:
    """Do what a line says; ``echo TEXT > FILE`` is the one command that is not ours."""
    words = shlex.split(line)
    with pytest.MonkeyPatch.context() as patched:
        while assigned := ASSIGNMENT.fullmatch(words[0]):
            patched.setenv(*assigned.groups())
            del words[0]
        match words:
            case ["echo", text, ">", name]:
                Path(name).write_text(f"{text}\n")
                return 0
            case ["undaunted", *rest]:
                try:
                    return main(rest)
                except BaseException as error:
                    error.add_note(line)
                    raise
    raise ValueError(f"no command of undaunted: {line}")


@pytest.mark.parametrize("command", [
    "", *COMMANDS,
    *(f"ctl {action}" for action in ctl.ACTIONS),
    *(f"checkpoint {action}" for action in checkpoint.ACTIONS),
])  # fmt: skip
def test_each_command_has_its_help_there(command: str) -> None:
    assert f"$ undaunted {command} --help".replace("  ", " ") in LINES
