"""One run with a real launcher; its script does nothing but count steps and keep the number."""

from __future__ import annotations

import os
import shutil
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from undaunted.chaos.history import read_history
from undaunted.chaos.nemesis import slow_network
from undaunted.chaos.nemesis.conduct import OUTPUT_FILE, Trial, conduct
from undaunted.chaos.nemesis.small_disk import not_possible
from undaunted.chaos.outcome import read_outcome
from undaunted.chaos.plan import Planned
from undaunted.chaos.reference import first_iteration, iterations_of

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.chaos.outcome import Outcome

pytestmark = pytest.mark.e2e

SCRIPT = """
    import os, signal, sys, threading, undaunted
    from pathlib import Path
    file = Path(sys.argv[1], "done")
    first = int(file.read_text() or 0) if file.exists() else 0
    for step in range(first, 20):
        undaunted.step(step)
        if sys.argv[3:] == ["leave"]:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        if first == 0 and sys.argv[2] == str(step):
            threading.Event().wait(300)
        if step % 5 == 4:
            new = file.with_suffix(".new")
            new.write_bytes(str(step + 1).encode() + b" " * 5000)
            new.replace(file)
"""

SESSION_SCRIPT = """
    import sys, threading
    from pathlib import Path
    from undaunted.progress.writer import current_writer
    from undaunted.training import Session
    file = Path(sys.argv[1], "done")
    first = int(file.read_text()) if file.exists() else 0
    with Session(save=lambda step: file.write_text(str(step + 1))) as session:
        for step in range(first, 20):
            with session.step(step):
                while first == 0 and step == 7 and not current_writer().stop_word:
                    threading.Event().wait(0.001)
            if session.should_stop(step):
                break
    sys.exit(session.exit_code)
"""


def trial(
    tmp_path: Path, *faults: Planned, deadline_s: float = 60.0, disk: int = 0, wait_at: int = -1
) -> Trial:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    directory = tmp_path / "run-1"
    work = directory / "work"
    work.mkdir(parents=True)
    return Trial(
        directory=directory,
        options=["--worker-start", "fresh", "--max-restarts", "3"],
        program=[str(tmp_path / "train.py"), str(work), str(wait_at)],
        environ={name: text for name, text in os.environ.items() if not name.startswith("PET_")},
        deadline_s=deadline_s,
        place=work,
        faults=faults,
        small_disk_bytes=disk,
        disk_full_s=30.0,
    )


def planned(kind: str, iteration: int) -> Planned:
    return Planned(f"{kind}-1", kind, 0, iteration, 1)


def made(outcome: Outcome) -> list[str]:
    return [note.what for note in outcome.notes]


def test_undisturbed(tmp_path: Path) -> None:
    outcome = conduct(trial(tmp_path))

    history = read_history(tmp_path / "run-1")
    assert outcome.exit_codes == [0]
    assert outcome.in_time
    assert not outcome.interrupted
    assert outcome == read_outcome(tmp_path / "run-1") == history.outcome
    assert iterations_of(history) == (0, 19)
    assert first_iteration(history) == 0
    assert "finished" in (tmp_path / "run-1" / OUTPUT_FILE).read_text()


def test_a_fault_of_the_rank_itself(tmp_path: Path) -> None:
    outcome = conduct(trial(tmp_path, planned("kill", 12)))

    (launch,) = read_history(tmp_path / "run-1").launches
    assert outcome.exit_codes == [0]
    assert [fault.text for fault in launch.faults()] == ["kill-1"]
    assert [one.iterations for one in launch.summary.rounds] == [[0], [10]]


def test_a_launcher_that_was_told_to_stop_is_started_again(tmp_path: Path) -> None:
    outcome = conduct(trial(tmp_path, planned("sigterm", 7), planned("kill", 12), wait_at=7))

    assert outcome.exit_codes == [75, 0]
    assert made(outcome) == ["terminated", "restarted"]
    assert (outcome.notes[0].rank, outcome.notes[0].iteration) == (0, 7)
    first, second = read_history(tmp_path / "run-1").launches
    assert [fault.text for fault in first.faults()] == ["sigterm-1"]
    assert [fault.text for fault in second.faults()] == ["kill-1"]


@pytest.mark.parametrize(("last", "codes"), [(19, [0, 0]), (7, [0])])
def test_a_launcher_whose_ranks_leave_with_0_is_started_again_if_work_is_left(
    last: int, codes: list[int], tmp_path: Path
) -> None:
    one = trial(tmp_path, planned("sigterm", 7), wait_at=7)

    outcome = conduct(replace(one, program=[*one.program, "leave"], last=last))

    assert outcome.exit_codes == codes
    assert made(outcome)[0] == "terminated"
    assert iterations_of(read_history(tmp_path / "run-1")) == (0, last)


def test_a_launcher_whose_ranks_have_stopped_in_order_is_started_again(tmp_path: Path) -> None:
    one = trial(tmp_path, planned("preempt", 7), planned("kill", 12))
    (tmp_path / "train.py").write_text(textwrap.dedent(SESSION_SCRIPT))

    outcome = conduct(one)

    assert outcome.exit_codes == [75, 0]
    assert [(note.fault, note.what) for note in outcome.notes] == [("preempt-1", "restarted")]
    first, second = read_history(tmp_path / "run-1").launches
    assert [fault.text for fault in first.faults()] == ["preempt-1"]
    assert [fault.text for fault in second.faults()] == ["kill-1"]
    assert [one.last_iteration for one in first.summary.rounds] == [7]
    assert second.summary.rounds[0].iterations == [8]


