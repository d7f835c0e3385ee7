"""The commands: gain-export and gain-stream."""
