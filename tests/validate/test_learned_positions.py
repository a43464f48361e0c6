"""Models whose positions have embeddings of their own (GPT-2): the context, and the gates."""

from pathlib import Path
from typing import Any

import pytest
from converting import build
from family_files import FAMILIES, Variant
from planted import golden_of, is_red

from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends.embedding import Embedding
from anespec.system.errors import GGUFError, RequestError

GGUF = FAMILIES / "gpt2.gguf"


def converted(folder: Path, gguf: Path = GGUF, **options: Any) -> Artifact:
    given = {"target": Target.CPU, "weights": WeightChoice(WeightFormat.FP16), **options}
    return Artifact(build(gguf, folder / "m.anespec", **given).path)


def test_a_context_beyond_the_learned_positions_is_refused(tmp_path: Path) -> None:
    words = "--context 513 needs 576 positions, but the model learned 512; give at most 512"
    with pytest.raises(RequestError, match=words):
        converted(tmp_path, context=513)


def test_the_usual_context_has_a_learned_position_for_each_slot(tmp_path: Path) -> None:
    gguf = Variant("gpt2", {"context_length": 300}).write(tmp_path / "m.gguf")
    assert converted(tmp_path, gguf, context=None).manifest.context == 256


def test_a_file_without_the_table_is_refused(tmp_path: Path) -> None:
    gguf = Variant("gpt2", tensors={"position_embd.weight": None}).write(tmp_path / "m.gguf")
    with GGUFFile(gguf) as file, pytest.raises(GGUFError, match=r"position_embd\.weight"):
        SourceModel(file)


def test_a_table_of_another_width_is_refused(tmp_path: Path) -> None:
    content, name = GGUF.read_bytes(), b"position_embd.weight"
    place = content.index(name) + len(name) + 4  # after the number of axes
    assert int.from_bytes(content[place : place + 8], "little") == 64
    path = tmp_path / "m.gguf"
    path.write_bytes(content[:place] + (32).to_bytes(8, "little") + content[place + 8 :])
    with (
        GGUFFile(path) as file,
        pytest.raises(GGUFError, match=r"'position_embd.weight' has shape \(512, 32\), but .* \(512, 64\)"),
    ):
        SourceModel(file)


@pytest.mark.slow
def test_the_rows_of_positions_are_right(tmp_path: Path) -> None:
    verdict = golden_of(converted(tmp_path, context=128), GGUF)
    assert verdict.failures == ()


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1, None], ids=["of the next position", "left out"])
def test_wrong_rows_of_positions_are_red(
    shift: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, looked_up = Embedding.hidden, Embedding._looked_up

    def wrong(self: Embedding, tokens: Any, positions: Any) -> Any:
        if shift is None:
            return looked_up(self, self.tensor, tokens, self.scale, self.norm_epsilon)
        return hidden(self, tokens, positions + shift)

    monkeypatch.setattr(Embedding, "hidden", wrong)
    assert is_red(converted(tmp_path, context=128), GGUF)
