"""A program as a person may write it: run by a test, and read by the type checker (make typecheck).

Each `type: ignore` is a check: where the library told no types, it would be an unused one, which is an error.
"""

import asyncio
from pathlib import Path

import anespec
from anespec.convert.planning.plan import ConversionPlan


def continued(gguf: Path, folder: Path) -> list[str]:
    """Convert, validate and generate; the texts."""
    found = anespec.inspect(gguf)
    assert isinstance(found, anespec.GGUFInspection) and found.convertible
    options = anespec.ConvertOptions(target=anespec.Target.CPU, context=256, sequences=2)
    artifact: Path = anespec.convert_model(gguf, folder / "m.anespec", options).path
    passed: bool = anespec.validate_model(artifact, gates=("exactness",), quick=True, threads=1).passed
    with anespec.load(artifact, anespec.LoadOptions(threads=1)) as model:
        greedy = anespec.GenerationOptions(max_tokens=8, ignore_eos=True)
        completion: anespec.Completion = model.generate("def area(", greedy)
        streamed: str = "".join(chunk.text for chunk in model.stream("def area(", greedy))
        ids: list[int] = model.tokenize("def area(")
        later: anespec.Completion = asyncio.run(model.agenerate(ids, greedy, temperature=0.0))
        joined: str = asyncio.run(_joined(model, greedy))
    assert passed
    return [completion.text, streamed, later.text, joined]


async def _joined(model: anespec.Model, options: anespec.GenerationOptions) -> str:
    return "".join([chunk.text async for chunk in model.astream("def area(", options)])


def misused(plan: ConversionPlan) -> None:
    """What the type checker must not let pass; never run."""
    anespec.convert_model(3)  # type: ignore[arg-type]
    anespec.validate_model(plan)  # type: ignore[arg-type]
    anespec.load("m.anespec").generate(1.5)  # type: ignore[arg-type]
    anespec.GenerationOptions(temprature=1.0)  # type: ignore[call-arg]
