"""Train a small character-level language model so that crashes and hangs cost a few steps only.

    undaunted run --nproc-per-node 2 --max-restarts 3 examples/char_lm/train.py --dir checkpoints

The script also runs unchanged under torchrun; the calls to ``undaunted`` are no-ops then.

An interrupted and resumed run ends with the same parameters, bit for bit, as one that is not:

* A checkpoint holds everything the next step depends on: parameters, optimizer, the position in
  the data, and the random state of every rank (dropout draws from it). It is written while
  training goes on, and appears only when it is complete and on disk.
* The batch of a step is a function of seed, step and rank. There is no iterator to restore.
* One thread per rank, and two ranks: the sum of two numbers does not depend on their order. With
  more ranks, DDP regroups the gradients after its first step, so that the order of additions and
  with it the last bits may differ after a restart.
"""

from __future__ import annotations

import argparse
import hashlib
import pydoc_data.topics
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import undaunted
from undaunted.checkpointing import Checkpointer, RandomState

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

    state = {"model": model.module, "optimizer": optimizer, "random": RandomState()}
    with Checkpointer(args.dir, keep=KEEP) as checkpoints:
        start = checkpoints.load(state) or 0
        say(f"resumed from the checkpoint of step {start}" if start else "starting from scratch")
        for step in range(start, args.steps):
            undaunted.step(step)
            loss = train_step(model, optimizer, batch(text, step))
            done = step + 1
            if done % args.log_every == 0:
                say(f"step {done}/{args.steps}, loss {loss:.4f}")
            if done % args.checkpoint_every == 0 or done == args.steps:
                with undaunted.section("checkpoint"):
                    must_be_finite(model)
                    checkpoints.save(done, state)

    if args.hash_out and dist.get_rank() == 0:
        args.hash_out.write_text(digest(model.module) + "\n", encoding="ascii")


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, examples: tuple[Tensor, Tensor]
) -> float:
    inputs, targets = examples
    logits = model(inputs)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def must_be_finite(model: nn.Module) -> None:
    """Raise an error, and so go back to the last checkpoint, before NaN gets into one."""
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise FloatingPointError(f"rank {dist.get_rank()}: the parameters hold NaN or infinity")


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


if __name__ == "__main__":
    main()
