import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.cli.not_built import NOT_BUILT
from undaunted.cli.options import GROUPS, OPTIONS
from undaunted.cli.parse import UsageError, parse, words_of_option

HEARTBEAT = "ft-rank-heartbeat-timeout"


def value(name, *argv, **environ):
    return parse([*argv, "train.py"], environ).values[name]


def test_defaults_are_torchruns_or_nvrxs():
    parsed = parse(["train.py"], {})
    assert parsed.values["nproc-per-node"] == 1
    assert parsed.values["max-restarts"] == 0
    assert parsed.values["term-timeout"] == 1800
    assert parsed.values["workers-stop-timeout"] is None
    assert parsed.values[HEARTBEAT] == 2700
    assert parsed.values["ft-initial-rank-heartbeat-timeout"] == 3600
    assert parsed.values["ft-rank-out-of-section-timeout"] is None
    assert parsed.values["ft-install-exception-hook"] is True
    assert parsed.values["preload"] == []
    assert parsed.sources == {}


def test_everything_after_the_script_is_the_scripts():
    rest = ["--help", "--nproc-per-node", "9", "-m", "--", "--ft_rank", "-h"]
    parsed = parse(["--max-restarts=2", "train.py", *rest], {})
    assert (parsed.target, parsed.args) == ("train.py", rest)
    assert parsed.values["nproc-per-node"] == 1
    assert not parsed.wants_help


def test_double_dash_ends_the_options():
    parsed = parse(["--max-restarts", "1", "--", "-odd.py", "--", "x"], {})
    assert (parsed.target, parsed.args) == ("-odd.py", ["--", "x"])


def test_no_script():
    assert parse([], {}).target == ""
    assert parse(["--standalone", "--"], {}).target == ""


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
    assert parse([f"{spelling}=12"], {}).sources == {HEARTBEAT: f"--{HEARTBEAT}"}


@given(st.sampled_from(OPTIONS), st.data())
def test_every_option_is_found_however_it_is_written(option, data):
    dashes = st.lists(st.sampled_from("-_"), min_size=50, max_size=50)
    for name in (option.name, *option.aliases):
        marks = iter(data.draw(dashes))
        spelling = "--" + "".join(next(marks) if c == "-" else c for c in name)
        if option.kind == "value" and option.default and not option.not_built:
            spelling += f"={option.default}"
            parsed = parse([spelling, "x"], {})
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
    assert parse([f"--{hook}"], {}).values[hook] is True


def test_last_one_counts_but_lists_grow():
    assert value("max-restarts", "--max-restarts=1", "--max-restarts=2") == 2
    assert value("inject-fault", "--inject-fault=a", "--inject-fault", "b") == ["a", "b"]
    assert value("preload", "--preload=a,b", "--preload=c") == [["a", "b"], ["c"]]


