"""Examples of deployment: what needs no cluster is run, and the names in the others must agree."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.ports import free_ports
from undaunted.cli.options import RUN
from undaunted.coordinator.policy.messages import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"

# "Connects" to any host but one. As with sshd, what runs there outlives a killed client, but
# its streams end.
SSH = """\
#!/bin/bash
while [ "$1" = -o ]; do shift 2; done
[ "$1" != unreachable ] || exit 255
shift
exec 3<&0
setsid bash -c "$*" <&3 | cat
exit "${PIPESTATUS[0]}"
"""
SCRIPT = """
    import os, pathlib, signal, sys, threading
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    os.write(1, "rank {RANK}/{WORLD_SIZE}\\n".format(**os.environ).encode())
    while not pathlib.Path("finish").exists():
        threading.Event().wait(0.02)
        if told:
            os.write(1, b"told\\n")
            while pathlib.Path("slow").exists():
                threading.Event().wait(0.02)
            sys.exit("saved")
    os.write(1, b"done\\n")
"""
STOP_S = 30


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    """Each with labels that it has."""
    text = (DEPLOY / "grafana" / "job.json").read_text()
    board = json.loads(text)
    rows = (DEPLOY.parents[1] / "docs" / "metrics.md").read_text().splitlines()
    known = {
        name: {"node", "run_id", *re.findall(r"`(\w+)`", row.split("|")[2])}
        for row in rows
        if row.startswith("| `undaunted_")
        for name in re.findall(r"`(undaunted_\w+)`", row.split("|")[1])
    }
    shown = re.findall(r"(undaunted_[a-z_]+)(?:\{([^}]*)\})?", " ".join(expressions(board)))
    assert len(shown) > 10
    for name, labels in shown:
        whole = re.sub("_bucket$", "", name)
        assert whole in known, name
        assert set(re.findall(r"(\w+)=", labels)) <= known[whole], name
        one_run = "run_id" in labels or f"label_values({name}, run_id)" in text
        assert one_run, f"{name}: jobs that share a node are mixed"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in board["panels"])


def expressions(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in board["templating"]["list"]:
        yield variable["query"]


def start_over_ssh(folder: Path, hosts: str) -> subprocess.Popen[str]:
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(SSH)
    (folder / "bin" / "ssh").chmod(0o755)
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    port = free_ports(2)
    path = [folder / "bin", Path(sys.executable).parent, os.environ["PATH"]]
    env = {"PATH": ":".join(map(str, path)), "HOSTS": hosts, "PORT": str(port), "RECONNECT_S": "0"}
    return subprocess.Popen(
        [DEPLOY / "ssh" / "train.sh", "--worker-start", "fresh", "train.py"],
        cwd=folder,
        env={**os.environ, **env, "JOB": "job", "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def over_ssh(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A job of two launchers."""
    process = start_over_ssh(tmp_path, "localhost 127.0.0.1")
    try:
        yield process
    finally:
        (tmp_path / "slow").unlink(missing_ok=True)
        if process.poll() is None:
            process.terminate()
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def wait_for(process: subprocess.Popen[str], *lines: str) -> None:
    assert process.stdout is not None
    missing, seen = list(lines), ""
    while missing:
        line = process.stdout.readline()
        assert line, seen
        seen += line
        if line.strip() in missing:
            missing.remove(line.strip())


def both_run(process: subprocess.Popen[str]) -> None:
    wait_for(process, "rank 0/2", "rank 1/2")


@pytest.mark.e2e
def test_a_job_over_ssh(over_ssh: subprocess.Popen[str], tmp_path: Path) -> None:
    both_run(over_ssh)
    (tmp_path / "finish").touch()
    text, _ = over_ssh.communicate(timeout=60)
    assert over_ssh.returncode == 0, text
    assert text.endswith("finished (exit code 0): every rank exited with 0\n")
    run_dir = tmp_path / "undaunted-runs" / "job"
    assert "rank 0/2\n" in (run_dir / "out-localhost").read_text(), "the first host has rank 0"
    assert "rank 1/2\n" in (run_dir / "out-127.0.0.1").read_text()


@pytest.mark.e2e
def test_a_job_over_ssh_is_told_to_stop(over_ssh: subprocess.Popen[str]) -> None:
    both_run(over_ssh)
    over_ssh.send_signal(signal.SIGTERM)
    text, _ = over_ssh.communicate(timeout=60)
    assert over_ssh.returncode == 75, text
    assert text.count("\nsaved") + text.startswith("saved") == 2


@pytest.mark.e2e
def test_a_job_over_ssh_survives_its_connections(
    over_ssh: subprocess.Popen[str], tmp_path: Path
) -> None:
    """And what ranks print meanwhile is shown after all, once."""
    both_run(over_ssh)
    clients = [pid for pid in Path("/proc").glob("[0-9]*") if is_client(pid, tmp_path)]
    assert len(clients) >= 2
    for client in clients:
        os.kill(int(client.name), signal.SIGKILL)
    (tmp_path / "finish").touch()
    text, _ = over_ssh.communicate(timeout=60)
    assert over_ssh.returncode == 0, text
    assert text.count("done\n") == 2
    assert "restart" not in text
    assert "rank 0/2" not in text


