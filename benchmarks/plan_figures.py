"""Count what a pass of published models does in each form of K/V: packages, operations, bytes.

    python benchmarks/plan_figures.py
    python benchmarks/plan_figures.py --models Qwen3-0.6B --context 1024 --forms slice_update outside

Nothing is run. The figures of the table in docs/graph.md are counted in the graphs that `convert --target
mac` would build, from files with the sizes of those models and without weights. `heads apart` has a head
shard for each convolution, as before they were outputs of one shard.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from measure import emit
from smoke_options import command_line
from sparse_models import MODELS, PublishedSizes, write_sparse

from anespec.convert.options import ConvertOptions
from anespec.convert.planning.kv_traffic import kv_traffic
from anespec.convert.planning.plan import KV_FORMS, ConversionPlan
from anespec.convert.planning.shard_limits import HEAD_CHANNELS
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import KVForm, Shapes, Target
from anespec.system.formatting import bytes_text
from anespec.validate.cost_model.forecast import chip_named, predict
from anespec.validate.cost_model.planned import planned_work
from anespec.validate.cost_model.work import PassWork

CHIP = "Apple M4 Max"
COUNTS = ("packages", "operations", "weights", "K/V written", "K/V touched", "K/V moved")
HEAD = ("model", "K/V", *COUNTS, f"ms, {CHIP}")


@dataclass(frozen=True)
class Figures:
    """A model in one form of K/V; `milliseconds` are predicted.

    `kv_touched` are the bytes of K/V if a blend is fused, `work.kv_moved` those if nothing is fused.
    """

    model: str
    form: str
    work: PassWork
    kv_touched: int
    milliseconds: float

    def as_json(self) -> dict[str, object]:
        """Return the figures."""
        work = asdict(self.work)
        work |= {"kv_touched": self.kv_touched, "predicted_ms": round(self.milliseconds, 2)}
        return {"model": self.model, "form": self.form, **work}

    def row(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        work = self.work
        sizes = (work.weight_bytes, work.kv_written, self.kv_touched, work.kv_moved)
        counts = (str(work.dispatches), str(work.operations))
        return (self.model, self.form, *counts, *map(bytes_text, sizes), f"{self.milliseconds:.1f}")


def figures_of(
    name: str, sizes: PublishedSizes, forms: list[KVForm], context: int, folder: Path
) -> Iterator[Figures]:
    """Yield the figures of the model in each form, the first time with separate heads."""
    usual = KV_FORMS[Target.MAC]
    apart = {"head_shards": -(-sizes.vocabulary // HEAD_CHANNELS), "kv_form": usual}
    variants = {f"{usual}, heads apart": apart, **{str(form): {"kv_form": form} for form in forms}}
    chip = chip_named(CHIP)
    assert chip is not None
    with GGUFFile(write_sparse(folder / f"{name}.gguf", sizes)) as file:
        model = SourceModel(file)
        for form, chosen in variants.items():
            # A pass of the block does the same in all kinds of shapes, and every form supports this one.
            options = ConvertOptions(target=Target.MAC, context=context, shapes=Shapes.STATIC, **chosen)
            plan = ConversionPlan(model, options)
            work = planned_work(plan)
            touched = next(each.touched for each in kv_traffic(plan) if each.form is plan.kv_form)
            yield Figures(name, form, work, touched, predict(work, chip).milliseconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--forms", nargs="+", choices=KVForm, type=KVForm, default=list(KVForm))
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--layers", type=int, help="layers of each model, instead of all")
    parser.add_argument("--json", action="store_true")
    smoke = ("--models", "Qwen3-0.6B", "--layers", 1, "--forms", KVForm.SLICE_UPDATE)
    options = parser.parse_args(command_line(parser, *smoke))
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            sizes = replace(MODELS[name], layers=options.layers or MODELS[name].layers)
            found += figures_of(name, sizes, options.forms, options.context, Path(folder))
    if options.json:
        emit({"context": options.context, "chip": CHIP, "figures": [each.as_json() for each in found]})
        return
    for row in (HEAD, ("---",) * len(HEAD), *(each.row() for each in found)):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
