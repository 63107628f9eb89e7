from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from undaunted.cli import attribution, run
from undaunted.cli.parse import UsageError, parse
from undaunted.fault_tolerance.run_config import TO_BOTH, TO_FILE

if TYPE_CHECKING:
    from pathlib import Path


def service(*argv: str) -> str:
    return attribution.service(parse([*argv, "train.py"], {}))


def test_two_ways_to_name_one() -> None:
    assert service() == ""
    assert service("--ft-attribution-endpoint=http://host:8000/") == "http://host:8000"
    assert service("--ft-attribution-endpoint=unix:///run/a") == "unix:///run/a"
    parts = ("--ft-attrsvc-host=host", "--ft-attrsvc-port=8000")
    assert service(*parts) == "http://host:8000"
    assert service("--ft-attrsvc-host=::1", "--ft-attrsvc-port=80") == "http://[::1]:80"
    assert service(*parts, "--ft-attribution-endpoint=http://host:8000") == "http://host:8000"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ft-attrsvc-host=h"], "--ft-attrsvc-host alone names no service; add --ft-attrsvc-por"),
        (["--ft-attrsvc-port=1"], "--ft-attrsvc-port alone names no service; add --ft-attrsvc-hos"),
        (["--ft-attrsvc-host=a/b", "--ft-attrsvc-port=1"], "'a/b' is not the name or address of a"),
        (["--ft-attribution-endpoint=localhost"], "not built yet; start one and give http://127"),
        (
            [
                "--ft-attribution-endpoint=http://a",
                "--ft-attrsvc-host=b",
                "--ft-attrsvc-port=1",
            ],
            "name two services; keep one",
        ),
        (["--ft-attribution-stop-action=no-restart"], "needs a service: add --ft-attribution-end"),
        (["--ft-attribution-endpoint=grpc://host:1"], "'grpc://host:1' is no service; give http"),
        (["--ft-attribution-endpoint=http://me:x@host"], "is no service"),
        (["--ft-attribution-endpoint=http://host:99999"], "is no service"),
        (["--ft-attribution-endpoint=unix://run"], "is no Unix socket"),
        (
            ["--ft-node-health-check-endpoint=run/x"],
            "is no Unix socket; give /PATH or unix:///PATH",
        ),
        (["--ft-node-health-check-endpoint=http://h"], "is no Unix socket"),
        (["--ft-no-restart-exit-code=94"], "ends with 93, no other"),
    ],
)
def test_what_cannot_be_meant(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        service(*argv)


def test_a_log_is_kept_for_the_service_where_none_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = ["--ft-attribution-endpoint=http://h", "--nproc-per-node=2", "-r", "1:1", "train.py"]
    config, _ = run.build_config(parse(words, {}), {}, str(tmp_path))
    assert config.applog_prefix == f"{config.log_dir}/ranks.log"
    assert config.stdout == [TO_BOTH, TO_FILE]
    assert config.stderr == [TO_BOTH, TO_BOTH]
    assert (tmp_path / "undaunted-runs" / config.run_id / "logs").is_dir()
    own = ["--ft-per-cycle-applog-prefix=/own.log", *words]
    config, _ = run.build_config(parse(own, {}), {}, str(tmp_path))
    assert config.applog_prefix == "/own.log"
    assert config.stderr == [0, 0]
