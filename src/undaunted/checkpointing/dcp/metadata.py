"""``.metadata``: what torch's distributed checkpoint says of a checkpoint, by definition a pickle.

It is read with a list of the classes that may be in it: a file that names anything else is refused
before that is imported or called.

Rank 0 leaves a blueprint of it beside its copy in memory. When that process is dead, another one
that has the copies of all ranks makes the file from the blueprint.
"""

from __future__ import annotations

import copyreg
import dataclasses
import importlib
import io
import pickle
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan

from undaunted.base.garbage import collection_paused
from undaunted.checkpointing.dcp import items, plan_codec
from undaunted.checkpointing.dcp.torch_private import METADATA_VERSION, storage_info
from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.format import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from undaunted.checkpointing.dcp.items import Laid

NAME = names.METADATA

_PROPERTIES = 5  # that all versions of torch have
_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = frozenset(
    {
        *((_METADATA, name) for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        # of torch before 2.3
        ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties"),
        ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("collections", "OrderedDict"),
        ("pathlib", "Path"),
        ("pathlib", "PosixPath"),
        ("pathlib", "PurePosixPath"),
        ("pathlib._local", "Path"),
        ("pathlib._local", "PosixPath"),
        ("pathlib._local", "PurePosixPath"),
    }
)  # fmt: skip


def encode(metadata: Metadata, files: Iterable[tuple[Laid, Sequence[tuple[int, int]]]]) -> bytes:
    """Return the content of ``.metadata``.

    Args:
        metadata: what the planner has made; it is left as it is.
        files: of all ranks, each with offset and length of ``Laid.others``.
    """
    places = {}
    for laid, others in files:
        for item, offset, length in laid.placed(others):
            places[item.index] = storage_info(laid.name, offset, length)
    whole = dataclasses.replace(metadata, storage_data=places, storage_meta=StorageMeta())
    whole.version = METADATA_VERSION  # older versions of torch do not have it, and do not mind
    return dumps(whole)


def dumps(metadata: Any) -> bytes:
    """Return the pickle of metadata in a form that older versions of torch read, too.

    torch 2.15 adds the strides of a tensor, of which nothing depends, and 2.14 does not read them.
    """
    content = io.BytesIO()
    pickler = pickle.Pickler(content)
    pickler.dispatch_table = copyreg.dispatch_table | {TensorProperties: _reduced}
    pickler.dump(metadata)
    return content.getvalue()


def _reduced(properties: TensorProperties) -> tuple[Any, ...]:
    return (
        copyreg.__newobj__,  # type: ignore[attr-defined]
        (TensorProperties,),
        properties.__getstate__()[:_PROPERTIES],
    )


class _Properties(TensorProperties):  # type: ignore[misc]
    """Properties as any version of torch writes them."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__class__ = TensorProperties
        self.__setstate__(state[:_PROPERTIES])


def decode(
    content: bytes | bytearray | memoryview,
    path: str,
    more: frozenset[tuple[str, str]] = frozenset(),
) -> Metadata:
    """Read the content of ``.metadata``.

    Args:
        content: of the file.
        path: of the file, for messages.
        more: classes that may be in it besides those of torch, each module and name.

    Raises:
        DamagedCheckpointError: it is no metadata, or names something that has no business there.
    """
    try:
        with collection_paused():
            metadata = _Reader(content, more).load()
    except pickle.UnpicklingError as error:
        raise DamagedCheckpointError(f"{path}: {error}", path) from error
    except Exception as error:
        raise DamagedCheckpointError(
            f"{path}: not the metadata of a checkpoint ({type(error).__name__}: {error})", path
        ) from error
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise DamagedCheckpointError(f"{path}: not the metadata of a checkpoint", path)
    return metadata


class _Reader(pickle.Unpickler):
    """Makes nothing but what belongs into metadata."""

    def __init__(
        self, content: bytes | bytearray | memoryview, more: frozenset[tuple[str, str]]
    ) -> None:
        super().__init__(io.BytesIO(content))
        self._allowed = _ALLOWED | more

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function by its name, if it is on the list."""
        if (module, name) == (_METADATA, "TensorProperties"):
            return _Properties
        if (module, name) in self._allowed:
            return getattr(importlib.import_module(module), name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(
            f"names {module}.{name}, which does not belong into the metadata of a checkpoint; it "
            "was not loaded"
        )


class _Blueprint(msgspec.Struct, array_like=True, frozen=True):
    """The metadata without places, and what each rank writes."""

    metadata: bytes
    plans: list[bytes]


def draw_blueprint(overall: Metadata, files: Sequence[Sequence[items.Laid]]) -> bytes:
    """Return the blueprint of a checkpoint.

    Args:
        overall: what the planner has made.
        files: of all ranks, at most one each.
    """
    plans = [SavePlan([item for one in of for item in one.framed + one.others]) for of in files]
    return msgspec.msgpack.encode(
        _Blueprint(encode(overall, []), [plan_codec.encode_plan(plan) for plan in plans])
    )


def from_blueprint(blueprint: bytes, reports: Sequence[bytes]) -> bytes:
    """Return the content of ``.metadata``.

    Args:
        blueprint: see :func:`draw_blueprint`.
        reports: ``Staged.report`` of all ranks.

    Raises:
        CheckpointError: one of them is damaged.
        msgspec.DecodeError: likewise.
    """
    drawn = msgspec.msgpack.decode(blueprint, type=_Blueprint)
    overall = decode(drawn.metadata, "a copy in memory")
    plans = [plan_codec.decode_plan(plan) for plan in drawn.plans]
    return assemble(overall, [lay_out(rank, plan) for rank, plan in enumerate(plans)], reports)


def assemble(
    overall: Metadata, files: Sequence[Sequence[items.Laid]], reports: Sequence[bytes]
) -> bytes:
    """Return the content of ``.metadata`` from what is known of the files and from all reports."""
    pairs: list[tuple[items.Laid, list[tuple[int, int]]]] = []
    for laid, report in zip(files, reports, strict=True):
        places = msgspec.msgpack.decode(report, type=list[list[tuple[int, int]]])
        pairs += zip(laid, places, strict=True)
    return encode(overall, pairs)


def lay_out(rank: int, plan: SavePlan) -> list[items.Laid]:
    """Return the file that a rank writes, or none."""
    return [items.lay_out(f"__{rank}_0.distcp", plan.items)] if plan.items else []
