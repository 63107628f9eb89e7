#!/bin/bash
# The same inside of an allocation: salloc --nodes 2 --no-kill ./interactive.sh train.py
set -eu
endpoint=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):${PORT:-$((20000 + SLURM_JOB_ID % 10000))}
exec srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \
    undaunted run --nnodes "$SLURM_NNODES" --rdzv-endpoint "$endpoint" \
    --nproc-per-node "${RANKS_PER_NODE:-auto}" --max-restarts "${RESTARTS:-10}" "$@"
