"""The guard's trips in the log."""

from __future__ import annotations

import logging

import pytest

from gain_runtime.trip_log import TripLog


@pytest.fixture
def trips(caplog):
    """A log whose guard holds for 50 frames, and the numbers of the trips it has reported."""
    caplog.set_level(logging.WARNING, logger="gain_runtime")

    def reported() -> list[int]:
        return [record.args[1] for record in caplog.records]

    return TripLog(lambda: 50), reported


def test_every_trip_is_one_line(trips, caplog):
    log, reported = trips
    for count in (0, 0, 1, 1, 1, 2, 2):
        log.report(count)
    assert reported() == [1, 2]
    assert caplog.messages[0] == (
        "guard: the adapted prediction left what the source knows; everything learned was "
        "dropped, the source answers for 50 frames (trip 1)"
    )


def test_the_hold_is_asked_for_on_a_trip_only():
    log = TripLog(lambda: pytest.fail("asked without a trip"))
    log.report(0)
    log.report(None)


def test_a_reset_starts_the_count_again(trips):
    log, reported = trips
    for count in (1, 0, 0, 1):
        log.report(count)
    assert reported() == [1, 1]


def test_trips_of_a_loaded_state_are_old_news(trips):
    log, reported = trips
    log.resume(3)
    log.report(3)
    assert reported() == []
    log.report(4)
    log.resume(None)
    log.report(1)
    assert reported() == [4, 1]
