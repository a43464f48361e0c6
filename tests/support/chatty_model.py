"""The embedded model with a chat template, which it comes without."""

from pathlib import Path

from embedded_variants import rewritten
from gguf import GGUFReader

from anespec.embedded import model_path

TEMPLATE = (
    "{% for m in messages %}# {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant:\n{% endif %}"
)


def write_chatty(path: Path, template: str = TEMPLATE) -> Path:
    """Write it as a GGUF with this template."""
    reader = GGUFReader(model_path())
    tensors = [(tensor.name, tensor.data, tensor.tensor_type) for tensor in reader.tensors]
    return rewritten(path, reader, lambda key, value: value, tensors, template)
