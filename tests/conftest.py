"""What holds for every test."""

import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite",
    deadline=None,  # a first example imports or compiles, and a busy machine takes its time
    derandomize=True,  # the same examples each time: `make fuzz` is for others
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Indices of debug information are kept in a folder of the tests, and not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MACHTRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def interruptible():
    """SIGINT interrupts Python here and in children: what runs in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
