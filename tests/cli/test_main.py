import subprocess
import sys
from pathlib import Path

import pytest

from undaunted.cli import main as main_module
from undaunted.cli import report, run
from undaunted.cli.main import ft_launcher, main


def test_subcommands_get_their_arguments(monkeypatch):
    monkeypatch.setattr(run, "main", lambda argv: ("run", argv))
    monkeypatch.setattr(report, "main", lambda argv: ("report", argv))
    assert main(["run", "--help", "x"]) == ("run", ["--help", "x"])
    assert main(["report"]) == ("report", [])
    monkeypatch.setattr(sys, "argv", ["ft_launcher", "--nnodes", "1", "x.py"])
    assert ft_launcher() == ("run", ["--nnodes", "1", "x.py"])
    monkeypatch.setattr(sys, "argv", ["undaunted", "report", "dir"])
    assert main() == ("report", ["dir"])


@pytest.mark.parametrize("word", ["-h", "--help", "help"])
def test_help(word, capsys):
    assert main([word]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in main_module.COMMANDS)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("undaunted ")


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["--help"], "undaunted"),
        (["--version"], "undaunted"),
        (["help", "run"], "undaunted run"),
        (["top", "--help"], "undaunted top"),
    ],
)
def test_a_help_that_cannot_be_printed(argv, command):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "undaunted.cli.main", *argv],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 2
    assert done.stderr == f"{command}: error: standard output: No space left on device\n"


@pytest.mark.parametrize(("command", "said"), [("run", True), ("report", False)])
def test_an_interrupt_before_anything_was_started(command, said, monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "import_module", interrupted)
    monkeypatch.setattr(sys, "argv", ["undaunted", command, "train.py"])
    assert main() == main([command, "train.py"]) == 130
    captured = capsys.readouterr()
    assert captured.err.count("undaunted run: interrupted") == 2 * said
    assert captured.err.count("\n") == 2 * said
    assert captured.out == ""


def test_the_package_itself_is_the_command():
    command = [sys.executable, "-m", "undaunted"]
    env = {"PYTHONPATH": ":".join(sys.path)}
    version = subprocess.run([*command, "--version"], capture_output=True, env=env, timeout=60)
    assert (version.returncode, version.stdout[:10]) == (0, b"undaunted ")
    assert subprocess.run([*command, "rum"], capture_output=True, env=env).returncode == 2


@pytest.mark.parametrize(
    ("words", "late"),
    [
        (["--version"], {"dataclasses", "inspect", "msgspec", "pathlib"}),
        (["--help"], {"dataclasses", "inspect", "msgspec", "pathlib"}),
        (
            ["run", "--help"],
            {"ctypes", "undaunted.journal.events", "undaunted.journal.metrics.exposition",
             "undaunted.fault_tolerance.timeouts_calc"},
        ),
    ],
)  # fmt: skip
def test_a_help_text_imports_only_what_it_needs(words: list[str], late: set[str]):
    program = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "from undaunted.cli.main import main\n"
        f"assert main({words}) == 0\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join(sys.path)}, timeout=60,
    )  # fmt: skip
    assert late.isdisjoint(result.stderr.split()), result.stderr


def test_command_line_needs_nothing_heavy(tmp_path):
    heavy = {"argparse", "asyncio", "rich", "email", "torch", "numpy", "tempfile", "subprocess"}
    (tmp_path / "train.py").touch()
    program = (
        "import sys, types\n"
        "front = types.ModuleType('undaunted.fault_tolerance.front')\n"
        "front.run = lambda config, end_for_script: 0\n"
        "sys.modules['undaunted.fault_tolerance.front'] = front\n"
        "before = set(sys.modules)\n"
        "from undaunted.cli.main import main\n"
        "assert main(['run', 'train.py']) == 0\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join(sys.path)}, timeout=60,
    )  # fmt: skip
    assert heavy.isdisjoint(result.stdout.split()), result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_a_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("argcomplete")
    assert main(["completion", shell]) == 0
    assert "undaunted" in capsys.readouterr().out
