"""Where frames come from: cameras, files, streams, pipes, pictures."""
