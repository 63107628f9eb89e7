"""The program of torchtitan, on CPUs: `python train.py --module tiny --config tiny`."""

import on_cpu  # noqa: F401 - before torchtitan
from torchtitan.train import main

main()
