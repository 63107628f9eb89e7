"""What the variables of a job tell, and what becomes of a job that has ended."""

from __future__ import annotations

import pytest

from undaunted.services.slurm.allocation import (
    Next,
    allocation,
    node_names,
    nodes_option,
    read_ended,
    read_step,
    step_environ,
    step_words,
    what_next,
)

JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_JOB_CPUS_PER_NODE": "72(x2),36",
    "SLURM_JOB_PARTITION": "batch",
}
TASK = JOB | {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "9", "SLURM_RESTART_COUNT": "2"}


def test_a_batch_script() -> None:
    here = allocation(JOB)
    assert (here.run_id, here.name, here.nodes, here.cpus, here.gpus) == (
        "slurm-17",
        "17",
        3,
        36,
        0,
    )
    assert (here.partition, here.restarts, here.port) == ("batch", 0, 20017)


def test_a_task_of_a_sweep_is_known_by_its_own_id() -> None:
    """The last task has the job id of the whole array."""
    assert (allocation(TASK).name, allocation(TASK).restarts) == ("17_9", 2)


def test_jobs_that_may_share_a_node_meet_at_different_ports() -> None:
    ports = {allocation(JOB | {"SLURM_JOB_ID": str(job)}).port for job in range(9990, 10_010)}
    assert len(ports) == 20
    assert all(20_000 <= port < 30_000 for port in ports)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"SLURM_JOB_ID": ""}, ["no job of Slurm", "sbatch", "undaunted run"]),
        ({"SLURM_JOB_ID": "x"}, ["SLURM_JOB_ID", "'x'"]),
        ({"SLURM_STEP_ID": "0"}, ["17.0", "leave srun out"]),
        ({"SLURM_HET_SIZE": "2"}, ["heterogeneous", "SLURM_HET_SIZE"]),
        ({"SLURM_JOB_NUM_NODES": ""}, ["SLURM_JOB_NUM_NODES"]),
    ],
)
def test_other_places_are_refused(changed: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        allocation(JOB | changed)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("step", ["4294967290", "4294967291", ""])
def test_shells_of_salloc_and_batch_scripts_are_no_tasks(step: str) -> None:
    assert allocation(JOB | {"SLURM_STEP_ID": step}).job == 17


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[08-11,3],gpu4", "n08 n09 n10 n11 n3 gpu4"),
        ("r[1-2]n[1-2]-ib,x", "r1n1-ib r1n2-ib r2n1-ib r2n2-ib x"),
        ("", ""),
    ],
)
def test_the_names_of_nodes(text: str, names: str) -> None:
    assert list(node_names(text)) == names.split()


@pytest.mark.parametrize(
    ("given", "spares", "option"),
    [
        (None, 0, "6:6"),
        (None, 2, "4:6"),
        ((4, 4), 0, "4:6"),
        ((2, 8), 0, "2:8"),
    ],
)
def test_how_many_nodes_take_part(given: tuple[int, int] | None, spares: int, option: str) -> None:
    assert nodes_option(given, spares, 6) == option


@pytest.mark.parametrize(("given", "spares"), [(None, 6), ((7, 7), 0)])
def test_an_allocation_that_does_not_fit(given: tuple[int, int] | None, spares: int) -> None:
    with pytest.raises(ValueError, match=r"6 nodes.*sbatch --nodes"):
        nodes_option(given, spares, 6)


def test_one_launcher_has_the_whole_node_and_outlives_others() -> None:
    here = allocation(JOB | {"SLURM_GPUS_ON_NODE": "8"})
    words = step_words(here, "me", ["--mpi=none"])
    assert words[0] == "srun"
    assert words[-1] == "--mpi=none"
    wanted = {"--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--nodes=3"}
    wanted |= {"--ntasks=3", "--cpus-per-task=36", "--gpus-per-node=8", "--job-name=me"}
    assert wanted <= set(words)
    assert step_environ({"SLURM_GPUS_PER_TASK": "1", "HOME": "/h"}) == {"HOME": "/h"}


def test_the_step_is_found_by_its_name() -> None:
    text = "17.batch|batch\n17.0|undaunted-4\n17.1|undaunted-41\n"
    assert read_step(text, "undaunted-41") == "17.1"
    assert read_step(text, "undaunted-5") == ""


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        ("n2: task 1: Exited with exit code 127", {"n2": "Exited with exit code 127"}),
        ("n[2-3]: tasks 1-2: Killed", {"n2": "Killed", "n3": "Killed"}),
        ("n1,n[07,09]: tasks 0,4,6: Killed", dict.fromkeys(("n1", "n07", "n09"), "Killed")),
        ("Node failure on n2", {}),
        ("StepId=17.0 tasks 0-2: running", {}),
        ("n[2: task 1: Killed", {}),
        ("Unable to create step for job 17: Job/step already completing", {}),
    ],
)
def test_which_launchers_have_ended(error: str, ended: dict[str, str]) -> None:
    assert read_ended(error) == ended


def after(
    outcome: str,
    came_to: int | None = None,
    before: int | None = None,
    *,
    reason: str = "",
    restarts: int = 0,
) -> Next:
    return what_next(outcome, reason, came_to, before, restarts=restarts, requeues=3)


@pytest.mark.parametrize("outcome", ["preempted", "too_few_nodes"])
def test_a_job_goes_back_to_the_queue(outcome: str) -> None:
    assert after(outcome, 7) == Next(again=True)
    assert after(outcome) == Next(again=True)
    assert after(outcome, None, 7) == Next(again=True)


@pytest.mark.parametrize("outcome", ["finished", "failed", "invalid", "no_restart", "excluded", ""])
def test_a_job_that_has_ended(outcome: str) -> None:
    assert after(outcome, 7) == Next(again=False)


def test_not_again_and_again() -> None:
    assert after("preempted", 9, 7, restarts=2).again
    ended = after("preempted", 9, 7, restarts=3)
    assert not ended.again
    assert "--requeues" in ended.why


@pytest.mark.parametrize(("came_to", "before"), [(7, 7), (3, 9)])
def test_not_where_the_last_start_came_no_further(came_to: int, before: int) -> None:
    ended = after("preempted", came_to, before)
    assert not ended.again
    assert f"iteration {came_to}" in ended.why


def test_a_node_whose_launcher_could_not_begin_is_left_out() -> None:
    reason = "of 3 launchers 1 is left (node n2: Exited with exit code 127; node n3: Killed)"
    assert after("too_few_nodes", reason=reason) == Next(again=True, without="n2")
    assert after("too_few_nodes", reason="node n2: Exited with exit code 19") == Next(again=True)


def test_the_node_to_blame_is_left_out() -> None:
    reason = "rank 1 (node n2) has a result that may be wrong"
    assert after("suspect", 7, reason=reason) == Next(again=True, without="n2")
    assert after("straggler", 7, reason="rank 1 is slow") == Next(again=True)
