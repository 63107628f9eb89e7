"""A rank with a data loader, for `benchmarks.stop`: `stop.py PHASE WORKERS`.

It says in the file begun-RANK that it is in the phase (steps or evaluation), and in saved-RANK at
which moment its save begins.
"""

import os
import sys
import time
from pathlib import Path

import torch

from undaunted.training import Session

RANK, PHASE, WORKERS = os.environ["RANK"], sys.argv[1], int(sys.argv[2])
STEP_S, BATCH_S, BATCHES = 0.02, 0.1, 6000


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return torch.full((4,), float(index))


def save(_):
    Path(f"saved-{RANK}").write_text(str(time.monotonic()))


def main():
    loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=WORKERS)
    with Session(save=save) as session:
        for step, _ in enumerate(loader):
            with session.step(step):
                time.sleep(STEP_S)
            if step == 10 and PHASE == "evaluation":
                for batch in session.evaluating(range(BATCHES)):
                    if batch == 1:
                        Path(f"begun-{RANK}").touch()
                    time.sleep(BATCH_S)
            elif step == 10:
                Path(f"begun-{RANK}").touch()
            if session.should_stop(step):
                break
    return session.exit_code


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    sys.exit(main())
