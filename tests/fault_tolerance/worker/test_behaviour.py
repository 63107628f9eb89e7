"""Every case of the table, in all modes, against plain ``python -u``."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from .cases import CASES, Case
from .harness import DEADLINE_S, ENVIRONMENT, SRC, AgentProcess

if TYPE_CHECKING:
    from pathlib import Path


class Result(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes


LEARNED = ("yaml", "pluggy", "pygments", "pygments.lexers")


@pytest.fixture(
    scope="module", params=["warm", "fresh", pytest.param("learned", marks=pytest.mark.slow)]
)
def agent(request):
    learned = LEARNED if request.param == "learned" else ()
    agent = AgentProcess(warm=request.param != "fresh", modules=[], learned=learned)
    yield agent
    agent.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_under_plain_python(case, agent, tmp_path):
    work = tmp_path / "work"
    for name, data in case.sources().items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    work.mkdir(exist_ok=True)
    plain = run_plain(case, work, tmp_path)
    ours = run_ours(case, agent, work, tmp_path)
    assert ours.stderr.decode(errors="replace") == plain.stderr.decode(errors="replace")
    assert ours.stdout == plain.stdout
    assert ours.code == plain.code


def run_plain(
    case: Case,
    work: Path,
    tmp: Path,
    env: dict[str, str] = ENVIRONMENT,
    flags: tuple[str, ...] = (),
) -> Result:
    how = ["-m"] if case.kind == "module" else []
    command = [sys.executable, *flags, "-u", *how, case.target, *case.args]
    with (tmp / "stdout").open("wb") as out, (tmp / "stderr").open("wb") as err:
        done = subprocess.run(
            command,
            cwd=work,
            env={**env, **case.env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            timeout=DEADLINE_S,
        )
    return take(done.returncode, tmp)


def run_ours(case: Case, agent: AgentProcess, work: Path, tmp: Path) -> Result:
    answer = agent.run(
        [
            {
                "kind": case.kind,
                "target": case.target,
                "args": list(case.args),
                "env": {**agent.env, **case.env},
                "cwd": str(work),
                "stdout": str(tmp / "stdout"),
                "stderr": str(tmp / "stderr"),
            }
        ]
    )
    fresh = not agent.warm or any(name.startswith("PYTHON") for name in case.env)
    assert answer["mode"] == ("fresh" if fresh else "warm"), answer
    return take(answer["codes"][0], tmp)


def take(code: int, tmp: Path) -> Result:
    paths = tmp / "stdout", tmp / "stderr"
    result = Result(code, *(path.read_bytes() for path in paths))
    for path in paths:
        path.unlink()
    return result


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("flags", [("-E",), ("-I",), ("-O", "-Wignore"), ("-X", "dev")], ids=str)
def test_flags_of_the_interpreter(warm, flags, tmp_path):
    """Also those that keep the package out: with -E and -I, PYTHONPATH is not looked at."""
    # In that case our copy is last in sys.path, and only there does it differ.
    text = (
        f"import sys\npath = [p for p in sys.path if p != {str(SRC)!r}]\n"
        "print(sys.flags, sys.orig_argv, path, sys.warnoptions)\nassert not 1\n"
    )
    (tmp_path / "main.py").write_text(text)
    agent = AgentProcess(warm=warm, modules=[], flags=flags)
    try:
        ours = run_ours(Case("flags"), agent, tmp_path, tmp_path)
    finally:
        agent.close()
    plain = run_plain(Case("flags"), tmp_path, tmp_path, flags=flags)
    assert ours == plain
