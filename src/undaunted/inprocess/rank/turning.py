"""Whether the main thread's interpreter turns: it runs what it was asked to between two bytecodes.

What it runs is a function of the C library, so that no code of Python's is put into the middle of
the user's: it raises a semaphore.
"""

from __future__ import annotations

import ctypes

_SEM_BYTES = 32  # sizeof(sem_t), on 64 bits; smaller elsewhere

_libc = ctypes.CDLL(None, use_errno=True)
# For ever: an interpreter that does not turn now may do so when nobody waits for it any more.
_semaphore = ctypes.create_string_buffer(_SEM_BYTES)
_libc.sem_init(_semaphore, 0, 0)
_sem_post = ctypes.cast(_libc.sem_post, ctypes.c_void_p)


def ask() -> None:
    """Have the main thread's interpreter answer when it turns."""
    ctypes.pythonapi.Py_AddPendingCall(_sem_post, ctypes.byref(_semaphore))


def has_answered() -> bool:
    """Whether it has, since this was asked last."""
    answered = False
    while _libc.sem_trywait(_semaphore) == 0:
        answered = True
    return answered
