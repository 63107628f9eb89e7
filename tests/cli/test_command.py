import re
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.cli import command as command_module
from undaunted.cli.chaos_arguments import CHAOS
from undaunted.cli.command import HelpAsked, help_text
from undaunted.cli.coordinator import COORDINATOR
from undaunted.cli.ctl import ACTIONS, CTL
from undaunted.cli.doctor import DOCTOR
from undaunted.cli.mcp import MCP
from undaunted.cli.messages import UsageError
from undaunted.cli.options import GROUPS, RUN
from undaunted.cli.report import REPORT
from undaunted.cli.serve import SERVE
from undaunted.cli.slurm_monitor import SLURM_MONITOR
from undaunted.cli.top import TOP

COMMANDS = (
    *(RUN, COORDINATOR, REPORT, TOP, CTL, *ACTIONS.values(), CHAOS, DOCTOR, SERVE, MCP),
    SLURM_MONITOR,
)
DEFAULTS = RUN.schema()
HEARTBEAT = "ft-rank-heartbeat-timeout"


def value(name, *argv, **environ):
    option = RUN.spellings[f"--{name}"]
    return attrgetter(option.field)(RUN.parse([*argv, "train.py"], environ).options)


def test_defaults_are_torchruns_or_nvrxs():
    parsed = RUN.parse(["train.py"], {})
    assert parsed.options.nproc_per_node == 1
    assert parsed.options.max_restarts == 0
    assert parsed.options.term_timeout_s == 1800
    assert parsed.options.stop_timeout_s is None
    assert parsed.options.ft.rank_heartbeat_timeout == 2700
    assert parsed.options.ft.initial_rank_heartbeat_timeout == 3600
    assert parsed.options.ft.rank_out_of_section_timeout is None
    assert parsed.options.ft.install_exception_hook is True
    assert parsed.options.preload == []
    assert parsed.sources == {}


def test_everything_after_the_script_is_the_scripts():
    rest = ["--help", "--nproc-per-node", "9", "-m", "--", "--ft_rank", "-h"]
    parsed = RUN.parse(["--max-restarts=2", "train.py", *rest], {})
    assert (parsed.target, parsed.args) == ("train.py", rest)
    assert parsed.options.nproc_per_node == 1


def test_double_dash_ends_the_options():
    parsed = RUN.parse(["--max-restarts", "1", "--", "-odd.py", "--", "x"], {})
    assert (parsed.target, parsed.args) == ("-odd.py", ["--", "x"])


def test_no_script():
    assert RUN.parse([], {}).target == ""
    assert RUN.parse(["--standalone", "--"], {}).target == ""


@pytest.mark.parametrize(
    "spelling",
    [
        "--ft-rank-heartbeat-timeout",
        "--ft-rank_heartbeat_timeout",
        "--ft_rank_heartbeat_timeout",
        "--ft-param-rank_heartbeat_timeout",
        "--ft-param-rank-heartbeat-timeout",
        "--ft_param_rank_heartbeat_timeout",
    ],
)
def test_spellings(spelling):
    assert value(HEARTBEAT, spelling, "12") == 12
    assert value(HEARTBEAT, f"{spelling}=12") == 12
    assert RUN.parse([f"{spelling}=12"], {}).sources == {HEARTBEAT: f"--{HEARTBEAT}"}


@given(st.sampled_from(RUN.options), st.data())
def test_every_option_is_found_however_it_is_written(option, data):
    dashes = st.lists(st.sampled_from("-_"), min_size=50, max_size=50)
    for name in option.names:
        marks = iter(data.draw(dashes))
        spelling = "--" + "".join(next(marks) if c == "-" else c for c in name)
        default = option.default_of(DEFAULTS)
        if default not in {"", "none"} and not option.about.shown:
            spelling += f"={default}"
            parsed = RUN.parse([spelling, "x"], {})
            assert parsed.sources == {option.name: f"--{option.name}"}


@pytest.mark.parametrize("off", ["", "none", "None", "null"])
def test_timeouts_may_be_off(off):
    assert value(HEARTBEAT, f"--{HEARTBEAT}={off}") is None
    assert value(HEARTBEAT, f"--{HEARTBEAT}", off) is None


def test_short_spellings():
    assert value("redirects", "-r", "3") == 3
    assert value("redirects", "-r3") == 3
    assert value("tee", "-t=0:1,1:2") == {0: 1, 1: 2}
    assert value("module", "-m") is True


def test_a_switch_may_have_a_value():
    hook = "ft-install-exception-hook"
    assert value(hook, f"--{hook}") is True
    assert value(hook, f"--{hook}", "false") is False
    assert value(hook, f"--{hook}=no") is False
    assert RUN.parse([f"--{hook}"], {}).options.ft.install_exception_hook is True


