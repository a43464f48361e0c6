"""Choose the GGUF of a repository that is named alone, or with a quantisation.

Q8_0 is preferred: a converted model has about 8 bits a weight by default. So a finer file gains next to
nothing, and a coarser file has lost precision that no conversion restores, and takes no less memory.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from anespec.hub_name import HubName, is_plain
from anespec.manifests.errors import RequestError
from anespec.manifests.formatting import bytes_text, counted, named, printable, quoted
from anespec.serving.room import USUAL_FACTOR

PREFERRED = "Q8_0"
CONVERTED_BITS = 8.0
"""Of a weight, in what `convert` makes by default."""

_QUANTISATION = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:(?:IQ|TQ|Q)\d(?:_[0-9A-Z]+)*|MXFP4(?:_MOE)?|BF16|F16|FP16|F32|FP32))(?=[-._]|$)",
    re.IGNORECASE,
)
_PART = re.compile(r"-\d{5}-of-(?P<parts>\d{5})\.gguf$")
_OF_ANOTHER_KIND = re.compile(r"mmproj|imatrix", re.IGNORECASE)


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, by its path there; its size in bytes."""

    path: str
    bytes: int

    @cached_property
    def quantisation(self) -> str | None:
        """As the file's name says it, in capitals; None where it says none."""
        found = _QUANTISATION.findall(self.path.rpartition("/")[2].removesuffix(".gguf"))
        return found[-1].upper() if found else None

    @property
    def bits(self) -> float:
        """Bits of a weight, approximately: a block stores scales in addition to the bits in the name. 0 if
        unknown."""
        kind = (self.quantisation or "").removeprefix("UD-")
        digits = re.search(r"\d+", kind)
        if digits is None:
            return 0.0
        return float(digits[0]) + (0.0 if "F" in kind and kind != "MXFP4" else 0.5)

    @property
    def memory(self) -> int:
        """Bytes that the model takes in use, about: the file's own weights, or what is converted of them."""
        grown = CONVERTED_BITS / self.bits if self.bits else 1.0
        return int(USUAL_FACTOR * self.bytes * max(1.0, grown))

    @property
    def parts(self) -> int:
        """Of how many files the model is, of which this is one."""
        found = _PART.search(self.path)
        return 1 if found is None else int(found["parts"])

    @property
    def is_model(self) -> bool:
        """Whether the file may be a language model, and its path is safe to use."""
        name = self.path.rpartition("/")[2]
        return name.endswith(".gguf") and is_plain(self.path) and not _OF_ANOTHER_KIND.search(name)


@dataclass(frozen=True)
class Choice:
    """The file that is taken, and why, as a clause."""

    file: HubFile
    reason: str


def choose(name: HubName, files: Sequence[HubFile], memory: int) -> Choice:
    """The file of a repository's that `name` means, on a machine that spares `memory` bytes for a model.

    Raises:
        RequestError: there is none, there are several, or none fits; the sentence names what there is.
    """
    models = [file for file in files if file.is_model]
    whole = [file for file in models if file.parts == 1]
    if not models:
        raise RequestError(f"{name}: the repository has no GGUF of a language model")
    if name.quantisation is not None:
        found = _called(name.quantisation, whole)
        if not found:
            raise RequestError(f"{name}: {_none_called(name.quantisation, models, whole)}")
        return Choice(_only(name, found), "as asked for")
    if not whole:
        raise RequestError(f"{name}: all its GGUFs are in several parts; {_JOIN}")
    fitting = [file for file in whole if file.memory <= memory]
    if not fitting:
        least = min(whole, key=lambda file: file.memory)
        raise RequestError(
            f"{name}: none of its GGUFs fits, as {printable(least.path)} takes about "
            f"{bytes_text(least.memory)} of memory and this machine spares {bytes_text(memory)}; name one to "
            f"take it all the same, as in {_written(name, least)}"
        )
    preferred = _called(PREFERRED, fitting)
    if preferred:
        return Choice(_only(name, preferred), f"{PREFERRED}, which is preferred{_others(name, whole)}")
    best = max(fitting, key=lambda file: file.bits)
    file = _only(name, [file for file in fitting if file.bits == best.bits])
    lacking = f"its {PREFERRED} does not fit" if _called(PREFERRED, whole) else f"it has no {PREFERRED}"
    return Choice(file, f"the finest that fits, as {lacking}{_others(name, whole)}")


_JOIN = "join them with llama.cpp's `llama-gguf-split --merge`, and give the file"


def _called(quantisation: str, files: Sequence[HubFile]) -> list[HubFile]:
    """Those with a quantisation; where none is called just so, those that are but for a maker's prefix."""
    wanted = quantisation.upper()
    exact = [file for file in files if file.quantisation == wanted]
    return exact or [file for file in files if (file.quantisation or "").removeprefix("UD-") == wanted]


def _none_called(quantisation: str, models: Sequence[HubFile], whole: Sequence[HubFile]) -> str:
    if parts := _called(quantisation, models):
        return f"{quoted(quantisation)} is there in {counted(parts[0].parts, 'part')} only; {_JOIN}"
    return f"the repository has no {quoted(quantisation)}; it has {named(_kinds(whole) or _paths(models))}"


def _only(name: HubName, files: Sequence[HubFile]) -> HubFile:
    if len(files) > 1:
        raise RequestError(
            f"{name}: several of its GGUFs may be meant, {named(_paths(files))}; name one, as in "
            f"{_written(name, files[0])}"
        )
    return files[0]


def _written(name: HubName, file: HubFile) -> str:
    return printable(str(HubName(name.repo, file.path, name.revision)), 200)


def _others(name: HubName, whole: Sequence[HubFile]) -> str:
    kinds = [kind for kind in _kinds(whole) if kind != PREFERRED]
    return f"; {name}:QUANTISATION takes another ({named(kinds)})" if kinds and name.revision is None else ""


def _kinds(files: Sequence[HubFile]) -> list[str]:
    return sorted({file.quantisation for file in files if file.quantisation is not None})


def _paths(files: Sequence[HubFile]) -> list[str]:
    return sorted(file.path for file in files)
