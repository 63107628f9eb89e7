"""Variables ``PET_...`` that set nothing: most likely a slip of the pen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.cli.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping


def unknown_variables(environ: Mapping[str, str]) -> str:
    """Return a line for the user about each variable that looks like an option's and is none's.

    They are not refused: the environment may be that of the cluster, made for another launcher.
    """
    known = {name for option in OPTIONS for name in option.variables}
    unknown = [name for name, text in environ.items() if name.startswith("PET_") and text]
    return "\n".join(_line(name, known) for name in sorted(unknown) if name not in known)


def _line(name: str, known: set[str]) -> str:
    import difflib

    old = name.replace("PET_FT_PARAM_", "PET_FT_")
    close = [old] if old in known else difflib.get_close_matches(name, sorted(known), 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"the variable {name} sets no option{hint}"
