"""Small tools that users of NVRx know by these names: making faults, waiting for guards."""
