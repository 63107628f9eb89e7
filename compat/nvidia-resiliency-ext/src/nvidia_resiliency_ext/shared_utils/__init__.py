# Made from names/*.yaml by `make generated`.
"""Tools that the other packages of NVRx share."""
