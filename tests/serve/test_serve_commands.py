"""The queue between whoever asks and the loop."""

from __future__ import annotations

import threading

import pytest

from gain_apps.commands import COMMANDS, CommandQueue
from gain_core.errors import ConfigError


def test_drain_gives_commands_once_and_in_order():
    queue = CommandQueue()
    for command in COMMANDS:
        assert queue.submit(command, who="me")
    taken = queue.drain()
    assert [request.command for request in taken] == list(COMMANDS)
    assert {request.who for request in taken} == {"me"}
    assert queue.drain() == []


def test_unknown_command_is_refused():
    with pytest.raises(ConfigError, match=r"command: expected one of freeze.*got 'delete'"):
        CommandQueue().submit("delete")


def test_full_queue_says_so_and_takes_again_after_drain():
    queue = CommandQueue(capacity=2)
    assert [queue.submit("save") is not None for _ in range(3)] == [True, True, False]
    assert len(queue.drain()) == 2
    assert queue.submit("reset")


def test_nothing_is_lost_between_threads():
    queue = CommandQueue(capacity=10_000)
    taken = []
    writers = [
        threading.Thread(target=lambda: [queue.submit("save") for _ in range(500)])
        for _ in range(4)
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        taken += queue.drain()
    taken += queue.drain()
    assert len(taken) == 2000
