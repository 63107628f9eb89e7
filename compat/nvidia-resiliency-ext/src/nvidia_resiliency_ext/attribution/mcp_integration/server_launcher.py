"""``python -m nvidia_resiliency_ext.attribution.mcp_integration.server_launcher``."""

from __future__ import annotations

import sys

from nvidia_resiliency_ext.attribution.mcp_integration import main as main

if __name__ == "__main__":
    sys.exit(main())
