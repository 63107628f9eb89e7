from __future__ import annotations

import json
import os
import sys
import threading
import types

import pytest

from nvidia_resiliency_ext.fault_tolerance._rank_monitor.settings import settings_of
from undaunted.fault_tolerance import (
    RankMonitorClient,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
    rank_monitor_client,
)
from undaunted.fault_tolerance.calculated_limits import with_calculated
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.data import decode_request
from undaunted.fault_tolerance.timeouts_calc import (
    HeartbeatTimeouts,
    SectionTimeouts,
    SynchronizationError,
)
from undaunted.progress import writer
from undaunted.progress import writer as writer_module
from undaunted.progress.area import PageArea
from undaunted.progress.limits import Limits
from undaunted.progress.snapshot import Phase
from undaunted.progress.timeouts import check


@pytest.fixture(autouse=True)
def fresh_writer():
    yield
    if isinstance(writer_module.current, writer_module.PageWriter):
        writer_module.current.detach()
    writer_module.current = writer_module._NotYet()


@pytest.fixture
def area(monkeypatch):
    with PageArea.create(1) as pages:
        monkeypatch.setenv("UNDAUNTED_PAGE", pages.env_value(0))
        yield pages


@pytest.fixture
def client(area):
    client = RankMonitorClient()
    client.init_workload_monitoring()
    return client


@pytest.fixture(params=["with a launcher", "without a launcher"])
def any_client(request):
    if request.param == "with a launcher":
        request.getfixturevalue("area")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    return client


def test_life_cycle(area, monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    client = RankMonitorClient()
    assert (client.is_initialized, client.rank_info, client.cfg) == (False, None, None)
    client.shutdown_workload_monitoring()
    client.init_workload_monitoring(num_warmup_iters=2)
    assert client.is_initialized
    assert (client.rank_info.global_rank, client.rank_info.local_rank) == (5, 1)
    assert (client.rank_info.host, client.rank_info.pid) == (os.uname().nodename, os.getpid())
    page = area.snapshot(0)
    assert (page.phase, page.warmup_iterations) == (Phase.INITIALIZED, 2)
    client.shutdown_workload_monitoring()
    assert not client.is_initialized
    assert area.snapshot(0).phase is Phase.SHUT_DOWN
    client.init_workload_monitoring()
    client.send_heartbeat()
    page = area.snapshot(0)
    assert (page.phase, page.heartbeat_count) == (Phase.INITIALIZED, 1)


def test_the_rank_is_that_of_torch_distributed(area, monkeypatch):
    distributed = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 7
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert client.rank_info.global_rank == 7


def test_the_configuration_is_what_the_launcher_says(area):
    sections = {"a": 1.0, "b": None}
    area.set_limits(Limits(heartbeat_s=7.0, sections=sections, out_of_section_s=3.0))
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert client.cfg.rank_section_timeouts == sections
    assert client.cfg.rank_heartbeat_timeout == 7.0
    assert client.cfg.initial_rank_heartbeat_timeout == 3600.0
    assert client.cfg.rank_out_of_section_timeout == 3.0


def test_the_configuration_is_the_launchers_with_all_its_fields(area, tmp_path):
    theirs = FaultToleranceConfig(
        rank_heartbeat_timeout=7,
        max_no_progress_cycles=9,
        rank_termination_signal="SIGTERM",
        num_warmup_iterations=2,
        storage_healthcheck_path="/a,/b",
        log_level="WARNING",
        learn_timeouts=False,
    )
    area.set_limits(settings_of(theirs, "/unused").limits)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert client.cfg == theirs
    client.cfg.to_yaml_file(tmp_path / "ft.yaml")
    assert FaultToleranceConfig.from_yaml_file(tmp_path / "ft.yaml") == theirs


def test_settings_that_are_too_long_for_the_page_leave_the_limits(area):
    area.set_limits(Limits(heartbeat_s=7.0, settings={"pci_topo_file": "/x" * 4000}))
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert client.cfg == FaultToleranceConfig(rank_heartbeat_timeout=7.0)


def test_without_a_launcher_nothing_is_limited(any_client):
    assert any_client.cfg == FaultToleranceConfig(
        rank_heartbeat_timeout=None, initial_rank_heartbeat_timeout=None
    )


# --- wrong use ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("send_heartbeat", ()), ("start_section", ("a",)), ("end_section", ("a",)),
     ("end_all_sections", ())],
)  # fmt: skip
def test_use_before_initialisation(method, arguments):
    with pytest.raises(RankMonitorClientError, match=f"{method}.*init_workload_monitoring first"):
        getattr(RankMonitorClient(), method)(*arguments)


def test_initialised_twice(any_client):
    with pytest.raises(RankMonitorClientError, match="already; call shutdown_workload"):
        any_client.init_workload_monitoring()


