"""A GPT-2 of 7 M parameters with the Trainer of Transformers, which saves by itself."""

import torch
from result import BF16, print_result
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from undaunted.integrations.transformers import UndauntedCallback, last_checkpoint


class Texts(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(at)
        row = torch.randint(0, 8192, (64,), generator=generator)
        return {"input_ids": row, "labels": row}


class CheckingTrainer(Trainer):
    def compute_loss(self, model, inputs, **given):
        computed = super().compute_loss(model, inputs, **given)
        loss = computed[0] if given.get("return_outputs") else computed
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()}")
        return computed


def main():
    set_seed(1)
    config = GPT2Config(
        vocab_size=8192, n_positions=64, n_embd=256, n_layer=6, n_head=8, use_cache=False
    )
    config.bos_token_id = config.eos_token_id = 0
    arguments = TrainingArguments(
        "out",
        max_steps=24,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=3e-4,
        warmup_steps=4,
        lr_scheduler_type="cosine",
        bf16=BF16,
        dataloader_num_workers=2,
        eval_strategy="steps",
        eval_steps=8,
        save_steps=6,
        save_total_limit=2,
        logging_steps=4,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = CheckingTrainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=Texts(300),
        eval_dataset=Texts(16),
        callbacks=[UndauntedCallback()],
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(arguments.output_dir))
    print_result(trainer.model, trainer.state.global_step)


if __name__ == "__main__":
    main()
