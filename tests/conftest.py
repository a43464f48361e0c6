"""Models and artifacts that several folders of tests share; each artifact is converted once a run."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))
# The soak is tested, too.
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from fresh_process import answered_here
from mlx_here import skip_without_mlx
from once import Once
from skipped import pytest_terminal_summary  # noqa: F401  (pytest finds it here)

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.weight_choice import WeightChoice

# A shell's background job ignores ^C, and under nohup the terminal's end; so would all that tests start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Compiling the tests and the package anew takes each process that starts longer than loading them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# On a busy machine a quick example may take long once. `make test-all` looks at more examples.
settings.register_profile("quick", deadline=None, max_examples=30)
settings.register_profile("thorough", deadline=None)
settings.load_profile(os.environ.get("ANESPEC_TEST_EXAMPLES", "quick"))

FAMILIES = Path(__file__).parent / "data" / "families"
SHARED_MODELS = Path(__file__).resolve().parents[1].parent / "shared" / "models"

CONTEXT = 256
"""Enough for the longest text that the tests generate, and quicker than the model's own 512."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays until the end: neither now nor later is garbage sought in it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow the values of a parameter that `fast_only` does not name, and skips what needs MLX."""
    skip_without_mlx(items)
    for item in items:
        mark = item.get_closest_marker("fast_only")
        if mark and isinstance(item, pytest.Function) and item.callspec.id not in mark.args:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def quiet_no_longer_than_asked() -> Iterator[None]:
    """A verb that runs in this process says how much is logged; the next test finds that as it was."""
    loggers = [logging.getLogger(), logging.getLogger("anespec")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (level, propagate) in zip(loggers, before, strict=True):
        if (logger.level, logger.propagate) != (level, propagate):
            logger.setLevel(level)
            logger.propagate = propagate


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[None]:
    """Nothing that a test does, or a process that it starts, is remembered in the user's cache folder.

    What is compiled for drafting is kept where pytest keeps what it remembers, since compiling takes seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        # What most tests look at is what comes of the gates; those of asking them beside say so.
        patch.setenv("ANESPEC_GATES", "now")
        if pytestconfig.cache is not None:
            patch.setenv("NUMBA_CACHE_DIR", str(pytestconfig.cache.mkdir("compiled")))
        yield


@pytest.fixture
def new_processes_are_this_one() -> Iterator[None]:
    """What the exactness gate asks a new process is answered by this one, for tests of something else."""
    with answered_here():
        yield


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Makes artifacts once for all processes of the run."""
    return Once.of(tmp_path_factory)


def _stories(
    once: Once, source: Path, folders: pytest.TempPathFactory, target: Target, weights: WeightFormat
) -> Path:
    from converting import build_once  # takes seconds to import, which most tests need not wait for

    output = folders.mktemp("stories") / "m.anespec"
    return build_once(once, source, output, target=target, weights=WeightChoice(weights), context=CONTEXT)


@pytest.fixture(scope="session")
def families() -> Path:
    """The folder of tiny random models, each a GGUF and a JSON of what transformers makes of it."""
    return FAMILIES


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of real trained models; skips where the shared folder is absent."""
    if not SHARED_MODELS.is_dir():
        pytest.skip("needs shared/ beside the repository")
    return SHARED_MODELS


@pytest.fixture(scope="session")
def stories_cpu(shared_models: Path, tmp_path_factory: pytest.TempPathFactory, once: Once) -> Path:
    """stories260K F16 with fp16 weights for the portable backend: `grouped` attention, t_max 128."""
    source = shared_models / "stories260K.F16.gguf"
    return _stories(once, source, tmp_path_factory, Target.CPU, WeightFormat.FP16)


@pytest.fixture(scope="session")
def stories_mac(shared_models: Path, tmp_path_factory: pytest.TempPathFactory, once: Once) -> Path:
    """stories260K F16 with fp16 weights for the Neural Engine: `per_kv_head` attention, t_max 4."""
    source = shared_models / "stories260K.F16.gguf"
    return _stories(once, source, tmp_path_factory, Target.MAC, WeightFormat.FP16)


@pytest.fixture(scope="session")
def stories_int8(shared_models: Path, tmp_path_factory: pytest.TempPathFactory, once: Once) -> Path:
    """stories260K Q8_0 with int8-channel weights for the portable backend."""
    source = shared_models / "stories260K.Q8_0.gguf"
    return _stories(once, source, tmp_path_factory, Target.CPU, WeightFormat.INT8_CHANNEL)
