"""The board alone: newest result, histories, events."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gain_apps.serve import DeviceFacts, KeptFacts, LiveBoard, StreamFacts
from gain_apps.serve.board import MOST_EVENTS, PROBE_INTERVAL_S
from gain_apps.serve.history import History


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def facts():
    return {"frozen": False}


@pytest.fixture
def board(clock, facts, idle):
    return LiveBoard(idle.board.identity, probe=lambda: StreamFacts(**facts), clock=clock)


def test_newest_result_and_counts(board, clock, result):
    for index in range(10):
        board.write(result(index, changed=index % 5 == 0))
        clock.now += 0.5
    view = board.view()
    assert view.result is not None
    assert (view.sequence, view.frames, view.changed, view.result.frame.index) == (10, 10, 2, 9)
    assert view.agreement == pytest.approx(0.8)
    assert view.uptime_s == pytest.approx(5.0)
    assert view.age_s == pytest.approx(0.5)
    assert view.stage_seconds == pytest.approx({"preprocess": 0.01, "forward": 0.06, "adapt": 5e-3})


def test_history_has_the_means_of_each_second(board, clock, result):
    for index in range(8):
        board.write(result(index, changed=index == 0, truth=0 if index < 4 else None))
        clock.now += 0.25
    first, second = board.points("fine")
    assert (first.at_s, first.frames, second.at_s) == (0.0, 4, 1.0)
    assert first.agreement == 0.75
    # Changing class 0 to class 1 made the only mistake.
    assert (first.source_accuracy, first.adapted_accuracy) == (1.0, 0.75)
    assert (second.source_accuracy, second.adapted_accuracy) == (None, None)
    assert [point.at_s for point in board.points("fine", since_s=1.0)] == [1.0]
    assert [point.frames for point in board.points("coarse")] == [8]


def test_history_remembers_the_adaptations_numbers(board, clock, facts, result):
    for shift in (0.25, 0.5, float("nan")):
        facts["adaptation"] = {"shift_nats": shift, "guard": "watching", "trips": 2}
        board.write(result(0))
        clock.now += 1.0
    told = [point.adaptation for point in board.points("fine")]
    assert told[:2] == [{"shift_nats": 0.25}, {"shift_nats": 0.5}]
    assert np.isnan(told[2]["shift_nats"])


def test_history_forgets_and_keeps_gaps(result):
    history = History(width_s=2.0, length=3)
    for at_s in (0.0, 2.0, 4.0, 100.0):
        history.add(result(0), at_s=at_s)
    assert [point.at_s for point in history.points()] == [2.0, 4.0, 100.0]


def test_words_that_change_are_events_and_numbers_are_not(board, clock, facts):
    for adaptation in (
        {"guard": "watching", "drift": 0.1, "held": False, "guard_trips": 0},
        {"guard": "watching", "drift": 0.9, "held": False, "guard_trips": 1},
        {"guard": "source only", "drift": 0.9, "held": True, "guard_trips": 1},
    ):
        facts["adaptation"] = adaptation
        board.poll()
        clock.now += PROBE_INTERVAL_S
    assert [(event.kind, event.text) for event in board.view().events] == [
        ("adaptation", "guard_trips: 0 → 1"),
        ("adaptation", "guard: watching → source only"),
        ("adaptation", "held: no → yes"),
    ]


def test_freezing_and_forgetting_are_events(board, clock, facts):
    for change in ({"frames_learned": 90}, {"frozen": True}, {"frames_learned": 0}):
        facts.update(change)
        board.poll()
        clock.now += PROBE_INTERVAL_S
    assert [event.text for event in board.view().events] == [
        "frozen",
        "from 90 learned frames to 0",
    ]


def test_broken_frames_and_a_lost_signal_are_events_once(board, clock, facts):
    for change in (
        {},
        {"not_learned": {"black": 1}},
        {"not_learned": {"black": 90}, "reconnects": 1},
    ):
        facts.update(change)
        board.poll()
        clock.now += PROBE_INTERVAL_S
    assert [(event.kind, event.text) for event in board.view().events] == [
        ("stream", "broken frame (black); such frames teach nothing"),
        ("stream", "the source is back after a loss of signal"),
    ]


def test_what_the_device_does_is_an_event(board, clock, facts):
    told = (
        {},
        {"throttled": True, "celsius": 91.0},
        {
            "throttled": True,
            "celsius": 93.0,
            "load": "updating-less",
            "level": 1,
            "update_every": 4,
        },
        {"load": "skipping", "level": 4, "update_every": 64, "stride": 2, "left_out": 30},
        {},
    )
    for device in told:
        facts["device"] = DeviceFacts(**device)
        board.poll()
        clock.now += PROBE_INTERVAL_S
    assert [(event.kind, event.text) for event in board.view().events] == [
        ("device", "the device slows itself down"),
        ("device", "updating-less: an update every 4 frames"),
        ("device", "the device runs at full speed again"),
        ("device", "skipping: one frame in 2 is classified, the others are skipped"),
        ("device", "keeping-up: an update every frame"),
    ]


def test_snapshots_and_outputs_that_fail_are_events(board, clock, facts):
    for kept, lost in ((None, 0), (KeptFacts(failing=True), 0), (KeptFacts(written=1), 1)):
        facts.update(kept=kept, outputs_lost=lost)
        board.poll()
        clock.now += PROBE_INTERVAL_S
    assert [(event.kind, event.text) for event in board.view().events] == [
        ("state", "no snapshot can be written"),
        ("stream", "an output failed; the stream goes on without it"),
        ("state", "snapshots can be written again"),
    ]


def test_the_adapter_is_asked_a_few_times_a_second_only(idle, clock, result):
    asked = []

    def probe() -> StreamFacts:
        asked.append(clock.now)
        return StreamFacts()

    board = LiveBoard(idle.board.identity, probe=probe, clock=clock)
    for index in range(1000):
        board.write(result(index))
        clock.now += 0.001
    assert len(asked) == pytest.approx(1.0 / PROBE_INTERVAL_S, abs=1)


def test_memory_is_bounded(board, clock, result):
    one = result(0)
    for _ in range(3000):
        board.write(one)
        board.note("command", "save")
        clock.now += 1.0
    assert len(board.points("fine")) == 600
    assert len(board.points("coarse")) == 25
    assert len(board.view().events) == MOST_EVENTS


def test_result_is_kept_as_it_is(board, result):
    given = result(3)
    before = given.frame.image.copy()
    board.write(given)
    board.close()
    board.close()
    assert board.view().result is given
    assert board.closed
    assert_array_equal(given.frame.image, before)
    assert np.isfinite(board.view().age_s)
