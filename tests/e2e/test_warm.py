"""What the template imports while the ranks run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.launcher import launched

pytestmark = pytest.mark.e2e

# Fails until it finds that the import is done.
FINDS = r"""
    import sys, torch
    found = "torch._dynamo" in sys.modules
    sys.stdout.write(f"found {found}\n")
    torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()
    sys.exit(not found)
"""
OPTIONS = ("--max-restarts", "300", "--ft-max-no-progress-cycles", "0")


def test_restarted_ranks_find_what_an_optimizer_imports(tmp_path: Path) -> None:
    with launched(tmp_path, FINDS, *OPTIONS) as launcher:
        assert launcher.finish() == 0
        launcher.wait_for("found False")
        launcher.wait_for("found True")
        modes = {event["mode"] for event in launcher.events("workers_spawned")}
        assert modes == {"warm"}


@pytest.mark.slow
def test_what_a_module_sets_for_a_later_import_counts_in_each_round(tmp_path: Path) -> None:
    """The second round begins after the imports of the template are over, as far as it has any."""
    (tmp_path / "settings.py").write_text("import os; os.environ['TORCHDYNAMO_VERBOSE'] = '1'")
    script = """
        import os, sys, threading, torch, settings
        torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()
        print("verbose", sys.modules["torch._dynamo"].config.verbose, flush=True)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            threading.Event().wait(5)
            sys.exit(1)
    """
    with launched(tmp_path, script, "--max-restarts", "1") as launcher:
        assert launcher.finish() == 0
        assert launcher.text.count("verbose True") == 2


def test_a_job_does_not_wait_for_imports_that_nobody_needs_any_more(tmp_path: Path) -> None:
    with launched(tmp_path, "import torch") as launcher:
        assert launcher.finish() == 0
        (stop,) = launcher.events("stop_requested")
        (stopped,) = launcher.events("round_stopped")
        assert int(str(stopped["t"])) - int(str(stop["t"])) < 1.5e9, "less than the grace"


def test_ranks_that_cannot_need_torch_do_not_wait_for_it(tmp_path: Path) -> None:
    with launched(tmp_path, "import sys; sys.exit('torch' in sys.modules)") as launcher:
        assert launcher.finish() == 0
        (spawned,) = launcher.events("workers_spawned")
        assert spawned["mode"] == "warm"


# Installed packages. Of two with names that are on the list, one takes a value from its rank, and
# one may not be imported in advance all the same.
PACKAGES = {
    "lightning_utilities/__init__.py": "",
    "lightning_utilities/core/__init__.py": "",
    "lightning_utilities/core/rank_zero.py": "import os\ndef rank_zero_only(): pass\n"
    "rank_zero_only.rank = int(os.environ.get('RANK', -1))",
    "peft.py": "import threading; threading.Thread(target=print).start()\n"
    "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "pother.py": "",
}
LEARNED = r"""
    import glob, os, sys, time
    names = {"lightning_utilities.core.rank_zero", "peft", "pother", "mine"}
    before = sorted(set(sys.modules) & names)
    import mine, peft, pother
    from lightning_utilities.core.rank_zero import rank_zero_only
    import undaunted
    sys.stdout.write(f"rank {os.environ['RANK']} {before} {rank_zero_only.rank}\n")
    round = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    step = 0
    journal = open(glob.glob("run/journal-*.jsonl")[0])
    while round < 1 and "imports_learned" not in journal.read():
        undaunted.step(step)
        step += 1
        time.sleep(0.01)
    sys.exit(round < 2 and os.environ["RANK"] == "0")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)  # the import has the lowest priority
