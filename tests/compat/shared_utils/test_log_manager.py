import logging
import re

import pytest

from nvidia_resiliency_ext.shared_utils import log_manager
from nvidia_resiliency_ext.shared_utils.log_manager import LogConfig, LogManager, setup_logger
from nvidia_resiliency_ext.shared_utils.log_node_local_tmp import NodeLogAggregator

LINE = (
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z \[%s\] \[\S+\] "
    r"\[workload:3\(1\) infra:\?\(\?\)\] test_log_manager.py:\d+ %s\n"
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("NODE_LOCAL_TMPDIR", "LOG_DEBUG", "LOG_TO_STDOUT"):
        monkeypatch.delenv(f"NVRX_{name}", raising=False)
    for name in ("SLURM_PROCID", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    yield
    for logger in log_manager._loggers():
        for handler in logger.handlers[:]:
            if hasattr(handler, log_manager._OURS):
                logger.removeHandler(handler)
                handler.close()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def test_what_undaunted_says_goes_to_the_same_place(capsys):
    setup_logger()
    setup_logger(force_reset=True)
    logging.getLogger("undaunted").info("one")
    assert re.fullmatch(LINE % ("INFO", "one"), capsys.readouterr().err)


def test_console(capsys, monkeypatch):
    logger = setup_logger()
    assert logger is logging.getLogger("nvrx")
    logger.info("one")
    logger.debug("nothing")
    assert setup_logger() is logger
    monkeypatch.setenv("NVRX_LOG_TO_STDOUT", "1")
    monkeypatch.setenv("NVRX_LOG_DEBUG", "1")
    setup_logger()
    logger.debug("still nothing")
    setup_logger(force_reset=True)
    logger.debug("two %d%%", 5)
    out, err = capsys.readouterr()
    assert re.fullmatch(LINE % ("INFO", "one"), err)
    assert re.fullmatch(LINE % ("DEBUG", "two 5%"), out)


def test_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NVRX_NODE_LOCAL_TMPDIR", str(tmp_path / "messages"))
    setup_logger(node_local_tmp_prefix="ft/launcher").warning("one")
    setup_logger(node_local_tmp_dir=tmp_path / "other", force_reset=True).error("two")
    (first,) = (tmp_path / "messages").iterdir()
    (second,) = (tmp_path / "other").iterdir()
    assert first.name.startswith("ft_launcher_rank_3_")
    assert second.name.startswith("rank_3_")
    assert re.fullmatch(LINE % ("WARNING", "one"), first.read_text())
    assert re.fullmatch(LINE % ("ERROR", "two"), second.read_text())
    assert capsys.readouterr() == ("", "")


def test_one_file(tmp_path, monkeypatch):
    monkeypatch.setenv("NVRX_NODE_LOCAL_TMPDIR", str(tmp_path / "messages"))
    setup_logger(log_file=tmp_path / "log").warning("one\ntwo")
    first, second = (tmp_path / "log").read_text().splitlines(keepends=True)
    assert first.startswith("3: ")
    assert re.fullmatch(LINE % ("WARNING", "one"), first[3:])
    assert second == "3: two\n"
    assert not (tmp_path / "messages").exists()


@pytest.mark.parametrize("kind", ["log_file", "node_local_tmp_dir"])
def test_what_cannot_be_used_is_said_and_ends_nothing(tmp_path, capsys, kind):
    (tmp_path / "file").touch()
    setup_logger(**{kind: tmp_path / "file" / "x"}).info("one")
    first, second = capsys.readouterr().err.splitlines(keepends=True)
    assert "[WARNING]" in first
    assert "messages go to standard error: " in first
    assert str(tmp_path / "file" / "x") in first
    assert re.fullmatch(LINE % ("INFO", "one"), second)


def test_tracebacks_keep_their_indents(tmp_path):
    logger = setup_logger(node_local_tmp_dir=tmp_path / "m")
    try:
        int("no")
    except ValueError:
        logger.exception("failed")
    (path,) = (tmp_path / "m").iterdir()
    lines = path.read_text().splitlines()
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[2].startswith('  File "')
    assert lines[-1].startswith("ValueError: ")


def test_the_logger_has_its_name(tmp_path):
    logger = setup_logger(force_reset=True, log_file=tmp_path / "all.log")
    assert logger.name == LogConfig.name == "nvrx"
    logger.info("hello")
    assert "hello" in (tmp_path / "all.log").read_text()


def test_a_log_manager_and_the_log_of_a_node(tmp_path):
    there = str(tmp_path / "messages")
    manager = LogManager(node_local_tmp_dir=there, node_local_tmp_prefix="trainer")
    assert (manager.logger.name, manager.node_local_tmp_dir) == ("nvrx", there)
    aggregator = NodeLogAggregator(
        log_dir=str(tmp_path / "logs"), temp_dir=there, log_file="node.log", en_chrono_ord=True
    )
    aggregator.start_aggregator()
    manager.logger.info("hello")
    aggregator.shutdown()
    assert "hello" in (tmp_path / "logs" / "node.log").read_text()


def test_the_directory_of_messages_has_to_be_known(tmp_path, monkeypatch):
    monkeypatch.delenv("NVRX_NODE_LOCAL_TMPDIR", raising=False)
    with pytest.raises(ValueError, match="NVRX_NODE_LOCAL_TMPDIR"):
        NodeLogAggregator(str(tmp_path))
