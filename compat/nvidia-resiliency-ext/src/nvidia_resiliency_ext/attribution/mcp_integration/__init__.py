"""The tools for assistants, under the name of NVRx: `undaunted mcp`."""

from __future__ import annotations

from undaunted.cli.main import nvrx_mcp_analysis


def main() -> int:
    """Serve one program over standard input and output, as the script ``nvrx-mcp-analysis``."""
    return nvrx_mcp_analysis()
