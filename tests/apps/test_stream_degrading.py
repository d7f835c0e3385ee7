"""A device that is too slow or too hot, and the true speed of a video."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gain_apps.streaming.loop import EVERY_S, SETTLING_S, Backpressure
from gain_apps.system import EVERY_S as LOOK_EVERY_S
from gain_apps.system import ThermalWatch
from gain_core import Gain


class Slow:
    """A stream on a device with room for so many frames between two looks."""

    def __init__(self, *, update_every: int = 1) -> None:
        self.adapter = SimpleNamespace(update_every=update_every)
        self.now, self.dropped = 0.0, 0
        self.pressure = Backpressure(self.adapter, lambda: self.dropped, clock=lambda: self.now)

    def settle(self) -> Slow:
        """The first seconds, of which nothing is concluded."""
        self.pressure.takes()
        self.now += SETTLING_S
        self.pressure.takes()
        return self

    def run(self, lost: int) -> int:
        """A stretch of 160 delivered frames, while so many are dropped; how many are classified."""
        taken = sum(self.pressure.takes() for _ in range(160))
        self.dropped += lost
        self.now += EVERY_S
        self.pressure.takes()
        return taken

    @property
    def step(self) -> tuple[int, int]:
        return self.adapter.update_every, self.pressure.stride


def test_updates_become_rare_before_frames_are_skipped(caplog):
    slow = Slow().settle()
    steps, words = [], []
    for lost in (0, 8, 100, 100, 100, 100, 100, 100, 100):
        slow.run(lost)
        steps.append(slow.step)
        words.append(slow.pressure.load)
    less = [(4, 1), (16, 1), (64, 1)]
    # Eight in 168 are below 5 %: nothing gives way.
    assert steps == [(1, 1), (1, 1), *less, (64, 2), (64, 4), (64, 8), (64, 8)]
    assert words == [*["keeping-up"] * 2, *["updating-less"] * 3, *["skipping"] * 4]
    messages = [record.message for record in caplog.records]
    assert len(messages) == 6
    assert messages[0] == ("38 % of the frames are dropped: an update every 4 frames from here on")
    assert messages[3].endswith("one frame in 2 is classified, the others are skipped from here on")


def test_frames_dropped_in_the_first_seconds_are_no_alarm(caplog):
    # A network's first passes are slow, and a camera hands over what it has kept.
    slow = Slow()
    slow.dropped = 90
    for _ in range(2):
        slow.run(60)
    for _ in range(3):
        slow.run(0)
    assert slow.pressure.level == 0
    assert caplog.records == []
    slow.run(100)
    assert slow.pressure.level == 1


def test_skipped_frames_are_evenly_spaced():
    slow = Slow(update_every=64).settle()
    slow.run(100)
    slow.run(100)
    assert slow.step == (64, 4)
    taken = [slow.pressure.takes() for _ in range(40)]
    assert sum(taken) == 10
    assert {b - a for a, b in pairwise(n for n, one in enumerate(taken) if one)} == {4}


def test_it_comes_back_to_what_was_asked_for(caplog):
    slow = Slow(update_every=24).settle()
    for _ in range(3):
        slow.run(100)
    assert slow.step == (64, 4)
    steps = []
    for _ in range(8):
        slow.run(0)
        steps.append(slow.step)
    assert steps == [*[(64, 4), (64, 2), (64, 2), (64, 1)], *[(64, 1), (24, 1), (24, 1), (24, 1)]]
    assert slow.pressure.level == 0
    assert caplog.records[-1].message == "no frame is dropped: an update every 24 frames"


def test_a_device_between_two_steps_tries_less_and_less_often():
    """Two steps are enough for it and one is not, for six hours."""
    slow = Slow(update_every=64).settle()
    changes = 0
    for _ in range(6 * 3600 // round(EVERY_S)):
        before = slow.pressure.level
        slow.run(0 if slow.pressure.level >= 2 else 100)
        changes += slow.pressure.level != before
    assert slow.pressure.level in (1, 2)
    # Every ten seconds it would be 2,160.
    assert changes < 40


def test_a_long_calm_makes_it_patient_no_more():
    slow = Slow(update_every=64).settle()
    slow.run(100)
    for _ in range(3):
        slow.run(0)
        slow.run(0)
        assert slow.pressure.level == 0
        slow.run(100)
        assert slow.pressure.level == 1
        for _ in range(40):
            slow.run(0)
        assert slow.pressure.level == 0
        slow.run(100)
        assert slow.pressure.level == 1


def test_frames_that_wait_count_where_updates_become_more_frequent():
    gain = Gain(4, update_every=4, warmup_frames=1)
    for _ in range(3):
        gain.step(None, np.ones((1, 4), dtype=np.float32))
    assert (gain.frames, gain.pending_frames) == (0, 3)
    gain.update_every = 2
    gain.step(None, np.ones((1, 4), dtype=np.float32))
    assert (gain.frames, gain.pending_frames) == (4, 0)


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_throttling_is_said_when_it_begins_and_ends(tmp_path, caplog):
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
def test_what_cannot_be_read_is_no_throttling(tmp_path, text):
    if text is not None:
        write(tmp_path / "class/thermal/thermal_zone0/temp", text)
        write(tmp_path / "class/thermal/cooling_device0/cur_state", text)
    with_nothing = ThermalWatch(root=tmp_path)
    with_nothing.tick()
    assert not with_nothing.throttled
    assert with_nothing.celsius is None


def test_it_looks_at_most_every_ten_seconds(tmp_path, caplog):
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
