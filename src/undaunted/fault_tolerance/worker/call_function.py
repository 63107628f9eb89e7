"""The program of a rank that is to call a function; see `function_call`.

It is run as a script from this directory, so that its frames count as ours and are left out of the
traceback of an exception of the function.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Call the function; its exceptions go on up, as those of any program."""
    sys.path.pop(0)  # this directory, which holds modules with common names
    from undaunted.fault_tolerance import function_call

    rank = int(os.environ["RANK"])
    function_call.forget_result(rank)
    function, args = function_call.read_call()
    function_call.write_result(rank, function, function(*args))


if __name__ == "__main__":
    main()
