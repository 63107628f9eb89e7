from __future__ import annotations

import pytest

from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.rank.listening import listen, own_host


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        ({}, ""),
        ({"WORLD_SIZE": "1", "MASTER_ADDR": "node0"}, ""),
        ({"WORLD_SIZE": "2"}, "127.0.0.1"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "127.0.0.1"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "127.0.0.1"),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0"}, "127.0.0.1"),
    ],
)
def test_under_which_name_others_reach_this_machine(environ: dict[str, str], host: str) -> None:
    assert own_host(environ) == host


def test_a_master_that_nobody_knows() -> None:
    with pytest.raises(InternalError, match="MASTER_ADDR"):
        own_host({"WORLD_SIZE": "2", "MASTER_ADDR": "no.such.host.invalid"})


@pytest.mark.parametrize("host", ["127.0.0.1", "node0"])
def test_listening(host: str) -> None:
    with listen(host) as sock:
        assert sock.getsockname()[1] > 0
        assert (sock.getsockname()[0] == "127.0.0.1") == (host == "127.0.0.1")
