"""Convert GGUF models to Core ML shards for the Neural Engine, and generate from them.

Drafting makes generation faster and never changes the text.

    import anespec

    options = anespec.ConvertOptions(target=anespec.Target.CPU)
    artifact = anespec.convert_model("model.gguf", options=options).path
    anespec.validate_model(artifact).require()
    with anespec.load(artifact) as model:
        print(model.generate("Once upon a time", max_tokens=40).text)

A public name is imported when it is first used.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES: Mapping[str, str] = MappingProxyType(
    {
        "convert_model": "anespec.api",
        "inspect": "anespec.api",
        "load": "anespec.api",
        "validate_model": "anespec.api",
        "Model": "anespec.model",
        "Message": "anespec.runtime.text.conversation",
        "Completion": "anespec.results",
        "Choice": "anespec.results",
        "Chunk": "anespec.runtime.engine.completion",
        "Conversion": "anespec.convert.pipeline",
        "Validation": "anespec.checking.validation",
        "GGUFInspection": "anespec.models.inspection",
        "ArtifactInspection": "anespec.models.inspection",
        "ProgressCallbacks": "anespec.system.progress",
        "Watcher": "anespec.system.progress",
        "ConvertOptions": "anespec.convert.options",
        "ValidateOptions": "anespec.validate.options",
        "LoadOptions": "anespec.runtime.options",
        "GenerationOptions": "anespec.runtime.options",
        "Grammar": "anespec.runtime.sampling.parameters",
        "GrammarKind": "anespec.runtime.sampling.parameters",
        "Target": "anespec.manifests.schema",
        "WeightFormat": "anespec.manifests.schema",
        "WeightChoice": "anespec.manifests.weight_choice",
        "AnespecError": "anespec.system.errors",
    }
)
"""The modules that define the public names."""

__all__ = [
    "AnespecError",
    "ArtifactInspection",
    "Choice",
    "Chunk",
    "Completion",
    "Conversion",
    "ConvertOptions",
    "GGUFInspection",
    "GenerationOptions",
    "Grammar",
    "GrammarKind",
    "LoadOptions",
    "Message",
    "Model",
    "ProgressCallbacks",
    "Target",
    "ValidateOptions",
    "Validation",
    "Watcher",
    "WeightChoice",
    "WeightFormat",
    "convert_model",
    "inspect",
    "load",
    "validate_model",
]

if TYPE_CHECKING:
    from anespec.api import convert_model as convert_model
    from anespec.api import inspect as inspect
    from anespec.api import load as load
    from anespec.api import validate_model as validate_model
    from anespec.checking.validation import Validation as Validation
    from anespec.convert.options import ConvertOptions as ConvertOptions
    from anespec.convert.pipeline import Conversion as Conversion
    from anespec.manifests.schema import Target as Target
    from anespec.manifests.schema import WeightFormat as WeightFormat
    from anespec.manifests.weight_choice import WeightChoice as WeightChoice
    from anespec.model import Model as Model
    from anespec.models.inspection import ArtifactInspection as ArtifactInspection
    from anespec.models.inspection import GGUFInspection as GGUFInspection
    from anespec.results import Choice as Choice
    from anespec.results import Completion as Completion
    from anespec.runtime.engine.completion import Chunk as Chunk
    from anespec.runtime.options import GenerationOptions as GenerationOptions
    from anespec.runtime.options import LoadOptions as LoadOptions
    from anespec.runtime.sampling.parameters import Grammar as Grammar
    from anespec.runtime.sampling.parameters import GrammarKind as GrammarKind
    from anespec.runtime.text.conversation import Message as Message
    from anespec.system.errors import AnespecError as AnespecError
    from anespec.system.progress import ProgressCallbacks as ProgressCallbacks
    from anespec.system.progress import Watcher as Watcher
    from anespec.validate.options import ValidateOptions as ValidateOptions
else:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
