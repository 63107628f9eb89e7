"""Train a small character-level language model so that crashes and hangs cost a few steps only.

    undaunted run --nproc-per-node 2 --max-restarts 3 examples/char_lm/train.py --dir checkpoints

The script also runs unchanged under torchrun; the calls to ``undaunted`` are no-ops then.

An interrupted and resumed run ends with the same parameters, bit for bit, as one that is not:

* A checkpoint holds everything the next step depends on: parameters, optimizer, the position in
  the data, and the random state of every rank (dropout draws from it).
* The batch of a step is a function of seed, step and rank. There is no iterator to restore.
* A checkpoint appears under its name only when it is complete and on disk.
* One thread per rank, and two ranks: the sum of two numbers does not depend on their order. With
  more ranks, DDP regroups the gradients after its first step, so that the order of additions and
  with it the last bits may differ after a restart.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pydoc_data.topics
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import undaunted

SEED = 1234
CONTEXT = 64  # characters the model sees
BATCH = 12  # sequences per rank and step
WIDTH = 64
LAYERS = 2
HEADS = 4
DROPOUT = 0.1
LEARNING_RATE = 2e-3
KEEP = 2  # checkpoints


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a character-level language model.")
    parser.add_argument("--dir", type=Path, required=True, help="directory of the checkpoints")
    parser.add_argument("--steps", type=int, default=200, help="steps to train (default: 200)")
    parser.add_argument("--checkpoint-every", type=int, default=25, help="steps (default: 25)")
    parser.add_argument("--log-every", type=int, default=20, help="steps (default: 20)")
    parser.add_argument("--hash-out", type=Path, help="file for the digest of the final parameters")
    return parser.parse_args()


def train(args: argparse.Namespace) -> None:
    text, vocabulary = load_text()
    torch.manual_seed(SEED)  # the same initial parameters on every rank
    model = DistributedDataParallel(CharacterModel(vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    torch.manual_seed(SEED + 1 + dist.get_rank())  # different dropout on every rank

    start = resume(args.dir, model, optimizer)
    say(f"resumed from the checkpoint of step {start}" if start else "starting from scratch")

    for step in range(start, args.steps):
        undaunted.step(step)
        inputs, targets = batch(text, step)
        logits = model(inputs)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        done = step + 1
        if done % args.log_every == 0:
            say(f"step {done}/{args.steps}, loss {loss.item():.4f}")
        if done % args.checkpoint_every == 0 or done == args.steps:
            with undaunted.section("checkpoint"):
                save(args.dir, done, model, optimizer)

    if args.hash_out and dist.get_rank() == 0:
        args.hash_out.write_text(digest(model.module) + "\n", encoding="ascii")


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


# Data


def load_text() -> tuple[Tensor, int]:
    """Return Python's own help texts as indices of characters, and the number of characters."""
    text = "\n".join(pydoc_data.topics.topics.values())
    index = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([index[character] for character in text]), len(index)


def batch(text: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of this rank at ``step``: nothing but the arguments decides."""
    generator = torch.Generator()
    generator.manual_seed((SEED * 1_000_003 + step) * dist.get_world_size() + dist.get_rank())
    starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=generator)
    positions = starts + torch.arange(CONTEXT)
    return text[positions], text[positions + 1]


# Model


class CharacterModel(nn.Module):
    """A small causal transformer: characters in, logits of the next character out."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, DROPOUT, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        length = characters.shape[1]
        hidden = self.characters(characters) + self.positions.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(self.norm(hidden))


def digest(model: nn.Module) -> str:
    """Return a digest that two models share only if all their parameters are equal bit for bit."""
    total = hashlib.sha256()
    for name, parameter in model.named_parameters():
        total.update(name.encode())
        total.update(bytes(parameter.detach().flatten().view(torch.uint8).tolist()))
    return total.hexdigest()


# Checkpoints


def save(directory: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint of ``step``. Every rank calls this; rank 0 writes."""
    random_state = torch.get_rng_state()
    writer = dist.get_rank() == 0
    states = [torch.empty_like(random_state) for _ in range(dist.get_world_size())]
    dist.gather(random_state, states if writer else None)
    if not writer:
        return
    content = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random_states": states,
    }
    write_atomically(directory / f"step-{step:08d}.pt", content)
    for old in checkpoints(directory)[:-KEEP]:
        old.unlink()


def write_atomically(path: Path, content: dict[str, object]) -> None:
    """Write ``path`` so that, whatever dies and when, it holds all of ``content`` or is absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")  # the same after a crash, so that none are left to pile up
    with temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())  # the content is on disk before the name is
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # and now the name
    finally:
        os.close(directory)


def resume(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the latest checkpoint, if there is one. Return how many steps are done."""
    # Rank 0 decides which one: no rank may see another directory listing than its peers.
    found = checkpoints(directory) if dist.get_rank() == 0 else []
    step = torch.tensor(step_of(found[-1]) if found else 0)
    dist.broadcast(step, src=0)
    if step == 0:
        return 0
    content = torch.load(directory / f"step-{int(step):08d}.pt", weights_only=True)
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    states = content["random_states"]
    if len(states) != dist.get_world_size():
        raise SystemExit(
            f"The checkpoint in {directory} was written by {len(states)} ranks, this run has "
            f"{dist.get_world_size()}: start as many, or give another --dir."
        )
    torch.set_rng_state(states[dist.get_rank()])
    return int(content["step"])


def checkpoints(directory: Path) -> list[Path]:
    """Return all complete checkpoints, oldest first."""
    return sorted(directory.glob("step-*.pt"), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.removeprefix("step-"))


if __name__ == "__main__":
    main()
