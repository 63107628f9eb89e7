from __future__ import annotations

import uuid

from undaunted.base.machine import boot_id


def test_a_boot_has_an_id_that_stays() -> None:
    assert str(uuid.UUID(boot_id())) == boot_id()