def test_a_section_opened_twice(any_client):
    any_client.start_section("a")
    with pytest.raises(RankMonitorClientError, match="'a' was started already"):
        any_client.start_section("a")


def test_a_section_that_is_not_open(any_client):
    any_client.start_section("b")
    with pytest.raises(RankMonitorClientError, match=r"'a' cannot be ended.*open are: 'b'"):
        any_client.end_section("a")


# --- sections -------------------------------------------------------------------------------------


def test_sections_overlap_in_any_order(client, area):
    for name in ("a", "b", "c"):
        client.start_section(name)
    client.end_section("a")
    client.end_section("c")
    page = area.snapshot(0)
    assert [name for name, s in page.sections.items() if s.open_since_ns] == ["b"]
    client.end_section("b")
    client.start_section("a")


def test_end_all_sections_ends_them_for_the_launcher_too(client, area):
    """Spec 3.1 item 3."""
    limits = Limits(sections={"a": 1.0, "b": 1.0})
    for name in ("a", "b"):
        client.start_section(name)
    later = area.snapshot(0).sections["b"].open_since_ns + 2 * 10**9

    def expired():
        return check(area.snapshot(0), limits, now_ns=later, started_ns=0).expired

    assert len(expired()) == 2
    client.end_all_sections()
    assert expired() == ()
    client.start_section("a")


def test_the_end_of_the_launcher_disturbs_nobody():
    """Spec 3.1 item 4."""
    area = PageArea.create(1)
    os.environ["UNDAUNTED_PAGE"] = area.env_value(0)
    try:
        client = RankMonitorClient()
        client.init_workload_monitoring()
    finally:
        del os.environ["UNDAUNTED_PAGE"]
    area.close()
    client.send_heartbeat()
    client.start_section("a")
    client.end_all_sections()
    client.shutdown_workload_monitoring()
    client.init_workload_monitoring()


# --- control requests -----------------------------------------------------------------------------

EXCLUDE = WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "GPU 3 is hot")


def answering(area, reply):
    """Answers one request on another thread; returns what was asked when joined."""
    area.drain_kick()
    os.set_blocking(area.kick_fd, True)
    asked = []

    def answer():
        request = None
        while request is None:
            os.eventfd_read(area.kick_fd)
            request = area.take_request(0)
        asked.append(request.payload)
        area.answer(0, request, reply)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread, asked


def test_a_control_request(client, area):
    thread, asked = answering(area, b"ok")
    client.send_workload_control_request(EXCLUDE)
    thread.join(20)
    assert decode_request(asked[0]) == EXCLUDE


def test_a_control_request_that_is_refused(client, area):
    thread, _ = answering(area, b"this is the last node")
    with pytest.raises(RankMonitorClientError, match="refused ExcludeThisNode: this is the last"):
        client.send_workload_control_request(EXCLUDE)
    thread.join(20)


def test_a_control_request_nobody_answers(client, monkeypatch):
    monkeypatch.setattr(rank_monitor_client, "_CONTROL_TIMEOUT_S", 0.001)
    with pytest.raises(RankMonitorClientError, match=r"did not answer within 0\.001 s"):
        client.send_workload_control_request(EXCLUDE)


def test_a_control_request_without_a_launcher():
    with pytest.raises(RuntimeError, match=r"no launcher to ask.*`undaunted run`"):
        RankMonitorClient().send_workload_control_request(EXCLUDE)


def test_the_longest_description_fits(client, area):
    thread, asked = answering(area, b"ok")
    client.send_workload_control_request(
        WorkloadControlRequest(WorkloadAction.Continue, "\U0001f642" * 5000)
    )
    thread.join(20)
    assert len(json.loads(asked[0])["description"]) == 300


# --- strict mode ----------------------------------------------------------------------------------


@pytest.fixture
def strict_client(area):
    area.set_limits(Limits(confirm=True))
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert client.cfg.skip_section_response is False
    area.drain_kick()
    return client


def confirming(area, calls, reply=b"ok"):
    """A launcher that answers so many requests."""
    os.set_blocking(area.kick_fd, True)
    seen = []

    def answer():
        while len(seen) < calls:
            os.eventfd_read(area.kick_fd)
            if (request := area.take_request(0)) is not None:
                page = area.snapshot(0)
                seen.append((request.payload, page.heartbeat_count, page.sections))
                area.answer(0, request, reply)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread, seen


CALLS = [
    ("send_heartbeat", ()),
    ("start_section", ("a",)),
    ("end_section", ("a",)),
    ("end_all_sections", ()),
]


def test_strict_calls_return_once_the_launcher_has_seen_them(strict_client, area):
    thread, seen = confirming(area, len(CALLS))
    for number, (method, arguments) in enumerate(CALLS, 1):
        getattr(strict_client, method)(*arguments)
        assert len(seen) == number
    thread.join(20)
    assert {payload for payload, _, _ in seen} == {b'{"confirm": true}'}
    assert seen[0][1] == 1
    assert seen[1][2]["a"].open_since_ns is not None
    assert seen[2][2]["a"].open_since_ns is None


