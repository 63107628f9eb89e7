from undaunted.cli.help import run_help
from undaunted.cli.options import OPTIONS


def test_help_fits_a_terminal_and_knows_every_option():
    text = run_help()
    assert max(map(len, text.splitlines())) <= 80
    for option in OPTIONS:
        assert (f"--{option.name}" in text) == (not option.not_built)
    assert text.index("Examples:") < text.index("--nproc-per-node N")
