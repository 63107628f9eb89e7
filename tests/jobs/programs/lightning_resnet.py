"""A ResNet-18 with Lightning: a Loader with augmentation in its workers, bf16, EMA, validation.

With the Loader the parameters are those of the undisturbed run also after a restart in an epoch.
"""

import lightning as L
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from result import BF16, print_result
from torch.nn import functional
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.models import resnet18

from undaunted.data import Batches, Loader
from undaunted.integrations.lightning import LoaderCallback, UndauntedCallback, last_checkpoint


class Pictures(Dataset):
    def __init__(self, length, noise=0.0):
        self.length, self.noise = length, noise

    def __len__(self):
        return self.length

    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(at)
        picture = torch.randn(3, 32, 32, generator=generator) + at % 10 / 10
        return picture + self.noise * torch.randn(3, 1, 1), at % 10


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = resnet18(num_classes=10)
        self.net.fc = torch.nn.Sequential(torch.nn.Dropout(0.1), self.net.fc)

    def train_dataloader(self):
        pictures = Pictures(192, noise=0.1)  # an epoch has twelve steps
        return Batches(Loader(pictures, global_batch=16, micro_batch=4, seed=1, num_workers=2))

    def training_step(self, batch, _):
        pictures, classes = batch
        loss = functional.cross_entropy(self.net(pictures), classes)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        pictures, classes = batch
        right = (self.net(pictures).argmax(1) == classes).float().mean()
        self.log("right", right, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=24)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main():
    L.seed_everything(1)
    model = Classifier()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        precision="bf16-mixed" if BF16 else "32-true",
        callbacks=[
            LoaderCallback(),
            ModelCheckpoint(dirpath="checkpoints", every_n_train_steps=6, save_top_k=-1),
            EMAWeightAveraging(decay=0.9),
            UndauntedCallback(),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    validation = StatefulDataLoader(Pictures(32), batch_size=8, num_workers=2)
    checkpoint = last_checkpoint("checkpoints")
    trainer.fit(model, val_dataloaders=validation, ckpt_path=checkpoint)
    print_result(model, trainer.global_step)


if __name__ == "__main__":
    main()
