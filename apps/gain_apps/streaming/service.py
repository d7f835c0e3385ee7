"""Any number of cameras in one process: one network, one page, one port, one token."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gain_apps.serve.address import ServeAddress, open_server, read_token, token_from_secrets
from gain_apps.serve.board import LiveBoard
from gain_apps.serve.cameras import WatchedCamera
from gain_apps.serve.event_log import Event, EventLog
from gain_apps.streaming.camera import Camera
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.control import StopRequest, Watchdog
from gain_apps.streaming.loop import StreamHost
from gain_apps.streaming.plan import CameraFile, ProcessPlan, plan_camera
from gain_apps.streaming.settings import flag
from gain_apps.system import notify
from gain_core.errors import ConfigError, StreamError
from gain_runtime.files.adaptive import is_adaptive
from gain_runtime.sessions.session import open_session
from gain_runtime.sessions.shared import SharedSession
from gain_runtime.sinks.jsonl import utc_text
from gain_runtime.sinks.mqtt import MqttPublisher
from gain_runtime.sinks.webhook import Webhook
from gain_runtime.sources.reconnecting import Connection
from gain_runtime.sources.uri import parse_uri

logger = logging.getLogger(__name__)

# Longest time until a signal is noticed.
POLL_S = 0.1
STATUS_EVERY_S = 10.0
# The page's address is tried again after this long; the pause doubles up to a bound.
FIRST_PAGE_PAUSE_S = 1.0
LONGEST_PAGE_PAUSE_S = 60.0
# A process with a single stream calls it so on its page and in its metrics.
ONLY_NAME = "camera"
# What the page may set of a camera: nothing that names a file, a command or an address.
SETTABLE = frozenset(
    (
        *("update_every", "warm_up", "preset", "freeze", "top_k", "check_frames"),
        *("camera_size", "camera_rate", "camera_format", "reconnect", "seed", "max_frames"),
    )
)
SETTABLE_KINDS = ("network", "camera", "test")


def run_service(
    plan: ProcessPlan,
    stop: StopRequest,
    /,
    *,
    report: Callable[[dict[str, Any]], None],
    file: str | Path | None = None,
) -> None:
    """Run cameras until all have ended or a stop is requested.

    A camera that fails is said once and ends, or begins again where it may come back; the others
    never notice. `report` receives the summary of each stream that was opened, in their order, once
    all have ended. `file` remembers cameras that are added, removed and paused.

    GainError is the first camera's that failed, once all have ended; or the network cannot be
    opened, or the page needs a token or a library.
    """
    stop.nothing_to_lose = True
    with ExitStack() as stack:
        # For the whole process: a stream that ends shall not lift it for the others. A step's
        # products are too small to share out, and BLAS threads that wait by spinning take the
        # cores from ONNX Runtime's.
        stack.enter_context(threadpool_limits(limits=1, user_api="blas"))
        service = Service(plan, stop, stack, file=file)
        stop.nothing_to_lose = False
        service.run()
    for camera in service.cameras:
        if camera.summary is not None:
            report(camera.summary)
    for camera in service.cameras:
        if camera.failure is not None:
            raise camera.failure


class Service:
    """The cameras of a process, and what they share; see `gain_apps.serve.Cameras`.

    `stack` closes what is opened here.
    """

    def __init__(
        self, plan: ProcessPlan, stop: StopRequest, stack: ExitStack, /, *, file: str | Path | None
    ) -> None:
        # A service that has no camera yet has shared settings all the same.
        alone = {**plan.shared, "input": "test://pattern"}
        first = plan.configs[0] if plan.configs else StreamConfig.resolve(alone)
        self._plan = plan
        self._stop = stop
        self._lock = threading.RLock()
        self._file = None if file is None else CameraFile(file)
        self._webhook = None
        if first.event_webhook is not None:
            self._webhook = stack.enter_context(
                Webhook(first.event_webhook, flag=flag("event_webhook"))
            )
        self._mqtt = None
        if first.mqtt is not None:
            self._mqtt = stack.enter_context(
                MqttPublisher(first.mqtt, discovery=first.mqtt_discovery)
            )
        self.events = stack.enter_context(EventLog(first.events, on_event=self._pass_on))
        self._shared: SharedSession | None = None
        self._stack = stack
        self._watchdog = Watchdog(first.watchdog)
        self._host = StreamHost(mqtt=self._mqtt, watchdog=self._watchdog, waits=True)
        self._cameras: dict[str, Camera] = {}
        self._ready = False
        for config in plan.configs:
            self._enlist(config)
        # Before the network, which may take a while: the page says what is being waited for.
        self._page = None
        if first.serve is not None:
            # From the file that is named, or from where secrets are handed over.
            holder = first.serve_token_file
            token = token_from_secrets() if holder is None else read_token(holder)
            self._page = _Page(self, stack, ServeAddress.parse(first.serve), token)
            self._page.tick()
        # An adaptive file keeps one stream's state: each camera opens its own.
        if not is_adaptive(first.model or ""):
            session = stack.enter_context(
                open_session(
                    first.model or "",
                    device=first.device,
                    num_threads=first.num_threads,
                    allow_host_code=first.allow_host_code,
                )
            )
            self._shared = SharedSession(session)
            for camera in self._cameras.values():
                camera.shared = self._shared
        stack.enter_context(self._watchdog)

    @property
    def cameras(self) -> list[Camera]:
        """All of them, in their order."""
        with self._lock:
            return list(self._cameras.values())

    @property
    def kept_in(self) -> str | None:
        """Name of the file that remembers changes over a restart."""
        return self._file.name if self._file is not None and self._file.writable else None

    @property
    def ready(self) -> bool:
        """Whether the network is loaded and nobody asked for the end."""
        return self._ready and not self._stop

    def run(self) -> None:
        """Start every camera, and wait until all have ended or a stop is requested."""
        self.events.add("", "stream", f"service started with {len(self._cameras)} cameras")
        for camera in self.cameras:
            camera.begin()
        self._ready = True
        notify("READY=1")
        next_status_s = 0.0
        while not self._stop and (
            self._plan.goes_on or not all(camera.done for camera in self.cameras)
        ):
            if self._page is not None:
                self._page.tick()
            if time.monotonic() >= next_status_s:
                next_status_s = time.monotonic() + STATUS_EVERY_S
                seen = [camera.board.view().connection.state for camera in self.cameras]
                # What `systemctl status` shows.
                connected = seen.count("connected")
                notify(f"STATUS={connected} of {len(seen)} cameras connected")
            time.sleep(POLL_S)
        notify("STOPPING=1")
        end_s = time.monotonic() + 10.0
        for camera in self.cameras:
            if not camera.join(end_s=end_s):
                logger.error("%s: hangs and is abandoned", camera.name)
        if self._shared is not None and self._shared.passes:
            logger.info(
                "%d forward passes for %d frames, %.2f a pass",
                self._shared.passes,
                self._shared.rows,
                self._shared.rows / self._shared.passes,
            )
        reason = "all cameras have ended" if self._stop.reason is None else self._stop.reason
        self.events.add("", "stream", f"service ended: {reason}")

    def all(self) -> list[WatchedCamera]:
        """Every camera, as the server sees it."""
        return [camera.watched() for camera in self.cameras]

    def find(self, name: str, /) -> WatchedCamera | None:
        """A camera, as the server sees it."""
        camera = self._cameras.get(name)
        return None if camera is None else camera.watched()

    def add(self, name: str, source: str, settings: Mapping[str, Any], /, *, who: str) -> str:
        """Add a camera and start it; what was done.

        `settings` are fields of `StreamConfig`, only those that name no file, command or address.
        ConfigError if the name is taken, or a setting is wrong or not to be made from afar.
        """
        _refuse_unsafe(source, settings)
        with self._lock:
            if name.lower() in {known.lower() for known in self._cameras}:
                raise ConfigError(f"{name}: there is a camera of that name; choose another")
            config = plan_camera(name, {**settings, "input": source}, shared=self._plan.shared)
            table = {key.replace("_", "-"): value for key, value in settings.items()}
            kept = self._file is not None and self._file.put(name, {"input": source, **table})
            camera = self._enlist(config)
            camera.shared = self._shared
            camera.start()
        outcome = f"camera added, {self._kept_words(kept)}"
        self.events.add(name, "stream", outcome, who=who)
        return outcome

    def remove(self, name: str, /, *, who: str) -> str:
        """End a camera and forget it; its files and snapshots stay.

        ConfigError if there is none of that name, or the settings file cannot be written.
        """
        with self._lock:
            camera = self._found(name)
            kept = self._file is not None and self._file.remove(name)
            del self._cameras[name]
        camera.ask_to_end()
        ended = camera.join(end_s=time.monotonic() + 10.0)
        if self._mqtt is not None:
            self._mqtt.forget(name)
        outcome = f"camera removed, {self._kept_words(kept)}"
        if not ended:
            outcome += "; it hangs in a driver and is abandoned"
        self.events.add(name, "stream", outcome, who=who)
        return outcome

    def act(self, name: str, action: Literal["pause", "resume", "restart"], /, *, who: str) -> str:
        """Pause, resume or restart a camera.

        ConfigError if it does not end, or the settings file cannot be written.
        """
        camera = self._found(name)
        if action == "restart":
            camera.restart()
            outcome = "restarted"
        else:
            paused = action == "pause"
            if paused:
                camera.pause(f"by {who}")
            else:
                camera.start()
            kept = self._file is not None and self._file.set(name, "paused", paused)
            outcome = f"{'paused' if paused else 'resumed'}, {self._kept_words(kept)}"
        camera.board.note("command", outcome, who=who)
        return outcome

    def _enlist(self, config: StreamConfig) -> Camera:
        """A camera that is not started yet."""
        name = config.name or ONLY_NAME

        def tell(connection: Connection) -> None:
            if self._mqtt is not None:
                self._mqtt.publish(f"{name}/signal", connection.state, retain=True)

        board = LiveBoard(name, self.events, on_connection=tell)
        camera = Camera(config, host=self._host, board=board, stop=self._stop)
        with self._lock:
            self._cameras[name] = camera
        return camera

    def _found(self, name: str) -> Camera:
        """A camera by its name."""
        camera = self._cameras.get(name)
        if camera is None:
            raise ConfigError(f"{name}: there is no camera of that name")
        return camera

    def _kept_words(self, kept: bool) -> str:
        """Whether a change survives a restart."""
        return f"kept in {self._file.name}" if kept and self._file else "until the next start"

    def _pass_on(self, event: Event) -> None:
        """Send an event to whoever subscribed to them."""
        record = {"utc": utc_text(int(1e9 * event.utc_s)), **asdict(event)}
        if self._webhook is not None:
            self._webhook.post(record)
        if self._mqtt is not None:
            self._mqtt.publish(f"{event.stream}/event".lstrip("/"), json.dumps(record))


class _Page:
    """Opens the page; where its address cannot be had, again and again: the cameras go on."""

    def __init__(
        self, service: Service, stack: ExitStack, address: ServeAddress, token: str | None
    ) -> None:
        self._service, self._stack = service, stack
        self._address, self._token = address, token
        self._pause_s = FIRST_PAGE_PAUSE_S
        # None once it is open.
        self._next_s: float | None = 0.0

    def tick(self) -> None:
        """Try to open it, if it is time to.

        Raises
        ------
        ConfigError
            If other machines can reach the address and there is no token.
        BackendUnavailableError
            If the extra `serve` is not installed.
        """
        if self._next_s is None or time.monotonic() < self._next_s:
            return
        try:
            server = open_server(self._service, address=self._address, token=self._token)
        except StreamError as err:
            if self._next_s == 0.0:
                logger.warning("%s; the cameras go on, and it is tried again", err)
                self._service.events.add("", "stream", f"no page: {err}")
            self._next_s = time.monotonic() + self._pause_s
            self._pause_s = min(2.0 * self._pause_s, LONGEST_PAGE_PAUSE_S)
        else:
            self._stack.enter_context(server)
            self._next_s = None


def _refuse_unsafe(source: str, settings: Mapping[str, Any]) -> None:
    """Refuse what would let whoever knows the token read files or run pipelines."""
    kind = parse_uri(source).kind
    if kind not in SETTABLE_KINDS:
        raise ConfigError(
            f"input: expected a camera, an rtsp:// or http:// address or test://, got a {kind}; "
            "put it into the settings file instead"
        )
    refused = sorted(set(settings) - SETTABLE)
    if refused:
        raise ConfigError(
            f"settings: {', '.join(refused)}: cannot be set from the page; it takes "
            f"{', '.join(sorted(SETTABLE))}"
        )
