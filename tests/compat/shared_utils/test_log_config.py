import logging

from nvidia_resiliency_ext.shared_utils.log_manager import LogConfig


def test_defaults():
    config = LogConfig({})
    assert (config.node_local_tmp_dir, config.level, config.to_stdout) == ("", logging.INFO, False)
    assert (config.max_file_bytes, config.max_files) == (10240 * 1024, 4)
    assert config.place == ("?", "?", "?", "?")
    assert LogConfig.name == "nvrx"


def test_variables():
    config = LogConfig(
        {
            "NVRX_NODE_LOCAL_TMPDIR": "/tmp/x",
            "NVRX_LOG_DEBUG": "1",
            "NVRX_LOG_TO_STDOUT": "True",
            "NVRX_LOG_MAX_FILE_SIZE_KB": "2",
            "NVRX_LOG_MAX_LOG_FILES": "7",
            "RANK": "5",
            "LOCAL_RANK": "1",
            "SLURM_PROCID": "2",
        }
    )
    assert (config.node_local_tmp_dir, config.level, config.to_stdout) == (
        "/tmp/x", logging.DEBUG, True,
    )  # fmt: skip
    assert (config.max_file_bytes, config.max_files) == (2048, 7)
    assert config.place == ("5", "1", "2", "?")


def test_values_that_make_no_sense_count_as_the_default():
    for text in ("0", "-1", "many", "1.5", "٣"):
        environ = {"NVRX_LOG_MAX_FILE_SIZE_KB": text, "NVRX_LOG_MAX_LOG_FILES": text}
        config = LogConfig({**environ, "NVRX_LOG_DEBUG": "maybe"})
        assert (config.max_file_bytes, config.max_files) == (10240 * 1024, 4)
        assert config.level == logging.INFO
