"""The import names of NVRx (nvidia-resiliency-ext), provided by undaunted.

Nothing is imported before it is used. `__version__` is that of the interface, 0.6.0; its local part
is undaunted's.

Warns (RuntimeWarning) where NVIDIA's own distribution is installed too.
"""

from __future__ import annotations

from nvidia_resiliency_ext._installed import VERSION, warn_of_another

__version__ = VERSION
__all__ = ["__version__"]

warn_of_another()