def test_last_one_counts_but_lists_grow():
    assert value("max-restarts", "--max-restarts=1", "--max-restarts=2") == 2
    assert value("inject-fault", "--inject-fault=a", "--inject-fault", "b") == ["a", "b"]
    assert value("preload", "--preload=a,b", "--preload=c") == ["a", "b", "c"]


def test_variables_of_other_tools_are_below_the_own_ones():
    level, stop = "ft-log-level", "workers-stop-timeout"
    other = {"FT_LAUNCHER_LOGLEVEL": "warning", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    parsed = RUN.parse(["train.py"], other)
    assert (parsed.options.ft.log_level, parsed.options.stop_timeout_s) == (30, 7)
    assert parsed.sources[level] == "FT_LAUNCHER_LOGLEVEL"
    assert value(level, PET_FT_LOG_LEVEL="ERROR", **other) == 40
    assert value(stop, PET_SHUTDOWN_TIMEOUT="8", **other) == 8
    assert value(level, "--ft-log-level=DEBUG", **other) == 10


def test_variables_give_defaults():
    environ = {
        "PET_MAX_RESTARTS": "3",
        "PET_NPROC_PER_NODE": "2",
        "PET_STANDALONE": "1",
        "PET_MODULE": "0",
        "PET_ROLE": "",
        "PET_FT_RANK_HEARTBEAT_TIMEOUT": "none",
        "PET_SHUTDOWN_TIMEOUT": "7",
        "PET_UNHEARD_OF": "x",
    }
    parsed = RUN.parse(["--max-restarts", "4", "train.py"], environ)
    assert parsed.options.max_restarts == 4
    assert parsed.options.nproc_per_node == 2
    assert parsed.options.standalone is True
    assert parsed.options.module is False
    assert parsed.options.role == "default"
    assert parsed.options.ft.rank_heartbeat_timeout is None
    assert parsed.options.stop_timeout_s == 7
    assert parsed.sources["nproc-per-node"] == "PET_NPROC_PER_NODE"
    assert parsed.sources["max-restarts"] == "--max-restarts"


@pytest.mark.parametrize("word", ["-h", "--help", "--help-all"])
def test_help_before_the_script(word):
    with pytest.raises(HelpAsked) as caught:
        RUN.parse(["--max-restarts", "1", word, "train.py"], {})
    assert caught.value.everything == (word == "--help-all")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.name)
def test_options_are_sound(command):
    names = [name for option in command.options for name in option.names] + list(command.refused)
    assert len(names) == len(set(names))
    assert not any("_" in name or name.startswith("ft-param-") for name in names)
    shorts = [option.about.short for option in command.options if option.about.short]
    assert len(shorts) == len(set(shorts))
    assert set(command.shown) <= set(names)
    for option in command.options:
        assert option.about.group, option.name
        assert option.about.help, option.name
        assert not option.about.help.endswith(".")


def test_options_of_run_stand_under_known_headings():
    assert {option.about.group for option in RUN.options} <= set(GROUPS)


def test_options_of_chaos_and_run_differ():
    assert not set(CHAOS.spellings) & set(RUN.spellings)


def test_every_name_in_an_error_message_is_an_option():
    """A slip of the pen in `Parsed.source` would only show in a message."""
    asked = re.compile(r"\.(?:source|is_given)\(\s*[\"']([\w-]+)[\"']")
    commands = (RUN, CHAOS, SERVE, SLURM_MONITOR)
    known = {option.name for command in commands for option in command.options}
    used = {
        name
        for file in Path(command_module.__file__).parent.glob("*.py")
        for name in asked.findall(file.read_text("utf-8"))
    }
    assert used
    assert used <= known


@given(st.lists(st.text(alphabet="-_abfhmnprt=03 ", max_size=12), max_size=6))
def test_any_command_line_is_read_or_refused(argv):
    try:
        RUN.parse(argv, {})
    except HelpAsked:
        pass
    except UsageError as error:
        assert str(error)  # noqa: PT017 - other exceptions fail the test


# --- variables that set nothing ---


def test_a_complaint_has_nothing_that_a_terminal_would_act_on(capsys):
    assert REPORT.run(["--\x1b[31m"], print) == 2
    assert "unknown option --\\x1b[31m" in capsys.readouterr().err


# --- help ---


def test_help_has_what_people_use():
    text = help_text(RUN, everything=False)
    assert max(map(len, text.splitlines())) <= 80
    for option in RUN.options:
        assert bool(re.search(rf"--{option.name}\b(?!-)", text)) or option.about.rare, option.name
    assert text.index("Examples:") < text.index("--nproc-per-node N") < text.index("--help-all")
    lines = len(text.splitlines())
    assert lines <= 118, f"run --help has grown to {lines} lines: make the option rare=True"


def test_the_whole_help_knows_every_option():
    text = help_text(RUN, everything=True)
    assert max(map(len, text.splitlines())) <= 80
    for option in RUN.options:
        assert f"--{option.name}" in text
