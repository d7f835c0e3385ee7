"""What lies on disk: artifacts, manifests, engines, states and snapshots, pictures."""
