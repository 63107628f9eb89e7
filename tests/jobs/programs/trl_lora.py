"""Fine-tuning of a Llama with LoRA adapters: SFTTrainer of TRL, peft, a tokenizer made here."""

import torch
from datasets import Dataset
from peft import LoraConfig
from result import BF16, print_result
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

from undaunted.integrations.transformers import UndauntedCallback, last_checkpoint

WORDS = [f"w{number}" for number in range(4096)]


def tokenizer():
    numbers = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    made = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def texts(count):
    for at in range(count):
        generator = torch.Generator().manual_seed(at)
        numbers = torch.randint(0, len(WORDS), (40,), generator=generator)
        yield {"text": " ".join(WORDS[number] for number in numbers)}


def main():
    set_seed(1)
    config = LlamaConfig(
        vocab_size=len(WORDS) + 3,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=6,
        num_attention_heads=8,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    arguments = SFTConfig(
        "out",
        max_steps=16,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        max_length=48,
        bf16=BF16,
        gradient_checkpointing=False,
        dataloader_num_workers=1,
        save_steps=4,
        save_total_limit=2,
        logging_steps=4,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = SFTTrainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=Dataset.from_list(list(texts(160))),
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=8, lora_dropout=0.05, target_modules="all-linear"),
        callbacks=[UndauntedCallback()],
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(arguments.output_dir))
    print_result(trainer.model, trainer.state.global_step)


if __name__ == "__main__":
    main()
