"""Adapter to Lightning: `UndauntedCallback` and `last_checkpoint` are all that a script needs.

    from undaunted.integrations.lightning import UndauntedCallback, last_checkpoint

    trainer = Trainer(callbacks=[UndauntedCallback(), ModelCheckpoint(dirpath="checkpoints")])
    trainer.fit(model, ckpt_path=last_checkpoint("checkpoints"))

docs/lightning.md says more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.integrations.lightning.callback import UndauntedCallback as UndauntedCallback
    from undaunted.integrations.lightning.resuming import last_checkpoint as last_checkpoint

_MODULES = {"UndauntedCallback": "callback", "last_checkpoint": "resuming"}

__all__ = ["UndauntedCallback", "last_checkpoint"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name in _MODULES:
        import importlib

        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