@pytest.mark.parametrize(("method", "arguments"), CALLS)
def test_a_strict_call_nobody_confirms(strict_client, method, arguments, monkeypatch):
    monkeypatch.setattr(rank_monitor_client, "_CONFIRM_TIMEOUT_S", 0.02)
    if method == "end_section":
        with pytest.raises(RankMonitorClientError):
            strict_client.start_section("a")
    with pytest.raises(RankMonitorClientError, match=r"is not confirmed: .*within 0\.02 s"):
        getattr(strict_client, method)(*arguments)


def test_a_strict_call_that_is_refused(strict_client, area):
    thread, _ = confirming(area, 1, b"no such thing")
    with pytest.raises(RankMonitorClientError, match="send_heartbeat is refused: no such thing"):
        strict_client.send_heartbeat()
    thread.join(20)


def test_strict_mode_without_a_launcher_asks_nobody(strict_client):
    writer_module.current.detach("the test says so")
    strict_client.send_heartbeat()


def test_other_clients_wait_for_nobody(client, area):
    area.drain_kick()
    for method, arguments in CALLS:
        getattr(client, method)(*arguments)
    assert area.take_request(0) is None


# --- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, 3, b"step"])
def test_names_of_sections_are_text(any_client, name):
    with pytest.raises(TypeError, match=r"the name of a section is .*, not text"):
        any_client.start_section(name)
    any_client.start_section("step")  # nothing is open of it
    any_client.end_all_sections()


def test_the_number_of_warm_up_iterations_is_a_number():
    client = RankMonitorClient()
    with pytest.raises(TypeError, match="num_warmup_iters is '5', not a whole number"):
        client.init_workload_monitoring("5")
    assert not client.is_initialized


# --- calculated limits ----------------------------------------------------------------------------


def train(client, *, sections=("a",)):
    client.send_heartbeat()
    for name in sections:
        client.start_section(name)
        client.end_section(name)
    client.send_heartbeat()


def keeping(area, limits=Limits(floor_s=0)):  # noqa: B008 - frozen
    """A launcher that applies one request, as the agent does."""
    area.drain_kick()
    os.set_blocking(area.kick_fd, True)
    asked = []

    def answer():
        request = None
        while request is None:
            os.eventfd_read(area.kick_fd)
            request = area.take_request(0)
        asked.append(json.loads(request.payload)["timeouts"])
        area.set_limits(with_calculated(limits, asked[0]))
        area.answer(0, request, b"ok")

    thread = threading.Thread(target=answer)
    thread.start()
    return thread, asked


def test_limits_of_heartbeats_are_calculated_and_applied(client, area):
    train(client)
    thread, asked = keeping(area)
    assert client.calculate_and_set_hb_timeouts()
    thread.join(20)
    found = client.hb_timeouts
    assert found.were_calculated
    assert asked == [{"heartbeat": [found.initial, found.subsequent]}]
    assert client.cfg.rank_heartbeat_timeout == found.subsequent


def test_limits_of_sections_are_calculated_and_applied(client, area):
    train(client, sections=("a", "b"))
    thread, asked = keeping(area)
    assert client.calculate_and_set_section_timeouts(["a"])
    thread.join(20)
    found = client.section_timeouts
    assert asked == [
        {"sections": {"a": found.section["a"]}, "out_of_section": found.out_of_section}
    ]
    assert found.calculated_sections == {"a"}
    assert client.cfg.rank_section_timeouts == {"a": found.section["a"]}


def test_the_next_round_goes_on_from_calculated_limits(area):
    """Spec 3.1 item 9: upstream takes them for configured ones, and does not average."""
    calculated = {"heartbeat": [70.0, 20.0], "sections": {"a": 8.0}, "out_of_section": 4.0}
    area.set_limits(with_calculated(Limits(safety_factor=3.0, floor_s=1.0), calculated))
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert client.cfg.safety_factor == 3.0
    assert client.hb_timeouts == HeartbeatTimeouts(70.0, 20.0, were_calculated=True)
    assert client.section_timeouts == SectionTimeouts({"a": 8.0}, 4.0, frozenset("a"), True)
    assert client.state_dict()["current_timeouts"].keys() == {"heartbeat", "section"}


