"""Digests of states: of modules, optimizers, and what containers hold. Torch may be absent.

Values are taken in one canonical way: lists and tuples are alike, dictionaries go by their sorted
keys. So a state that went through a file and came back unchanged has the digest it had.
"""

from __future__ import annotations

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
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in _canonical(value, strict, _MAX_DEPTH):
        # With its length, so that pieces cannot be joined in another way.
        hashed.update(b"%d:" % len(piece))
        hashed.update(piece)
    return hashed.hexdigest()


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


def _canonical(value: object, strict: bool, depth: int) -> Iterator[bytes]:
    if not depth:
        raise ValueError(f"containers nested more than {_MAX_DEPTH} deep have no digest")
    if value is None or isinstance(value, (bool, int)):
        yield f"{type(value).__name__} {value}".encode()
    elif isinstance(value, (float, complex)):
        real, imaginary = (value, 0.0) if isinstance(value, float) else (value.real, value.imag)
        yield b"float " + struct.pack("<dd", real, imaginary)
    elif isinstance(value, str):
        yield b"str " + value.encode(errors="surrogatepass")
    elif isinstance(value, (bytes, bytearray)):
        yield b"bytes " + bytes(value)
    elif _is_a(value, "torch", "Tensor"):
        from undaunted.digests import tensors

        yield from tensors.content(value)
    elif isinstance(value, (Mapping, Sequence, AbstractSet)):
        yield from _container(value, strict, depth)
    else:
        yield from _other(value, strict, depth)


def _container(value: Any, strict: bool, depth: int) -> Iterator[bytes]:
    yield b"%s %d" % (b"map" if isinstance(value, Mapping) else b"list", len(value))
    if isinstance(value, Mapping):
        for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
            yield f"{type(key).__name__} {key}".encode(errors="surrogatepass")
            yield from _canonical(value[key], strict, depth - 1)
    elif isinstance(value, AbstractSet):
        yield from sorted(digest_of(one, strict=strict).encode() for one in value)
    else:
        for one in value:
            yield from _canonical(one, strict, depth - 1)


def _other(value: Any, strict: bool, depth: int) -> Iterator[bytes]:
    if _is_a(value, "torch.nn.modules.module", "Module"):
        yield from _canonical(module_parts(value), strict, depth - 1)
    elif _is_a(value, "torch.optim.optimizer", "Optimizer"):
        yield optimizer_digest(value).encode()
    elif _is_a(value, "numpy", "ndarray") or _is_a(value, "numpy", "generic"):
        if value.dtype.hasobject:
            yield from _canonical(value.tolist(), strict, depth - 1)
        else:
            yield f"array {value.dtype} {value.shape}".encode()
            yield value.tobytes()
    elif not isinstance(value, type) and callable(getattr(value, "state_dict", None)):
        yield from _canonical(value.state_dict(), strict, depth - 1)
    elif not isinstance(value, type) and dataclasses.is_dataclass(value):
        fields = {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
        yield from _canonical(fields, strict, depth - 1)
    elif type(value).__module__ == "torch":  # a dtype, a device, a size
        yield f"{type(value).__name__} {value}".encode()
    elif strict:
        raise ValueError(f"{type(value).__qualname__} has no digest; {_WHAT_HAS_ONE}")
    else:
        yield type(value).__qualname__.encode()


def _has_parts(value: object) -> bool:
    return _is_a(value, "torch.nn.modules.module", "Module") or _is_a(
        value, "torch.optim.optimizer", "Optimizer"
    )


def _is_a(value: object, module: str, name: str) -> bool:
    """Tell whether it is an instance of a class of a package that may not be imported."""
    known = getattr(sys.modules.get(module), name, None)
    return known is not None and isinstance(value, known)
