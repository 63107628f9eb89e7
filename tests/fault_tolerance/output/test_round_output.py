"""Everything that is made of the output of one round, together."""

import os
import threading

import pytest

from undaunted.fault_tolerance.output import round_output
from undaunted.fault_tolerance.output.destinations import Destination, RankOutput
from undaunted.fault_tolerance.output.round_output import RoundOutput
from undaunted.fault_tolerance.run_config import TO_BOTH, RunConfig


def config(tmp_path, **changes):
    return RunConfig(
        run_id="r", node="n", nproc_per_node=2, max_restarts=0, kind="script", target="t", args=[],
        cwd="/", run_dir="/run", log_dir=str(tmp_path), stdout=[TO_BOTH] * 2, stderr=[TO_BOTH] * 2,
        **changes,
    )  # fmt: skip


def outputs(tmp_path):
    return [
        RankOutput(
            *(
                Destination(str(tmp_path / "attempt_1" / str(rank) / f"{stream}.log"), shown=True)
                for stream in ("stdout", "stderr")
            )
        )
        for rank in (0, 1)
    ]


def write(output, text):
    for rank, both in enumerate(output):
        for name, stream in zip(("out", "err"), both, strict=True):
            with open(stream.path, "ab") as file:  # noqa: PTH123
                file.write(text % (name.encode(), rank))


def test_filtered_copies_have_the_lines_of_their_stream_that_match(tmp_path, capfd):
    settings = config(tmp_path, stdout_filters=["loss", "odd,"], stderr_filters=["err 1"])
    files = outputs(tmp_path)
    output = RoundOutput(settings, 1, [2, 3], 4, files)
    assert output.start() == []
    write(files, b"loss of %s %d\nother\nan odd, line")
    output.request_close()
    assert output.close() == []
    found = (tmp_path / "attempt_1" / "filtered_stdout.log").read_text()
    assert sorted(found.splitlines()) == [
        "[default2]:an odd, line",
        "[default2]:loss of out 0",
        "[default3]:an odd, line",
        "[default3]:loss of out 1",
    ]
    found = (tmp_path / "attempt_1" / "filtered_stderr.log").read_text()
    assert found == "[default3]:loss of err 1\n"
    assert capfd.readouterr().out.count("[default2]:other\n") == 1


def test_without_anything_asked_for_nothing_is_made(tmp_path):
    output = RoundOutput(
        config(tmp_path), 1, [0, 1], 2, [RankOutput(Destination(), Destination())] * 2
    )
    assert output.start() == []
    assert output.close() == []
    assert os.listdir(tmp_path) == []


def test_problems_are_told_once(tmp_path):
    (tmp_path / "file").touch()
    settings = config(tmp_path, applog_prefix=str(tmp_path / "file" / "log"))
    output = RoundOutput(settings, 1, [0, 1], 2, outputs(tmp_path), problem="of the plug-in")
    first, second = output.start()
    assert first == "of the plug-in"
    assert "Not a directory" in second
    assert output.close() == []


def test_files_that_do_not_open_are_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(round_output, "_OPEN_S", 0.01)
    answers = threading.Event()

    def hangs(path, **how):
        answers.wait(30)
        raise OSError("at last")

    settings = config(tmp_path, applog_prefix=str(tmp_path / "log"))
    output = RoundOutput(settings, 1, [0, 1], 2, outputs(tmp_path), open_log=hangs)
    (line,) = output.start()
    assert line == f"{tmp_path} does not answer: output of the ranks may not be shown"
    answers.set()
    for thread in threading.enumerate():
        if thread.name == "undaunted-deadline":
            thread.join(30)
    output.request_close()
    output.close()


@pytest.mark.parametrize("missing", ["stdout", "stderr"])
def test_a_filter_without_sources_makes_an_empty_file(tmp_path, missing):
    settings = config(tmp_path, **{f"{missing}_filters": ["x"]})
    output = RoundOutput(settings, 0, [0, 1], 2, [RankOutput(Destination(), Destination())] * 2)
    assert output.start() == []
    assert output.close() == []
    assert (tmp_path / "attempt_0" / f"filtered_{missing}.log").read_bytes() == b""
