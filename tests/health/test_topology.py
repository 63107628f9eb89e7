from __future__ import annotations

import pytest

from undaunted.health import topology
from undaunted.health.topology import TopologyError, nics_beside_gpus, parse_topology

TWO_SWITCHES = b"""<?xml version="1.0"?>
<system version="1">
  <cpu numaid="0">
    <pci busid="ffff:ff:01.0" class="0x060400">
      <pci busid="0001:00:00.0" class="0x030200"/>
      <pci busid="0101:00:00.0" class="0x020700"/>
    </pci>
    <pci busid="ffff:ff:02.0" class="0x060400">
      <pci busid="0002:00:00.0" class="0x030200"/>
      <pci busid="0102:00:00.0" class="0x020000"><nic><net name="mlx5_1"/></nic></pci>
    </pci>
  </cpu>
  <cpu numaid="1">
    <pci busid="0103:00:00.0" class="0x020700"/>
    <pci busid="0104:00:00.0" class="0x010802"/>
  </cpu>
</system>
"""


def test_the_nearest_nics_of_every_gpu() -> None:
    found = nics_beside_gpus(parse_topology(TWO_SWITCHES))
    assert found == {"0101:00:00.0", "0102:00:00.0", "mlx5_1"}


def test_a_gpu_without_a_nic_on_its_switch_takes_the_next_level() -> None:
    text = (
        b'<s><pci class="0x0604"><pci busid="A" class="0x0302"/></pci>'
        b'<pci busid="B" class="0x0207"/></s>'
    )
    assert nics_beside_gpus(parse_topology(text)) == {"b"}


def test_no_gpu_no_nic() -> None:
    assert nics_beside_gpus(parse_topology(b'<s><pci busid="B" class="0x0207"/></s>')) == set()
    assert nics_beside_gpus(parse_topology(b'<s><pci busid="A" class="0x0302"/></s>')) == set()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<system>",
        b"\x00\xff" * 100,
        b"<a></b>",
        b'<?xml version="1.0" encoding="nonsense"?><a/>',
        b"{}",
    ],
)
def test_garbage(content: bytes) -> None:
    with pytest.raises(TopologyError, match="not XML"):
        parse_topology(content)


@pytest.mark.parametrize(
    "content",
    [
        b'<!DOCTYPE a [<!ENTITY x "boom">]><a>&x;</a>',
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
    ],
)
def test_document_types_and_entities_are_refused(content: bytes) -> None:
    with pytest.raises(TopologyError, match="refused"):
        parse_topology(content)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TopologyError, match="deep"):
        parse_topology(b"<a>" * 100)
    monkeypatch.setattr(topology, "MOST_BYTES", 10)
    with pytest.raises(TopologyError, match="larger"):
        parse_topology(b"<a></a>" * 10)
