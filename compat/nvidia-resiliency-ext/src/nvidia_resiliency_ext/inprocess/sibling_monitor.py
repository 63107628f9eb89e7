# Made from names/*.yaml by `make generated`.
"""Empty: silent nodes are noticed by `undaunted.inprocess.core.controller`."""
