"""Commands: the queue between whoever asks and the loop, and what each does to the adapter."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from gain_apps.streaming.control import (
    COMMANDS,
    CommandQueue,
    StopRequest,
    carry_out,
    drain_commands,
)
from gain_core.errors import ArtifactError, ConfigError


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


@pytest.fixture
def adapter():
    """Records what it is asked for."""
    calls: list[str] = []
    return SimpleNamespace(
        calls=calls,
        frozen=False,
        frames=7,
        reset=lambda: calls.append("reset"),
        freeze=lambda: calls.append("freeze"),
        unfreeze=lambda: calls.append("unfreeze"),
        save_state=lambda path: calls.append(f"save {path}"),
        load_state=lambda path: calls.append(f"load {path}"),
    )


@pytest.mark.parametrize("command", ["save", "roll-back"])
def test_without_a_file_nothing_is_saved_and_it_is_said(adapter, command):
    outcome = carry_out(command, adapter, StopRequest(), state_out=None)
    assert adapter.calls == []
    assert outcome == f"{command}: nothing done; name a file with --state-out or --snapshots"


def test_a_command_that_fails_does_not_end_the_stream(adapter, caplog):
    def fail(path: str) -> None:
        raise ArtifactError(f"{path}: no space left on device")

    adapter.save_state = fail
    queue = CommandQueue()
    requests = [queue.submit(command, who="me") for command in ("save", "reset")]
    noted: list[tuple[str, str]] = []
    drain_commands(
        *(queue, adapter, StopRequest()), state_out="s", note=lambda *words: noted.append(words)
    )
    assert adapter.calls == ["reset"]
    assert noted[0] == ("save failed: s: no space left on device", "me")
    assert requests[0] is not None
    assert requests[0].outcome.result() == noted[0][0]
    assert noted[0][0] in caplog.text
