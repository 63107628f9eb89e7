"""The content of a checkpoint: names, shapes, values; read without the program that saved it.

Every byte is checked, and nothing in the files is executed. Memory is needed for some tensors at a
time, and not for all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from undaunted.checkpointing.dcp.objects import ORDINARY, is_plain, load_object
from undaunted.checkpointing.dcp.packed import content_of
from undaunted.checkpointing.dcp.reader import Foreign, Planner, Reader, Source, Verified, names_in
from undaunted.checkpointing.errors import CheckpointError, DamagedCheckpointError
from undaunted.checkpointing.files.reading import AT_ONCE_BYTES, in_batches
from undaunted.checkpointing.memory.copy import memory_of

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.distributed.checkpoint.planner import ReadItem

    from undaunted.checkpointing.inspection import Chosen, Damage

# What is compared at once, in elements: they become numbers of 64 bits.
_COMPARED = 4 << 20
_LONGEST = 60  # characters of a value in a list of differences


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True, tag="tensor"):
    """A tensor in a checkpoint.

    Attributes:
        name: in the state; keys are joined by dots.
        shape: of the whole tensor.
        dtype: torch's name of it, without ``torch.``.
        size: bytes of its values.
        parts: into which it was divided when it was saved.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    parts: int


class Object(msgspec.Struct, frozen=True, kw_only=True, tag="object"):
    """Something else in a checkpoint.

    Attributes:
        name: in the state; keys are joined by dots.
        size: bytes in the file.
    """

    name: str
    size: int


