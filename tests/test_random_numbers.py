"""The random numbers of a program are its own: nothing of ours draws from them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.test_layers import SRC

if TYPE_CHECKING:
    from pathlib import Path

# Draw from, or seed, the one generator of Python, numpy or torch.
DRAWING = frozenset(
    {
        *("random", "uniform", "randrange", "randint", "choice", "choices", "sample", "shuffle"),
        *(
            "gauss",
            "expovariate",
            "getrandbits",
            "randbytes",
            "seed",
            "normalvariate",
            "triangular",
        ),
        *("rand", "randn", "normal", "manual_seed"),
    }
)
MODULES = frozenset({"random", "numpy.random", "np.random", "torch"})
# A loader that seeds each sample, as it is asked to; a forked worker, before the program begins.
SEEDS = {"data/rng.py", "fault_tolerance/worker/numerics.py"}


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda path: path.stem)
def test_no_module_draws_from_the_programs_generators(path: Path) -> None:
    drawn = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in {"random", "numpy.random"}:
            drawn += [node.lineno for alias in node.names if alias.name in DRAWING]
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        given = {keyword.arg for keyword in node.keywords}
        if node.func.attr in DRAWING and ast.unparse(node.func.value) in MODULES:
            drawn += [node.lineno] * ("generator" not in given)
    wanted = str(path.relative_to(SRC / "undaunted")) in SEEDS
    assert bool(drawn) == wanted, f"{path}: lines {drawn}"
