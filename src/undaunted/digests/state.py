"""Digests of states: of modules, optimizers, and what containers hold. Torch may be absent.

Values are taken in one canonical way: lists and tuples are alike, dictionaries go by their sorted
keys. So a state that went through a file and came back unchanged has the digest it had.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    from undaunted.digests.tensors import Contents

_DIGEST_BYTES = 8
_MAX_DEPTH = 32
_WHAT_HAS_ONE = (
    "give a module, an optimizer, an object with state_dict(), a tensor, numbers or text, or a "
    "dictionary or list of these"
)

Parts = dict[str, str]


def digest_of(value: object, *, strict: bool = True) -> str:
    """Return the digest of a value, 16 hexadecimal characters.

    Args:
        value: anything made of tensors, arrays, numbers, text, None and containers.
        strict: what is something else is an error; otherwise its type stands for it.

    Raises:
        ValueError: says what has no digest.
    """
    taken = _Taken(strict)
    no_grad = getattr(sys.modules.get("torch"), "no_grad", contextlib.nullcontext)
    with no_grad():
        taken.take(value, _MAX_DEPTH)
        return taken.digest()


def parts_of(digest: object) -> Parts:
    """Return the parts of what a script gave as its digest; see docs/design/chaos.md.

    Raises:
        ValueError: says what has no digest.
    """
    if isinstance(digest, Mapping):
        parts: Parts = {}
        for key, value in digest.items():
            named = parts_of(value) if _has_parts(value) else {"": digest_of(value)}
            parts |= {f"{key}.{name}" if name else str(key): one for name, one in named.items()}
        return parts
    if _is_a(digest, "torch.nn.modules.module", "Module"):
        return module_parts(digest)
    if _is_a(digest, "torch.optim.optimizer", "Optimizer"):
        return {"optimizer": optimizer_digest(digest)}
    return {"state": digest_of(digest)}


def tensors_of(digest: object) -> Iterator[Tensor]:
    """Return the parameters in what a script gave as its digest."""
    if isinstance(digest, Mapping):
        for value in digest.values():
            yield from tensors_of(value)
    elif _is_a(digest, "torch.nn.modules.module", "Module"):
        yield from digest.parameters()  # type: ignore[attr-defined]


def module_parts(module: Module) -> Parts:
    """Return ``parameters``, and ``buffers`` if there are any."""
    parts = {"parameters": digest_of(dict(module.named_parameters()))}
    buffers = {} if _gets_buffers(module) else _buffers(module)
    if buffers:
        parts["buffers"] = digest_of(buffers)
    return parts


def optimizer_digest(optimizer: Optimizer) -> str:
    """Return the digest of an optimizer's state and settings.

    Not by its state_dict(): for some that is a collective operation, or runs hooks of the script.
    """
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    # One that has not been used yet may be there as an empty dictionary.
    states = [optimizer.state.get(parameter) or {} for parameter in parameters_of(optimizer)]
    return digest_of([groups, states], strict=False)


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of an optimizer, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _buffers(module: Module) -> dict[str, Tensor]:
    """Return those that a checkpoint holds; others are caches, which may begin empty."""
    return {
        f"{prefix}.{name}": buffer
        for prefix, one in module.named_modules()
        for name, buffer in one.named_buffers(recurse=False)
        if name not in getattr(one, "_non_persistent_buffers_set", ())
    }


def _gets_buffers(module: Module) -> bool:
    """Tell whether the pass that begins replaces this rank's buffers by those of another one."""
    group = getattr(module, "process_group", None)
    broadcast = getattr(module, "broadcast_buffers", False)
    return bool(broadcast and group is not None and group.rank() != 0)


class _Taken:
    """The digest of one value."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._pieces: list[bytes] = []
        self._tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())
        self._contents: Contents | None = None

    def digest(self) -> str:
        hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for piece in self._pieces:
            # With its length, so that pieces cannot be joined in another way.
            hashed.update(b"%d:%b" % (len(piece), piece))
        if self._contents is not None:
            hashed.update(self._contents.sums())
        return hashed.hexdigest()

    def take(self, value: object, depth: int) -> None:
        if not depth:
            raise ValueError(f"containers nested more than {_MAX_DEPTH} deep have no digest")
        if isinstance(value, self._tensor):
            self._take_tensor(value)
        elif value is None or isinstance(value, (bool, int)):
            self._take_text(f"{type(value).__name__} {value}")
        elif isinstance(value, (float, complex)):
            real, imaginary = (value, 0.0) if isinstance(value, float) else (value.real, value.imag)
            self._pieces.append(b"float " + struct.pack("<dd", real, imaginary))
        elif isinstance(value, str):
            self._take_text(f"str {value}")
        elif isinstance(value, (bytes, bytearray)):
            self._pieces.append(b"bytes " + bytes(value))
        elif isinstance(value, (Mapping, Sequence, AbstractSet)):
            self._take_container(value, depth)
        else:
            self._take_other(value, depth)

    def _take_text(self, text: str) -> None:
        self._pieces.append(text.encode(errors="surrogatepass"))

    def _take_tensor(self, tensor: Any) -> None:
        if self._contents is None:
            from undaunted.digests.tensors import Contents

            self._contents = Contents()
        self._take_text(self._contents.add(tensor))

    def _take_container(self, value: Any, depth: int) -> None:
        what = "map" if isinstance(value, Mapping) else "list"
        self._take_text(f"{what} {len(value)}")
        if isinstance(value, Mapping):
            for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
                self._take_text(f"{type(key).__name__} {key}")
                self.take(value[key], depth - 1)
        elif isinstance(value, AbstractSet):
            for digest in sorted(digest_of(one, strict=self._strict) for one in value):
                self._take_text(digest)
        else:
            for one in value:
                self.take(one, depth - 1)

    def _take_other(self, value: Any, depth: int) -> None:
        if _is_a(value, "torch.nn.modules.module", "Module"):
            self.take(module_parts(value), depth - 1)
        elif _is_a(value, "torch.optim.optimizer", "Optimizer"):
            self._take_text(optimizer_digest(value))
        elif _is_a(value, "numpy", "ndarray") or _is_a(value, "numpy", "generic"):
            if value.dtype.hasobject:
                self.take(value.tolist(), depth - 1)
            else:
                self._take_text(f"array {value.dtype} {value.shape}")
                self._pieces.append(value.tobytes())
        elif not isinstance(value, type) and callable(getattr(value, "state_dict", None)):
            self.take(value.state_dict(), depth - 1)
        elif not isinstance(value, type) and dataclasses.is_dataclass(value):
            fields = {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
            self.take(fields, depth - 1)
        elif type(value).__module__ == "torch":  # a dtype, a device, a size
            self._take_text(f"{type(value).__name__} {value}")
        elif self._strict:
            raise ValueError(f"{type(value).__qualname__} has no digest; {_WHAT_HAS_ONE}")
        else:
            self._take_text(type(value).__qualname__)


def _has_parts(value: object) -> bool:
    return _is_a(value, "torch.nn.modules.module", "Module") or _is_a(
        value, "torch.optim.optimizer", "Optimizer"
    )


def _is_a(value: object, module: str, name: str) -> bool:
    """Tell whether it is an instance of a class of a package that may not be imported."""
    known = getattr(sys.modules.get(module), name, None)
    return known is not None and isinstance(value, known)
