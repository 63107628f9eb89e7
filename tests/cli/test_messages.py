import os

from nvidia_resiliency_ext.shared_utils._messages.files import FILE_NAME
from undaunted.cli.messages import launcher_messages, message_directory


def test_directory():
    assert message_directory({}, "/work") == ""
    assert message_directory({"NVRX_NODE_LOCAL_TMPDIR": " "}, "/work") == ""
    assert message_directory({"NVRX_NODE_LOCAL_TMPDIR": "m/"}, "/work") == "/work/m"
    assert message_directory({"NVRX_NODE_LOCAL_TMPDIR": "/tmp/m"}, "/work") == "/tmp/m"


def test_file_of_the_launcher_is_one_that_is_aggregated():
    assert launcher_messages("") == ""
    directory, name = os.path.split(launcher_messages("/tmp/m"))
    assert directory == "/tmp/m"
    assert FILE_NAME.fullmatch(name)
