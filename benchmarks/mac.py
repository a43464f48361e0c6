"""Compare a model's tokens per second on this Mac with published speeds and with the prediction.

    python benchmarks/mac.py model.gguf -o mac.json
    python benchmarks/mac.py model.gguf --tuned report.zip

It converts the model, gets its plan, runs the gates, and times it with `anespec bench run`. The JSON has no
name of a person, a machine, a file or a folder, and can be sent to anyone. On other systems everything runs
on the processor, and the comparison means nothing. This project has never run it on a Mac.
"""

import argparse
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from measure import describe, emit, show_table
from measure import machine as surroundings
from published import published
from smoke_options import MODEL, ROOT, command_line
from subjects import artifact_of

from anespec import __version__
from anespec.convert.options import ConvertOptions
from anespec.manifests.schema import Manifest, Target
from anespec.manifests.store import Artifact
from anespec.manifests.usual_target import usual_target
from anespec.system.formatting import bytes_text
from anespec.system.machine import system_build
from anespec.system.safe_files import write_atomically
from anespec.validate.cost_model.work import PassWork
from anespec.validate.doctor.system import System, ThisSystem
from anespec.validate.selftest.archive import scrubbed

FORMAT = "anespec mac benchmark 1"
ANESPEC = (sys.executable, "-P", "-m", "anespec")
NO_ENGINE = "this machine has no Neural Engine, so the figures cannot be compared"


def machine_facts(system: System) -> dict[str, Any]:
    """Return the facts of the machine on which speed depends, without data that identifies anyone.

    Facts that only macOS has are None elsewhere.
    """
    battery, settings = system.output_of("pmset", "-g", "batt"), system.output_of("pmset", "-g")
    source = re.search(r"drawing from '([^']+)'", battery or "")
    low = re.search(r"^\s*lowpowermode\s+(\d)\s*$", settings or "", re.MULTILINE)
    virtual = system.output_of("sysctl", "-n", "kern.hv_vmm_present")
    return {
        **surroundings(),
        "system": system_build(),
        "memory_bytes": system.memory()[0],
        "power": source[1] if source else None,
        "low_power_mode": low[1] == "1" if low else None,
        "virtual": None if virtual is None else virtual == "1",
    }


def model_facts(manifest: Manifest) -> dict[str, Any]:
    """Return the model's sizes and how it was built, without its name, which may be private."""
    return {
        "architecture": manifest.source.architecture,
        "quantisation": manifest.source.quantisation,
        **manifest.hyperparameters.model_dump(),
        "target": manifest.target.value,
        "attention": manifest.attention.value,
        "kv_form": manifest.kv_form.value,
        "shapes": manifest.shapes.value,
        "block": manifest.block,
        "context": manifest.context,
        "topology": list(manifest.topology),
        "shards": len(manifest.shards),
        "weight_bytes": sum(tensor.bytes for tensor in manifest.tensors),
        "built_with": {tool: version for tool, version in manifest.built_with.items() if tool != "recipe"},
    }


