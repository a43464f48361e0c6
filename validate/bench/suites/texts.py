"""Write the texts of the suites' prompts: a beginning, a body of any length, and what is asked.

All of them are made up here, from lists of words and by a seed. What a prompt asks for repeats much of its
body (json_rag, passage, code, editing) or little of it (encyclopaedia, instructions, questions).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from anespec.validate.bench.options import TextKind


@dataclass(frozen=True)
class SuiteText:
    """A text that is as long as it is read: `head`, parts of the endless `body`, and then `tail`."""

    head: str
    body: Iterator[str]
    tail: str


_PEOPLE = ("Ada", "Bruno", "Clara", "David", "Elif", "Farid", "Grete", "Hanna", "Ivo", "Jana", "Kofi", "Lena")
_THINGS = ("lamp", "desk", "clock", "bottle", "ladder", "kettle", "basket", "mirror", "hammer", "blanket")
_PLACES = ("harbour", "station", "library", "market", "workshop", "garden", "bridge", "school", "mill")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_FIELDS = ("balance", "limit", "price", "weight", "height", "count", "volume", "rate", "total", "score")


def _records(rng: Random) -> Iterator[str]:
    number = rng.randint(100, 900)
    while True:
        number += rng.randint(1, 9)
        thing, place = rng.choice(_THINGS), rng.choice(_PLACES)
        yield (
            f'  {{"id": {number}, "name": "{thing}", "place": "{place}", "owner": "{rng.choice(_PEOPLE)}", '
            f'"price": {rng.randint(2, 90)}, "lent": {rng.choice(("true", "false"))}}},\n'
        )


def _sentences(rng: Random) -> Iterator[str]:
    while True:
        who, other = rng.sample(_PEOPLE, 2)
        thing, place, day = rng.choice(_THINGS), rng.choice(_PLACES), rng.choice(_DAYS)
        yield rng.choice(
            (
                f"On {day} {who} carries the {thing} to the {place}. ",
                f"{who} and {other} meet at the {place}, where the {thing} has stood since {day}. ",
                f"The {thing} belongs to {who}, but {other} uses it at the {place} every {day}. ",
                f"When the {place} is closed, {who} leaves the {thing} with {other}. ",
            )
        )


def _methods(rng: Random) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        name = f"{rng.choice(_FIELDS)}_{number}"
        limit = rng.randint(10, 900)
        yield (
            f"\n    def set_{name}(self, value):\n"
            f"        if value < 0 or value > {limit}:\n"
            f'            raise ValueError("{name} must lie between 0 and {limit}")\n'
            f"        self.{name} = value\n"
            f'        self.changed.append("{name}")\n'
        )


def _settings(rng: Random) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield (
            f"[{rng.choice(_PLACES)}_{number}]\n"
            f'owner = "{rng.choice(_PEOPLE)}"\n'
            f"{rng.choice(_FIELDS)} = {rng.randint(1, 90)}\n"
            f'open_on = "{rng.choice(_DAYS)}"\n\n'
        )


_RIVERS = ("Sowna", "Brzezna", "Olszyca", "Kamionka", "Wierzba", "Modra", "Lipnica", "Głuszka")
_TOWNS = ("Starogród", "Nowy Most", "Kamień", "Lipowo", "Zarzecze", "Borki", "Młynów", "Góra")


def _entries(rng: Random) -> Iterator[str]:
    while True:
        river = rng.choice(_RIVERS)
        town, other = rng.sample(_TOWNS, 2)
        yield rng.choice(
            (
                f"{river}: rzeka o długości {rng.randint(20, 400)} km, dopływ rzeki {rng.choice(_RIVERS)}. ",
                f"{town} leży nad rzeką {river}, {rng.randint(5, 80)} km od miasta {other}. ",
                f"W roku {rng.randint(1250, 1899)} miasto {town} otrzymało prawa miejskie. ",
                f"Most łączący {town} i {other} zbudowano w {rng.randint(1820, 1960)} roku z kamienia. ",
                f"Źródła rzeki {river} znajdują się na wysokości {rng.randint(300, 1200)} m n.p.m. ",
            )
        )


def _notes(rng: Random) -> Iterator[str]:
    while True:
        who, thing, place = rng.choice(_PEOPLE), rng.choice(_THINGS), rng.choice(_PLACES)
        yield rng.choice(
            (
                f"- {who} has to bring the {thing} to the {place} before {rng.choice(_DAYS)}.\n",
                f"- The {thing} in the {place} is broken; {who} knows how to repair it.\n",
                f"- {who} asks for a new {thing}, as the {place} opens on {rng.choice(_DAYS)}.\n",
            )
        )


_QUESTIONS = (
    ("Why is the sky blue?", "Air scatters blue light more than red light."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("What is the boiling point of water?", "At sea level water boils at 100 degrees Celsius."),
    ("Which is the largest ocean?", "The Pacific is the largest ocean."),
    ("What do bees make?", "Bees make honey and wax."),
    ("Who writes the laws of a state?", "Its parliament writes the laws."),
    ("What is a prime number?", "A number above 1 that only 1 and itself divide."),
    ("Why does iron rust?", "Iron reacts with oxygen and water."),
    ("How long does the Earth need around the Sun?", "It needs about 365 days."),
    ("What is bread made of?", "Bread is made of flour, water, salt and yeast."),
)


def _answered(rng: Random) -> Iterator[str]:
    while True:
        question, answer = rng.choice(_QUESTIONS)
        yield f"Question: {question}\nAnswer: {answer}\n\n"


def _text(head: str, body: Callable[[Random], Iterator[str]], tail: str) -> Callable[[Random], SuiteText]:
    return lambda rng: SuiteText(head, body(rng), tail)


def _question(rng: Random) -> SuiteText:
    question, _ = rng.choice(_QUESTIONS)
    return SuiteText(
        "Short answers to short questions.\n\n", _answered(rng), f"Question: {question}\nAnswer:"
    )


_KINDS: Mapping[TextKind, Callable[[Random], SuiteText]] = {
    TextKind.JSON_RAG: _text(
        "These records were found:\n[\n",
        _records,
        "]\nWrite the records of all things that are lent, as JSON and without changes.\n[\n",
    ),
    TextKind.PASSAGE: _text("", _sentences, "\n\nThe same passage once more, word for word:\n\n"),
    TextKind.CODE: _text(
        "class Record:\n    def __init__(self):\n        self.changed = []\n",
        _methods,
        "\n\n# The same class, where value is called new_value:\n\nclass Record:\n",
    ),
    TextKind.ENCYCLOPAEDIA: _text(
        "Encyklopedia rzek i miast.\n\n", _entries, "\n\nKrótkie streszczenie powyższych haseł:\n"
    ),
    TextKind.INSTRUCTIONS: _text(
        "Notes of a meeting:\n",
        _notes,
        "\nWrite a letter to all who were at the meeting. Say what was decided, and who does what.\n\n",
    ),
    TextKind.QUESTIONS: _question,
    TextKind.EDITING: _text(
        "", _settings, "\nSort the sections by their owners. Write the whole file once more.\n"
    ),
}


def suite_text(kind: TextKind, seed: int, number: int) -> SuiteText:
    """Return text number `number` of a kind; the same arguments give the same text."""
    return _KINDS[kind](Random(f"{kind} {seed} {number}"))


def instructions(seed: int) -> Iterator[str]:
    """Yield the changes that the turns of a conversation ask for."""
    rng = Random(f"instructions {seed}")
    asks: Sequence[Callable[[], str]] = (
        lambda: f"Replace every owner {rng.choice(_PEOPLE)} by {rng.choice(_PEOPLE)}.",
        lambda: f"Let all open on {rng.choice(_DAYS)}.",
        lambda: f"Rename {rng.choice(_FIELDS)} to {rng.choice(_FIELDS)} everywhere.",
        lambda: "Sort the sections by their owners.",
    )
    while True:
        yield f"{rng.choice(asks)()} Write the whole file once more.\n"
