# Made from names/*.yaml by `make generated`.
"""Who was it: `straggler`. What else NVRx has here is not built."""
