from __future__ import annotations

from tests.doctor.checks.saying import said, wanting
from undaunted.doctor.checks import gpu
from undaunted.doctor.facts import Gpus


def test_gpus() -> None:
    assert said(gpu, gpus=Gpus()) == []
    fine = Gpus(present=True, count=8, kernel_driver="570.1", nvswitch=True, fabric_manager=True)
    assert said(gpu, gpus=fine, versions={"nvidia-driver": "570.1"}) == []
    assert said(gpu, gpus=fine, versions={"nvidia-driver": "575.2"})[0][:2] == ("L22", "fail")
    silent = Gpus(present=True, problem="Driver/library version mismatch (18)")
    assert said(gpu, gpus=silent)[0][1] == "fail"
    unmanaged = Gpus(present=True, count=8, nvswitch=True, fabric_manager=False)
    assert said(gpu, gpus=unmanaged)[0][1] == "fail"
    assert said(gpu, gpus=unmanaged, in_container=True)[0][1] == "warn"
    broken = Gpus(present=True, count=1, states="GPU 0 (GPU-1) needs a reset of the GPU")
    assert said(gpu, gpus=broken)[0][1] == "fail"
    assert said(gpu, wanting(nproc_per_node=8), gpus=Gpus(present=True, count=4))[0][1] == "warn"