def is_client(process: Path, folder: Path) -> bool:
    """Whether this is an `ssh` of the job, or the process that copies what comes from its host."""
    try:
        command = (process / "cmdline").read_bytes().split(b"\0")
        parent = Path("/proc", (process / "stat").read_text().rpartition(")")[2].split()[1])
        above = (parent / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False
    ssh = str(folder / "bin" / "ssh").encode()
    return ssh in command or (command[0] == b"cat" and ssh in above)


@pytest.mark.e2e
def test_a_second_signal_kills_a_job_over_ssh(
    over_ssh: subprocess.Popen[str], tmp_path: Path
) -> None:
    (tmp_path / "slow").touch()
    both_run(over_ssh)
    over_ssh.send_signal(signal.SIGTERM)
    wait_for(over_ssh, "told", "told")
    while True:
        over_ssh.send_signal(signal.SIGTERM)
        try:
            text, _ = over_ssh.communicate(timeout=1)
        except subprocess.TimeoutExpired:  # so soon it is the same one, sent twice
            continue
        break
    assert over_ssh.returncode != 0
    assert "saved" not in text
    assert "No such file" not in text


@pytest.mark.e2e
def test_a_host_that_cannot_be_reached_and_no_spare(tmp_path: Path) -> None:
    with start_over_ssh(tmp_path, "localhost unreachable") as process:
        try:
            text, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1, text
    assert "unreachable: no launcher was started" in text
    assert not re.search(r"^rank \d", text, re.MULTILINE), text


# --- Kubernetes: not run on a cluster; names that must agree, and command lines ------------------


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def pods_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    spec = document["spec"]
    jobs = [each["template"]["spec"] for each in spec.get("replicatedJobs", [])] or [spec]
    return [job["template"]["spec"] for job in jobs]


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_command_lines_in_kubernetes(name: str) -> None:
    for document in documents(name):
        if document["kind"] == "Service":
            continue
        for pod in pods_of(document):
            (container,) = pod["containers"]
            parsed = RUN.parse(container["args"], {})
            _, most = parsed.options.nnodes
            is_node = container["command"] == ["undaunted", "run"]
            assert parsed.target == ("train.py" if is_node else "")
            assert most == 4
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in pod["volumes"]}
            assert parsed.options.term_timeout_s < pod.get("terminationGracePeriodSeconds", 300)


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml", "trainjob.yaml"])
def test_pods_do_not_start_again_after_an_end_for_good(name: str) -> None:
    text = (DEPLOY / "kubernetes" / name).read_text()
    rules = re.findall(r"action: (\w+).*\n *onExitCodes: .*values: \[(.*)\]", text)
    assert sorted(rules) == [
        ("FailJob", f"{Outcome.INVALID.exit_code}, {Outcome.NO_RESTART.exit_code}"),
        ("Ignore", f"{Outcome.PREEMPTED.exit_code}"),
    ]


def test_names_in_the_job() -> None:
    service, job = documents("job.yaml")
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 4
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None"
    endpoint = f"{job['metadata']['name']}-0.{pod['subdomain']}:29400"
    assert f"--rdzv-endpoint={endpoint}" in pod["containers"][0]["args"]
    assert pod["containers"][0]["ports"] == [{"containerPort": 29400}]


def test_the_command_line_of_the_trainjob() -> None:
    runtime, job = documents("trainjob.yaml")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    trainer, jobset = job["spec"]["trainer"], runtime["spec"]["template"]["spec"]
    (replicated,) = jobset["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == replicated["name"] == "node"
    assert container["command"][:2] == ["undaunted", "run"]
    set_by_trainer = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "train-node-0-0.train",
        "PET_MASTER_PORT": "29400",
    }
    parsed = RUN.parse([*container["command"][2:], *trainer["args"]], set_by_trainer)
    assert parsed.target == "train.py"
    assert parsed.options.nnodes == (3, trainer["numNodes"])
    assert parsed.options.node_rank == 1
    assert parsed.options.term_timeout_s < pod["terminationGracePeriodSeconds"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert [port["containerPort"] for port in container["ports"]] == [29400]


def test_names_in_the_jobset() -> None:
    (jobset,) = documents("jobset.yaml")
    name = jobset["metadata"]["name"]
    coordinator, nodes = jobset["spec"]["replicatedJobs"]
    assert nodes["template"]["spec"]["completions"] == 4
    assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == [coordinator["name"]]
    # JobSet names pods JOBSET-JOB-REPLICA-INDEX and makes a service of its own name.
    endpoint = f"--rdzv-endpoint={name}-{coordinator['name']}-0-0.{name}:29400"
    for pod in pods_of(jobset):
        assert endpoint in pod["containers"][0]["args"]


@pytest.mark.parametrize(
    "path", sorted(DEPLOY.glob("*/*.s*")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_scripts_have_no_mistake_in_their_syntax(path: Path) -> None:
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"#!/bin/bash\n# \S", path.read_text())
