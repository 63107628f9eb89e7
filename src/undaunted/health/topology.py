"""The NICs beside GPUs, from a file of the PCI tree as NCCL reads and writes it.

Elements ``pci`` have a ``busid`` and a ``class`` and are nested as bridges are; ``net`` elements
name NICs. The file comes from somewhere: it is bounded in size and depth, and document types and
entities, with which a small file becomes a large one or reads another, are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 4 * 1024 * 1024
_MOST_DEPTH = 64
_GPU = "03"  # the first two digits of a PCI class: display controllers
_NIC = "02"  # network controllers, InfiniBand among them


class TopologyError(ValueError):
    """The file is none that can be used; the text says why."""


class Device(NamedTuple):
    """A device in the tree.

    Attributes:
        kind: ``gpu`` or ``nic``.
        name: PCI address in lower case, or the name in a ``net`` element.
        above: numbers of the elements it is in, outermost first.
    """

    kind: str
    name: str
    above: tuple[int, ...]


def read_topology(path: str) -> list[Device]:
    """Return the devices in a file.

    Raises:
        OSError: it cannot be read.
        TopologyError: it is not what it should be.
    """
    with Path(path).open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    return parse_topology(content)


def parse_topology(content: bytes) -> list[Device]:
    """Return the devices in the text of a file.

    Raises:
        TopologyError: it is not what it should be.
    """
    from xml.parsers import expat

    if len(content) > MOST_BYTES:
        raise TopologyError(f"larger than {MOST_BYTES // 1024 // 1024} MiB")
    found: list[Device] = []
    above: list[int] = []
    count = 0

    def begin(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        if len(above) >= _MOST_DEPTH:
            raise TopologyError(f"nested more than {_MOST_DEPTH} deep")
        count += 1
        device = _device(tag, attributes)
        if device is not None:
            found.append(Device(*device, tuple(above)))
        above.append(count)

    def end(_tag: str) -> None:
        above.pop()

    def refuse(*_: object) -> None:
        raise TopologyError("document types and entities are refused")

    parser = expat.ParserCreate()
    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, LookupError, UnicodeError, ValueError) as error:
        if isinstance(error, TopologyError):
            raise
        raise TopologyError(f"not XML: {error}") from None
    return found


def nics_beside_gpus(devices: list[Device]) -> set[str]:
    """Return, for every GPU, the NICs below the lowest bridge that has a NIC at all."""
    found: set[str] = set()
    for gpu in devices:
        if gpu.kind != "gpu":
            continue
        for bridge in reversed(gpu.above):
            near = {nic.name for nic in devices if nic.kind == "nic" and bridge in nic.above}
            if near:
                found |= near
                break
    return found


def _device(tag: str, attributes: dict[str, str]) -> tuple[str, str] | None:
    if tag == "net" and attributes.get("name"):
        return "nic", attributes["name"]
    if tag != "pci":
        return None
    number = attributes.get("class", "").lower().removeprefix("0x")
    kind = {_GPU: "gpu", _NIC: "nic"}.get(number[:2])
    return (kind, attributes.get("busid", "").lower()) if kind else None
