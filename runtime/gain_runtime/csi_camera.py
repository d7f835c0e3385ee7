"""The GStreamer pipeline of a camera on a Jetson's CSI connector."""

from __future__ import annotations

from dataclasses import dataclass

from gain_core.errors import ConfigError

__all__ = ["CsiParams", "csi_pipeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiParams:
    """Parameters of a `csi://` URI: size in px, rate in Hz, quarter turns as `nvvidconv` counts."""

    width: int = 1280
    height: int = 720
    rate: int = 30
    flip: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("width", 1, 16_384),
            ("height", 1, 16_384),
            ("rate", 1, 1000),
            ("flip", 0, 7),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"csi://: {name}: expected {low} to {high}, got {value}")


def csi_pipeline(sensor: int, params: CsiParams, /) -> str:
    """The pipeline that hands BGR frames to OpenCV, the newest only.

    Parameters
    ----------
    sensor : int
        Number of the connector.
    params : CsiParams

    Returns
    -------
    str
    """
    return (
        f"nvarguscamerasrc sensor-id={sensor} ! "
        f"video/x-raw(memory:NVMM), width=(int){params.width}, height=(int){params.height}, "
        f"framerate=(fraction){params.rate}/1 ! nvvidconv flip-method={params.flip} ! "
        "video/x-raw, format=(string)BGRx ! videoconvert ! video/x-raw, format=(string)BGR ! "
        "appsink drop=true max-buffers=1 sync=false"
    )
