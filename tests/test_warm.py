"""Ranks that are forks behave as programs do; those without torch's compiler get it if they ask."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import warm

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.torch]


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("pass", 0, ""),
        ("sys.exit(5)", 5, ""),
        ("sys.exit('no more')", 1, "no more"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_a_fork_is_a_program_of_its_own(tmp_path: Path, end: str, code: int, last: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "print(__name__, sys.argv[1:], 'torch' in sys.modules, input(), flush=True)\n"
        f"print(os.environ['HERE'], os.getcwd() == {str(tmp_path)!r}, flush=True)\n{end}\n"
    )
    rank = warm.Popen(
        [sys.executable, str(program), "a word"],
        cwd=tmp_path,
        env={**os.environ, "HERE": "there"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = rank.communicate("hello\n", timeout=60)
    assert out.splitlines() == ["__main__ ['a word'] True hello", "there True"]
    assert rank.returncode == code
    assert ["", *err.splitlines()][-1] == last


@pytest.mark.usefixtures("no_compiler")
def test_the_compiler_is_imported_by_who_asks_for_it() -> None:
    program = """if True:
        import sys, torch
        optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)])
        optimizer.zero_grad()
        print("torch._dynamo.config" in sys.modules)
        print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
        import torch._dynamo.config as config
        print(config is sys.modules["torch._dynamo"].config)
    """
    said = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    )
    assert said.stdout.split() == ["False", "2.0", "True"]
