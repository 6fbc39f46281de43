"""Fixtures shared by all tests; thread counts are set before torch is imported."""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests run in two processes
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every process that a test starts compiles the package again
sys.dont_write_bytecode = False
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read at import; clients of the fake Hub are processes of their own

import pytest
from warm import write_script

if "FOCALCSE_TEST_PYTHON" not in os.environ:  # once for all processes of the tests
    os.environ["FOCALCSE_TEST_PYTHON"] = sys.executable
    os.environ["FOCALCSE_TEST_WARM"] = write_script(tempfile.mkdtemp(prefix="focalcse-tests-"))
    atexit.register(shutil.rmtree, os.path.dirname(os.environ["FOCALCSE_TEST_WARM"]), ignore_errors=True)

ROOT = Path(__file__).resolve().parent.parent
# Modules whose tests share a server or a folder that takes long to make, and build on each other.
TOGETHER = {
    *("test_fake_hub.py", "test_hub_jobs.py", "test_inspect.py", "test_publish.py", "test_zoo.py", "test_card.py"),
    *("test_sizes.py", "test_leaks.py"),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each process takes the next test when it is free, or all of a module of TOGETHER."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.split("::")[0]
            return module if Path(module).name in TOGETHER else nodeid

    return Scheduler(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what takes many minutes unless it is asked for by its marker, whatever else -m says."""
    if "exhaustive" not in config.getoption("markexpr"):
        asked = [item for item in items if not item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=[item for item in items if item not in asked])
        items[:] = asked


def pytest_configure(config: pytest.Config) -> None:
    """The process that runs tests; one that only hands them out starts the others by its interpreter."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        sys.executable = os.environ["FOCALCSE_TEST_WARM"]


def pytest_collection_finish() -> None:
    """Accelerate collects garbage at the end of each training: not among all that was imported (0.2 s each time)."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with evaluation sets and golden values that may not be copied into the repository (licences)."""
    folder = Path(os.environ.get("FOCALCSE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no shared folder at {folder}: set FOCALCSE_SHARED to run this test")
    return folder


@pytest.fixture(scope="session")
def shared_data(shared: Path) -> Path:
    """Its ``data`` folder: sts/, corpus/, rerank/."""
    return shared / "data"


@pytest.fixture(scope="session")
def ranks():
    """Runs functions in forked gloo ranks, see ranks.py."""
    from ranks import Ranks

    pool = Ranks()
    yield pool
    pool.close()
