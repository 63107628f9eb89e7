"""Trains on a state that a seed makes, saves, and compares with training from scratch."""

import hashlib
import random
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

import undaunted
from undaunted.checkpointing import Checkpointer, RandomState

SEED, STEPS = int(sys.argv[1]), 20
ODD = ("view", "packed", "parts", "many")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


def module(rng):
    """Layers with parameters, buffers, a frozen and a shared parameter."""
    makers = (
        lambda: torch.nn.Linear(
            rng.randrange(1, 40), rng.randrange(1, 40), bias=rng.random() < 0.5
        ),
        lambda: torch.nn.Conv1d(3, rng.randrange(1, 9), rng.randrange(1, 4)),
        lambda: torch.nn.BatchNorm1d(rng.randrange(1, 20)),
        lambda: torch.nn.LSTM(rng.randrange(1, 9), rng.randrange(1, 9)),
        lambda: torch.nn.Embedding(rng.randrange(2, 50), rng.randrange(1, 9)),
        lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(5, 7)),
        lambda: torch.nn.ParameterDict({"a b": torch.randn(3), "c": torch.randn(())}),
    )
    layers = torch.nn.ModuleList(rng.choice(makers)() for _ in range(rng.randrange(1, 30)))
    if rng.random() < 0.5:
        layers.append(layers[0])  # shared
    for parameter in layers.parameters():
        if rng.random() < 0.1:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in layers.parameters()):
        layers.append(torch.nn.Linear(2, 2))
    return layers


def optimizer(rng, parameters):
    makers = (
        lambda p: torch.optim.SGD(p, 0.01, momentum=rng.choice((0.0, 0.9))),
        lambda p: torch.optim.AdamW(p, 0.01, amsgrad=rng.random() < 0.5),
        lambda p: torch.optim.RMSprop(p, 0.01, centered=rng.random() < 0.5),
        lambda p: torch.optim.Adagrad(p, 0.01),
        lambda p: torch.optim.NAdam(p, 0.01),
        lambda p: torch.optim.Adamax(p, 0.01),
        lambda p: torch.optim.Rprop(p, 0.01),
        lambda p: torch.optim.ASGD(p, 0.01),
    )
    cut = rng.randrange(len(parameters)) if rng.random() < 0.5 else 0
    groups = [{"params": part} for part in (parameters[:cut], parameters[cut:]) if part]
    return rng.choice(makers)(groups)


def schedule(rng, of):
    makers = (
        lambda: torch.optim.lr_scheduler.CosineAnnealingLR(of, STEPS),
        lambda: torch.optim.lr_scheduler.StepLR(of, 3),
        lambda: torch.optim.lr_scheduler.OneCycleLR(of, 0.1, STEPS + 1, cycle_momentum=False),
        lambda: torch.optim.lr_scheduler.LinearLR(of, total_iters=5),
    )
    return rng.choice(makers)()


