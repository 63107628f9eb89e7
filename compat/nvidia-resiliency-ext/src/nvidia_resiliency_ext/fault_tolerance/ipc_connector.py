"""`IpcConnector`: messages between processes of a node."""

from __future__ import annotations

from undaunted.fault_tolerance.ipc_connector import IpcConnector

__all__ = ["IpcConnector"]
