"""`undaunted run --config job.yaml`: options from a file."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from undaunted.base.options import as_text
from undaunted.cli.messages import UsageError
from undaunted.cli.options import RUN
from undaunted.fault_tolerance.launch_config import LaunchConfig
from undaunted.fault_tolerance.launch_config import options as launch_options

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.base.options import Option
    from undaunted.cli.options import RunParsed


def parsed(tmp_path: Path, text: str, *words: str, **environ: str) -> RunParsed:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return RUN.parse(["--config", str(path), *words, "train.py", "--config", "own.yaml"], environ)


def test_all_that_a_command_line_can_say(tmp_path: Path) -> None:
    text = """
    # of the whole job
    Workers:
      nproc_per_node: 4
      max-restarts: 3
    nothing here yet:
    several nodes:
      nnodes: 2:4
      rdzv-conf: {join_timeout: 60, lease: 2}
      elastic: true
      standalone: off
    tee: {0: 3, 1: 1}
    local-ranks-filter: [0, 1]
    inject-fault: ["sigkill:rank=1,iteration=5", "exception:rank=0,iteration=7"]
    fault_tolerance:
      rank_heartbeat_timeout: 10m
      rank_section_timeouts: {step: 3m, setup: none}
      max-no-progress-cycles: 5
    node-name:
    """
    words = (
        "--nproc-per-node=4 --max-restarts=3 --nnodes=2:4 --rdzv-conf=join_timeout=60,lease=2"
        " --elastic --tee=0:3,1:1 --local-ranks-filter=0,1"
        " --inject-fault=sigkill:rank=1,iteration=5 --inject-fault=exception:rank=0,iteration=7"
        " --ft-rank-heartbeat-timeout=10m --ft-rank-section-timeouts=step:3m,setup:none"
        " --ft-max-no-progress-cycles=5"
    )
    found = parsed(tmp_path, text)
    expected = RUN.parse([*words.split(), "--config", found.options.config, "train.py"], {})
    assert found.options == expected.options
    assert found.args == ["--config", "own.yaml"]
    assert found.source("max-restarts") == f"max-restarts in {tmp_path}/job.yaml"
    assert not found.is_given("node-name")


def test_variables_and_options_go_before_it(tmp_path: Path) -> None:
    text = "max-restarts: 1\nnproc-per-node: 2\nrdzv-id: a"
    found = parsed(tmp_path, text, "--max-restarts", "7", PET_NPROC_PER_NODE="3")
    assert found.options.max_restarts == 7
    assert found.options.nproc_per_node == 3
    assert found.options.rdzv_id == "a"
    by_variable = RUN.parse(["train.py"], {"PET_CONFIG": found.options.config})
    assert by_variable.options.max_restarts == 1
    assert RUN.parse(["train.py"], {"PET_CONFIG": ""}).options.max_restarts == 0


def test_each_option_may_stand_in_it(tmp_path: Path) -> None:
    """Its default, as the help shows it, is a value."""
    defaults = RUN.schema()
    for option in RUN.options:
        if not option.field or option.name == "config":
            continue
        text = as_text(option.value_in(defaults)) if option.metavar else "false"
        if text == "none" or text[0] in "({[":
            continue
        found = parsed(tmp_path, f"{option.name}: '{text}'")
        assert option.value_in(found.options) == option.value_in(defaults), option.name


@pytest.mark.parametrize("text", ["", "# nothing\n", "workers:\n"])
def test_nothing_in_it(tmp_path: Path, text: str) -> None:
    assert not {*parsed(tmp_path, text).sources} - {"config"}


SAMPLES = (
    *("1", "false", "2:4", "host:29500", "a=1", "10m", "TERM", "3/1h", "step:3m", "host", "/x"),
    *("http://127.0.0.1:4318", "sigkill:rank=1,iteration=1", "gpu", "x={rank}", "etcd://host:2379"),
    "${rank}: ",
)


@pytest.mark.parametrize(
    "option",
    [each for each in RUN.options if each.field and each.name != "config"],
    ids=lambda option: option.name,
)
def test_every_way_to_give_an_option_means_the_same(tmp_path: Path, option: Option) -> None:
    """By the command line, the environment, the file below the heading of the help, and Python."""
    samples = (*option.kind.choices, as_text(option.value_in(RUN.schema())), *SAMPLES)
    for text in samples if option.metavar else ("true",):
        word = f"--{option.name}={text}" if option.metavar else f"--{option.name}"
        try:
            found = RUN.parse([word, "train.py"], {}).options
        except UsageError:
            continue
        break
    else:
        pytest.fail("no sample is a value of this option")
    assert RUN.parse(["train.py"], {option.variables[0]: text}).options == found
    file = json.dumps({option.about.group: {option.name: text}})  # JSON is YAML
    of_file = parsed(tmp_path, file).options
    assert msgspec.structs.replace(of_file, config=found.config) == found
    if option.name.replace("-", "_") not in {e.name for e in dataclasses.fields(LaunchConfig)}:
        config = LaunchConfig(1, 1, 1, options={option.name: text if option.metavar else True})
        assert word in launch_options(config, "run")
