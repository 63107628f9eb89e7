"""The configuration of tiny.py with a Loader: `python train.py --module with_loader --config tiny`.

Each rank writes the numbers of its samples in each step to samples-RANK, with a random number of
the forward pass.
"""

import dataclasses
import json
from pathlib import Path

import tiny as base
import torch
from torchtitan.components.dataloader import BaseDataLoader

from undaunted.integrations.torchtitan import LoaderMixin


class Rows(torch.utils.data.Dataset):
    """The first token of a row is its number."""

    def __len__(self):
        return 11 * 4

    def __getitem__(self, index):
        row = (torch.arange(33) * (index + 1)) % 11
        return {"input": row[:-1], "index": index}, row[1:]


class Data(LoaderMixin, BaseDataLoader):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        global_batch: int = 4
        seed: int = 1

    def samples(self, config, tokenizer, seq_len):
        return Rows()


class Trainer(base.Trainer):
    """Notes which samples it sees."""

    def post_dataloading_process(self, input_dict, labels):
        note = [self.step, input_dict.pop("index").tolist(), torch.rand(()).item()]
        with Path(f"samples-{base.RANK}").open("a") as file:
            file.write(json.dumps(note) + "\n")
        return super().post_dataloading_process(input_dict, labels)


def tiny() -> Trainer.Config:
    config = base.tiny()
    given = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    config = Trainer.Config(**given)
    config.dataloader = Data.Config()
    config.training.global_batch_size = 4
    config.validator.enable = False
    return config
