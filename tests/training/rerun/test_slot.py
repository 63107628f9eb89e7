"""Where a rank computes."""

from __future__ import annotations

from types import SimpleNamespace

from undaunted.training.rerun import slot
from undaunted.training.rerun.slot import this_slot


def test_processes_of_a_machine_without_devices_have_their_own(monkeypatch):
    monkeypatch.setattr(slot, "_device", lambda: None)
    first, second = (this_slot({"LOCAL_RANK": str(number)}) for number in range(2))
    assert first.identity != second.identity
    assert first == this_slot({"LOCAL_RANK": "0"})
    assert this_slot({"LOCAL_RANK": "0", "SLURMD_NODENAME": "other"}).identity != first.identity
    assert this_slot({"LOCAL_RANK": "0", "UNDAUNTED_NODE": "other"}).identity != first.identity
    assert (second.device, second.node) == ("cpu:1", first.node)


def test_another_boot_is_another_machine(monkeypatch):
    monkeypatch.setattr(slot, "_device", lambda: None)
    first = this_slot({})
    monkeypatch.setattr(slot, "boot_id", lambda: "another")
    assert this_slot({}).identity != first.identity


def test_a_gpu_is_its_uuid_whatever_it_is_called(monkeypatch):
    monkeypatch.setattr(slot, "_device", lambda: ("cuda:0", "GPU-1"))
    first = this_slot({"LOCAL_RANK": "0", "SLURMD_NODENAME": "a"})
    monkeypatch.setattr(slot, "_device", lambda: ("cuda:3", "GPU-1"))
    second = this_slot({"LOCAL_RANK": "5", "SLURMD_NODENAME": "b"})
    assert first.identity == second.identity
    monkeypatch.setattr(slot, "_device", lambda: ("cuda:0", "GPU-2"))
    assert this_slot({"LOCAL_RANK": "0", "SLURMD_NODENAME": "a"}).identity != first.identity


def test_the_device_is_asked_of_torch(monkeypatch):
    properties = SimpleNamespace(uuid="1234")
    module = SimpleNamespace(
        is_initialized=lambda: True, get_device_properties=lambda _index: properties
    )
    accelerator = SimpleNamespace(
        is_available=lambda: True,
        current_accelerator=lambda: SimpleNamespace(type="xpu"),
        current_device_index=lambda: 2,
    )
    torch = SimpleNamespace(accelerator=accelerator, xpu=module)
    monkeypatch.setitem(slot.sys.modules, "torch", torch)
    assert this_slot({}).device == "xpu:2"
    assert this_slot({}).identity == "1234"
    del properties.uuid
    assert "xpu:2" in this_slot({}).identity
