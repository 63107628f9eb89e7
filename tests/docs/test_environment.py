"""docs/environment.md names every environment variable that the source knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from undaunted.inprocess.attribution import Interruption

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "environment.md"
# How a variable is recognised: a text in capitals with an underscore, or one that is looked up.
NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
LOOKED_UP = re.compile(r"\benv(?:iron)?(?:\.(?:get|pop|setdefault)\(|\[)\s*\"([A-Z][A-Z0-9_]*)\"")
# Names in code; a word of the help; flags and settings of the system; kinds of interruptions.
NO_VARIABLES = {
    *("TYPE_CHECKING", "NO_LEDGER", "RUN_DIR", "MEM_FORMAT_ENCODING"),
    *("WRONG_VERSION_NUMBER", "PEM_LIB"),
    *("OUTPUT_FILE", "WORK_DIR", "SC_AVPHYS_PAGES", "SC_PAGE_SIZE", "SC_CLK_TCK"),
    *("EXIT_CODE_RESUME_TO_DISAMBIGUATE", "EXIT_CODE_FAILED_ON_RESULT_VALIDATION"),
    "LOCAL_CKPT_OPTS_KEY",
    *("COMPARISON_MATCH", "COMPARISON_MISMATCH", "REPORTING_INTERVAL_ITERATIONS"),
    "STRICT_SPREAD",
    *("F8_E4M3", "F8_E5M2", "F8_E8M0"),
    *("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"),
    *("RWF_NOWAIT", "MAP_POPULATE", "MADV_HUGEPAGE", "MADV_POPULATE_WRITE"),
    *Interruption.__members__,
}


def variables_in(source: str) -> set[str]:
    texts = (
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {text for text in texts if NAME.fullmatch(text)} | set(LOOKED_UP.findall(source))


def test_page_is_complete() -> None:
    known = set(re.findall(r"`([A-Z][A-Z0-9_]*)(?:=\w+)?`", PAGE.read_text())) | NO_VARIABLES
    missing = {}
    for path in (REPOSITORY / "src").rglob("*.py"):
        for name in variables_in(path.read_text()) - known:
            missing[name] = str(path.relative_to(REPOSITORY))
    assert not missing, f"{PAGE.name} says nothing about: {missing}"


def test_variables_are_found() -> None:
    source = 'import os\na = os.environ.get("HOME")\nb = {"MY_RANK": "1"}\nc = "Some_TEXT"\n'
    assert variables_in(source) == {"HOME", "MY_RANK"}
