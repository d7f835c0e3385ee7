"""Methods that adapt to a stream, behind one small protocol; the registry makes them by name."""
