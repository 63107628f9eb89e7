"""A convolutional network with Ignite: its engine, handlers, Checkpoint and evaluator."""

from pathlib import Path

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EMAHandler
from ignite.metrics import Accuracy
from result import print_result
from torch.utils.data import Dataset
from torchvision.models import mobilenet_v3_small

import undaunted

EPOCHS, BATCHES, SAVE_EVERY, BATCH = 4, 6, 6, 8  # it saves at the end of an epoch


class Pictures(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(at)
        return torch.randn(3, 32, 32, generator=generator) + at % 10 / 10, at % 10


def main():
    torch.manual_seed(1)
    net = mobilenet_v3_small(num_classes=10, dropout=0.0)
    model = idist.auto_model(net)
    optimizer = idist.auto_optim(torch.optim.RMSprop(model.parameters(), lr=1e-4))
    size = BATCH * idist.get_world_size()
    loader = idist.auto_dataloader(
        Pictures(BATCHES * size), batch_size=size, shuffle=True, num_workers=2
    )
    held_out = idist.auto_dataloader(Pictures(2 * size), batch_size=size)
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.cross_entropy)
    evaluator = create_supervised_evaluator(model, metrics={"right": Accuracy()})
    average = EMAHandler(net, momentum=0.1)
    average.attach(trainer, name="ema", event=Events.ITERATION_COMPLETED)

    @trainer.on(Events.ITERATION_STARTED)
    def tell(engine):
        undaunted.step(engine.state.iteration - 1)

    @trainer.on(Events.EPOCH_STARTED)
    def shuffle(engine):
        loader.sampler.set_epoch(engine.state.epoch)

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine):
        evaluator.run(held_out)

    objects = {
        "trainer": trainer,
        "model": net,
        "optimizer": optimizer,
        "average": average.ema_model,
    }
    saver = Checkpoint(
        objects,
        DiskSaver("checkpoints", create_dir=True, require_empty=False),
        n_saved=2,
        global_step_transform=lambda *_: trainer.state.iteration,
    )
    trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
    saved = list(Path("checkpoints").glob("checkpoint_*.pt"))
    if saved:
        newest = max(saved, key=lambda path: int(path.stem.split("_")[-1]))
        Checkpoint.load_objects(objects, torch.load(newest, weights_only=False))
    trainer.run(loader, max_epochs=EPOCHS)
    print_result(net, trainer.state.iteration)


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(lambda _: main())
