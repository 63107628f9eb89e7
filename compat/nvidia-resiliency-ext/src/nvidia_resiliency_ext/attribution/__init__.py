# Made from names/*.yaml by `make generated`.
"""Causes of failures: `straggler`. The rest of NVRx's package is not built."""
