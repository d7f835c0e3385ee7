"""A device that is too slow or too hot, and the true speed of a video."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gain_apps.backpressure import EVERY_S, Backpressure
from gain_apps.thermal import EVERY_S as LOOK_EVERY_S
from gain_apps.thermal import ThermalWatch


def test_learning_is_thinned_out_while_frames_are_dropped_and_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, dropped = [0.0], [0]
    pressure = Backpressure(lambda: dropped[0], clock=lambda: now[0])

    def run(lost: int) -> int:
        """A stretch of 160 frames in which so many are dropped; how many are learned from."""
        learned = sum(pressure.learns() for _ in range(160))
        dropped[0] += lost
        now[0] += EVERY_S
        pressure.learns()
        return learned

    assert [run(lost) for lost in (0, 100, 100, 100, 100, 100, 4)] == [160, 160, 80, 40, 20, 10, 10]
    assert pressure.thinning == 16
    for expected in (8, 4, 2, 1, 1):
        run(0)
        assert pressure.thinning == expected
    messages = [record.message for record in caplog.records]
    assert len(messages) == 8
    assert "38 % of the frames are dropped: learning from one in 2" in messages[0]


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_throttling_is_said_when_it_begins_and_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    thermal = tmp_path / "class" / "thermal"
    counter = tmp_path / "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    write(thermal / "thermal_zone0/temp", 61_500)
    write(thermal / "thermal_zone1/temp", 93_400)
    write(thermal / "cooling_device0/type", "pwm-fan")
    write(thermal / "cooling_device0/cur_state", 3)
    write(thermal / "cooling_device1/type", "cpufreq-cpu0")
    write(thermal / "cooling_device1/cur_state", 0)
    write(counter, 7)
    watch = ThermalWatch(root=tmp_path, clock=lambda: now[0])

    def look() -> bool:
        now[0] += LOOK_EVERY_S
        watch.tick()
        return watch.throttled

    assert not look()
    write(thermal / "cooling_device1/cur_state", 2)
    assert look()
    assert look()
    write(thermal / "cooling_device1/cur_state", 0)
    assert not look()
    write(counter, 8)
    assert look()
    assert not look()
    messages = [record.message for record in caplog.records]
    assert ["slows itself down (93 °C)" in message for message in messages] == [
        *(True, False),
        *(True, False),
    ]


@pytest.mark.parametrize("text", [None, "", "-", "asleep"])
def test_what_cannot_be_read_is_no_throttling(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        write(tmp_path / "class/thermal/thermal_zone0/temp", text)
        write(tmp_path / "class/thermal/cooling_device0/cur_state", text)
    with_nothing = ThermalWatch(root=tmp_path)
    with_nothing.tick()
    assert not with_nothing.throttled
    assert with_nothing.celsius is None


def test_it_looks_at_most_every_ten_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    watch = ThermalWatch(root=tmp_path, clock=lambda: now[0])
    watch.tick()
    write(tmp_path / "class/thermal/cooling_device0/type", "Processor")
    write(tmp_path / "class/thermal/cooling_device0/cur_state", 1)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            now[0] += 1.0
            watch.tick()
        assert not caplog.records
        now[0] = LOOK_EVERY_S
        watch.tick()
    assert len(caplog.records) == 1
