"""Names, parameters and defaults of NVRx: the alias has them, or its table says why not."""

from __future__ import annotations

import importlib
import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scripts import nvrx_names

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

LEFT_OUT = {module: row.get("missing", {}) for module, row in nvrx_names.all_rows().items()}
FACTS = msgspec.yaml.decode(Path(__file__).with_name("signatures.yaml").read_text())
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def expected(text: str) -> inspect.Signature:
    """The signature that a row of facts describes."""
    names: dict[str, Any] = {"s": lambda seconds: timedelta(seconds=seconds)}
    exec(f"def fact({text}): ...", names)
    return inspect.signature(names["fact"])


def ours(module: str, name: str) -> inspect.Signature:
    found: Any = importlib.import_module(f"nvidia_resiliency_ext.{module}")
    *path, last = name.split(".")
    for part in path:
        found = getattr(found, part)
    is_method = bool(path) and inspect.isfunction(inspect.getattr_static(found, last))
    signature = inspect.signature(getattr(found, last))
    if not is_method:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def differences(fact: inspect.Signature, own: inspect.Signature) -> list[str]:
    found = []
    takes_all = any(each.kind == inspect.Parameter.VAR_KEYWORD for each in own.parameters.values())
    positional = [name for name, each in own.parameters.items() if each.kind in POSITIONAL]
    for place, (name, wanted) in enumerate(fact.parameters.items()):
        if wanted.kind in VARIADIC:
            if all(each.kind != wanted.kind for each in own.parameters.values()):
                found.append(f"*{name} is not taken")
            continue
        if name not in own.parameters:
            if not takes_all:
                found.append(f"{name} is not there")
            continue
        if wanted.kind in POSITIONAL and positional[place : place + 1] != [name]:
            found.append(f"{name} is not argument {place}")
        default = own.parameters[name].default
        if wanted.default is not ... and wanted.default not in (inspect.Parameter.empty, default):
            found.append(f"{name}={default!r}, not {wanted.default!r}")
        if wanted.default is not inspect.Parameter.empty and default is inspect.Parameter.empty:
            found.append(f"{name} has no default")
    found += [
        f"{name} has no default, and NVRx does not know it"
        for name, each in own.parameters.items()
        if each.default is inspect.Parameter.empty
        and each.kind not in VARIADIC
        and name not in fact.parameters
    ]
    return found


def is_built(module: str) -> bool:
    return not any(f"{module}.".startswith(f"{area}.") for area in nvrx_names.not_built())


@pytest.mark.parametrize("module", [module for module in FACTS if is_built(module)])
def test_arguments_of_nvrx_are_taken(module: str) -> None:
    left_out = LEFT_OUT.get(module, {})
    wrong = {
        name: found
        for name, text in FACTS[module].items()
        if name not in left_out and (found := differences(expected(text), ours(module, name)))
    }
    assert not wrong


@pytest.mark.parametrize("module", [module for module in FACTS if not is_built(module)])
def test_what_is_not_built_says_so(module: str) -> None:
    with pytest.raises(ImportError, match="undaunted has no") as caught:
        importlib.import_module(f"nvidia_resiliency_ext.{module}")
    assert not isinstance(caught.value, ModuleNotFoundError)


def test_the_comparison_notices() -> None:
    fact = expected("a, b=s(1), *, c=None")
    assert not differences(fact, expected("a, b=s(1), *, c=None, d=5"))
    assert not differences(fact, expected("a, b=s(1), **others"))
    assert differences(fact, expected("b=s(1), a=0, *, c=None")) == [
        "a is not argument 0",
        "b is not argument 1",
    ]
    assert differences(fact, expected("a, b, *, c=1, e")) == [
        "b=<class 'inspect._empty'>, not datetime.timedelta(seconds=1)",
        "b has no default",
        "c=1, not None",
        "e has no default, and NVRx does not know it",
    ]
    assert differences(expected("*args"), expected("args")) == ["*args is not taken"]
