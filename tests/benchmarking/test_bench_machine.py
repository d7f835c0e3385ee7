"""The device's facts, read from a made-up tree of kernel files."""

from __future__ import annotations

import numpy as np
import pytest

from gain_apps.benchmarking.machine import Machine, tool_versions
from gain_apps.system_files import peak_memory_bytes

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
    assert (facts["board"], facts["cpu"], facts["memory_bytes"], facts["gpus"]) == (
        None,
        None,
        None,
        [],
    )
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


def test_versions_name_what_is_missing(monkeypatch):
    monkeypatch.setattr("gain_apps.benchmarking.machine.DISTRIBUTIONS", ("numpy", "no-such-thing"))
    versions = tool_versions()
    assert versions["numpy"] == np.__version__
    assert versions["no-such-thing"] is None
