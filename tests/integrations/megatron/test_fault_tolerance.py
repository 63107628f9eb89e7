"""The rules and lines of Megatron, through a page; with a real launcher in tests/e2e."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.faults import injectors
from undaunted.integrations.megatron import fault_tolerance as ft
from undaunted.integrations.megatron.config import FaultToleranceConfig
from undaunted.progress import writer as writer_module
from undaunted.progress.area import PageArea
from undaunted.progress.limits import Limits
from undaunted.progress.snapshot import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLOSING = "the out-of-section timeout won't be updated as the FT is not closing yet"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    ft.abort()
    if isinstance(writer_module.current, writer_module.PageWriter):
        writer_module.current.detach()
    writer_module.current = writer_module._NotYet()


@pytest.fixture
def area(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageArea]:
    with PageArea.create(1) as pages:
        monkeypatch.setenv("UNDAUNTED_PAGE", pages.env_value(0))
        yield pages


def bridge(save: object, *, async_save: bool = False, **values: Any) -> Any:
    """A configuration of Megatron Bridge."""
    return SimpleNamespace(
        ft=FaultToleranceConfig(**{"enable_ft_package": True, **values}),
        checkpoint=SimpleNamespace(save=save, async_save=async_save),
    )


def lm(save: object, **values: Any) -> Any:
    """Arguments of Megatron-LM."""
    return SimpleNamespace(save=save, async_save=False, calc_ft_timeouts=False, **values)


def a_state() -> Any:
    return SimpleNamespace(rank_monitor_client=None, fault_tolerance_state=None)


def is_open(area: PageArea) -> list[str]:
    sections = area.snapshot(0).sections.items()
    return [name for name, section in sections if section.open_since_ns]


# --- sections -------------------------------------------------------------------------------------


def test_sections_of_megatron_bridge(area: PageArea, tmp_path: Path) -> None:
    gs = a_state()
    ft.setup(bridge(tmp_path), gs)
    assert is_open(area) == ["setup"]
    ft.on_training_step_start(gs)
    assert is_open(area) == [], "the first iteration is warm-up"
    ft.on_training_step_end(gs)
    ft.on_training_step_start(gs)
    assert is_open(area) == ["step"]
    ft.on_training_step_end(gs)
    ft.on_checkpointing_start(gs)
    assert is_open(area) == ["checkpointing"]
    ft.on_checkpointing_end(False, gs)
    assert is_open(area) == []
    state = gs.fault_tolerance_state
    assert (state.seen_tr_iters_cnt, state.seen_checkpoints_cnt) == (2, 1)
    ft.on_checkpointing_start(gs)
    ft.on_checkpointing_end(True, gs)
    assert state.seen_checkpoints_cnt == 1, "a look at what is written in the background"
    ft.shutdown(gs)
    assert gs.rank_monitor_client is None
    assert area.snapshot(0).phase is Phase.SHUT_DOWN
    ft.on_training_step_start(gs)
    ft.shutdown(gs)


def test_megatron_lm_gives_no_state_and_warms_up_for_five_iterations(
    area: PageArea, tmp_path: Path
) -> None:
    assert ft.get_rank_monitor_client() is None
    ft.on_training_step_start()
    ft.setup(lm(tmp_path))
    assert ft.get_rank_monitor_client() is not None
    assert area.snapshot(0).warmup_iterations == 5
    opened = []
    for _ in range(7):
        ft.on_training_step_start()
        opened.append(is_open(area))
        ft.on_training_step_end()
    assert opened == [[]] * 5 + [["step"]] * 2
    ft.shutdown()


def test_the_number_of_warm_up_iterations_is_given(area: PageArea, tmp_path: Path) -> None:
    ft.setup(lm(tmp_path, ft_num_warmup_iters=0))
    ft.on_training_step_start()
    assert is_open(area) == ["step"]
    ft.abort()
    with pytest.raises(ValueError, match="ft_num_warmup_iters is -1"):
        ft.setup(lm(tmp_path, ft_num_warmup_iters=-1))


def test_each_evaluation_warms_up(area: PageArea, tmp_path: Path) -> None:
    gs = a_state()
    ft.setup(bridge(tmp_path), gs)

    def evaluation() -> list[list[str]]:
        opened = []
        for _ in range(2):
            ft.on_eval_step_start(gs)
            opened.append(is_open(area))
            ft.on_eval_step_end(gs)
        return opened

    assert evaluation() == [[], ["step"]], "it also closes the section setup"
    ft.on_training_step_start(gs)
    ft.on_training_step_end(gs)
    assert evaluation() == [[], ["step"]]


def test_a_section_left_open_by_an_exception_does_no_harm(area: PageArea, tmp_path: Path) -> None:
    gs = a_state()
    ft.setup(bridge(tmp_path), gs)
    for _ in range(2):
        ft.on_checkpointing_start(gs)
    ft.on_training_step_end(gs)
    ft.on_training_step_start(gs)
    ft.on_training_step_start(gs)
    assert is_open(area) == ["checkpointing", "step"]
    ft.on_checkpointing_end(True, gs)
    ft.on_checkpointing_end(True, gs)
    assert is_open(area) == ["step"]


def test_monitoring_that_somebody_else_has_shut_down(area: PageArea, tmp_path: Path) -> None:
    ft.setup(lm(tmp_path, ft_num_warmup_iters=0))
    client = ft.get_rank_monitor_client()
    assert client is not None
    client.shutdown_workload_monitoring()
    ft.on_training_step_start()
    ft.on_training_step_end()
    ft.shutdown()


def test_a_second_setup_begins_anew(area: PageArea, tmp_path: Path) -> None:
    """The function was restarted inside the process."""
    gs = a_state()
    ft.setup(bridge(tmp_path), gs)
    ft.on_training_step_start(gs)
    ft.on_training_step_end(gs)
    first = gs.rank_monitor_client
    ft.setup(bridge(tmp_path), gs)
    assert not first.is_initialized
    assert gs.rank_monitor_client is not first
    assert gs.fault_tolerance_state.seen_tr_iters_cnt == 0
    assert is_open(area) == ["setup"]


def test_the_last_checkpoint_that_was_loaded_counts(tmp_path: Path) -> None:
    gs = a_state()
    ft.setup(bridge(tmp_path), gs)
    ft.on_checkpoint_loaded(False, gs)
    assert gs.fault_tolerance_state.is_persistent_chkpt_loaded
    ft.on_checkpoint_loaded(True, gs)
    assert not gs.fault_tolerance_state.is_persistent_chkpt_loaded


def test_abort_calculates_nothing(
    area: PageArea, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gs = a_state()
    ft.setup(bridge(tmp_path, calc_ft_timeouts=True), gs)
    ft.on_checkpoint_loaded(False, gs)
    ft.on_training_step_start(gs)
    ft.abort(gs)
    assert gs.rank_monitor_client is None
    assert area.snapshot(0).phase is Phase.SHUT_DOWN
    assert "updating" not in capsys.readouterr().out
    ft.abort(gs)


@pytest.mark.parametrize("config", [bridge(""), bridge(None), lm(None)])
def test_a_folder_is_needed(config: Any) -> None:
    with pytest.raises(ValueError, match=r"checkpoint\.save"):
        ft.setup(config)


def test_what_is_not_enabled_is_not_set_up() -> None:
    nothing = SimpleNamespace(ft=None, checkpoint=SimpleNamespace(save="x"))
    for config in (nothing, bridge("x", enable_ft_package=False), lm("x", enable_ft_package=False)):
        ft.setup(config)
        assert ft.get_rank_monitor_client() is None


# --- limits ---------------------------------------------------------------------------------------


def train(gs: Any, iterations: int = 17) -> None:
    for _ in range(iterations):
        ft.on_training_step_start(gs)
        ft.on_training_step_end(gs)
    ft.on_checkpointing_start(gs)
    ft.on_checkpointing_end(False, gs)


def test_limits_are_calculated_kept_and_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gs, folder = a_state(), tmp_path / "made" / "here"
    ft.setup(bridge(folder, calc_ft_timeouts=True), gs)
    ft.on_checkpoint_loaded(False, gs)
    train(gs)
    ft.shutdown(gs)
    path = folder / "ft_state.json"
    said = capsys.readouterr().out.splitlines()
    names = "['setup', 'step', 'checkpointing']"
    starts = [line.partition(" Sect")[0].partition("Timeouts=")[0] for line in said]
    assert starts == [
        "FT: initializing...",
        "FT: initialized. ",
        f"FT: {CLOSING}",
        f"FT: updating timeouts for: {names} update out-of-section: False ...",
        f"FT: updated timeouts saved to {path}.",
        "FT: closing...",
        f"FT: updating timeouts for: {names} update out-of-section: True ...",
        f"FT: updated timeouts saved to {path}.",
        "FT: closed.",
    ]
    section = json.loads(path.read_text())["current_timeouts"]["section"]
    assert section["calculated_sections"] == ["checkpointing", "setup", "step"]
    assert section["is_out_of_section_calculated"] is True
    again = a_state()
    ft.setup(bridge(folder), again)
    assert f"FT: loaded timeouts from {path}. SectionTimeouts" in capsys.readouterr().out
    assert again.rank_monitor_client.section_timeouts.section == section["section"]


def test_nothing_is_said_of_limits_that_are_not_to_be_calculated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gs = a_state()
    ft.setup(bridge(tmp_path), gs)
    train(gs)
    ft.shutdown(gs)
    assert "updat" not in capsys.readouterr().out
    assert not (tmp_path / "ft_state.json").exists()


def test_a_job_that_is_resumed_after_its_end_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Megatron Bridge left ``setup`` open, and failed for want of data (its PR 5711)."""
    gs = a_state()
    ft.setup(bridge(tmp_path, calc_ft_timeouts=True), gs)
    ft.on_checkpoint_loaded(False, gs)
    ft.shutdown(gs)
    assert "updating timeouts for: ['setup'] " in capsys.readouterr().out
    assert not gs.fault_tolerance_state.is_setup_section_open


