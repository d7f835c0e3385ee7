"""The device's facts, read from a made-up tree of kernel files."""

import sys
from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import gain_core
from gain_apps.benchmarking.machine import Machine, tool_versions
from gain_apps.system import peak_memory_bytes

CPU = "sys/devices/system/cpu/cpu{}/cpufreq/{}"
JETSON = {
    "sys/firmware/devicetree/base/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
    "proc/cpuinfo": "processor : 0\nmodel name : ARMv8 Processor rev 1 (v8l)\n",
    "proc/meminfo": "MemTotal:        7802744 kB\nMemFree: 1 kB\n",
    "var/lib/nvpmodel/status": "pmode:0002 fmode:cool\n",
    "sys/class/devfreq/17000000.gpu/cur_freq": "918000000\n",
    "sys/class/thermal/thermal_zone0/temp": "48500\n",
    "sys/class/thermal/thermal_zone1/temp": "51250\n",
    CPU.format(0, "scaling_cur_freq"): "729600\n",
    CPU.format(1, "scaling_cur_freq"): "1510400\n",
    CPU.format(0, "scaling_max_freq"): "1728000\n",
    CPU.format(0, "scaling_governor"): "schedutil\n",
}
DESKTOP = {
    "sys/class/dmi/id/product_name": "Workstation",
    "sys/firmware/acpi/platform_profile": "balanced",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA RTX A2000\nIRQ: 5\n",
    "sys/class/drm/card0/device/mem_info_vram_used": "1048576",
}


@pytest.fixture
def tree(tmp_path):
    """Writes files below a folder of the test's own."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Machine(root=tmp_path)

    return write


def test_a_jetson(tree):
    machine = tree(JETSON)
    facts, now = machine.facts(), machine.now()
    assert facts["board"] == "NVIDIA Jetson Orin Nano Developer Kit"
    assert facts["cpu"] == "ARMv8 Processor rev 1 (v8l)"
    assert facts["memory_bytes"] == 7802744 * 1024
    assert facts["gpus"] == []
    assert now["cpu_clocks_mhz"] == {"lowest": 729.6, "highest": 1510.4, "allowed": 1728.0}
    assert now["other_clocks_mhz"] == {"17000000.gpu": 918.0}
    assert now["governors"] == ["schedutil"]
    assert now["power_mode"] == "pmode:0002 fmode:cool"
    assert now["celsius"] == 51.25


def test_a_desktop(tree):
    machine = tree(DESKTOP)
    assert machine.facts()["board"] == "Workstation"
    assert machine.facts()["gpus"] == ["NVIDIA RTX A2000"]
    assert machine.now()["power_mode"] == "balanced"
    assert machine.now()["device_memory_used_bytes"] == 1048576


def test_nothing_can_be_read(tree):
    machine = tree({CPU.format(0, "scaling_cur_freq"): "<unknown>"})
    facts, now = machine.facts(), machine.now()
    assert [facts[name] for name in ("board", "cpu", "memory_bytes")] == [None] * 3
    assert facts["gpus"] == []
    unread = ("power_mode", "celsius", "device_memory_used_bytes")
    assert [now[name] for name in unread] == [None] * 3
    assert now["cpu_clocks_mhz"] == now["other_clocks_mhz"] == {}
    assert now["throttled"] is False


def test_peak_memory_is_in_bytes_and_never_falls():
    before = peak_memory_bytes()
    held = np.ones(2**23)
    during = peak_memory_bytes()
    assert during >= before > 2**23
    del held
    assert peak_memory_bytes() >= during


LIBRARIES = {"numpy", "onnx", "onnxruntime", "cv2", "PIL", "torch", "timm"}
LIBRARIES |= {"cupy", "tensorrt", "tensorrt_rtx"}
CUDA = ("onnxruntime_cuda", "torch_cuda", "cupy_cuda", "cuda_driver", "nvidia_driver")
DRIVERS = {
    "535.104.05": "UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC",
    "580.95.05": "UNIX Open Kernel Module for x86_64  580.95.05  Release Build (x)",
    "540.4.0": "UNIX Open Kernel Module for aarch64  540.4.0  Release Build",
}


def test_versions_of_every_library_that_takes_part():
    versions = tool_versions()
    assert versions["numpy"] == np.__version__
    assert versions["gain-edge"] == gain_core.__version__
    for name in LIBRARIES:
        assert (versions[name] is None) == (find_spec(name) is None), name
    assert set(versions) == {"gain-edge", "python", *LIBRARIES, *CUDA}


def test_a_module_in_use_is_asked_before_its_distribution(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(__version__="built here"))
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__="10.3.0"))
    versions = tool_versions()
    assert versions["timm"] == "built here"
    # A Jetson's own, which pip has never heard of.
    assert versions["tensorrt"] == "10.3.0"


def cupy_of(*, runtime, driver):
    """CuPy's versions; an exception is raised."""
    functions = Mock()
    functions.runtimeGetVersion.side_effect = [runtime]
    functions.driverGetVersion.side_effect = [driver]
    return SimpleNamespace(__version__="14.2.0", cuda=SimpleNamespace(runtime=functions))


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        pytest.param(12080, "12.8", id="driver"),
        pytest.param(0, None, id="zero"),
        pytest.param(RuntimeError("cudaErrorInsufficientDriver"), None, id="none"),
    ],
)
def test_cuda_as_cupy_tells_it(monkeypatch, driver, expected):
    monkeypatch.setitem(sys.modules, "cupy", cupy_of(runtime=13000, driver=driver))
    versions = tool_versions()
    assert (versions["cupy"], versions["cupy_cuda"]) == ("14.2.0", "13.0")
    assert versions["cuda_driver"] == expected


def test_cuda_as_torch_tells_it(monkeypatch):
    torch = SimpleNamespace(__version__="2.11.0+cu130", version=SimpleNamespace(cuda="13.0"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    versions = tool_versions()
    assert (versions["torch"], versions["torch_cuda"]) == ("2.11.0+cu130", "13.0")


def test_the_driver_is_read_from_its_file(tmp_path):
    path = tmp_path / "proc/driver/nvidia/version"
    assert tool_versions(root=tmp_path)["nvidia_driver"] is None
    path.parent.mkdir(parents=True)
    for expected, line in DRIVERS.items():
        path.write_text(f"NVRM version: NVIDIA {line}\nGCC version:  gcc version 13.2.0\n")
        assert tool_versions(root=tmp_path)["nvidia_driver"] == expected
