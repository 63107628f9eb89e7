"""The rows about the training loop. Each takes its device, so that tests run them on a CPU."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

STOPS = """
    import json, os, sys
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from undaunted.training import Session

    device, rank = os.environ["DEVICE"], int(os.environ["RANK"])
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    state = Path(f"state-{rank}.json")
    start = json.loads(state.read_text()) if state.exists() else 0

    def save(iteration):
        state.write_text(json.dumps(iteration + 1))

    with Session(save=save) as session:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        for iteration in range(start, start + 10 if start else 10**9):
            with session.step(iteration):
                total = torch.ones(1000, device=device)
                dist.all_reduce(total)
                assert total.sum().item() == 1000 * dist.get_world_size()
            if iteration == 20 and rank == 0:
                session.request_stop()
            if session.should_stop(iteration):
                break
        dist.destroy_process_group()
    sys.exit(session.exit_code)
"""


def recordings(device: str) -> str:
    """A group of one rank: what its recorder has of five calls, and on CUDA of one that waits."""
    import os

    import torch
    import torch.distributed as dist

    from undaunted.attribution.flight import recorder

    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    total = torch.ones(1000, device=device)
    for _ in range(5):
        dist.all_reduce(total)
    if device == "cuda":
        torch.cuda.synchronize()
        time.sleep(2.0)  # NCCL's own thread looks every second for what has ended
    five = _recorded()
    began = time.perf_counter()
    assert len(recorder.calls().at_ns) == five.enqueued
    took = time.perf_counter() - began
    if device == "cuda":
        assert five.oldest == -1, ("what has ended counts as pending", five)
        torch.cuda._sleep(2 * 10**9)  # cycles: about a second
        dist.all_reduce(total)
        waits = _recorded()
        assert waits.enqueued == five.enqueued + 1, (five, waits)
        assert waits.oldest == waits.enqueued, ("the one that waits is not pending", waits)
        torch.cuda.synchronize()
    dist.destroy_process_group()
    return f"{five.enqueued} calls of {five.backend}, read in {took * 1e3:.1f} ms"


def _recorded() -> Any:
    """Return the only group of this process's recorder."""
    from undaunted.attribution.flight import recorder

    recording = recorder.record()
    assert recording is not None, "there is no recorder"
    assert [call.name for call in recording.calls] == ["all_reduce"], recording.calls
    (group,) = recording.groups
    return group


def generators(device: str) -> str:
    """Random numbers of a device come again in a second run; where it computes is known."""
    import torch

    from undaunted.base import random_generators
    from undaunted.training.rerun.slot import this_slot

    torch.rand(1, device=device)  # the device is in use
    kept = random_generators.states()
    dropout = torch.nn.Dropout()
    first = [torch.randn(1000, device=device), dropout(torch.ones(1000, device=device))]
    random_generators.set_states(kept)
    again = [torch.randn(1000, device=device), dropout(torch.ones(1000, device=device))]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    slot = this_slot()
    assert slot.device == f"{device}:0", slot
    if device == "cuda":
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        assert slot.identity == uuid, (slot, uuid)
    return f"normal numbers and dropout come again; the slot is {slot.identity}"


def second_opinion(device: str) -> str:
    """A bit that is flipped once, and one that is flipped always, in a product on the device."""
    transient = _opinion(device, flips=1)
    assert "transient" in transient, transient
    lasting = _opinion(device, flips=10**9)
    assert "the same result when computed again" in lasting, lasting
    good = _opinion(device, flips=0)
    assert not good, good
    return f"once: {transient}; always: {lasting}"


def _opinion(device: str, *, flips: int) -> str:
    """Train some steps in which so many products have a flipped bit; return why they stop."""
    import torch

    from undaunted.training import Rerun, Session, StopReason

    left, weight = flips, torch.eye(16, device=device)
    with Session(stop_signals=(), rerun=Rerun()) as session:
        for step in range(5):
            with session.step(step):
                batch = torch.rand(16, 16, device=device)
                for _ in session.attempts():
                    made = weight @ (batch + torch.rand(16, 16, device=device))
                    if step == 3 and left:
                        left -= 1
                        made.view(torch.int32)[0, 0] |= 0x7F800000  # the exponent: not finite
                    session.check(made.sum(), "loss")
                weight = 0.9 * weight + 0.01 * made
            if session.should_stop(step):
                break
    assert weight.isfinite().all(), "a wrong number was used"
    if session.stop is None:
        return ""
    assert (session.stop.reason, session.stop.iteration) == (StopReason.INVALID, 2), session.stop
    return session.stop.text


def replay(device: str) -> str:
    """Steps that run twice end as others do; a bit that is flipped once in a gradient is seen."""
    import torch

    from undaunted.training.replay import NotReproducibleError

    plain, twice = _replayed(device, every=10**9), _replayed(device, every=1)
    assert all(torch.equal(one, other) for one, other in zip(plain, twice, strict=True))
    try:
        _replayed(device, every=1, flip_at=7)
    except NotReproducibleError as error:
        (mismatch,) = error.mismatches
        assert mismatch.what == ("gradient of 0.weight",), mismatch
        assert mismatch.device == f"{device}:0", mismatch
        return f"{len(plain)} tensors are the same; {mismatch}"
    raise AssertionError("the flipped bit was not seen")


