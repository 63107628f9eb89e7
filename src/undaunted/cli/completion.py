"""`undaunted completion`: what a shell reads so that it completes command lines."""

from collections.abc import Sequence

import msgspec

from undaunted.cli.command import Command, Parsed
from undaunted.cli.messages import UsageError, show

SHELLS = ("bash", "zsh", "fish")
# What argcomplete prints calls compdef, which zsh has only after compinit.
_ZSH_FIRST = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"
_PROGRAMS = ("undaunted", "ft_launcher", "nvrx-control")


class CompletionOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted completion`: none."""


COMPLETION = Command(
    "completion",
    CompletionOptions,
    "SHELL",
    """\
Prints what a shell reads so that it completes commands, options and values.
SHELL is bash, zsh or fish. It needs the package of undaunted[completion].

Examples:
  eval "$(undaunted completion bash)"        # in ~/.bashrc; zsh in ~/.zshrc
  undaunted completion fish | source         # in ~/.config/fish/config.fish
""",
    operand="SHELL",
)


def main(argv: Sequence[str]) -> int:
    """Print the lines for a shell.

    Args:
        argv: arguments after ``undaunted completion``.

    Returns:
        0, or 2 if there is none for this shell.
    """
    return COMPLETION.run(argv, _print)


def _print(parsed: Parsed[CompletionOptions]) -> int:
    if parsed.target not in SHELLS:
        given = f"{parsed.target!r} is no shell known here" if parsed.target else "name a shell"
        raise UsageError(f"{given}; choose {', '.join(SHELLS)}")
    try:
        import argcomplete
    except ImportError:
        raise UsageError(
            "the package argcomplete is missing: pip install 'undaunted[completion]'"
        ) from None
    text = argcomplete.shellcode(_PROGRAMS, shell=parsed.target)
    if parsed.target == "zsh":  # its first line, `#compdef`, is for zsh's own folders of functions
        text = text.replace("\n", f"\n{_ZSH_FIRST}", 1)
    return show("completion", text)
