"""Running artifacts: sessions, preprocessing, frame sources, sinks and state files."""