def asked(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a verb of anespec; its progress is shown."""
    command = [*ANESPEC, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def residency_of(artifact: Path) -> dict[str, Any] | None:
    """Return where the operations run: by Core ML's plan on a Mac, by the rules' prediction elsewhere."""
    asked("validate", artifact, "--gate", "residency", "--json")
    gates = json.loads(asked("inspect", artifact, "--json").stdout or "{}").get("gates", [])
    found = [gate for gate in gates if gate["gate"] == "residency"]
    return {key: found[-1][key] for key in ("standing", "decides", "finding")} if found else None


def bench_facts(artifact: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Time the artifact with and without drafts; end the program if that fails."""
    chosen = ["--runs", options.runs, "--lengths", options.lengths, "--backend", options.backend]
    if options.classes is not None:
        chosen += ["--classes", options.classes]
    done = asked("bench", "run", artifact, "--json", *chosen)
    if not done.stdout.startswith("{"):
        sys.exit(f"benchmarks/mac.py: `anespec bench run` gave no figures (exit code {done.returncode})")
    facts: dict[str, Any] = json.loads(done.stdout)
    kept = ("backend", "threads", "block", "identical", "pass_costs", "predicted", "overall", "sections")
    return {key: facts[key] for key in kept}


def report_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures: machine, model, residency, speed, predictions and published speeds."""
    machine = machine_facts(ThisSystem())
    chosen = ConvertOptions(target=options.target, context=options.context, tuned=options.tuned)
    path = artifact_of(options.gguf, chosen)
    artifact = Artifact(path)
    manifest = artifact.manifest
    model = model_facts(manifest)
    return {
        "format": FORMAT,
        "anespec": __version__,
        "machine": machine,
        "model": model,
        "work": asdict(PassWork.of_artifact(artifact)),
        "residency": residency_of(path),
        "measured": bench_facts(path, options),
        "published": [
            asdict(each)
            | {"same_model": all(model[key] == value for key, value in asdict(each.same).items())}
            for each in published()
        ],
    }


def show(report: dict[str, Any]) -> None:
    """Print the report."""
    machine, model, measured = report["machine"], report["model"], report["measured"]
    print(describe({key: machine[key] for key in surroundings()}))
    power = machine["power"] or "power source unknown"
    low = ", low power mode" if machine["low_power_mode"] else ""
    virtual = ", a virtual machine" if machine["virtual"] else ""
    print(f"{machine['system']}, {bytes_text(machine['memory_bytes'])} of memory, {power}{low}{virtual}")
    print(
        f"{model['architecture']} with d {model['d']}, {model['layers']} layers: "
        f"{bytes_text(model['weight_bytes'])} in {model['shards']} shards for {model['target']}, "
        f"K/V {model['kv_form']}, {model['context']} slots, on {measured['backend']}"
    )
    found = report["residency"]
    print(f"residency: {found['standing'] + ', ' + found['finding'] if found else 'not run'}\n")
    rows = [
        own_row("anespec, plain", measured, "without"),
        own_row("anespec, n-gram drafts", measured, "with"),
    ]
    for each in sorted(report["published"], key=lambda each: not each["same_model"]):
        same = "same model" if each["same_model"] else ""
        speed = f"{each['tokens_per_second']:.1f}"
        rows.append((f"{each['project']}, {each['model']}, {each['how']}", speed, each["chip"], same))
    show_table(("", "tokens/s", "chip", ""), rows)
    print()
    compared = measured["predicted"]
    if compared is None:
        print(f"no prediction: {NO_ENGINE}, or its chip is not in validate/cost_model/constants.py")
    else:
        print(
            f"a pass of the block: {compared['measured_ms']:.1f} ms measured, {compared['predicted_ms']:.1f} "
            f"predicted for {compared['chip']}: {compared['ratio']:.2f} times"
        )
    if not measured["identical"]:
        print("SPECULATION CHANGED A TEXT: send the report")


def own_row(name: str, measured: dict[str, Any], way: str) -> tuple[str, ...]:
    """Return a table row of this machine's figures: the median over all texts, with drafts as they pay."""
    overall = measured["overall"][0]["figures"]
    if overall is None:
        return (name, "too short", "this one", "")
    made = f", {overall['tokens_per_pass']:.2f} tokens a pass" if way == "with" else ""
    return (name + made, f"{median(overall['tokens_per_second'][way]):.1f}", "this one", "same model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--target", type=Target, choices=Target, default=usual_target())
    parser.add_argument("--context", type=int)
    parser.add_argument("--tuned", type=Path, help="report of `anespec selftest` or `anespec tune`")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--classes", help="kinds of text, as for `anespec bench run`")
    parser.add_argument("--lengths", default="48,144")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, help="write the JSON here, to send it")
    parser.add_argument("--json", action="store_true")
    smoke = ("--target", "mac", "--context", 256, "--classes", "chat", "--lengths", 32, "--runs", 1)
    options = parser.parse_args(command_line(parser, MODEL, *smoke))
    text = scrubbed(json.dumps(report_of(options), indent=2), ROOT)
    report = json.loads(text)
    if options.output is not None:
        write_atomically(options.output, text)
    if options.json:
        emit(report)
        return
    show(report)
    if options.output is not None:
        print(f"{options.output} has all figures and nothing private: look at it, then send it")


if __name__ == "__main__":
    main()