def test_without_a_launcher_limits_are_calculated_all_the_same():
    client = RankMonitorClient()
    client.init_workload_monitoring()
    train(client, sections=("a", "b"))
    assert client.calculate_and_set_hb_timeouts()
    assert client.calculate_and_set_section_timeouts()
    assert client.section_timeouts.calculated_sections == {"a", "b"}
    assert client.section_timeouts.is_out_of_section_calculated
    first = client.hb_timeouts
    assert client.calculate_and_set_hb_timeouts()
    assert client.hb_timeouts == first, "nothing new was seen"
    state = json.loads(json.dumps(client.state_dict()))
    for when in ("before", "after"):
        successor = RankMonitorClient()
        if when == "before":
            successor.load_state_dict(state)
            assert successor.state_dict() == state
        successor.init_workload_monitoring()
        if when == "after":
            successor.load_state_dict(state)
        assert successor.hb_timeouts == successor.loaded_hb_timeouts == first
        assert successor.section_timeouts == client.section_timeouts
        assert successor.loaded_section_timeouts == client.section_timeouts
        assert successor.state_dict() == state


def test_loaded_limits_are_applied_when_monitoring_begins(area):
    state = {"heartbeat": {"initial": 9.0, "subsequent": 3.0, "were_calculated": True}}
    client = RankMonitorClient()
    client.load_state_dict({"current_timeouts": state})
    thread, asked = keeping(area)
    client.init_workload_monitoring()
    thread.join(20)
    assert asked == [{"heartbeat": [9.0, 3.0]}]
    assert client.cfg.rank_heartbeat_timeout == 3.0


def test_selected_are_the_configured_sections(area):
    area.set_limits(Limits(sections={"a": 1.0}))
    client = RankMonitorClient()
    client.init_workload_monitoring()
    train(client, sections=("a", "b"))
    thread, asked = keeping(area)
    client.calculate_and_set_section_timeouts(calc_out_of_section=False)
    thread.join(20)
    assert asked[0].keys() == {"sections"}
    assert asked[0]["sections"].keys() == {"a"}


def test_one_section_may_be_selected_by_its_name():
    client = RankMonitorClient()
    client.init_workload_monitoring()
    train(client, sections=("step", "save"))
    assert client.calculate_and_set_section_timeouts("step")
    assert client.section_timeouts.calculated_sections == {"step"}


METHODS = ("calculate_and_set_hb_timeouts", "calculate_and_set_section_timeouts")


def enough(method):
    return {} if method == METHODS[0] else {"selected_sections": ["a"]}


@pytest.mark.parametrize("method", METHODS)
def test_not_enough_was_measured(any_client, method):
    with pytest.raises(RankMonitorClientError, match=r"not enough data.*skip_if_not_ready"):
        getattr(any_client, method)(**enough(method))
    assert getattr(any_client, method)(skip_if_not_ready=True, **enough(method)) is False
    assert any_client.state_dict() == {"current_timeouts": {}}


@pytest.mark.parametrize("method", METHODS)
def test_a_finished_job_that_is_resumed_does_not_fail(method, monkeypatch):
    """It loads its checkpoint, has nothing left to do, and calculates limits at its end."""
    client = RankMonitorClient()
    client.init_workload_monitoring()
    train(client)
    getattr(client, method)(**enough(method))
    monkeypatch.setattr(writer, "current", writer.NullWriter("another process"))
    successor = RankMonitorClient()
    successor.init_workload_monitoring()
    successor.load_state_dict(client.state_dict())
    assert getattr(successor, method)(**enough(method)) is False
    assert successor.state_dict() == client.state_dict()


@pytest.mark.parametrize("method", METHODS)
def test_limits_of_nobody_who_is_monitored(any_client, method):
    with pytest.raises(RankMonitorClientError, match=f"{method}.*init_workload_monitoring first"):
        getattr(RankMonitorClient(), method)()
    train(any_client)
    any_client.shutdown_workload_monitoring()
    assert getattr(any_client, method)() is False


@pytest.mark.parametrize("method", METHODS)
def test_other_ranks_are_gone(any_client, method, monkeypatch, caplog):
    def nobody(*args):
        raise SynchronizationError("Connection closed by peer")

    monkeypatch.setattr(rank_monitor_client, "synchronized", nobody)
    train(any_client)
    assert getattr(any_client, method)() is False
    assert "Connection closed by peer" in caplog.text


def test_a_launcher_that_does_not_answer_or_refuses(client, area, monkeypatch, caplog):
    train(client)
    monkeypatch.setattr(rank_monitor_client, "_CONTROL_TIMEOUT_S", 0.001)
    assert client.calculate_and_set_hb_timeouts() is False
    assert "did not answer" in caplog.text
    monkeypatch.setattr(rank_monitor_client, "_CONTROL_TIMEOUT_S", 20)
    thread, _ = answering(area, b"no")
    assert client.calculate_and_set_hb_timeouts() is False
    thread.join(20)
    assert "refused: no" in caplog.text


def test_a_state_of_something_else(any_client):
    with pytest.raises(RankMonitorClientError, match="heartbeat is int, not a dict"):
        any_client.load_state_dict({"current_timeouts": {"heartbeat": 3}})
