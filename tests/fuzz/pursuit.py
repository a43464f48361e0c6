"""What a user's commands do with a GGUF, from its first byte to its last weight, but for the packages."""

import warnings
from dataclasses import fields, is_dataclass
from pathlib import Path

from anespec.convert.layers import head_weights, hidden_norm, layer_shard_plan, layer_weights, per_layer_mix
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.planning.report import explain
from anespec.convert.source.model import SourceModel
from anespec.convert.source.tokens import write_tokens
from anespec.convert.weights.stored import DeferredWeight
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target
from anespec.models.inspection import FileFacts, PlanFacts
from anespec.runtime.text.templates.rendering import render_chat
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import AnespecError

SMALL_DATA = 2_000_000
LAYERS_READ = 3
LONGEST_MESSAGE = 2000
SENTENCE = "Hello <s>\u2581w\u00f6rld 123\n\n \U0001f600<|im_end|>"
MESSAGES = ({"role": "user", "content": "Hello"},)


class NoSentenceError(Exception):
    """An error's text is not one printable line of sensible length."""


def pursue(path: Path, *, read_weights: bool) -> bool:
    """Try everything on the file; True where it could be converted as far as was tried.

    Anything raised is a finding: whatever is expected of a bad file is an AnespecError and is taken here.
    """
    # A person would see a library's warning on the terminal beside the one sentence.
    warnings.simplefilter("error")
    with _Refusal() as refusal, GGUFFile(path) as file:
        FileFacts.of(file)
        with _Refusal() as unsupported:
            _plan(file, read_weights)
        with _Refusal() as mute:
            _speak(file)
        return not (unsupported.happened or mute.happened)
    return not refusal.happened


class _Refusal:
    """Takes an AnespecError, and checks that it is a sentence."""

    def __init__(self) -> None:
        self.happened = False

    def __enter__(self) -> "_Refusal":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, AnespecError):
            return False
        self.happened = True
        text = str(error)
        if not text.isprintable() or not 0 < len(text) < LONGEST_MESSAGE:
            raise NoSentenceError(f"{text[:300]!r}") from error
        return True


def _plan(file: GGUFFile, read_weights: bool) -> None:
    model = SourceModel(file)
    for target in Target:
        plan = ConversionPlan(model, ConvertOptions(target=target))
        PlanFacts.of(plan)
        explain(plan.sharding)
    if read_weights and file.nbytes < SMALL_DATA:
        _read(plan)


def _read(plan: ConversionPlan) -> None:
    """Every weight of a few layers and of the head, as the converter stores it."""
    model = plan.model
    for index in range(min(model.sizes.layers, LAYERS_READ)):
        indices = range(index, index + 1)
        layer_shard_plan(plan, indices)
        _store_all(layer_weights(plan, model.facts.layers[index]))
        _store_all(per_layer_mix(plan, indices))
    hidden_norm(model, model.final_norm)
    _store_all(head_weights(plan, plan.topology.heads[0]))


def _store_all(part: object) -> None:
    """Read and store every weight that a layer's description defers, wherever it is in it."""
    if isinstance(part, DeferredWeight):
        for _ in part.pieces("projection", 1):
            pass
    elif isinstance(part, tuple | list):
        for item in part:
            _store_all(item)
    elif is_dataclass(part):
        for field in fields(part):
            _store_all(getattr(part, field.name))


def _copy_tokens(file: GGUFFile, path: Path) -> None:
    """What an artifact keeps of the file to speak with speaks alike."""
    write_tokens(file, path)
    with GGUFFile(path) as copy:
        again, first = Tokenizer.from_gguf(copy), Tokenizer.from_gguf(file)
    assert again.vocabulary_hash == first.vocabulary_hash
    assert again.encode(SENTENCE) == first.encode(SENTENCE)
    assert (again.end_ids, again.chat_template or None) == (first.end_ids, first.chat_template or None)


def _speak(file: GGUFFile) -> None:
    tokenizer = Tokenizer.from_gguf(file)
    ids = tokenizer.encode(SENTENCE)
    tokenizer.encode(SENTENCE, parse_special=True)
    tokenizer.decode([*ids, *range(min(8, tokenizer.vocabulary_size))], skip_special=False)
    _ = (tokenizer.vocabulary_hash, tokenizer.longest_token)
    if tokenizer.chat_template is not None:
        render_chat(tokenizer.chat_template, MESSAGES, add_generation_prompt=True, bos="<s>", eos="</s>")
