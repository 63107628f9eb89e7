from __future__ import annotations

import sys
from importlib import metadata
from types import ModuleType, SimpleNamespace

import pytest

from undaunted.doctor.programs import software_program


def test_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"torch": "2.9.1", "nvidia-nccl-cu12": "2.28.5", "lightning": None}
    known["nvidia-resiliency-ext"] = "0.6.0+undaunted.0.1.0"

    def version(name: str) -> str | None:
        if name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(metadata, "version", version)
    assert software_program.installed() == {"torch": "2.9.1", "nccl": "2.28.5"}


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert software_program.imported() == {}


@pytest.mark.parametrize(
    "error", [ImportError("libcudart.so.12"), ModuleNotFoundError("No sympy", name="sympy")]
)
def test_a_torch_that_is_broken(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "torch":
                raise error

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ImportError) as raised:
        software_program.imported()
    assert raised.value is error


def test_torch_with_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    torch.__dict__.update(
        __version__="2.9.1+cu128",
        version=SimpleNamespace(cuda="12.8"),
        distributed=SimpleNamespace(is_available=lambda: True, is_nccl_available=lambda: True),
    )
    cuda = ModuleType("torch.cuda")
    cuda.__dict__["nccl"] = SimpleNamespace(version=lambda: (2, 28, 5))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    assert software_program.imported() == {
        "torch": "2.9.1+cu128",
        "cuda": "12.8",
        "nccl": "2.28.5",
    }
