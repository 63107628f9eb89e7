"""One rank of the benchmark: everybody saves and loads in turn; prints JSON on rank 0."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from benchmarks.checkpoint.contenders import available
from benchmarks.checkpoint.raw import Raw

DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def main() -> None:
    request = json.loads(sys.argv[1])
    device = request["device"]
    dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    state = make_state(request["tensors"], request["bytes"], device)
    target = make_state(request["tensors"], request["bytes"], device)
    values = measure(state, target, Path(request["folder"]), request)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, values)
    if dist.get_rank() == 0:
        print("RESULT " + json.dumps(slowest(gathered)), flush=True)
    dist.destroy_process_group()


def make_state(count: int, size: int, device: str) -> dict[str, Any]:
    """Return ``count`` tensors of ``size`` bytes in all, spread over the ranks if there are two."""
    torch.manual_seed(0)
    world = dist.get_world_size()
    shape = (size // count // 4 // 4, 4)
    tensors = {
        f"layer.{at // 10}.weight.{at % 10}": torch.randn(shape, device=device)
        for at in range(count)
    }
    if world == 1:
        return tensors
    mesh = init_device_mesh(device, (world,))
    return {name: distribute_tensor(one, mesh, [Shard(0)]) for name, one in tensors.items()}


def measure(
    state: dict[str, Any], target: dict[str, Any], folder: Path, request: dict[str, Any]
) -> dict[str, dict[str, list[float]]]:
    """Return seconds, by contender, by what was done, one per round."""
    local = [one.to_local() if hasattr(one, "to_local") else one for one in state.values()]
    raw = Raw(local, folder / f"raw-{dist.get_rank()}")
    contenders = {}
    for name, kind in available(local[0].device.type).items():
        if not request["only"] or name in request["only"]:
            place = folder / name.replace(" ", "-")
            place.mkdir(exist_ok=True)
            contenders[name] = kind(place)
    values: dict[str, dict[str, list[float]]] = {}

    def note(name: str, what: str, seconds: float) -> None:
        values.setdefault(name, {}).setdefault(what, []).append(seconds)

    for number in range(request["rounds"] + 1):  # the first one warms up, with own names
        first = "first " if number == 0 else ""
        for what, do in (
            ("stall", raw.copy),
            ("total", raw.write),
            ("load cold", raw.read),
            ("load warm", raw.read_warm),
        ):
            if number == 0 or "load" in what or not request["loads"]:
                meet()
                note("raw", first + what, do())
        turn = list(contenders.items())
        for name, contender in turn[number % len(turn) :] + turn[: number % len(turn)]:
            saved = 0 if request["loads"] else number
            if saved == number:
                meet()
                stall, total = contender.save(state, number)
                note(name, f"{first}stall", stall)
                note(name, f"{first}total", total)
            drop_caches()
            note(name, f"{first}load cold", contender.load(target, saved))
            fill_caches(folder / name.replace(" ", "-"))
            note(name, f"{first}load warm", contender.load(target, saved))
            check(state, target, name)
    for contender in contenders.values():
        contender.close()
    return values


def meet() -> None:
    dist.barrier()


def drop_caches() -> None:
    meet()
    if dist.get_rank() == 0:
        os.sync()
        if os.access(DROP_CACHES, os.W_OK):
            DROP_CACHES.write_text("3")
    meet()


def fill_caches(folder: Path) -> None:
    """Have all files of a folder in the page cache: what was read past it is not there yet."""
    meet()
    if dist.get_rank() == 0:
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb", buffering=0) as file:
                    while file.read(1 << 24):
                        pass
    meet()


def check(state: dict[str, Any], target: dict[str, Any], name: str) -> None:
    """Fail if what was loaded is not what was saved; forget what was loaded."""
    for key, tensor in state.items():
        here, there = (
            one.to_local() if hasattr(one, "to_local") else one for one in (tensor, target[key])
        )
        if not torch.equal(here, there):
            raise SystemExit(f"{name} has loaded something else than was saved: {key}")
        there.zero_()


def slowest(gathered: list[dict[str, dict[str, list[float]]]]) -> dict[str, dict[str, list[float]]]:
    """Return the time of the slowest rank of each round."""
    return {
        name: {
            what: [max(times) for times in zip(*(one[name][what] for one in gathered), strict=True)]
            for what in whats
        }
        for name, whats in gathered[0].items()
    }


if __name__ == "__main__":
    main()
