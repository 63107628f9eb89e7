"""`CollectiveAnalyzer`: the analysis of `undaunted flight`, called and answered as NVRx's."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nvidia_resiliency_ext.attribution.base import AttributionState, NVRxAttribution
from undaunted.attribution.flight.culprits import analyse
from undaunted.attribution.flight.files import Dumps, read_files
from undaunted.cli.flight import nvrx_lines


class Preprocessed(NamedTuple):
    """Dumps that were read, and whether the answer is a pair, as at NVRx's head."""

    dumps: Dumps
    as_pair: bool


class Analysed(NamedTuple):
    """The table, the line ``hanging ranks: [...]``, and whether the answer is a pair."""

    text: str
    hanging_ranks: str
    as_pair: bool


class CollectiveAnalyzer(NVRxAttribution):
    """Says which ranks keep the others waiting.

    Args:
        args: a ``Namespace`` with ``paths`` and ``pattern`` (``*.json``), as in NVRx 0.5: the
            answer is the text ``hanging ranks: [...]``. Or a mapping with ``fr_path`` and
            ``pattern`` (``_dump_*``), as in its head: the answer is a pair of a dictionary with
            ``analysis_text`` and ``hanging_ranks``, and ``AttributionState.CONTINUE``. What is
            given to `run` comes before it: one of the two, a path, or a list of paths.

    Raises:
        ValueError: when it runs: no path was given, there is no dump, or ``llm_analyze`` is set.
    """

    def __init__(self, args: argparse.Namespace | Mapping[str, Any] | None = None) -> None:
        super().__init__(self.preprocess_FR_dumps, self.collective_analysis, self.print_output)
        self._args = args

    async def preprocess_FR_dumps(self, input_data: Any = None) -> Preprocessed:  # noqa: N802
        """Read the dumps.

        Raises:
            ValueError: see the class.
        """
        as_pair, settings = _settings(self._args, input_data)
        if settings.get("llm_analyze"):
            raise ValueError(
                "llm_analyze is set: undaunted asks no language model about traces; leave it out"
            )
        paths = _paths(settings)
        if not paths:
            raise ValueError("no dumps were named: give fr_path, or paths, the directory of them")
        pattern = settings.get("pattern") or ("_dump_*" if as_pair else "*.json")
        files = [file for path in paths for file in _files(Path(path), pattern)]
        dumps = await asyncio.to_thread(read_files, files)
        if not dumps.recordings:
            why = f"; {dumps.problems[0].file}: {dumps.problems[0].text}" if dumps.problems else ""
            names = ", ".join(str(path) for path in paths)
            raise ValueError(f"{names}: no dump is named like {pattern!r}{why}")
        return Preprocessed(dumps, as_pair)

    async def collective_analysis(self, preprocessed: Preprocessed) -> Analysed:
        """Find who is waited for."""
        found = await asyncio.to_thread(analyse, preprocessed.dumps.recordings)
        *table, hanging = nvrx_lines(found)
        return Analysed("\n".join(table), hanging, preprocessed.as_pair)

    async def print_output(self, analysed: Analysed) -> str | tuple[dict[str, str], Any]:
        """Print the table and the hanging ranks, and return the answer."""
        print(f"{analysed.text}\n{analysed.hanging_ranks}")
        if not analysed.as_pair:
            return analysed.hanging_ranks
        answer = {"analysis_text": analysed.text, "hanging_ranks": analysed.hanging_ranks}
        return answer, AttributionState.CONTINUE


def eprint(*args: Any, **kwargs: Any) -> None:
    """Print to standard error; the arguments are those of `print`."""
    print(*args, file=sys.stderr, **kwargs)


def main() -> None:
    """Print what the dumps of a command line's paths say."""
    parser = argparse.ArgumentParser(description="Which ranks keep the others waiting")
    parser.add_argument("paths", nargs="+", help="dumps, or directories of them")
    parser.add_argument("-p", "--pattern", default="*.json", help="names of dumps in a directory")
    args = parser.parse_args()
    try:
        CollectiveAnalyzer(args).run_sync(args)
    except ValueError as error:
        parser.error(str(error))


def _settings(configured: Any, given: Any) -> tuple[bool, dict[str, Any]]:
    """Return whether the answer is a pair, and what was configured and given."""
    by_form = given if isinstance(given, argparse.Namespace | Mapping) else configured
    before, now = _as_dict(configured), _as_dict(given)
    if _paths(now):
        for name in ("fr_path", "paths", "input_data"):
            before.pop(name, None)
    return isinstance(by_form, Mapping), before | now


def _as_dict(form: Any) -> dict[str, Any]:
    if form is None:
        return {}
    if isinstance(form, argparse.Namespace):
        return vars(form).copy()
    return dict(form) if isinstance(form, Mapping) else {"paths": form}


def _paths(settings: Mapping[str, Any]) -> list[str | os.PathLike[str]]:
    given = (settings.get(name) for name in ("fr_path", "paths", "input_data"))
    found: Any = next((one for one in given if one), [])
    return [found] if isinstance(found, str | os.PathLike) else list(found)


def _files(path: Path, pattern: str) -> list[Path]:
    if not path.is_dir():
        return [path] if path.exists() else []
    return sorted(
        one for one in path.iterdir() if one.is_file() and fnmatch.fnmatch(one.name, pattern)
    )


if __name__ == "__main__":
    main()
