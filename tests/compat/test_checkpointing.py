"""The adapters of nvidia_resiliency_ext.checkpointing."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from nvidia_resiliency_ext.checkpointing import utils as checkpointing_utils  # noqa: E402
from nvidia_resiliency_ext.checkpointing.async_ckpt import (  # noqa: E402
    filesystem_async,
    state_dict_saver,
)
from nvidia_resiliency_ext.checkpointing.local.base_state_dict import (  # noqa: E402
    TensorAwareStateDict,
)
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import (  # noqa: E402
    BasicTensorAwareStateDict,
    dict_list_map_inplace,
    nested_values,
)
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (  # noqa: E402
    LocalCheckpointManager,
)
from nvidia_resiliency_ext.checkpointing.local.replication.torch_device_utils import (  # noqa: E402
    TensorPlaceholder,
    get_default_device_from_type,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_the_garbage_collector_is_off_for_a_while() -> None:
    assert gc.isenabled()
    with checkpointing_utils._disable_gc():
        assert not gc.isenabled()
        with checkpointing_utils._disable_gc():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_function_is_applied_to_everything_that_is_no_container() -> None:
    nested = {"a": [1, {"b": 2}], "c": 3}
    assert checkpointing_utils.dict_list_map_outplace(lambda x: x * 10, nested) == {
        "a": [10, {"b": 20}],
        "c": 30,
    }
    assert nested["c"] == 3


def test_differences_are_told_by_their_paths() -> None:
    left = {"a": [1, torch.ones(2)], "b": 1, "n": np.ones(1), "l": [1]}
    right = {"a": [1, torch.zeros(2)], "c": 1, "n": np.ones(1), "l": [1, 2]}
    assert checkpointing_utils.diff(left, right) == (
        [("b",)],
        [("c",), ("l", 1)],
        [(("a", 1), torch.Tensor, torch.Tensor)],
    )
    assert checkpointing_utils.diff({"a": 1}, {"a": [1]})[2] == [(("a",), int, list)]
    assert checkpointing_utils.diff(left, left) == ([], [], [])


def test_no_garbage_is_collected_while_a_wrapped_function_runs() -> None:
    assert checkpointing_utils.wrap_for_async(gc.isenabled)() is False
    assert gc.isenabled()


def test_times_are_logged_with_the_names_around_them(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("times")
    with caplog.at_level(logging.DEBUG, "times"):
        with checkpointing_utils.debug_time("save", logger), checkpointing_utils.debug_time("copy"):
            checkpointing_utils.debug_msg("hello")
        with checkpointing_utils.debug_time("short", logger, threshold=100):
            pass
    texts = [record.getMessage() for record in caplog.records]
    assert texts[0] == "save.copy hello"
    assert [text.split()[0] for text in texts] == ["save.copy", "save.copy", "save"]
    with checkpointing_utils.logger_stack("a") as (names, _):
        assert names == "a"


class OneTensor(TensorAwareStateDict):
    """A class of a program: what is abstract in NVRx and no more."""

    def __init__(self, tensor: Any, note: object) -> None:
        self.tensor, self.note = tensor, note

    def pop_tensors(self) -> list[Any]:
        tensor, self.tensor = self.tensor, None
        return [tensor]

    @property
    def tensors(self) -> Iterator[Any]:
        yield self.tensor

    @property
    def is_hollow(self) -> bool:
        return self.tensor is None

    def insert_tensors(self, tensor_data: Iterable[Any]) -> None:
        (self.tensor,) = tensor_data

    def init_tensors(self) -> None:
        self.tensor = torch.empty(3)

    def copy_tensors_to_cpu(self, non_blocking: bool = False) -> None: ...
    def restore_tensor_device(self, non_blocking: bool = True) -> None: ...


def test_states_of_the_program_are_saved_and_loaded(tmp_path: Path) -> None:
    manager = LocalCheckpointManager(tmp_path, "session")
    try:
        manager.save(OneTensor(torch.arange(3), {1, 2}), 7)
        state, _ = manager.load()
    finally:
        manager.close()
    assert isinstance(state, OneTensor)
    assert (state.tensor.tolist(), state.note) == ([0, 1, 2], {1, 2})
    strict = LocalCheckpointManager(tmp_path, "session", allow_pickle=False)
    try:
        with pytest.raises(Exception, match="pickle"):
            strict.load()
    finally:
        strict.close()


def test_states_of_plain_data_are_not_pickled(tmp_path: Path) -> None:
    manager = LocalCheckpointManager(tmp_path)
    try:
        manager.save(BasicTensorAwareStateDict({"weight": torch.ones(2), "step": 3}), 3)
        (file,) = manager.local_ckpt_dir.glob("iter_0000003_0_local.pt")
        assert b"collections" not in file.read_bytes()
        assert manager.find_latest() == 3
    finally:
        manager.close()
    strict = LocalCheckpointManager(tmp_path, allow_pickle=False)
    try:
        state, _ = strict.load()
        assert state.state_dict["step"] == 3
    finally:
        strict.close()


def test_values_of_nested_containers() -> None:
    nested = {"a": [1, {"b": 2}], "c": 3}
    assert list(nested_values(nested)) == [1, 2, 3]
    assert dict_list_map_inplace(lambda x: x * 10, nested) is nested
    assert nested == {"a": [10, {"b": 20}], "c": 30}


def test_places_of_tensors() -> None:
    place = TensorPlaceholder(torch.ones(2, 3, dtype=torch.float64))
    assert (place.device, place.empty_like().shape) == (torch.device("cpu"), (2, 3))
    assert place.restore().dtype == torch.float64
    assert place.restore(torch.zeros(1)).tolist() == [0.0]
    assert get_default_device_from_type("cpu") == torch.device("cpu")
    with pytest.raises(RuntimeError, match="'abacus' are not known"):
        get_default_device_from_type("abacus")


def test_no_manager_process_has_to_be_ended() -> None:
    filesystem_async.get_write_results_queue()
    assert filesystem_async._results_queue is None


def test_the_cache_of_plans() -> None:
    state_dict_saver.init_checkpoint_metadata_cache(cached_global_metadata=None)
    assert state_dict_saver.get_metadata_caching_status() == (False, False)
