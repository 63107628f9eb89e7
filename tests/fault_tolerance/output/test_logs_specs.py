import importlib.metadata
import threading
from types import SimpleNamespace

import pytest

from undaunted.fault_tolerance.output import logs_specs
from undaunted.fault_tolerance.output.destinations import Destination, RankOutput
from undaunted.fault_tolerance.output.logs_specs import (
    GROUP,
    LogsSpecsPlugIn,
    PlugInError,
    check_name,
    launch_options,
)
from undaunted.fault_tolerance.run_config import TO_BOTH, TO_CONSOLE, TO_FILE, RunConfig

OWN = [RankOutput(Destination("/own/0"), Destination()), RankOutput(Destination(), Destination())]
ENVS = [{"RANK": "4", "TORCHELASTIC_ERROR_FILE": "/tmp/e4"}, {"RANK": "5"}]


def config(**changes):
    return RunConfig(
        run_id="r", node="n", nproc_per_node=2, max_restarts=0, kind="script", target="t", args=[],
        cwd="/work", run_dir="/run", log_dir="/l", stdout=[TO_BOTH, TO_FILE],
        stderr=[TO_FILE, TO_CONSOLE], **{"logs_specs": "mine", **changes},
    )  # fmt: skip


class ByRank:
    """A plug-in: one directory per rank of the job."""

    def __init__(self, **arguments):
        self.arguments = arguments

    def reify(self, envs):
        for env in envs.values():
            env["TORCHELASTIC_ERROR_FILE"] = "/shared/disk"
            env["LOG_OF"] = env["RANK"]
        return SimpleNamespace(
            stdouts={local: f"/out/{env['RANK']}" for local, env in envs.items()},
            stderrs={0: "err", 1: ""},
            tee_stdouts={1: "/out/5"},
            tee_stderrs={},
        )


class Broken(ByRank):
    def reify(self, envs):
        envs.clear()
        raise KeyError("LOG_ROOT")


class Refusing(ByRank):
    def __init__(self, **arguments):
        raise ValueError("no directory")


class Hanging(ByRank):
    released = threading.Event()

    def reify(self, envs):
        self.released.wait(10)
        raise ValueError


def plug_in_of(monkeypatch, kind, **changes):
    found = SimpleNamespace(load=lambda: kind)
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda *, group, name: (found,) * (name == "mine")
    )
    monkeypatch.setattr(logs_specs, "_arguments", lambda config: {"log_dir": config.log_dir})
    return LogsSpecsPlugIn(config(**changes))


def test_the_plug_in_chooses_files_and_may_add_to_environments(monkeypatch):
    chosen = plug_in_of(monkeypatch, ByRank).choose(OWN, ENVS)
    assert chosen.problem == ""
    assert chosen.outputs == [
        RankOutput(Destination("/out/4"), Destination("/work/err")),
        RankOutput(Destination("/out/5", shown=True), Destination()),
    ]
    assert chosen.envs == [{**ENVS[0], "LOG_OF": "4"}, {"RANK": "5", "LOG_OF": "5"}]


def test_a_plug_in_that_raises_is_named_and_not_followed(monkeypatch):
    chosen = plug_in_of(monkeypatch, Broken).choose(OWN, ENVS)
    assert (chosen.outputs, chosen.envs) == (OWN, ENVS)
    assert chosen.problem == (
        "--logs-specs mine: KeyError: 'LOG_ROOT'; the output of the ranks goes where it would "
        "without the plug-in"
    )


def test_a_plug_in_that_hangs_is_waited_for_once(monkeypatch):
    plug_in = plug_in_of(monkeypatch, Hanging)
    late = plug_in.choose(OWN, ENVS, timeout_s=0.01)
    assert late.outputs == OWN
    assert "mine: no answer within 0.01 s" in late.problem
    assert plug_in.choose(OWN, ENVS, timeout_s=10) == (OWN, ENVS, "")
    Hanging.released.set()


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [(Refusing, "mine", "ValueError: no directory"), (ByRank, "other", "ValueError: not enough")],
)
def test_a_plug_in_that_cannot_be_made(monkeypatch, kind, name, why):
    with pytest.raises(PlugInError, match=f"--logs-specs {name} cannot be used: {why}"):
        plug_in_of(monkeypatch, kind, logs_specs=name)


def test_unknown_names():
    with pytest.raises(ValueError, match=f"no plug-in 'x' in the entry point group {GROUP}: "):
        check_name("x")


def test_known_names(monkeypatch):
    known = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(name, "module:Class", GROUP) for name in ("b", "a")
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: known)
    check_name("a")
    with pytest.raises(ValueError, match=r"torchrun.logs_specs: a, b$"):
        check_name("x")


@pytest.mark.torch
def test_arguments_are_those_of_torchrun():
    multiprocessing = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    std = multiprocessing.Std
    assert logs_specs._arguments(config(console_ranks=[1])) == {
        "log_dir": "/l",
        "redirects": {0: std.OUT | std.ERR, 1: std.OUT},
        "tee": {0: std.OUT, 1: std(0)},
        "local_ranks_filter": {1},
    }


def test_an_instance_becomes_options(monkeypatch):
    class DefaultLogsSpecs:
        _root_log_dir = "/l"
        _redirects = 3
        _tee = {0: 1, 1: 2}  # noqa: RUF012
        _local_ranks_filter = {1, 0}  # noqa: RUF012

    assert launch_options(DefaultLogsSpecs()) == {
        "log-dir": "/l", "redirects": "3", "tee": "0:1,1:2", "local-ranks-filter": "0,1",
    }  # fmt: skip
    with pytest.raises(TypeError, match=r"logs_specs ByRank: .* install it in the group torchrun"):
        launch_options(ByRank())
    value = f"{ByRank.__module__}:ByRank"
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda **_: [importlib.metadata.EntryPoint("mine", value, GROUP)],
    )
    assert launch_options(ByRank())["logs-specs"] == "mine"
