"""Running streams: the parts of `gain-stream`."""
