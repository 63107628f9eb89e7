import pytest

from undaunted.fault_tolerance.output.node_log import NodeLog
from undaunted.fault_tolerance.run_config import RunConfig
from undaunted.logs.aggregator import Aggregator
from undaunted.logs.stamps import stamp


@pytest.fixture
def config(tmp_path):
    def make(message_dir):
        return RunConfig(
            run_id="r", node="node7", nproc_per_node=1, max_restarts=0, kind="script", target="t",
            args=[], cwd="/", run_dir=str(tmp_path), log_dir="/l", stdout=[0], stderr=[0],
            message_dir=message_dir,
        )  # fmt: skip

    return make


def test_messages_are_put_together_in_the_run_directory(tmp_path, config):
    log = NodeLog(config(str(tmp_path / "messages")))
    assert log.start() == ""
    (tmp_path / "messages" / "rank_0_1.msg.1").write_text(f"{stamp(0)} one\n")
    assert log.close() == ""
    assert (tmp_path / "nvrx-node7.log").read_text().endswith(" one\n")


def test_nothing_was_asked_for(tmp_path, config):
    log = NodeLog(config(""))
    assert (log.start(), log.close()) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_another_aggregator_is_at_work(tmp_path, config):
    messages = str(tmp_path / "messages")
    other = Aggregator(messages, str(tmp_path / "log"))
    other.start()
    log = NodeLog(config(messages))
    assert log.start() == (
        f"the messages in {messages} do not go to {tmp_path}/nvrx-node7.log: another aggregator is "
        f"at work on {messages}"
    )
    assert log.close() == ""
    assert other.close(10)
