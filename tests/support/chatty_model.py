"""The embedded model with a chat template, which it comes without."""

from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

from anespec.embedded import model_path

TEMPLATE = (
    "{% for m in messages %}# {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant:\n{% endif %}"
)


def write_chatty(path: Path, template: str = TEMPLATE) -> Path:
    """Write it as a GGUF with this template."""
    reader = GGUFReader(model_path())
    writer = GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kinds = field.types
            writer.add_key_value(
                key, field.contents(), kinds[0], kinds[-1] if kinds[0] is GGUFValueType.ARRAY else None
            )
    writer.add_chat_template(template)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
