import os
import time

import pytest

from undaunted.fault_tolerance.output.growth import Growth


@pytest.fixture
def growth():
    growth = Growth()
    yield growth
    growth.close()


def test_growth_ends_the_wait(growth, tmp_path):
    path = tmp_path / "file"
    path.touch()
    growth.watch(str(path))
    path.write_bytes(b"x")
    began = time.monotonic()
    growth.wait(began + 0.02, began + 60)
    assert 0.02 <= time.monotonic() - began < 30


def test_a_wake_up_ends_all_waits(growth):
    growth.wake()
    began = time.monotonic()
    growth.wait(began + 60)
    growth.wait(0, began + 60)
    assert time.monotonic() - began < 30


def test_the_limit_ends_the_wait(growth):
    began = time.monotonic()
    growth.wait(0, began + 0.02)
    assert time.monotonic() - began >= 0.02


def test_a_writable_descriptor_ends_the_wait(growth):
    reading, writing = os.pipe()
    began = time.monotonic()
    growth.wait(0, began + 60, writable=[writing])
    growth.wait_for_writer(writing, 60, until_woken=True)
    assert time.monotonic() - began < 30
    os.close(reading)
    os.close(writing)


def test_it_may_be_closed_twice():
    growth = Growth()
    growth.close()
    growth.close()
    growth.wake()  # nobody waits any more