def test_another_number_of_ranks_does_not_get_these_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for ranks, loads in (("16", False), ("1024", False), ("16", True)):
        monkeypatch.setenv("WORLD_SIZE", ranks)
        gs = a_state()
        ft.setup(bridge(tmp_path, calc_ft_timeouts=True), gs)
        assert ("FT: loaded" in capsys.readouterr().out) is loads
        train(gs)
        ft.shutdown(gs)


def test_a_state_that_makes_no_sense_is_said_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ft_state.json").write_text('{"current_timeouts": {"section": {"section": 3}}}')
    ft.setup(bridge(tmp_path), a_state())
    assert "ft_state.json is not used" in caplog.text


def test_a_full_disk_does_not_end_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    gs = a_state()
    ft.setup(bridge(tmp_path / "file", calc_ft_timeouts=True), gs)
    train(gs)
    ft.shutdown(gs)
    assert "limits are not kept between jobs" in caplog.text
    assert "saved to" not in capsys.readouterr().out


def test_only_rank_0_says_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    gs = a_state()
    ft.setup(bridge(tmp_path, calc_ft_timeouts=True), gs)
    train(gs)
    ft.shutdown(gs)
    assert capsys.readouterr().out == ""
    assert [*tmp_path.iterdir()] == []


# --- simulated faults -----------------------------------------------------------------------------


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    kinds: list[str] = []
    monkeypatch.setattr(injectors, "inject", lambda kind, **_: kinds.append(kind))
    monkeypatch.setenv("WORLD_SIZE", "4")
    return kinds


