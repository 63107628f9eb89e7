"""Plug-ins of torchrun that choose the files of the ranks (``--logs-specs``).

Such a plug-in is a subclass of torch's ``LogsSpecs``, so torch is imported here, and only here, in
the launcher: when one is asked for by name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.base.deadline import within
from undaunted.fault_tolerance.output.destinations import Destination, RankOutput
from undaunted.fault_tolerance.run_config import TO_BOTH, TO_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.fault_tolerance.run_config import RunConfig

GROUP = "torchrun.logs_specs"
_REIFY_S = 5.0  # the plug-in may make directories on a disk that hangs
_OURS = "TORCHELASTIC_ERROR_FILE"  # the launcher reads these files, so they stay on a local disk


class PlugInError(OSError):
    """The plug-in cannot be used; the message says why."""


class Chosen(NamedTuple):
    """The choice of the plug-in for a round.

    Attributes:
        outputs: by local rank.
        envs: environments of the ranks, which the plug-in may have changed.
        problem: why the plug-in's choice is not used, "" = it is.
    """

    outputs: list[RankOutput]
    envs: list[dict[str, str]]
    problem: str = ""


def check_name(name: str) -> None:
    """Check that a plug-in of this name is installed. Does not import it.

    Raises:
        ValueError: it is not; the message names installed ones.
    """
    from importlib.metadata import entry_points

    known = sorted(entry_points(group=GROUP).names)
    if name not in known:
        there = ", ".join(known) if known else "none are installed"
        raise ValueError(f"no plug-in {name!r} in the entry point group {GROUP}: {there}")


class LogsSpecsPlugIn:
    """One plug-in, for the whole run."""

    def __init__(self, config: RunConfig) -> None:
        """Import and make it.

        Raises:
            PlugInError: not possible.
        """
        from importlib.metadata import entry_points

        self._config = config
        self._late = False
        try:
            (found,) = entry_points(group=GROUP, name=config.logs_specs)
            self._specs: Any = found.load()(**_arguments(config))
        except Exception as error:
            raise PlugInError(
                f"--logs-specs {config.logs_specs} cannot be used: {_reason(error)}"
            ) from error

    def choose(
        self,
        own: Sequence[RankOutput],
        envs: Sequence[Mapping[str, str]],
        timeout_s: float = _REIFY_S,
    ) -> Chosen:
        """Ask for the files of a round.

        Args:
            own: what is used when the plug-in fails.
            envs: complete environments of the ranks.
            timeout_s: longest wait; afterwards the plug-in is not asked any more.
        """
        if self._late:
            return Chosen(list(own), [dict(env) for env in envs])

        def ask() -> Chosen:
            try:
                return self._ask(envs)
            except Exception as error:  # noqa: BLE001 - it is the user's code
                return otherwise._replace(problem=self._problem(_reason(error)))

        otherwise = Chosen(list(own), [dict(env) for env in envs])
        late = otherwise._replace(problem=self._problem(f"no answer within {timeout_s:g} s"))
        chosen = within(timeout_s, ask, late)
        self._late = chosen is late
        return chosen

    def _ask(self, envs: Sequence[Mapping[str, str]]) -> Chosen:
        given = {local_rank: dict(env) for local_rank, env in enumerate(envs)}
        chosen = self._specs.reify(given)
        outputs = [
            RankOutput(
                self._destination(chosen.stdouts, chosen.tee_stdouts, local_rank),
                self._destination(chosen.stderrs, chosen.tee_stderrs, local_rank),
            )
            for local_rank in given
        ]
        changed = []
        for local_rank, env in enumerate(envs):
            new = {str(name): str(value) for name, value in given[local_rank].items()}
            new.pop(_OURS, None)
            changed.append(new | ({_OURS: env[_OURS]} if _OURS in env else {}))
        return Chosen(outputs, changed)

    def _destination(
        self, files: Mapping[int, str], shown: Mapping[int, str], local_rank: int
    ) -> Destination:
        path = str(files.get(local_rank) or "")
        if not path:
            return Destination()
        absolute = os.path.join(self._config.cwd, path)  # noqa: PTH118 - keeps what is absolute
        return Destination(absolute, shown=bool(shown.get(local_rank)))

    def _problem(self, why: str) -> str:
        return (
            f"--logs-specs {self._config.logs_specs}: {why}; the output of the ranks goes where it "
            "would without the plug-in"
        )


def launch_options(specs: Any) -> dict[str, str]:
    """Return the options of `undaunted run`, without dashes, that do what an instance says.

    Args:
        specs: torch's ``DefaultLogsSpecs``, or an instance of a class that is installed as a
            plug-in; ``__init__`` of the latter is called again, in the launcher.

    Raises:
        TypeError: the launcher, another process, has no name for its class.
    """
    from importlib.metadata import entry_points

    options = {}
    kind = type(specs)
    value = f"{kind.__module__}:{kind.__qualname__}"
    names = [found.name for found in entry_points(group=GROUP) if found.value == value]
    if names:
        options["logs-specs"] = names[0]
    elif kind.__name__ != "DefaultLogsSpecs":
        raise TypeError(
            f"logs_specs {kind.__qualname__}: the launcher is a process of its own and finds such "
            f"a class by its entry point; install it in the group {GROUP}, as {value!r}"
        )
    if root := getattr(specs, "_root_log_dir", None):
        options["log-dir"] = str(root)
    for option, attribute in (("redirects", "_redirects"), ("tee", "_tee")):
        options[option] = _streams(getattr(specs, attribute, 0))
    if ranks := getattr(specs, "_local_ranks_filter", None):
        options["local-ranks-filter"] = ",".join(map(str, sorted(ranks)))
    return options


def _streams(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{rank}:{int(streams)}" for rank, streams in value.items()) or "0"
    return str(int(value))


def _arguments(config: RunConfig) -> dict[str, Any]:
    """Arguments that torchrun gives to the class."""
    from torch.distributed.elastic.multiprocessing import Std

    def streams(bit: int) -> dict[int, Any]:
        wanted = enumerate(zip(config.stdout, config.stderr, strict=True))
        return {
            rank: Std((1 if out & bit == bit else 0) | (2 if err & bit == bit else 0))
            for rank, (out, err) in wanted
        }

    return {
        "log_dir": config.log_dir,
        "redirects": streams(TO_FILE),
        "tee": streams(TO_BOTH),
        "local_ranks_filter": None if config.console_ranks is None else set(config.console_ranks),
    }


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