def test_variables_of_other_tools_are_below_the_own_ones():
    level, stop = "ft-log-level", "workers-stop-timeout"
    other = {"FT_LAUNCHER_LOGLEVEL": "warning", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    parsed = parse(["train.py"], other)
    assert (parsed.values[level], parsed.values[stop]) == (30, 7)
    assert parsed.sources[level] == "FT_LAUNCHER_LOGLEVEL"
    assert value(level, PET_FT_LOG_LEVEL="ERROR", **other) == 40
    assert value(stop, PET_SHUTDOWN_TIMEOUT="8", **other) == 8
    assert value(level, "--ft-log-level=DEBUG", **other) == 10
    with pytest.raises(UsageError, match="FT_LAUNCHER_LOGLEVEL: 'loud' is not a log level"):
        parse(["train.py"], {"FT_LAUNCHER_LOGLEVEL": "loud"})


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
    parsed = parse(["--max-restarts", "4", "train.py"], environ)
    assert parsed.values["max-restarts"] == 4
    assert parsed.values["nproc-per-node"] == 2
    assert parsed.values["standalone"] is True
    assert parsed.values["module"] is False
    assert parsed.values["role"] == "default"
    assert parsed.values[HEARTBEAT] is None
    assert parsed.values["workers-stop-timeout"] == 7
    assert parsed.sources["nproc-per-node"] == "PET_NPROC_PER_NODE"
    assert parsed.sources["max-restarts"] == "--max-restarts"


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        (["--nproc"], {}, "unknown option --nproc; did you mean --nproc-per-node?"),
        (["--max-restart=3"], {}, "unknown option --max-restart; did you mean --max-restarts?"),
        (["-x"], {}, "unknown option -x; see --help"),
        (["--zzz"], {}, "unknown option --zzz; see --help"),
        (["-nproc", "3"], {}, "unknown option -n"),
        (["--max-restarts"], {}, "--max-restarts needs a value (N)"),
        (["--max-restarts", "--tee", "3"], {}, "--max-restarts needs a value (N)"),
        (["--role", "-m", "x"], {}, "--role needs a value (NAME)"),
        (["--max_restarts", "few"], {}, "--max-restarts: 'few' is not a whole number from 0"),
        (["--max-restarts", "-1"], {}, "--max-restarts: '-1' is not a whole number from 0"),
        (["--standalone=yes"], {}, "--standalone takes no value, but was given 'yes'"),
        ([], {"PET_NNODES": "4:2"}, "PET_NNODES: '4:2': give N or MIN:MAX"),
        ([], {"PET_MODULE": "x"}, "PET_MODULE: 'x' is neither true nor false"),
        (["--ft-attribution-export-url", "u"], {}, "starts: not built yet, leave it out"),
        (["--ft-attrsvc-port", "http"], {}, "--ft-attrsvc-port: 'http' is not a whole number from"),
        ([], {"PET_FT_ATTRIBUTION_EXPORT_URL": "u"}, "PET_FT_ATTRIBUTION_EXPORT_URL belongs to an"),
        ([], {"PET_EVENT_LOG_HANDLER": "console"}, "PET_EVENT_LOG_HANDLER: 'console': torchrun"),
    ],
)
def test_mistakes_are_named_with_the_remedy(argv, environ, message):
    with pytest.raises(UsageError) as caught:
        parse([*argv], environ)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_before_the_script(word):
    assert parse(["--max-restarts", "1", word, "train.py"], {}).wants_help


def test_table_is_sound():
    refused = [name for _, names in NOT_BUILT for name in names]
    names = [name for option in OPTIONS for name in (option.name, *option.aliases)] + refused
    assert len(names) == len(set(names))
    assert not any("_" in name or name.startswith("ft-param-") for name in names)
    shorts = [option.short for option in OPTIONS if option.short]
    assert len(shorts) == len(set(shorts))
    for option in OPTIONS:
        assert option.group in GROUPS
        assert not option.help.endswith(".")
        assert bool(option.metavar) == (option.kind != "flag")


@given(st.lists(st.text(alphabet="-_abfhmnprt=03 ", max_size=12), max_size=6))
def test_any_command_line_is_read_or_refused(argv):
    try:
        parse(argv, {})
    except UsageError as error:
        assert str(error)  # noqa: PT017 - other exceptions fail the test


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--max-restarts", "3", "train.py"], 2),
        (["--max-restarts=3", "train.py"], 1),
        (["--ft_max_no_progress_cycles", "3"], 2),
        (["-m", "package.train"], 1),
        (["--ft-learn-timeouts", "train.py"], 1),
        (["--ft-learn-timeouts", "false", "train.py"], 2),
    ],
)
def test_words_of_an_option(argv: list[str], words: int) -> None:
    assert words_of_option(argv) == words


def test_words_of_what_is_no_option() -> None:
    with pytest.raises(UsageError, match="unknown option --nonsense"):
        words_of_option(["--nonsense", "3"])
    with pytest.raises(UsageError, match="needs a value"):
        words_of_option(["--max-restarts"])
