# Made from names/*.yaml by `make generated`.
"""What is called in a rank that leaves."""

from __future__ import annotations

from undaunted.inprocess.terminate import Terminate as Terminate
