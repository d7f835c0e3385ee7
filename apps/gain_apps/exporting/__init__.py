"""Making artifacts: the parts of `gain-export`."""
