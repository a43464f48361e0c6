"""What a GGUF says of sampling, by llama.cpp's own names, and what holds where nobody says anything."""

from pathlib import Path

import numpy as np
import pytest
from gguf.constants import Keys

from anespec.convert.source.tokens import write_tokens
from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.runtime.options import GenerationOptions, usual_in_conversation
from anespec.runtime.sampling.parameters import KEYS, PREFIX, SamplingParameters, suggested_sampling

NOTE_LOG = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20, "general.sampling.top_p": 0.95}


def test_the_keys_are_those_of_llama_cpp() -> None:
    general = Keys.General
    theirs = {general.SAMPLING_TEMP, general.SAMPLING_TOP_K, general.SAMPLING_TOP_P, general.SAMPLING_MIN_P}
    assert {PREFIX + key for key in KEYS.values()} == theirs


def test_what_is_said_is_set_and_nothing_else() -> None:
    found = suggested_sampling(NOTE_LOG)
    assert found.model_fields_set == {"temperature", "top_k", "top_p"}
    assert (found.temperature, found.top_k, found.top_p) == (0.6, 20, 0.95)
    assert suggested_sampling({"general.sampling.top_p": float(np.float32(0.95))}).top_p == 0.95
    assert suggested_sampling({}).model_fields_set == set()


@pytest.mark.parametrize(
    ("key", "value"),
    [("temp", -1.0), ("temp", float("nan")), ("temp", "hot"), ("top_p", 7.0), ("top_k", 0.5)],
)
def test_what_cannot_be_is_left_out(key: str, value: object) -> None:
    found = suggested_sampling({**NOTE_LOG, PREFIX + key: value})
    assert len(found.model_fields_set) == 2


def test_all_of_llama_cpps_minus_one_is_all() -> None:
    assert suggested_sampling({"general.sampling.top_k": -1}).top_k == 0


def test_what_is_asked_for_holds_first() -> None:
    asked = GenerationOptions(temperature=0.0, stop=("x",))
    preset, file = SamplingParameters(top_k=5), suggested_sampling(NOTE_LOG)
    found = asked.completed_by(preset, file, usual_in_conversation())
    assert (found.temperature, found.top_k, found.top_p, found.stop) == (0.0, 5, 0.95, ("x",))
    assert found.max_tokens is None
    assert GenerationOptions().completed_by(usual_in_conversation()).temperature == 0.8
    assert GenerationOptions(max_tokens=128).completed_by(usual_in_conversation()).max_tokens == 128
    assert GenerationOptions().completed_by(file).temperature == 0.6


def test_seeds_nobody_chose_differ() -> None:
    assert len({usual_in_conversation().seed for _ in range(8)}) > 1


def test_an_artifact_keeps_what_its_gguf_says(tmp_path: Path) -> None:
    with GGUFFile(model_path()) as plain:
        metadata = {**plain.metadata, **NOTE_LOG}
        plain.metadata.clear()
        plain.metadata.update(metadata)
        write_tokens(plain, tmp_path / "tokens.gguf")
    with GGUFFile(tmp_path / "tokens.gguf") as tokens:
        assert suggested_sampling(tokens.metadata) == suggested_sampling(NOTE_LOG)
