"""The frame of the distribution: what it imports, what it says of areas that are missing."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
import warnings
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

from scripts import nvrx_names
from tests.test_layers import modules as modules_of_undaunted

REPOSITORY = Path(__file__).parents[2]
PROJECT = REPOSITORY / "compat/nvidia-resiliency-ext"
PACKAGE = PROJECT / "src/nvidia_resiliency_ext"


SCRIPTS = ("ft_launcher", "nvrx-control", "nvrx-attrsvc", "nvrx-mcp-analysis", "nvrx-smonsvc")


def module_files() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> set[str]:
    """Modules and names that a file imports, with dots."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def fresh(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_only_public_names_of_undaunted_are_imported() -> None:
    private = [
        f"{module} imports {name}"
        for module, path in module_files().items()
        for name in imported(path)
        if name.startswith("undaunted.") and any(part[0] == "_" for part in name.split("."))
    ]
    assert not private


def test_undaunted_does_not_import_the_alias() -> None:
    wrong = [
        module
        for module, path in modules_of_undaunted().items()
        if any(name.partition(".")[0] == "nvidia_resiliency_ext" for name in imported_names(path))
    ]
    assert not wrong


def imported_names(path: Path) -> set[str]:
    return {
        alias.name if isinstance(node, ast.Import) else (node.module or "")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def test_launchers_and_monitors_do_not_import_torch() -> None:
    tables = ("fault_tolerance", "shared_utils", "attribution")
    listed = {name for table in tables for name in nvrx_names.rows(table)}
    names = [f"nvidia_resiliency_ext.{name}" for name in listed - nvrx_names.not_built().keys()]
    fresh(f"import sys, {', '.join(names)}; assert 'torch' not in sys.modules")


def test_modules_are_attributes_of_fault_tolerance() -> None:
    fresh(
        "import nvidia_resiliency_ext.fault_tolerance as ft; ft.utils.get_rank, "
        "ft.timeouts_calc.TimeoutsCalc, ft.ipc_connector.IpcConnector, ft.dict_utils.diff, "
        "ft.config, ft.data, ft.rank_monitor_client, ft.rank_monitor_server; "
        "assert not hasattr(ft, 'nothing')"
    )


@pytest.mark.parametrize("area", nvrx_names.not_built())
def test_areas_that_are_not_built_say_so_in_a_sentence(area: str) -> None:
    name = f"nvidia_resiliency_ext.{area}"
    with pytest.raises(ImportError) as caught:
        importlib.import_module(name)
    assert f"{caught.value}" == f"undaunted has no {name}. {nvrx_names.not_built()[area]}"
    assert caught.value.name == name
    assert not isinstance(caught.value, ModuleNotFoundError)


def test_another_distribution_is_warned_of(tmp_path: Path) -> None:
    from nvidia_resiliency_ext._installed import VERSION, others, warn_of_another

    ours, theirs = tmp_path / "a", tmp_path / "b"
    (ours / f"nvidia_resiliency_ext-{VERSION}.dist-info").mkdir(parents=True)
    (theirs / "nvidia_resiliency_ext-0.5.1.dist-info").mkdir(parents=True)
    (theirs / "nvidia_resiliency_ext-0.4.1-py3.11.egg-info").touch()
    path = [str(ours), str(theirs), str(tmp_path / "none"), __file__]
    assert others(path) == ["0.4.1", "0.5.1"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_another([str(ours)])
        with pytest.raises(RuntimeWarning, match=r"nvidia-resiliency-ext 0\.4\.1 is installed"):
            warn_of_another(path)


def test_the_import_warns_of_another_distribution(tmp_path: Path) -> None:
    (tmp_path / "nvidia_resiliency_ext-0.5.1.dist-info").mkdir()
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import nvidia_resiliency_ext"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0
    assert "RuntimeWarning: nvidia-resiliency-ext 0.5.1 is installed beside" in result.stderr


def test_it_is_installed_and_has_one_version() -> None:
    import nvidia_resiliency_ext
    import undaunted

    installed = {one.version for one in distributions(name="nvidia-resiliency-ext")}
    version = nvidia_resiliency_ext.__version__
    assert installed == {version}, "run `make setup`"
    assert version.endswith(f"+undaunted.{undaunted.__version__}")
    assert f'version = "{version}"' in (PROJECT / "pyproject.toml").read_text()


def test_scripts_are_those_of_undaunted() -> None:
    ours = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["scripts"]
    undaunteds = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert ours == {
        **{name: f"undaunted.cli.main:{name.replace('-', '_')}" for name in SCRIPTS},
        "log_aggregator": "nvidia_resiliency_ext.shared_utils.log_aggregator:main",
    }
    assert undaunteds.keys() & ours.keys() == {"ft_launcher"}


@pytest.mark.e2e
def test_the_wheel_has_every_module(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is in the group 'test': run `make setup`")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=PROJECT, check=True, timeout=60, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        shipped = set(wheel.namelist())
        place = next(name for name in shipped if name.endswith("METADATA")).rpartition("/")[0]
        metadata = wheel.read(f"{place}/METADATA").decode()
        licence = wheel.read(f"{place}/licenses/LICENSE").decode()
    modules = {str(path.relative_to(PACKAGE.parent)) for path in module_files().values()}
    assert modules | {"nvidia_resiliency_ext/py.typed"} <= shipped
    assert "Private :: Do Not Upload" in metadata
    assert "Requires-Dist: undaunted" in metadata
    assert "END OF TERMS AND CONDITIONS" in licence
