# Made from names/*.yaml by `make generated`.
"""Tools for tests of NVRx's users."""
