"""Areas of NVRx that undaunted does not have: importing one of them says so in a sentence."""

from __future__ import annotations

from typing import NoReturn

SENTENCES = {
    "attribution": "Programs that analyse logs and traces are not built; "
    "`undaunted report` and `undaunted doctor --read-log` say what went wrong.",
    "ptl_resiliency": "The callbacks of Lightning are not built; call RankMonitorClient and "
    "inprocess.Wrapper in the training loop.",
    "services": "The servers of attribution are not built; --ft-attribution-endpoint takes the "
    "address of a running one.",
    "straggler": "The detection of slow ranks by timing GPU kernels is not built; `undaunted top` "
    "shows who is slow.",
}
"""What is said, by module below `nvidia_resiliency_ext`."""


def refuse(module: str) -> NoReturn:
    """Raise for a module that is only here to say that it is missing.

    Raises:
        ImportError: always.
    """
    area = module.removeprefix("nvidia_resiliency_ext.")
    raise ImportError(f"undaunted has no {module}. {SENTENCES[area]}", name=module)
