"""What a training program of Megatron's kind has between its loop and the rank monitor.

The functions, their order and their rules are those of its module of this name: sections `setup`,
`step` and `checkpointing`, limits that follow from what was seen, and a file that keeps them.
"""

import json
import os
import signal
import threading
from pathlib import Path

import torch.distributed as dist

from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

MIN_ITERS_FOR_STEP_UPDATE = 16
WARMUP_ITERS = 1


class Monitored:
    """What is known of this run."""

    client: "RankMonitorClient | None" = None
    state_path = Path()
    calculates = False
    asynchronous = False
    loaded_persistent = False
    setup_is_open = False
    checkpoints = 0
    iterations = 0
    evaluations = 0  # of the evaluation that is on


run = Monitored()


def say(text):
    if os.environ["RANK"] == "0":
        print(f"FT: {text}", flush=True)


def setup(args):
    global run
    if not args.save:
        raise ValueError("checkpoint save dir must be set to enable fault tolerance")
    say("initializing...")
    if run.client is not None and run.client.is_initialized:  # restarted inside the process
        run.client.shutdown_workload_monitoring()
    run = Monitored()
    run.state_path = Path(args.save) / "ft_state.json"
    run.state_path.parent.mkdir(parents=True, exist_ok=True)
    run.calculates, run.asynchronous = args.calc_ft_timeouts, args.async_save
    run.client = RankMonitorClient()
    run.client.init_workload_monitoring(num_warmup_iters=WARMUP_ITERS)
    if run.state_path.exists():
        run.client.load_state_dict(json.loads(run.state_path.read_text()))
        say(f"loaded timeouts from {run.state_path}. {run.client.section_timeouts}")
    run.client.start_section("setup")
    run.setup_is_open = True
    say("initialized.")


def get_rank_monitor_client():
    return run.client


def _leave_setup():
    if run.setup_is_open:
        run.client.end_section("setup")
        run.setup_is_open = False


def on_training_step_start():
    if run.client is None:
        return
    _leave_setup()
    if run.iterations >= WARMUP_ITERS:
        run.client.start_section("step")
    run.evaluations = 0


def on_training_step_end():
    if run.client is None:
        return
    if run.iterations >= WARMUP_ITERS:
        run.client.end_section("step")
    run.iterations += 1


def on_eval_step_start():
    if run.client is None:
        return
    _leave_setup()
    if run.evaluations >= WARMUP_ITERS:
        run.client.start_section("step")


def on_eval_step_end():
    if run.client is None:
        return
    if run.evaluations >= WARMUP_ITERS:
        run.client.end_section("step")
    run.evaluations += 1


def on_checkpointing_start():
    if run.client is not None:
        run.client.start_section("checkpointing")


def on_checkpointing_end(is_async_finalization):
    if run.client is None:
        return
    run.client.end_section("checkpointing")
    if not is_async_finalization:
        run.checkpoints += 1
        _update_timeouts(is_closing=False)


def on_checkpoint_loaded(is_local_chkpt):
    run.loaded_persistent = not is_local_chkpt


def shutdown():
    if run.client is None:
        return
    say("closing...")
    _update_timeouts(is_closing=True)
    run.client.shutdown_workload_monitoring()
    run.client = None
    say("closed.")


def _update_timeouts(is_closing):
    if not run.calculates:
        return
    setup_ready = run.loaded_persistent
    step_ready = run.iterations >= MIN_ITERS_FOR_STEP_UPDATE
    sections = ["setup"] if setup_ready else []
    sections += ["step"] if step_ready else []
    sections += ["checkpointing"] if run.checkpoints and not run.asynchronous else []
    out_of_section = bool(is_closing and setup_ready and step_ready and run.checkpoints)
    if not sections and not out_of_section:
        return
    say(f"updating timeouts for: {sections} update out-of-section: {out_of_section} ...")
    run.client.calculate_and_set_section_timeouts(
        selected_sections=sections, calc_out_of_section=out_of_section
    )
    if dist.get_rank() == 0:
        run.state_path.write_text(json.dumps(run.client.state_dict()))
        say(f"updated timeouts saved to {run.state_path}. {run.client.section_timeouts}")


def simulated_fault(kind):
    """End or stop this process, as the fault simulation of Megatron does."""
    print(f"FT: Simulating fault: {kind}; rank to fail: {os.environ['RANK']}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL if kind == "rank_killed" else signal.SIGSTOP)
    threading.Event().wait()
