"""Without Lightning modules can be imported, objects cannot be made."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

from undaunted.integrations import lightning


def test_modules_can_be_imported_without_lightning() -> None:
    for module in pkgutil.iter_modules(lightning.__path__, f"{lightning.__name__}."):
        importlib.import_module(module.name)


def test_an_object_names_what_to_install() -> None:
    if importlib.util.find_spec("lightning") is not None:
        pytest.skip("it is installed")
    with pytest.raises(ImportError, match=r"undaunted\[lightning\]"):
        lightning.UndauntedCallback()


@pytest.mark.integration
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_classes_are_of_the_package_that_the_program_uses(package: str) -> None:
    program = (
        f"import sys, {package}\n"
        "from undaunted.integrations.lightning import UndauntedCallback\n"
        f"assert issubclass(UndauntedCallback, {package}.Callback)\n"
        "assert ('lightning' in sys.modules) != ('pytorch_lightning' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
