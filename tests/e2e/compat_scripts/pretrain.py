"""A small training program with the structure of Megatron's, and faults to order.

It trains a model whose weights are the same whatever happens, as each iteration's data follow from
its number alone and gradients are summed over all ranks in whole numbers.
"""

import argparse
import os
import threading
from datetime import timedelta

import checkpoints
import ft_integration
import torch
import torch.distributed as dist


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", default="checkpoints")
    parser.add_argument("--save-interval", type=int, default=8)
    parser.add_argument("--train-iters", type=int, default=40)
    parser.add_argument("--eval-interval", type=int, default=16)
    parser.add_argument("--async-save", action="store_true")
    parser.add_argument("--calc-ft-timeouts", action="store_true")
    parser.add_argument("--inprocess-restart", action="store_true")
    parser.add_argument("--share-store", action="store_true", help="among iterations")
    parser.add_argument("--active-world-size", type=int)
    parser.add_argument("--soft-timeout", type=float, default=60)
    parser.add_argument("--fault", help="rank_killed, rank_hung, exception or silent, in rank 1")
    parser.add_argument("--fault-at", type=int, default=20)
    return parser.parse_args()


def pretrain(args, store=None, call=None):
    ft_integration.setup(args)
    dist.init_process_group(
        "gloo",
        store=store,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=120),
    )
    model = {"weight": torch.zeros(1000, dtype=torch.int64), "bias": torch.zeros(1)}
    iteration = checkpoints.load(args, model)
    if iteration:
        ft_integration.on_checkpoint_loaded(is_local_chkpt=False)
    begun = f"at iteration {iteration}, rank {dist.get_rank()} of {dist.get_world_size()}"
    print(f"process {PROCESS} begins {begun}", flush=True)
    train(args, model, iteration, call)
    ft_integration.on_checkpointing_start()
    checkpoints.maybe_finalize_async_save(blocking=True)
    ft_integration.on_checkpointing_end(is_async_finalization=True)
    ft_integration.shutdown()
    dist.destroy_process_group()
    return model["weight"].sum().item()


def train(args, model, iteration, call):
    while iteration < args.train_iters:
        ft_integration.on_checkpointing_start()
        checkpoints.maybe_finalize_async_save()
        ft_integration.on_checkpointing_end(is_async_finalization=True)
        if call is not None:
            call.ping()
        ft_integration.on_training_step_start()
        train_step(args, model, iteration, call)
        ft_integration.on_training_step_end()
        iteration += 1
        if iteration % args.eval_interval == 0:
            evaluate(model)
        if iteration % args.save_interval == 0:
            ft_integration.on_checkpointing_start()
            checkpoints.save(args, iteration, model)
            ft_integration.on_checkpointing_end(is_async_finalization=False)


def train_step(args, model, iteration, call):
    if iteration == args.fault_at - 3:  # so that tests know what is saved when the fault comes
        checkpoints.maybe_finalize_async_save(blocking=True)
    rank, size = dist.get_rank(), dist.get_world_size()
    if iteration == args.fault_at and is_victim(call):
        fail(args.fault)
    gradient = torch.zeros_like(model["weight"])
    gradient[rank::size] = torch.arange(1000)[rank::size] * (iteration % 7)
    dist.all_reduce(gradient)  # where the others are when a rank fails
    model["weight"] += gradient


def evaluate(model):
    for _ in range(3):
        ft_integration.on_eval_step_start()
        dist.all_reduce(model["weight"].float().mean())
        ft_integration.on_eval_step_end()


def is_victim(call):
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    return first and PROCESS == "1" and (call is None or call.iteration == 0)


def fail(how):
    if how == "exception":
        raise RuntimeError("a simulated fault")
    if how == "silent":  # Python code goes on, training does not
        while True:
            threading.Event().wait(0.1)
    if how:
        ft_integration.simulated_fault(how)


if __name__ == "__main__":
    PROCESS = os.environ["RANK"]
    arguments = parse()
    function = pretrain
    if arguments.inprocess_restart:
        import inprocess_restart

        function = inprocess_restart.wrap(pretrain, arguments)
    result = function(arguments)
    print(f"process {PROCESS} ends with {result}", flush=True)