def plain(rng, depth=0):
    kinds = ("int", "float", "text", "none", "bool", "list", "dict", "tensor", *ODD)
    kind = rng.choice(kinds if depth < 3 else kinds[:5])
    if kind == "list":
        return [plain(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == "dict":
        names = [rng.choice(("a", "b.c", "d/e", "f g", "é", "0")) for _ in range(rng.randrange(4))]
        return {name: plain(rng, depth + 1) for name in names}
    if kind == "tensor":
        shape = [rng.randrange(0, 5) for _ in range(rng.randrange(4))]
        return torch.zeros(shape, dtype=rng.choice(DTYPES))
    if kind == "view":
        base = torch.zeros(rng.randrange(2, 9), rng.randrange(2, 9), dtype=rng.choice(DTYPES))
        return rng.choice((base.t(), base[1:, ::2], base[:, 0], base[1, 1]))
    if kind == "packed":
        return TwoTensor(torch.zeros(3), torch.ones(3))
    if kind == "parts":
        whole = torch.zeros(rng.randrange(0, 9), rng.randrange(1, 5))
        return distribute_tensor(whole, MESH, [rng.choice((Shard(0), Shard(1), Replicate()))])
    if kind == "many":
        return {f"t{n}": torch.zeros(n % 5) for n in range(rng.randrange(3000))}
    made = {"int": rng.randrange(-(2**40), 2**40), "float": rng.random(), "text": "text é"}
    return made.get(kind, None if kind == "none" else rng.random() < 0.5)


def changed(value, step):
    """The same value a step later; tensors in place."""
    if isinstance(value, torch.Tensor):
        return value.add_(1)
    if isinstance(value, dict):
        return {name: changed(each, step) for name, each in value.items()}
    if isinstance(value, list):
        return [changed(each, step) for each in value]
    if isinstance(value, bool):
        return not value
    return value + step if isinstance(value, int | float) else value


class Training:
    def __init__(self):
        rng = random.Random(SEED)
        torch.manual_seed(SEED)
        net = module(rng)
        trained = [each for each in net.parameters() if each.requires_grad]
        made = optimizer(rng, trained)
        self.trained = trained
        self.state = {
            "net": net,
            "optimizer": made,
            "schedule": schedule(rng, made),
            "plain": {str(number): plain(rng) for number in range(rng.randrange(1, 8))},
            "random": RandomState(),
            "history": [],
        }

    def step(self, step):
        state = self.state
        noise = torch.rand(())
        loss = sum((each * noise).square().sum() for each in self.trained)
        state["optimizer"].zero_grad()
        loss.backward()
        state["optimizer"].step()
        state["schedule"].step()
        state["plain"] = changed(state["plain"], step)
        state["history"].append(random.random())

    def digests(self):
        """By the place of each value."""
        found = {}

        def walk(value, place):
            if isinstance(value, TwoTensor):
                walk(value.a, f"{place}/a")
                walk(value.b, f"{place}/b")
            elif isinstance(value, DTensor):
                walk(value.to_local(), f"{place}/here")
            elif isinstance(value, torch.Tensor):
                raw = value.detach().contiguous().view(-1)
                data = raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""
                found[place] = f"{value.dtype} {tuple(value.shape)} {hashlib.md5(data).hexdigest()}"
            elif isinstance(value, dict):
                found[place] = f"dict {sorted(map(repr, value))}"
                for name, each in value.items():
                    walk(each, f"{place}/{name}")
            elif isinstance(value, list | tuple):
                found[place] = f"list {len(value)}"
                for at, each in enumerate(value):
                    walk(each, f"{place}/{at}")
            elif not callable(value):
                found[place] = repr(value)

        for name in ("net", "optimizer", "schedule"):
            walk(self.state[name].state_dict(), name)
        for name in ("plain", "history"):
            walk(self.state[name], name)
        walk(torch.get_rng_state(), "random")
        return found


dist.init_process_group("gloo")
MESH = init_device_mesh("cpu", (dist.get_world_size(),))
torch.serialization.add_safe_globals([TwoTensor])
rank = dist.get_rank()
training = Training()
torch.manual_seed(SEED)
random.seed(SEED)
with Checkpointer("checkpoints", keep=2) as checkpoints:
    start = checkpoints.load(training.state) or 0
    for step in range(start, STEPS):
        undaunted.step(step)
        training.step(step)
        if step % 4 == 3:
            checkpoints.save(step + 1, training.state)
found = training.digests()
whole = Training()
torch.manual_seed(SEED)
random.seed(SEED)
for step in range(STEPS):
    whole.step(step)
must = whole.digests()
different = {place for place in found.keys() | must.keys() if found.get(place) != must.get(place)}
for place in sorted(different)[:10]:
    print(f"{place}: {found.get(place)}, must be {must.get(place)}", flush=True)
print(f"rank {rank}: " + (f"{len(different)} differ" if different else "the same"), flush=True)
dist.destroy_process_group()
sys.exit(bool(different))