def test_restarted_ranks_find_what_earlier_ones_have_imported(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    for name, text in {**PACKAGES, "../mine.py": "import lightning_utilities"}.items():
        path = installed / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    options = ("--nproc-per-node", "2", "--max-restarts", "3", "--ft-max-no-progress-cycles", "0")
    path = os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])
    with launched(tmp_path, LEARNED, *options, PYTHONPATH=path) as launcher:
        assert launcher.finish(500) == 0
        for rank in range(2):
            launcher.wait_for(rf"rank {rank} \[\] {rank}$")
            launcher.wait_for(rf"rank {rank} \['lightning_utilities.core.rank_zero'\] {rank}$")
        (learned,) = launcher.events("imports_learned")
        assert learned["packages"] == ["lightning_utilities"]
        assert sorted(learned["left"]) == ["peft", "pother"]
        assert {event["mode"] for event in launcher.events("workers_spawned")} == {"warm"}
        report = subprocess.run(
            [sys.executable, "-m", "undaunted", "report", str(launcher.run_dir)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "pother" in report.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="no autogroups here")
def test_what_is_learned_gives_way_to_the_ranks_among_sessions_too(tmp_path: Path) -> None:
    installed, noted = tmp_path / "site-packages", tmp_path / "noted"
    installed.mkdir()
    noted.mkdir()
    (installed / "timm.py").write_text(
        "import os, pathlib\n"
        "about = pathlib.Path('/proc/self/autogroup').read_text()\n"
        f"pathlib.Path({str(noted)!r}, str(os.getpid())).write_text(about)\n"
        "del about\n"
    )
    path = os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])
    with launched(tmp_path, LEARNED_ONCE, PYTHONPATH=path) as launcher:
        launcher.wait_for("in the first round")
        while not launcher.events("imports_learned"):
            assert launcher.process.poll() is None, launcher.text
            time.sleep(0.1)
        (tmp_path / "finish").touch()
        assert launcher.finish() == 0
    # Of the rank, and of a template.
    found = sorted(path.read_text().split()[-1] for path in noted.iterdir())
    assert found == ["0", "19"]


def test_nothing_is_learned_where_that_is_turned_off(tmp_path: Path) -> None:
    script = "import sys; sys.exit(any(type(f).__name__ == 'Notes' for f in sys.meta_path))"
    with launched(tmp_path, script, "--learn-imports", "off") as launcher:
        assert launcher.finish() == 0
    with launched(tmp_path, script) as launcher:
        assert launcher.finish() == 1


LEARNED_ONCE = r"""
    import pathlib, time, timm, undaunted
    step = 0
    while not pathlib.Path("finish").exists():
        undaunted.step(step)
        step += 1
        if step == 2:
            print("in the first round", flush=True)
        time.sleep(0.05)
"""
# Rank 1 comes first to `init_process_group`, and says whether rank 0 listens when it connects.
COMES_FIRST = r"""
    import os, pathlib, socket, sys, time
    import torch.distributed as dist

    rank, come = int(os.environ["RANK"]), pathlib.Path("come-" + os.environ["MASTER_PORT"])

    def store(*args, **kwargs):
        with socket.socket() as probe:
            refused = probe.connect_ex(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        print("refused" if refused else "served", flush=True)
        return dist.TCPStore(*args, **kwargs)

    if rank == 1:
        sys.modules["torch.distributed.rendezvous"].TCPStore = store
        come.touch()
    while not come.exists():
        time.sleep(0.01)
    if rank == 0:
        time.sleep(0.1)  # rank 1 would have connected meanwhile, and then have slept for longer
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.torch
def test_a_rank_that_comes_before_rank_0_is_not_refused_by_its_store(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with launched(tmp_path, COMES_FIRST, "--nproc-per-node", "2") as launcher:
        assert launcher.finish() == 0
        launcher.wait_for("served")
        assert "refused" not in launcher.text
        (spawned,) = launcher.events("workers_spawned")
        assert spawned["mode"] == "warm"


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["warm", "fresh"])
def test_what_a_program_sets_before_it_imports_torch_counts(tmp_path: Path, mode: str) -> None:
    script = """
        import os, sys
        early = "torch" in sys.modules
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        import torch.distributed as dist
        print("level", dist.get_debug_level().name, "early", early, flush=True)
    """
    with launched(tmp_path, script, "--worker-start", mode) as launcher:
        assert launcher.finish() == 0
        launcher.wait_for(f"level DETAIL early {mode == 'warm'}")
        assert "in advance" not in launcher.text


@pytest.mark.parametrize("mode", ["warm", "fresh"])
def test_a_package_that_a_program_brings_is_the_one_it_gets(tmp_path: Path, mode: str) -> None:
    (tmp_path / "vendored").mkdir()
    (tmp_path / "vendored/numpy.py").write_text("__version__ = 'vendored'")
    script = """
        import pathlib, sys
        sys.path.insert(0, str(pathlib.Path(__file__).parent / "vendored"))
        import numpy
        print("numpy is", numpy.__version__, flush=True)
    """
    options = ("--nproc-per-node", "2", "--worker-start", mode)
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 0
        launcher.wait_for("numpy is vendored")
    lines = [line for line in launcher.seen if "in advance: train.py:3 changes sys.path" in line]
    assert len(lines) == (1 if mode == "warm" else 0)
