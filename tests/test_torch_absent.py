"""The launcher side runs, and starts fast, on a machine without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import SRC, modules

# Modules that are imported only where torch is: add one here when it needs torch at import time.
WORKER_SIDE = frozenset(
    {
        "undaunted.checkpointing.async_ckpt.cached_metadata_filesystem_reader",
        "undaunted.checkpointing.async_ckpt.commit",
        "undaunted.checkpointing.async_ckpt.exchange",
        "undaunted.checkpointing.async_ckpt.filesystem_async",
        "undaunted.checkpointing.async_ckpt.state_dict_saver",
        "undaunted.checkpointing.async_ckpt.torch_ckpt",
        "undaunted.checkpointing.checkpointer",
        "undaunted.checkpointing.dcp.blueprint",
        "undaunted.checkpointing.dcp.containers",
        "undaunted.checkpointing.dcp.digests",
        "undaunted.checkpointing.dcp.filling",
        "undaunted.checkpointing.dcp.fingerprint",
        "undaunted.checkpointing.dcp.items",
        "undaunted.checkpointing.dcp.loading",
        "undaunted.checkpointing.dcp.metadata",
        "undaunted.checkpointing.dcp.objects",
        "undaunted.checkpointing.dcp.packed",
        "undaunted.checkpointing.dcp.plan_codec",
        "undaunted.checkpointing.dcp.reads",
        "undaunted.checkpointing.dcp.refusals",
        "undaunted.checkpointing.dcp.repeated",
        "undaunted.checkpointing.dcp.sameness",
        "undaunted.checkpointing.dcp.saving",
        "undaunted.checkpointing.dcp.stateful",
        "undaunted.checkpointing.dcp.states",
        "undaunted.checkpointing.dcp.torch_private",
        "undaunted.checkpointing.foreign",
        "undaunted.checkpointing.local.basic_state_dict",
        "undaunted.checkpointing.local.buffers",
        "undaunted.checkpointing.local.ckpt_managers.base_manager",
        "undaunted.checkpointing.local.ckpt_managers.local_manager",
        "undaunted.checkpointing.local.ckpt_managers.saving",
        "undaunted.checkpointing.local.flat",
        "undaunted.checkpointing.local.replication.exchange",
        "undaunted.checkpointing.local.replication.group_utils",
        "undaunted.checkpointing.local.replication.retrieval",
        "undaunted.checkpointing.local.replication.states",
        "undaunted.checkpointing.local.replication.strategies",
        "undaunted.checkpointing.local.values",
        "undaunted.checkpointing.per_rank",
        "undaunted.checkpointing.random_state",
        "undaunted.checkpointing.restoring",
        "undaunted.checkpointing.staging.copy",
        "undaunted.digests.companions",
        "undaunted.digests.hooks",
        "undaunted.inprocess.store",
        "undaunted.inprocess.wrap",
        "undaunted.integrations.megatron.call_store",
        "undaunted.training.replay",
        "undaunted.training.replicas",
    }
)
# Run by path, never imported.
PROGRAMS = frozenset({"undaunted.fault_tolerance.worker.boot"})

# Too slow, or not there, for what runs at every start of a launcher.
HEAVY = ("torch", "numpy", "rich", "asyncio", "multiprocessing", "http", "email", "urllib.request")
HEAVY_FOR_USERS = (*HEAVY, "msgspec", "logging", "subprocess", "argparse")

IMPORT_ALL = """
import importlib, json, sys, traceback
sys.modules["torch"] = sys.modules["numpy"] = sys.modules["threadpoolctl"] = None
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except Exception:
        failed[name] = traceback.format_exc(limit=-2)
print(json.dumps(failed))
"""


def python(code: str, *args: str) -> str:
    """Runs code with nothing but the standard environment; returns what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SRC)!r})\n{code}", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def loaded_by(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of the modules are loaded after the code ran."""
    ask = f"import json\nprint(json.dumps([n for n in {names!r} if n in sys.modules]))"
    loaded: list[str] = json.loads(python(f"{code}\n{ask}").splitlines()[-1])
    return loaded


def test_every_launcher_side_module_imports_without_torch() -> None:
    names = [name for name in modules() if name not in WORKER_SIDE | PROGRAMS]
    failed = json.loads(python(IMPORT_ALL, json.dumps(names)))
    assert not failed, "\n".join(
        f"{name} (launcher side) does not import without torch:\n{why}"
        for name, why in failed.items()
    )


def test_listed_modules_exist() -> None:
    assert set(modules()) >= WORKER_SIDE | PROGRAMS


def test_import_of_the_package_is_light() -> None:
    assert loaded_by("import undaunted", HEAVY_FOR_USERS) == []


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_the_command_is_light(arguments: list[str]) -> None:
    pytest.importorskip("undaunted.cli.main", reason="the command line is not there")
    code = (
        "from undaunted.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass"
    )
    assert loaded_by(code, HEAVY) == []


def test_sources_are_under_src() -> None:
    assert Path(python("import undaunted; print(undaunted.__path__[0])").strip()).parent == SRC