def _replayed(device: str, *, every: int, flip_at: int = -1) -> list[Tensor]:
    """Train some steps with dropout; return what they leave.

    Args:
        device: where.
        every: steps between two that run twice.
        flip_at: in which backward pass the lowest bit of a gradient is flipped, -1 = in none.
    """
    import torch

    from undaunted.training.replay import Replay

    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout())
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    passes = 0

    def flip(gradient: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        if passes != flip_at:
            return gradient
        flipped = gradient.clone()
        flipped.view(torch.int32)[3, 5] ^= 1
        return flipped

    model[0].weight.register_hook(flip)

    def forward_backward() -> Any:
        loss = model(torch.rand(32, 64, device=device)).square().mean()
        loss.backward()
        return loss

    replayed = Replay(model, every=every)
    for step in range(1, 7):
        replayed(step, forward_backward)
        optimizer.step()
        optimizer.zero_grad()
    return [one.detach() for one in model.state_dict().values()] + [torch.rand(9, device=device)]


def replica_digests(device: str, mib: int = 1024) -> str:
    """Replicas on a device have one digest, and another one as soon as any bit differs."""
    import torch

    from undaunted.digests.each import digests_of_each

    for kind in (torch.float32, torch.bfloat16):
        one = torch.randn(300_007, device=device).to(kind)
        one[:3] = torch.tensor([float("nan"), 0.0, float("inf")], dtype=kind)
        (digest,) = digests_of_each([one])
        assert digests_of_each([one.clone()]) == [digest], kind
        size = one.element_size() * 8
        whole = {32: torch.int32, 16: torch.int16}[size]
        for place in (0, 1, 2, 150_000, 300_006):
            for bit in range(size - 1):
                other = one.clone()
                other.view(whole)[place] ^= 1 << bit
                assert digests_of_each([other]) != [digest], (kind, place, bit)
        other = one.clone()
        other[1] = -0.0
        assert digests_of_each([other]) != [digest], kind
    large = [torch.ones(1 << 18, device=device) for _ in range(mib)]
    took = []
    for _ in range(3):
        began = time.perf_counter()
        digests_of_each(large)
        took.append(time.perf_counter() - began)
    return f"each bit counts; {mib} tensors of 1 MiB at {mib / 1024 * 1.0737 / min(took):.1f} GB/s"


def cost_of_checks(device: str, steps: int = 2000) -> str:
    """What `attempts` and `check` cost a step, beside the wait for the result itself."""
    import torch

    from undaunted.training import Rerun, Session

    loss = torch.ones((), device=device)
    with Session(stop_signals=(), rerun=Rerun()) as session:
        took = {}
        for checked in (False, True, False, True):
            began = time.perf_counter()
            for step in range(steps):
                with session.step(step):
                    if not checked:
                        loss.item()
                        continue
                    for _ in session.attempts():
                        session.check(loss, "loss")
            took[checked] = (time.perf_counter() - began) / steps
    more = (took[True] - took[False]) * 1e6
    return f"{more:.1f} us more than reading the loss, {took[False] * 1e6:.1f} us, in a step"


def stops(folder: Path, device: str, run: Any, ranks: int) -> str:
    """Ranks that reduce in each step stop after one iteration, and go on from there."""
    options = ("--nproc-per-node", str(ranks))
    run(folder, STOPS, *options, code=75, DEVICE=device)
    states = {path.read_text() for path in folder.glob("state-*.json")}
    assert len(states) == 1, states
    run(folder, STOPS, *options, DEVICE=device)
    backend = "NCCL" if device == "cuda" else "gloo"
    return f"{ranks} rank(s) with {backend} stopped after iteration {int(states.pop()) - 1}"


def job(folder: Path, device: str, run: Any, *, width: int, layers: int) -> str:
    """A GPT whose only rank is killed comes to the parameters of one that was left alone."""
    program = Path(__file__).with_name("programs").joinpath("gpt.py").read_text()
    results, events = {}, []
    # Threads that wait for each other in turns make a busy machine crawl.
    threads = {"OMP_NUM_THREADS": "1"} if device == "cpu" else {}
    for name, options in {
        "whole": (),
        "killed": ("--max-restarts", "1", "--inject-fault", "sigkill:rank=0,iteration=25"),
    }.items():
        place = folder / name
        place.mkdir()
        events = run(
            place,
            program,
            *options,
            arguments=(device, str(width), str(layers)),
            CUBLAS_WORKSPACE_CONFIG=":4096:8",  # or products are not the same twice
            **threads,
        )
        results[name] = json.loads((place / "result.json").read_text())
    whole, killed = results["whole"], results["killed"]
    assert whole["digest"] == killed["digest"], results
    (fault,) = (one["at_ns"] for one in events if one.get("name") == "fault")
    steps = [one["at_ns"] for one in events if one.get("name") == "first_step"]
    assert len(steps) == 2, steps
    return (
        f"{whole['numbers'] / 1e6:.0f} M parameters, the same after SIGKILL in step 25; "
        f"first step {(steps[1] - fault) / 1e9:.1f} s later; "
        f"saves stop for {', '.join(f'{one:.3f}' for one in whole['saves_s'])} s"
    )