class Contents:
    """One checkpoint.

    Attributes:
        path: of it.
        entries: what it has by name, in the order of the metadata.
    """

    def __init__(
        self, chosen: Chosen, threads: int = 4, progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Read the metadata.

        Args:
            chosen: the checkpoint.
            threads: how many read at the same time, at most.
            progress: called with the number of bytes after each block, by any thread.

        Raises:
            DamagedCheckpointError: the metadata are not those that were written, or are none.
            OSError: they cannot be read.
        """
        self.path = chosen.path
        self._progress = progress
        self._source: Source
        if chosen.manifest is None or chosen.storage is None:
            self._source = Foreign(chosen.path, progress)
        else:
            self._source = Verified(chosen.storage, chosen.manifest, threads, progress)
        self._reader = Reader(self._source)
        self._metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata)
        try:
            known = self._metadata.state_dict_metadata.items()
            self.entries = {name: self._entry(name, stored) for name, stored in known}
        except (AttributeError, TypeError, ValueError) as error:
            path = f"{self.path}/.metadata"
            raise DamagedCheckpointError(f"{path}: contradicts itself: {error}", path) from error

    @property
    def tensors(self) -> list[TensorEntry]:
        """All tensors."""
        return [one for one in self.entries.values() if isinstance(one, TensorEntry)]

    @property
    def objects(self) -> list[Object]:
        """Everything else."""
        return [one for one in self.entries.values() if isinstance(one, Object)]

    def looked(self) -> None:
        """Say that work goes on."""
        self._progress(0)

    def named(self, damage: Iterable[Damage]) -> list[Damage]:
        """Return damage with the names of what is in the damaged blocks."""
        return [
            msgspec.structs.replace(
                one, names=names_in(self._metadata, one.file, one.start, one.end)
            )
            for one in damage
        ]

    def read(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return tensors, whole, in the memory of this process.

        Raises:
            DamagedCheckpointError: they are not what was written; names the tensors.
            CheckpointError: one is of a class that is not read from a file, or memory is short.
            OSError: a file cannot be read.
        """
        found: dict[str, torch.Tensor] = {}
        self._read(names, Planner(self._source, found.__setitem__))
        return {name: _plain(value) for name, value in found.items()}

    def serialised(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return what ``torch.save`` has written of objects.

        Raises:
            DamagedCheckpointError: it is not what was written.
            OSError: a file cannot be read.
        """
        planner = _Serialised(self._source, lambda *_: None)
        self._read(names, planner)
        return planner.found

    def _read(self, names: Sequence[str], planner: Planner) -> None:
        planner.set_up_planner(dict.fromkeys(names), self._metadata)
        try:
            plan = planner.create_local_plan()
        except (LookupError, TypeError, ValueError) as error:
            path = f"{self.path}/.metadata"
            raise DamagedCheckpointError(f"{path}: contradicts itself: {error}", path) from error
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(
                f"{self.path}: {_listed(names)} cannot be held in memory: {error}"
            ) from error
        self._reader.read_data(plan, planner)

    def _entry(self, name: str, stored: Any) -> TensorEntry | Object:
        if isinstance(stored, TensorStorageMetadata):
            dtype, shape = stored.properties.dtype, tuple(map(int, stored.size))
            return TensorEntry(
                name=name,
                shape=shape,
                dtype=str(dtype).removeprefix("torch."),
                size=math.prod(shape) * dtype.itemsize,
                parts=len(stored.chunks),
            )
        if isinstance(stored, BytesStorageMetadata):
            return Object(name=name, size=self._info(name).length)
        raise TypeError(f"{name} is neither a tensor nor an object")

    def _info(self, name: str) -> Any:
        info = self._metadata.storage_data.get(MetadataIndex(name))
        if info is None:
            path = f"{self.path}/.metadata"
            raise DamagedCheckpointError(f"{path} does not say where {name} is", path, [name])
        return info


class _Serialised(Planner):
    """Keeps objects as they are in the file."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.found: dict[str, bytes] = {}

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.found[read_item.dest_index.fqn] = value.getvalue()


def batches(
    tensors: Iterable[TensorEntry], most_bytes: int = AT_ONCE_BYTES
) -> Iterator[list[TensorEntry]]:
    """Cut a list of tensors into what is read at once; one that is larger is read alone."""
    return in_batches(tensors, lambda one: one.size, most_bytes)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return an ordinary tensor with its values one after the other, as ours are written."""
    if type(tensor) in ORDINARY and tensor.layout == torch.strided and not tensor.is_quantized:
        return tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


# --- differences ----------------------------------------------------------------------------------


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """In what two checkpoints differ under one name.

    Attributes:
        name: in the state.
        what: ``missing`` in one of them, or another ``kind``, ``shape``, ``dtype`` or ``values``.
        first, second: in words what each has; "" = nothing.
        largest: the largest absolute difference of two numbers; None where that says nothing:
            there are no numbers, or one of two is not finite.
    """

    name: str
    what: str
    first: str = ""
    second: str = ""
    largest: float | None = None


class _Pair(NamedTuple):
    first: TensorEntry
    second: TensorEntry


def differences(first: Contents, second: Contents) -> Iterator[Difference]:
    """Compare two checkpoints: first what they have, then the values of what both have.

    Raises:
        CheckpointError: as `Contents.read`.
        OSError: a file cannot be read.
    """
    tensors: list[_Pair] = []
    objects: list[str] = []
    for name in dict.fromkeys([*first.entries, *second.entries]):
        a, b = first.entries.get(name), second.entries.get(name)
        if a is None or b is None:
            yield Difference(name=name, what="missing", first=_words(a), second=_words(b))
        elif isinstance(a, TensorEntry) and isinstance(b, TensorEntry):
            if (a.shape, a.dtype) == (b.shape, b.dtype):
                tensors.append(_Pair(a, b))
            else:
                what = "dtype" if a.shape == b.shape else "shape"
                yield Difference(name=name, what=what, first=_words(a), second=_words(b))
        elif isinstance(a, Object) and isinstance(b, Object):
            objects.append(name)
        else:
            yield Difference(name=name, what="kind", first=_words(a), second=_words(b))
    for group in in_batches(tensors, lambda pair: 2 * pair.first.size, AT_ONCE_BYTES):
        names = [pair.first.name for pair in group]
        values, others = first.read(names), second.read(names)
        for name in names:
            yield from _of_tensors(name, values.pop(name), others.pop(name), first.looked)
    size = {one.name: one.size for one in [*first.objects, *second.objects]}
    for some in in_batches(objects, size.__getitem__, AT_ONCE_BYTES):
        contents, others_ = first.serialised(some), second.serialised(some)
        for name in some:
            if contents[name] != others_[name]:
                yield from _of_objects(name, contents[name], others_[name], first.path, second.path)


def compared_bytes(first: Contents, second: Contents) -> int:
    """Return about how many bytes `differences` reads."""
    return sum(
        a.size + b.size
        for name, a in first.entries.items()
        if (b := second.entries.get(name)) is not None
    )


def _words(one: TensorEntry | Object | None) -> str:
    if one is None:
        return ""
    return f"{one.dtype} {list(one.shape)}" if isinstance(one, TensorEntry) else "an object"


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Return whether the values of a tensor are its memory, one after the other."""
    return (
        type(tensor) in ORDINARY
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.is_contiguous()
        and tensor.is_cpu
    )


def _of_tensors(
    name: str, first: torch.Tensor, second: torch.Tensor, looked: Callable[[], None]
) -> Iterator[Difference]:
    if not (is_ordinary(first) and is_ordinary(second)):
        if content_of(first) != content_of(second):
            kinds = (type(first).__name__, type(second).__name__)
            yield Difference(name=name, what="values", first=kinds[0], second=kinds[1])
        return
    if memory_of(first) != memory_of(second):
        yield Difference(name=name, what="values", largest=_largest(first, second, looked))


def _largest(first: torch.Tensor, second: torch.Tensor, looked: Callable[[], None]) -> float | None:
    if first.dtype == torch.bool:
        return None
    wide = torch.complex128 if first.is_complex() else torch.float64
    a, b = first.reshape(-1), second.reshape(-1)
    largest = 0.0
    for at in range(0, a.numel(), _COMPARED):
        left, right = (one[at : at + _COMPARED].to(wide) for one in (a, b))
        apart = (left - right).abs()
        apart[(left == right) | (left.isnan() & right.isnan())] = 0.0  # of infinities as well
        largest = max(largest, float(apart.nan_to_num(math.inf).max()))
        looked()
    return largest if math.isfinite(largest) else None


def _of_objects(
    name: str, first: bytes, second: bytes, path: str, other_path: str
) -> Iterator[Difference]:
    """Other bytes may be the same value: torch writes them anew at each save."""
    values = []
    for content, where in ((first, path), (second, other_path)):
        try:
            values.append(load_object(content, name, where))
        except CheckpointError:  # of a type that is not read: its bytes differ
            yield Difference(name=name, what="values", first="an object", second="an object")
            return
    if all(map(is_plain, values)):
        a, b = values
        if type(a) is not type(b) or repr(a) != repr(b):
            yield Difference(
                name=name, what="values", first=_short(a), second=_short(b), largest=_apart(a, b)
            )
    elif not _is_equal(*values):
        yield Difference(name=name, what="values", first=_kind(values[0]), second=_kind(values[1]))


def _is_equal(first: Any, second: Any) -> bool:
    """Return whether two values are the same, as far as this can be told."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return bool(content_of(first) == content_of(second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(_is_equal(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_is_equal, first, second))
    if type(first).__module__ == "numpy":
        return bool(first.dtype == second.dtype and first.tobytes() == second.tobytes())
    try:
        return bool(first == second)
    except Exception:  # noqa: BLE001 - a type may compare as it likes
        return False


def _apart(first: Any, second: Any) -> float | None:
    numbers = all(type(one) in (int, float) for one in (first, second))
    apart = abs(float(first) - float(second)) if numbers else math.inf
    return apart if math.isfinite(apart) else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _kind(value: Any) -> str:
    return type(value).__name__
