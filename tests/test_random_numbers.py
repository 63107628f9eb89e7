"""The random numbers of a program are its own: nothing of ours draws from them."""

from __future__ import annotations

import ast

from tests.test_layers import SRC

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


def test_no_module_draws_from_the_programs_generators() -> None:
    drawn = {
        str(path.relative_to(SRC / "undaunted")): lines
        for path in sorted(SRC.rglob("*.py"))
        if (lines := lines_that_draw(path.read_text("utf-8")))
    }
    assert drawn.keys() == SEEDS, drawn


def lines_that_draw(source: str) -> list[int]:
    drawn = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in {"random", "numpy.random"}:
            drawn += [node.lineno for alias in node.names if alias.name in DRAWING]
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        given = {keyword.arg for keyword in node.keywords}
        if node.func.attr in DRAWING and ast.unparse(node.func.value) in MODULES:
            drawn += [node.lineno] * ("generator" not in given)
    return drawn
