import pytest

from undaunted.cli.devices import gpu_count


def make_nvidia(root, count):
    (root / "dev").mkdir(exist_ok=True)
    for name in ["null", "nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(count))]:
        (root / "dev" / name).touch()


def make_amd(root, count, visible):
    (root / "dev" / "dri").mkdir(parents=True)
    (root / "dev" / "kfd").touch()
    for number in range(count + 1):  # node 0 is the CPU
        node = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
        node.mkdir(parents=True)
        simd = 0 if number == 0 else 304
        node.joinpath("properties").write_text(
            f"cpu_cores_count 0\nsimd_count {simd}\ndrm_render_minor {127 + number}\nodd line x\n"
        )
        if 0 < number <= visible:
            (root / "dev" / "dri" / f"renderD{127 + number}").touch()


def test_no_devices(tmp_path):
    assert gpu_count({}, str(tmp_path)) == 0
    assert gpu_count({"CUDA_VISIBLE_DEVICES": "0,1"}, str(tmp_path)) == 0


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("0,1", 2),
        ("3", 1),
        ("", 0),
        ("-1", 0),
        ("0,-1,1", 1),
        ("0,7,1", 1),
        ("GPU-abc,GPU-def", 2),
        ("MIG-1,MIG-2,MIG-3,MIG-4,MIG-5", 5),
    ],
)
def test_nvidia(tmp_path, visible, count):
    make_nvidia(tmp_path, 4)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu_count(environ, str(tmp_path)) == count


def test_nvidia_without_device_files(tmp_path):
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert gpu_count({}, str(tmp_path)) == 1


def test_amd_counts_what_this_container_may_use(tmp_path):
    make_amd(tmp_path, count=4, visible=2)
    assert gpu_count({}, str(tmp_path)) == 2
    assert gpu_count({"HIP_VISIBLE_DEVICES": "1"}, str(tmp_path)) == 1
    assert gpu_count({"ROCR_VISIBLE_DEVICES": ""}, str(tmp_path)) == 0