def test_a_rank_that_has_no_session_is_started_again_in_the_same_launcher(tmp_path: Path) -> None:
    outcome = conduct(trial(tmp_path, planned("preempt", 7)))

    (launch,) = read_history(tmp_path / "run-1").launches
    assert (outcome.exit_codes, outcome.notes) == ([0], [])
    assert [one.iterations for one in launch.summary.rounds] == [[0], [5]]


def test_a_damaged_checkpoint(tmp_path: Path) -> None:
    outcome = conduct(trial(tmp_path, planned("corrupt-checkpoint", 7)))

    assert made(outcome) == ["damaged"]
    assert outcome.notes[0].text.startswith("done: ")


def test_no_checkpoint_to_damage(tmp_path: Path) -> None:
    outcome = conduct(trial(tmp_path, planned("corrupt-checkpoint", 2)))

    assert made(outcome) == ["failed"]
    assert outcome.notes[0].text == "no checkpoint yet"


def test_a_full_disk_is_emptied_when_the_launcher_has_ended(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.mkdir()
    if reason := not_possible(probe, 1 << 20):
        pytest.skip(reason)

    outcome = conduct(trial(tmp_path, planned("disk-full", 7), disk=1 << 20))

    assert outcome.exit_codes == [1, 0]  # all restarts were used while it was full
    assert made(outcome) == ["filled", "emptied", "restarted"]
    assert "No space left on device" in (tmp_path / "run-1" / OUTPUT_FILE).read_text()
    assert (tmp_path / "run-1" / "work" / "done").read_text().split() == ["20"]


TC_THAT_TELLS = """\
#!/bin/sh
{tc} "$@"
code=$?
[ "$2" != change ] || : > {at}/fifo
exit $code
"""
WAITING_SCRIPT = """
    import os, sys, undaunted
    for step in range(20):
        undaunted.step(step)
        if step == 8:
            os.close(os.open(sys.argv[1], os.O_RDONLY))  # until tc has made it fast again
"""


def test_a_slow_network_is_as_before_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := slow_network.not_possible():
        pytest.skip(reason)
    instead_of_tc(TC_THAT_TELLS, tmp_path, monkeypatch)
    fault = Planned("slow-network-1", "slow-network", 0, 7, 1, seconds=0.01)
    one = trial(tmp_path, fault)
    (tmp_path / "train.py").write_text(textwrap.dedent(WAITING_SCRIPT))

    outcome = conduct(
        replace(one, program=[one.program[0], str(tmp_path / "fifo")], slow_network=True)
    )

    assert outcome.exit_codes == [0]
    assert made(outcome) == ["slowed", "lifted"]
    assert outcome.notes[0].text.startswith("for 0.01 s: ")


def instead_of_tc(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this script called in place of tc, with a named pipe beside it."""
    tc = shutil.which("tc", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    fake = tmp_path / "bin" / "tc"
    fake.parent.mkdir()
    fake.write_text(script.format(at=tmp_path, tc=tc))
    fake.chmod(0o755)
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")


TC_THAT_WAITS = """\
#!/bin/sh
[ -e {at}/begun ] || {{ : > {at}/begun; read -r word < {at}/fifo; }}
exec {tc} "$@"
"""
ASKING_SCRIPT = """
    import os, sys, undaunted
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in range(20):
        if first and step == 7 and os.environ["RANK"] == "1":
            fifo = os.open(sys.argv[1], os.O_WRONLY)  # when tc waits, which it does until our end
        undaunted.step(step)
"""


def test_other_ranks_are_answered_while_tc_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := slow_network.not_possible():
        pytest.skip(reason)
    instead_of_tc(TC_THAT_WAITS, tmp_path, monkeypatch)
    slow = Planned("slow-network-1", "slow-network", 0, 7, 1)
    damage = Planned("corrupt-checkpoint-1", "corrupt-checkpoint", 1, 7, 1)
    one = trial(tmp_path, slow, damage, deadline_s=300.0)
    (tmp_path / "train.py").write_text(textwrap.dedent(ASKING_SCRIPT))

    outcome = conduct(
        replace(
            one,
            options=[*one.options, "--nproc-per-node", "2"],
            program=[one.program[0], str(tmp_path / "fifo")],
            slow_network=True,
        )
    )

    assert outcome.exit_codes == [0]
    assert outcome.notes[0].fault == damage.id


def test_a_run_with_nothing_that_can_be_slow(tmp_path: Path) -> None:
    outcome = conduct(trial(tmp_path, planned("slow-network", 7)))

    assert outcome.exit_codes == [0]
    assert made(outcome) == ["failed"]


def test_a_run_whose_time_is_up_is_ended(tmp_path: Path) -> None:
    outcome = conduct(trial(tmp_path, deadline_s=1.5, wait_at=10))

    assert not outcome.in_time
    assert len(outcome.exit_codes) == 1
    assert outcome.exit_code != 0
