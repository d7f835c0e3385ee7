"""A Ray cluster of this machine with two workers."""

import pytest


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """The address of the cluster."""
    ray = pytest.importorskip("ray", reason="not installed: extra ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="warning")
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
