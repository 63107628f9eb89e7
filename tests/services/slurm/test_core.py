"""The monitor's decisions: simulated under faults, and case by case."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import msgspec
import pytest

from tests.services.slurm.simulated import PERIOD_S, Faults, World, world
from undaunted.services.slurm import core
from undaunted.services.slurm.core import Job, Listed, Monitor, Reply, Stage

NOW = 1e9
RESULT = {
    "status": "completed",
    "result": {"result": "rank 3 ran out of memory"},
    "recommendation": {"action": "RESTART", "source": "rules"},
}


def check(run: World, monitor: Monitor) -> None:
    """Each job that was ever kept is submitted as complete once, and closed with its result."""
    closings: Counter[str] = Counter()
    for (id_, _, intent), times in run.taken.items():
        # A request whose answer nobody has heard is sent again, in the same words.
        assert times <= 1 + run.lost[id_], f"{id_}: {intent} was sent {times} times"
        closings[id_] += intent == "terminal"
    assert set(closings.values()) <= {1}
    assert closings.keys() == run.files.keys() == monitor.jobs.keys()
    for content in run.files.values():
        kept = msgspec.json.decode(content)
        assert (kept["stage"], kept["outcome"], kept["action"]) == ("closed", "result", "RESTART")
        assert kept["answer"]["status"] == "completed"
        assert kept["state"] in (*core.ENDED, core.FINISHED)


def test_without_faults_everything_is_done_once() -> None:
    run = world(1, 60, Faults())
    monitor = run.run()
    check(run, monitor)
    assert set(run.taken.values()) == {1}
    assert len(run.files) == 60
    ended = {id_: msgspec.json.decode(content)["state"] for id_, content in run.files.items()}
    assert ended == {plan.id: plan.states[-1][1] for plan in run.plans}
    assert any(restarts for _, restarts, _ in run.taken)


@pytest.mark.parametrize("seed", range(12))
def test_killed_and_started_again_at_any_moment(seed: int) -> None:
    run = world(seed, 30, Faults(kill=0.03))
    check(run, run.run())
    assert run.kills
    assert len(run.files) == 30


@pytest.mark.parametrize("seed", range(12))
def test_all_faults_at_once(seed: int) -> None:
    faults = Faults(kill=0.01, squeue=0.1, omitted=0.1, sacct=0.3, service=0.4, disk=0.1)
    run = world(seed, 25, faults)
    check(run, run.run())


@pytest.mark.parametrize("seed", range(6))
def test_jobs_leave_the_queue_unseen(seed: int) -> None:
    """Slurm forgets jobs at once (MinJobAge=0), and squeue often fails: sacct knows."""
    run = world(seed, 30, Faults(squeue=0.3, sacct=0.3, kept_in_queue_s=0.0, kill=0.005))
    check(run, run.run())
    known = {msgspec.json.decode(content)["state"] for content in run.files.values()}
    assert known - {core.FINISHED}


# --- case by case ---------------------------------------------------------------------------------


def listed(state: str = "RUNNING", **other: object) -> Listed:
    job = Listed("7", 0, "t0", state, "me", "batch", "/logs/7.out", "train")
    return job._replace(**other)  # type: ignore[arg-type]


class Driven:
    """A monitor whose commands are answered one by one; what is kept and said happens at once."""

    def __init__(self, *kept: Job) -> None:
        self.now = NOW
        self.monitor = Monitor(kept, NOW, period_s=PERIOD_S, give_up_s=3600.0)
        self.lines: list[str] = []
        self.kept: dict[str, Job] = {}
        self.forgotten: list[str] = []
        self.last: tuple[Listed, ...] = ()

    def next(self) -> core.Command:
        while True:
            command = self.monitor.next(self.now)
            match command:
                case core.Say(text):
                    self.lines.append(text)
                    self.monitor.said()
                case core.Keep(job, _):
                    self.kept[job.id] = msgspec.structs.replace(job)
                    self.monitor.kept(job.id, self.now)
                case core.Forget(id_):
                    self.forgotten.append(id_)
                    self.monitor.forgotten()
                case _:
                    return command

    def wait(self) -> None:
        command = self.next()
        assert isinstance(command, core.Wait), command
        self.now = command.until

    def list(self, *jobs: Listed) -> None:
        while not isinstance(self.next(), core.ListJobs):
            self.wait()
        self.last = jobs
        self.monitor.listed(jobs, self.now)

    def request(self) -> tuple[str, str]:
        """The request that is sent next: its intent, "" = a question; and the job."""
        while True:
            match self.next():
                case core.Wait(until):
                    self.now = until
                case core.ListJobs():
                    self.monitor.listed(self.last, self.now)
                case core.Submit(job, intent):
                    return intent, job.id
                case core.Ask(job):
                    return "", job.id
                case other:
                    raise AssertionError(other)

    def answer(self, status: int = 200, **more: object) -> None:
        command = self.next()
        assert isinstance(command, core.Submit | core.Ask), command
        self.monitor.replied(command.job, Reply(status, **more), self.now)  # type: ignore[arg-type]

    def account(self, states: dict[str, str] | None) -> None:
        command = self.next()
        assert isinstance(command, core.Account), command
        self.monitor.accounted(command.ids, states, self.now)

    @property
    def job(self) -> Job:
        return self.monitor.jobs["7"]


def closed(**other: object) -> Job:
    fields = listed("FAILED")._asdict() | {"stage": Stage.CLOSED, "since": NOW - 5.0} | other
    return Job(**fields)


def test_the_way_of_a_job() -> None:
    run = Driven()
    run.list(listed())
    assert run.request() == ("track_only", "7")
    run.answer()
    run.list(listed())
    run.list(listed("FAILED"))
    assert run.request() == ("terminal", "7")
    run.answer()
    asked_at = run.now
    assert run.request() == ("", "7")
    assert run.now == asked_at + core.FIRST_WAIT_S
    run.answer(body={"status": "in_flight"})
    assert run.request() == ("", "7")
    assert run.now == asked_at + 2 * core.FIRST_WAIT_S
    run.answer(body=RESULT)
    assert isinstance(run.next(), core.Wait)
    assert (run.job.stage, run.job.outcome) == (Stage.CLOSED, "result")
    assert run.kept["7"] == run.job
    assert run.lines == ["job 7 (train) FAILED, advice RESTART: rank 3 ran out of memory"]


def test_a_job_that_has_not_begun_is_not_followed() -> None:
    run = Driven()
    run.list(listed("PENDING", log_path=""), listed("CANCELLED", id="8", log_path=""))
    assert isinstance(run.next(), core.Wait)
    assert not run.monitor.jobs


def test_a_job_that_goes_back_to_the_queue_has_not_ended() -> None:
    run = Driven()
    run.list(listed())
    run.answer()
    run.list(listed("PENDING", restarts=1, submitted="t1", log_path=""))
    run.list(listed(restarts=1, submitted="t1", log_path="/logs/7-again.out"))
    assert isinstance(run.next(), core.Wait)
    assert (run.job.restarts, run.job.log_path) == (1, "/logs/7-again.out")
    run.list(listed("COMPLETED", restarts=1, submitted="t1", log_path="/logs/7-again.out"))
    assert run.request() == ("terminal", "7")


def test_a_job_that_is_cancelled_when_it_is_back_in_the_queue_has_its_log() -> None:
    run = Driven()
    run.list(listed())
    run.answer()
    run.list(listed("PENDING", restarts=1, submitted="t1", log_path=""))
    run.list(listed("CANCELLED", restarts=1, submitted="t1", log_path=""))
    assert run.request() == ("terminal", "7")
    assert run.job.log_path == "/logs/7.out"


def test_a_job_that_is_started_again_after_its_end_is_another_one() -> None:
    run = Driven(closed())
    run.list(listed("FAILED"))
    assert isinstance(run.next(), core.Wait)  # it is still shown, and done with
    run.list(listed("PENDING", restarts=1, submitted="t1", log_path=""))
    assert run.job.stage is Stage.CLOSED
    run.list(listed(restarts=1, submitted="t1"))
    assert run.request() == ("track_only", "7")


def test_a_log_that_is_not_there_yet_is_tried_again_with_the_next_listing() -> None:
    run = Driven()
    run.list(listed())
    run.answer(404, body={"error_code": "not_found"}, problem="404 no such file")
    assert isinstance(run.next(), core.Wait)
    run.list(listed())
    assert run.request() == ("track_only", "7")
    run.answer(403, body={"error_code": "outside_root"}, problem="403 outside")
    run.list(listed())
    assert isinstance(run.next(), core.Wait)
    run.list(listed("FAILED"))
    assert run.request() == ("terminal", "7")
    run.answer(403, body={"error_code": "outside_root"}, problem="403 outside")
    assert (run.job.stage, run.job.outcome, run.job.text) == (
        Stage.CLOSED,
        "refused",
        "403 outside",
    )


def test_one_listing_without_a_job_proves_nothing() -> None:
    run = Driven()
    run.list(listed())
    run.answer()
    run.list()
    assert isinstance(run.next(), core.Wait)
    run.list(listed())
    run.list()
    assert isinstance(run.next(), core.Wait)
    run.list()
    run.account({"7": "TIMEOUT"})
    assert run.request() == ("terminal", "7")
    assert run.job.state == "TIMEOUT"


def test_a_job_of_which_there_is_no_account_has_finished() -> None:
    run = Driven()
    run.list(listed())
    run.answer()
    run.list()
    run.list()
    run.account({})
    assert run.request() == ("terminal", "7")
    assert run.job.state == core.FINISHED


def test_sacct_that_fails_is_asked_three_times() -> None:
    run = Driven()
    run.list(listed())
    run.answer()
    run.list()
    for states in (None, {"7": "RUNNING"}, None):
        run.list()
        run.account(states)
    assert run.request() == ("terminal", "7")
    assert run.job.state == core.FINISHED


def test_many_jobs_are_accounted_in_parts() -> None:
    run = Driven()
    jobs = [listed(id=f"{number}") for number in range(core.ACCOUNTED_AT_ONCE + 1)]
    run.list(*jobs)
    run.monitor.list_soon(run.now)
    run.list()
    run.monitor.list_soon(run.now)
    run.list()
    for expected in (core.ACCOUNTED_AT_ONCE, 1):
        command = run.next()
        assert isinstance(command, core.Account)
        assert len(command.ids) == expected
        run.account({})


def test_squeue_that_fails_changes_nothing_and_is_said_once() -> None:
    run = Driven()
    run.list(listed())
    run.answer()
    for _ in range(3):
        while not isinstance(run.next(), core.ListJobs):
            run.wait()
        run.monitor.not_listed("Unable to contact slurm controller", run.now)
    assert isinstance(run.next(), core.Wait)
    assert run.job.stage is Stage.TRACKED
    assert run.monitor.problems == {"squeue": "Unable to contact slurm controller"}
    run.list(listed())
    assert isinstance(run.next(), core.Wait)
    assert run.lines == ["Unable to contact slurm controller", "squeue works again"]
    assert not run.monitor.problems


def test_a_service_that_is_away_is_tried_less_and_less_often() -> None:
    run = Driven()
    run.list(listed("FAILED"))
    tried = []
    for _ in range(8):
        assert run.request() == ("terminal", "7")
        tried.append(run.now)
        run.answer(core.UNREACHABLE, problem="connection refused")
    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps[:4] == [10.0, 20.0, 40.0, 80.0]
    assert set(gaps[5:]) == {core.LONGEST_WAIT_S}
    assert run.lines == ["connection refused"]
    run.request()
    run.answer()
    assert run.job.stage is Stage.ASKED


def test_a_service_that_wants_fewer_requests_is_left_alone() -> None:
    run = Driven()
    run.list(listed("FAILED"))
    run.answer(429, problem="429 too many", retry_after_s=55.0)
    before = run.now
    assert run.request() == ("terminal", "7")
    assert run.now == before + 55.0
    assert not run.monitor.problems


def test_a_service_that_wants_fewer_requests_for_ever_is_a_problem_said_once() -> None:
    run = Driven()
    run.list(listed("FAILED"))
    for seconds in range(6):
        assert ("service" in run.monitor.problems) == (seconds >= core.PATIENCE)
        run.request()
        run.answer(429, problem=f"429: again in {seconds} s")
    assert "429" in run.monitor.problems["service"]
    assert len(run.lines) == 1
    run.request()
    run.answer()
    run.next()
    assert run.lines[1:] == ["service works again"]
    assert not run.monitor.problems


def test_a_service_that_is_strange_and_then_wants_fewer_requests_does_not_work_again() -> None:
    run = Driven()
    run.list(listed("FAILED"))
    for number in range(2):
        run.request()
        run.answer(404, problem=f"the service: 404 <html> request {number}")
    run.request()
    run.answer(429, problem="429 too many")
    run.next()
    assert [line[:20] for line in run.lines] == ["the service: 404 <ht", "the service has want"]
    assert "429" in run.monitor.problems["service"]


def test_what_is_quoted_may_be_another_each_time() -> None:
    run = Driven()
    for text in ("no list: 'a'", "no list: 'b'", 'no list: "it\'s"', "cannot be run\n"):
        while not isinstance(run.next(), core.ListJobs):
            run.wait()
        run.monitor.not_listed(text, run.now)
        assert run.monitor.problems == {"squeue": text.strip()}
    run.next()
    assert run.lines == ["no list: 'a'", "cannot be run"]


def test_a_mistake_with_one_log_keeps_no_other_waiting() -> None:
    run = Driven()
    run.list(listed("FAILED"), listed("FAILED", id="8"))
    assert run.request() == ("terminal", "7")
    run.answer(500, problem="500 internal")
    assert run.request() == ("terminal", "8")
    run.answer()
    assert run.request() == ("terminal", "7")


def test_a_service_that_only_has_errors_is_a_problem() -> None:
    run = Driven()
    run.list(listed("FAILED"), listed("FAILED", id="8"))
    for number in range(6):
        assert ("service" in run.monitor.problems) == (number >= core.PATIENCE)
        run.request()
        run.answer(500, problem=f"the service: 500 disk is full, {number}")
    run.request()
    assert run.lines == ["the service: 500 disk is full, 2"]
    run.answer()
    run.next()
    assert run.lines[1:] == ["service works again"]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_nothing_is_given_up_while_the_service_is_away_behind_a_proxy(status: int) -> None:
    run = Driven()
    run.list(listed("FAILED"))
    run.answer()
    while run.now < NOW + 2 * 3600.0:
        assert run.job.stage is Stage.ASKED
        run.request()
        run.answer(status, problem=f"the service: {status}")
    assert run.lines == [f"the service: {status}"]


@pytest.mark.parametrize(
    ("status", "code"), [(401, "unauthorized"), (403, "wrong_host"), (422, ""), (404, "")]
)
def test_a_service_that_refuses_requests_has_refused_no_log(status: int, code: str) -> None:
    run = Driven()
    run.list(listed("FAILED"), listed("FAILED", id="8"))
    for id_ in ("7", "8", "7", "8", "7"):
        assert run.request() == ("terminal", id_)
        run.answer(status, body={"error_code": code} if code else {}, problem="show the token")
    assert run.now > NOW + core.LONGEST_WAIT_S
    assert run.lines == ["show the token"]
    assert run.request() == ("terminal", "8")
    run.answer()
    assert run.job.stage is Stage.ENDED


@pytest.mark.parametrize(
    ("status", "text"), [(200, "given up: there is no result yet"), (500, "given up: 500 internal")]
)
def test_a_result_that_does_not_come_is_given_up(status: int, text: str) -> None:
    run = Driven()
    run.list(listed("FAILED"))
    run.answer()
    while run.job.stage is not Stage.CLOSED:
        assert run.request() == ("", "7")
        run.answer(status, problem="" if status == 200 else "500 internal")
    assert (run.job.outcome, run.job.text) == ("no answer", text)
    assert 3600.0 <= run.now - NOW <= 3600.0 + 2 * core.LONGEST_WAIT_S


def test_nothing_is_submitted_that_is_not_on_disk() -> None:
    monitor = Monitor([], NOW, period_s=PERIOD_S, give_up_s=3600.0)
    monitor.listed([listed()], NOW)
    assert isinstance(monitor.next(NOW), core.Keep)
    monitor.kept("7", NOW, "No space left on device")
    assert monitor.next(NOW) == core.Say("No space left on device")
    monitor.said()
    assert monitor.next(NOW) == core.Wait(NOW + core.SAVE_AGAIN_S)
    assert isinstance(monitor.next(NOW + core.SAVE_AGAIN_S), core.Keep)
    monitor.kept("7", NOW + core.SAVE_AGAIN_S)
    assert monitor.next(NOW + core.SAVE_AGAIN_S) == core.Say("disk works again")
    monitor.said()
    assert isinstance(monitor.next(NOW + core.SAVE_AGAIN_S), core.Submit)


def test_closed_jobs_are_forgotten_when_they_are_old_or_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core, "MOST_CLOSED", 3)
    old = NOW - core.KEPT_S
    run = Driven(
        closed(id="1", since=old - 1),
        closed(id="2", since=old + 500),
        *(closed(id=str(number), since=NOW - 9 + number) for number in range(3, 7)),
    )
    run.list(listed("FAILED", id="2"))
    run.next()
    assert run.forgotten == ["1", "3", "4"]  # the second one is still shown
    assert list(run.monitor.jobs) == ["2", "5", "6"]


def test_a_listing_can_be_had_at_once() -> None:
    run = Driven()
    run.list()
    assert isinstance(run.next(), core.Wait)
    run.monitor.list_soon(run.now)
    assert isinstance(run.next(), core.ListJobs)
