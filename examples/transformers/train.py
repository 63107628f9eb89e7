r"""A script with the Trainer of Transformers that survives crashes, hangs and preemption.

Three lines are undaunted's. One rank is killed, later another one hangs:

    undaunted run --nproc-per-node 2 --max-restarts 3 \
        --ft-rank-section-timeouts step:10 --ft-rank-out-of-section-timeout 10 \
        --inject-fault "sigkill:rank=1,iteration=25" \
        --inject-fault "sleep:rank=0,iteration=45" train.py

The same step and number are printed without the faults. More in docs/huggingface.md.
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from undaunted.integrations.transformers import UndauntedCallback, last_checkpoint  # 1

torch.manual_seed(1)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
tokens = torch.randint(0, 64, (256, 16))
args = TrainingArguments(
    "out",
    max_steps=60,
    save_steps=10,
    per_device_train_batch_size=4,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(
    GPT2LMHeadModel(config),
    args,
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    callbacks=[UndauntedCallback()],  # 2
)
trainer.train(resume_from_checkpoint=last_checkpoint(args.output_dir))  # 3
if args.process_index == 0:
    checksum = sum(float(each.abs().sum()) for each in trainer.model.parameters())
    print(f"step {trainer.state.global_step}: {checksum:.4f}", flush=True)
