"""How far loading is, for clients that wait: the kind of work and its share, and no name."""

from anespec.runtime.server.daemon import Lifecycle
from anespec.serving.start import telling
from anespec.system.progress import SILENT


def test_the_kind_of_work_and_its_share_are_told_without_a_name() -> None:
    lifecycle = Lifecycle()
    watch = telling(SILENT, lifecycle)
    with watch.shares("converting secret.gguf") as report:
        assert lifecycle.loading == "converting"
        report("building shards", 0.454)
        assert lifecycle.loading == "converting, 45%"
    with watch.steps("loading secret") as step:
        step("vocabulary")
        assert lifecycle.loading == "loading"
