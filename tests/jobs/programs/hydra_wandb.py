"""A gMLP configured by Hydra, logged to wandb (offline), fed by webdataset shards."""

import json
import os
import sys
from pathlib import Path

import hydra
import timm
import torch
import torch.distributed as dist
import wandb
import webdataset as wds
from omegaconf import OmegaConf
from result import BF16, print_result
from torch.nn.parallel import DistributedDataParallel

from undaunted.training import Session, ignore_stop_signals

SHARDS, PER_SHARD = 8, 64


def write_shards():
    for shard in range(SHARDS):
        with wds.TarWriter(f"data/shard-{shard:03}.tar") as sink:
            for at in range(shard * PER_SHARD, (shard + 1) * PER_SHARD):
                generator = torch.Generator().manual_seed(at)
                picture = torch.randn(3, 64, 64, generator=generator)
                sink.write({"__key__": f"{at:05}", "x.pth": picture, "y.cls": at % 10})


def loader(config):
    data = wds.WebDataset(
        "data/shard-{000..007}.tar", nodesplitter=wds.split_by_node, shardshuffle=False
    )
    data = data.decode().to_tuple("x.pth", "y.cls").batched(config.batch).repeat()
    return wds.WebLoader(
        data,
        batch_size=None,
        num_workers=2,
        worker_init_fn=ignore_stop_signals,
        generator=torch.Generator(),
    )


@hydra.main(version_base=None, config_path="conf", config_name="mixer")
def main(config):
    rank = int(os.environ["RANK"])
    if rank == 0 and not Path("data/made").exists():
        Path("data").mkdir(exist_ok=True)
        write_shards()
        Path("data/made").touch()
    dist.init_process_group("gloo")
    dist.barrier()
    torch.manual_seed(config.seed)
    net = timm.create_model(config.model, img_size=64, num_classes=10)
    model = DistributedDataParallel(net)
    optimizer = hydra.utils.instantiate(config.optimizer, model.parameters())
    logged = None
    if rank == 0:
        logged = wandb.init(project="mixer", config=OmegaConf.to_container(config), id="mixer-1")

    def save(step):
        if rank == 0:
            written = Path("checkpoints/part.pt")
            written.parent.mkdir(exist_ok=True)
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step + 1}, written)
            written.replace("checkpoints/newest.pt")
        dist.barrier()

    with Session(save=save) as session:
        start = 0
        if Path("checkpoints/newest.pt").exists():
            state = torch.load("checkpoints/newest.pt")
            net.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            start = state["step"]
        batches = iter(loader(config))
        for _ in range(start):
            next(batches)
        for step in range(start, config.steps):
            with session.step(step):
                pictures, classes = next(batches)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
                    loss = torch.nn.functional.cross_entropy(model(pictures).float(), classes)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if logged:
                logged.log({"loss": float(loss)}, step=step)
            if step % config.save_every == config.save_every - 1:
                session.save(step)
            if session.should_stop(step):
                break
    if not session.stop:
        print_result(net, config.steps)
    if logged:
        logged.finish(exit_code=session.exit_code)
        print(json.dumps({"logged": logged.id}), flush=True)
    dist.destroy_process_group()
    sys.exit(session.exit_code)


if __name__ == "__main__":
    main()
