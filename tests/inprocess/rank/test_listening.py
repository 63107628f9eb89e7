from __future__ import annotations

import pytest

from tests.ports import address_of_this_machine
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.rank import listening
from undaunted.inprocess.rank.listening import listen, own_host


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        ({}, "127.0.0.1"),
        ({"MASTER_ADDR": "localhost"}, "127.0.0.1"),
        ({"MASTER_ADDR": "127.0.0.2"}, "127.0.0.1"),
        ({"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0"}, "127.0.0.1"),
        ({"SLURM_STEP_NUM_NODES": "1", "MASTER_ADDR": "node0"}, "127.0.0.1"),
        ({"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "node0"}, "10.0.0.7"),
        # What restarts have made of it does not count.
        ({"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1", "MASTER_ADDR": "node0"}, "10.0.0.7"),
    ],
)
def test_under_which_address_others_reach_this_machine(
    environ: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "own_address", lambda master: "10.0.0.7")
    assert own_host(environ, 2) == host
    assert own_host(environ, 1) == ""


def test_a_master_whose_name_leads_to_loopback_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "own_address", lambda master: "127.0.0.1")
    assert own_host({"MASTER_ADDR": "node0"}, 2) == "node0"  # as /etc/hosts of some systems has it


def test_a_master_that_nobody_knows() -> None:
    with pytest.raises(InternalError, match="MASTER_ADDR"):
        own_host({"MASTER_ADDR": "no.such.host.invalid"}, 2)


def test_only_that_address_is_listened_at() -> None:
    for host in ("127.0.0.1", address_of_this_machine()):
        with listen(host) as sock:
            assert sock.getsockname()[0] == host
            assert sock.getsockname()[1] > 0


def test_a_name_is_for_all_addresses() -> None:
    with listen("node0") as sock:
        assert sock.getsockname()[0] in ("::", "0.0.0.0")
