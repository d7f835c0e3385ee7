"""The board alone: newest result, histories, events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gain_apps.serve import DeviceFacts, EventLog, KeptFacts, LiveBoard, StreamFacts
from gain_apps.serve.board import PROBE_INTERVAL_S
from gain_apps.serve.event_log import History
from gain_apps.serve.schema import state_of
from gain_runtime.sources.reconnecting import Connection


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
def events():
    with EventLog() as log:
        yield log


@pytest.fixture
def board(clock, facts, idle, events):
    made = LiveBoard("yard", events, clock=clock, wall_clock=clock)
    made.attach(idle.board.view().identity, probe=lambda: StreamFacts(**facts))
    return made


def told(events):
    """Kind and text of every event, oldest first."""
    return [(event.kind, event.text) for event in reversed(events.events())]


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
    assert (first.at_s, first.frames, second.at_s) == (100.0, 4, 101.0)
    assert first.agreement == 0.75
    # Changing class 0 to class 1 made the only mistake.
    assert (first.source_accuracy, first.adapted_accuracy) == (1.0, 0.75)
    assert (second.source_accuracy, second.adapted_accuracy) == (None, None)
    assert [point.at_s for point in board.points("fine", since_s=101.0)] == [101.0]
    assert [point.frames for point in board.points("coarse")] == [8]


def test_history_remembers_the_adaptations_numbers(board, clock, facts, result):
    for shift in (0.25, 0.5, float("nan")):
        facts["adaptation"] = {"shift_nats": shift}
        board.write(result(0))
        clock.now += 1.0
    # JSON has no NaN.
    assert [point.adaptation for point in board.points("fine")] == [
        {"shift_nats": 0.25},
        {"shift_nats": 0.5},
        {},
    ]


@pytest.mark.parametrize(
    ("moments", "kept"),
    [
        pytest.param((0, 2, 4, 100), [(2, 1), (4, 1), (100, 1)], id="the oldest goes"),
        pytest.param((10, 12, 14, 12, 13, 14), [(12, 2), (14, 1)], id="clock set back"),
    ],
)
def test_history_keeps_the_newest_bins_and_gaps(result, moments, kept):
    history = History(width_s=2.0, length=3)
    for at_s in moments:
        history.add(result(0), at_s=at_s)
    assert [(point.at_s, point.frames) for point in history.points()] == kept


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            [{"frames_learned": 90}, {"frames_learned": 0}],
            [("state", "from 90 learned frames to 0")],
            id="forgetting",
        ),
        pytest.param(
            [{}, {"not_learned": {"black": 1}}, {"not_learned": {"black": 90}}],
            [("stream", "broken frame (black); such frames are not learned from")],
            id="broken frames once",
        ),
        pytest.param(
            [
                {"kept": None, "outputs_lost": 0},
                {"kept": KeptFacts(failing=True)},
                {"kept": KeptFacts(written=1), "outputs_lost": 1},
            ],
            [
                ("state", "no snapshot can be written"),
                ("stream", "an output failed; the stream continues without it"),
                ("state", "snapshots can be written again"),
            ],
            id="snapshots and outputs",
        ),
        pytest.param(
            [
                {"device": DeviceFacts(**device)}
                for device in (
                    {},
                    {"throttled": True},
                    {"throttled": True, "load": "updating-less", "level": 1, "update_every": 4},
                    {"load": "skipping", "level": 4, "update_every": 64, "stride": 2},
                    {},
                )
            ],
            [
                ("device", "the device slows itself down"),
                ("device", "updating-less: an update every 4 frames"),
                ("device", "the device runs at full speed again"),
                ("device", "skipping: one frame in 2 is classified, the others are skipped"),
                ("device", "keeping-up: an update every frame"),
            ],
            id="device",
        ),
    ],
)
def test_what_changes_is_an_event(board, clock, facts, events, changes, expected):
    for change in changes:
        facts.update(change)
        board.poll()
        clock.now += PROBE_INTERVAL_S
    assert told(events) == expected


def test_a_signal_that_goes_and_comes_back_is_two_events(board, events):
    for state, since_s, reason, attempt in (
        ("connecting", 90.0, None, 1),
        ("connecting", 90.0, "connection refused", 1),
        ("connecting", 90.0, "connection refused", 2),
        ("connected", 100.0, None, 0),
        ("reconnecting", 110.0, "signal lost after 9 frames: no data for 10 s", 0),
        ("reconnecting", 110.0, "connection refused", 3),
        ("connected", 145.0, None, 0),
    ):
        board.connect(Connection(state=state, since_s=since_s, reason=reason, attempt=attempt))
    assert told(events) == [
        ("signal", "no signal: connection refused"),
        ("signal", "signal is there"),
        ("signal", "signal lost: after 9 frames: no data for 10 s"),
        ("signal", "signal is back after 35 s"),
    ]


def test_a_stream_that_fails_says_since_when_and_when_it_is_tried_again(clock, events, result):
    heard = []
    board = LiveBoard("yard", events, clock=clock, wall_clock=clock, on_connection=heard.append)
    board.connect(Connection(state="connected"))
    for attempt in (2, 3):
        board.enter("failed", "no disk", attempt=attempt, next_try_s=clock.now + 5.0)
        clock.now += 5.0
    board.enter("failed", "no disk", attempt=3)
    view = board.view()
    assert state_of(view) == ("failed", 100.0, "no disk")
    assert (view.connection.attempt, view.connection.next_try_s) == (3, None)
    # One that lost its camera meanwhile says that instead.
    board.connect(Connection(state="connecting", since_s=111.0, reason="connection refused"))
    assert state_of(board.view()) == ("connecting", 111.0, "connection refused")
    board.enter("paused", "by me")
    assert state_of(board.view())[0] == "paused"
    board.connect(Connection(state="connected"))
    board.write(result(0))
    assert state_of(board.view())[0] == "live"
    assert [item.state for item in heard] == [
        *("connecting", "connected", "closed", "connecting", "closed", "connected")
    ]


def test_the_rate_falls_to_zero_when_no_frame_comes(board, clock, result):
    for index in range(40):
        board.write(result(index))
        clock.now += 0.25
    assert board.view().rate_hz == pytest.approx(4.0, rel=0.1)
    clock.now += 2.5
    assert board.view().rate_hz == pytest.approx(2.0, rel=0.2)
    clock.now += 3.0
    assert board.view().rate_hz == 0.0


def test_latencies_are_counted_in_buckets(board, result):
    for latency_ms in (4.0, 40.0, 10.0, 99_000.0):
        board.write(replace(result(0), latency_ms=latency_ms))
    view = board.view()
    assert view.latency_counts[:3] == (2, 0, 1)
    assert view.latency_counts[-1] == 1
    assert sum(view.latency_counts) == 4
    assert view.latency_sum_s == pytest.approx(99.054)


def test_curves_survive_a_restart(clock, result, tmp_path):
    with EventLog(tmp_path / "events.sqlite") as log:
        board = LiveBoard("yard", log, clock=clock, wall_clock=clock)
        for index in range(180):
            board.write(result(index))
            clock.now += 1.5
        board.close()
    with EventLog(tmp_path / "events.sqlite") as log:
        board = LiveBoard("yard", log, clock=clock, wall_clock=clock)
        assert sum(point.frames for point in board.points("coarse")) == 180
        # The ten minutes before the restart are there as well, in wider bins.
        assert board.points("fine") == board.points("coarse")
        clock.now += 150.0
        board.write(result(0))
        assert [point.width_s for point in board.points("fine")][-2:] == [120.0, 1.0]


def test_the_adapter_is_asked_a_few_times_a_second_only(idle, clock, result):
    asked = []

    def probe() -> StreamFacts:
        asked.append(clock.now)
        return StreamFacts()

    board = LiveBoard("yard", idle.events, clock=clock)
    board.attach(idle.board.view().identity, probe=probe)
    for index in range(1000):
        board.write(result(index))
        clock.now += 0.001
    assert len(asked) == pytest.approx(1.0 / PROBE_INTERVAL_S, abs=1)
