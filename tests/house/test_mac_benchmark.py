"""The benchmark for Macs: the machine as it tells it, nothing private, and published speeds as in docs."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from anespec.validate.doctor.system import ThisSystem

ROOT = Path(__file__).resolve().parents[2]

ON_BATTERY = (
    "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=123)\t80%; discharging; 5:00 remaining"
)
SAVING = "System-wide power settings:\nCurrently in use:\n lowpowermode         1\n sleep                1"


class ToldSystem(ThisSystem):
    """A machine whose commands say what is given."""

    def __init__(self, **said: str) -> None:
        self.said = said

    def output_of(self, *command: str) -> str | None:
        """What the command's last word has been given to say."""
        return self.said.get(command[-1].removeprefix("-").replace(".", "_"))


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/mac.py, imported."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import mac

    return mac


def test_power_and_virtual_machines_are_told(mac: ModuleType) -> None:
    facts = mac.machine_facts(ToldSystem(batt=ON_BATTERY, g=SAVING, kern_hv_vmm_present="1"))
    assert (facts["power"], facts["low_power_mode"], facts["virtual"]) == ("Battery Power", True, True)
    facts = mac.machine_facts(ToldSystem(batt="Now drawing from 'AC Power'", g=" lowpowermode 0"))
    assert (facts["power"], facts["low_power_mode"], facts["virtual"]) == ("AC Power", False, None)
    assert mac.machine_facts(ToldSystem())["power"] is None
    assert facts["memory_bytes"] > 0


def test_the_docs_have_the_published_speeds(mac: ModuleType) -> None:
    from published import published  # type: ignore[import-not-found]

    page = (ROOT / "docs" / "mac.md").read_text()
    assert len(published()) >= 8
    for each in published():
        assert f"| {' | '.join(each.cells())} |" in page
    with_drafts = [each.tokens_per_second for each in published() if each.model.startswith("Phi-4-mini")]
    assert with_drafts == [17.8, 28.9]


def test_the_report_tells_nothing_of_its_owner(mac: ModuleType, stories_mac: Path) -> None:
    """The model's facts are sizes and options alone; its name, file and folder may be anybody's own."""
    from anespec.manifests.store import Artifact

    manifest = Artifact(stories_mac).manifest
    facts = json.dumps(mac.model_facts(manifest))
    for private in (manifest.source.name, manifest.source.read_from, manifest.source.sha256, "recipe"):
        assert private not in facts
    assert manifest.source.architecture in facts


@pytest.mark.slow
def test_the_figures_of_a_plan_need_no_weights() -> None:
    """One layer: before, each convolution of the head was a package of its own."""
    command = [sys.executable, ROOT / "benchmarks" / "plan_figures.py", "--smoke", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    before, now = json.loads(done.stdout)["figures"]
    assert (before["dispatches"], now["dispatches"]) == (11, 2)
    assert before["operations"] > now["operations"]
    assert before["kv_moved"] == now["kv_moved"] == 9 * now["kv_written"]