def test_no_fault() -> None:
    assert ft.maybe_setup_simulated_fault(FaultToleranceConfig()) is None
    assert ft.maybe_setup_simulated_fault() is None


def test_the_rank_to_fail_fails(
    area: PageArea, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    config = FaultToleranceConfig(
        simulate_fault=True, simulated_fault_type="rank_killed", simulated_fault_rank=2
    )
    armed = ft.maybe_setup_simulated_fault(config)
    assert armed is not None
    assert armed._thread is not None
    armed._thread.join(10)
    armed.close()
    assert done == ["sigkill"]


def test_rank_0_says_what_is_to_fail(
    done: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = FaultToleranceConfig(
        simulate_fault=True,
        simulated_fault_type="rank_hung",
        simulated_fault_rank=3,
        simulated_fault_base_delay=60,
    )
    assert ft.maybe_setup_simulated_fault(config) is None
    assert capsys.readouterr().out == (
        "FT: Initializing simulated fault: rank_hung,rank to fail: 3, base delay: 60.0\n"
    )
    assert done == []


def test_ranks_choose_alike_and_one_of_them_is_to_fail(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FaultToleranceConfig(simulate_fault=True, simulated_fault_base_delay=1000)
    armed = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        if (trigger := ft.maybe_setup_simulated_fault(config)) is not None:
            armed.append(rank)
            trigger.close()
    assert len(armed) == 1


def test_the_fault_of_the_environment(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_SIM_FAULT_DESC", "rank_hung;0;1000")
    trigger = ft.maybe_setup_simulated_fault()
    assert trigger is not None
    trigger.close()


def test_a_rank_that_the_job_does_not_have(done: list[str]) -> None:
    config = FaultToleranceConfig(simulate_fault=True, simulated_fault_rank=4)
    with pytest.raises(ValueError, match="4"):
        ft.maybe_setup_simulated_fault(config)


def test_limits_of_the_launcher_are_its_own(area: PageArea, tmp_path: Path) -> None:
    area.set_limits(Limits(sections={"step": 7.0, "evaluation": 3.0}))
    gs = a_state()
    ft.setup(bridge(tmp_path), gs)
    client = gs.rank_monitor_client
    assert client.section_timeouts.section == {"step": 7.0, "evaluation": 3.0}
    assert client.kept._job.sections == ("checkpointing", "evaluation", "setup", "step")


def test_a_file_without_limits_is_not_said_to_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ft_state.json").write_text('{"section": {"step": 3}}')
    ft.setup(bridge(tmp_path))
    assert "FT: loaded" not in capsys.readouterr().out
    assert "ft_state.json is not used" in caplog.text


@pytest.mark.parametrize(
    "config",
    [
        SimpleNamespace(ft=FaultToleranceConfig(enable_ft_package=True)),
        bridge(None),
        lm(""),
        SimpleNamespace(ft=FaultToleranceConfig(enable_ft_package=True), checkpoint=None),
    ],
)
def test_a_folder_for_checkpoints_has_to_be_there(config: Any) -> None:
    with pytest.raises(ValueError, match=r"set checkpoint\.save"):
        ft.setup(config)


def test_sizes_are_found_in_either_configuration() -> None:
    sizes = {"num_layers": 4, "seq_length": 128, "micro_batch_size": 2}
    assert ft.sizes_of(SimpleNamespace(**sizes, hidden_size=None)) == sizes
    nested = SimpleNamespace(
        model=SimpleNamespace(num_layers=4, seq_length=128),
        train=SimpleNamespace(micro_batch_size=2),
    )
    assert ft.sizes_of(nested) == sizes
    assert ft.sizes_of(object()) == {}
