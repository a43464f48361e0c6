"""Short samples of five kinds of text, two prompts of each.

They fit a context of some hundred tokens even in a small vocabulary, and any model can continue them. Texts
that repeat their prompt (edit, passage) or have a fixed form (json, code) are easier to draft for than talk
(chat).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from anespec.runtime.text.templates.rendering import render_chat
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError
from anespec.validate.bench.options import PromptClass


@dataclass(frozen=True)
class BenchPrompt:
    """A prompt as token ids; `number` counts the prompts of its class, or of its `group`, from 1.

    A group may be a class, or prompts of one class and length.
    """

    prompt_class: str
    number: int
    ids: tuple[int, ...]
    group: str

    def __str__(self) -> str:
        return f"{self.group} {self.number}"


_TEXTS: Mapping[PromptClass, tuple[str, ...]] = {
    PromptClass.JSON: (
        "[\n"
        '  {"id": 1, "name": "lamp", "price": 12, "in_stock": true, "tags": ["home", "light"]},\n'
        '  {"id": 2, "name": "desk", "price": 80, "in_stock": false, "tags": ["home", "work"]},\n'
        '  {"id": 3, "name": "pen", "price": 2, "in_stock": true, "tags": ["work", "paper"]},\n'
        '  {"id": 4, "name":',
        "{\n"
        '    "server": {"host": "127.0.0.1", "port": 8080, "timeout": 30, "retries": 3},\n'
        '    "client": {"host": "127.0.0.1", "port": 8081, "timeout": 60, "retries": 5},\n'
        '    "logger": {"file": "server.log", "level": "info", "format": "%(message)s"},\n'
        '    "worker": {"host":',
    ),
    PromptClass.PASSAGE: (
        "The lighthouse stands at the end of the harbour. Every evening the keeper climbs the stairs and "
        "lights the lamp. When the fog comes in, he rings the bell until the last boat is home.\n\n"
        "The same passage again, word for word:\n\n"
        "The lighthouse stands at the end of the",
        "A file is read line by line. The first line of the file is the header, and every other line is a "
        "record. If a record is not valid, the reader raises an error and says the number of the line.\n\n"
        "In short: a file is read line by line, and if a record is not valid, the",
    ),
    PromptClass.CODE: (
        "class Account:\n"
        '    """An account with a balance."""\n\n'
        "    def __init__(self, name, balance=0):\n"
        "        self.name = name\n"
        "        self.balance = balance\n\n"
        "    def deposit(self, amount):\n"
        "        if amount < 0:\n"
        '            raise ValueError("amount must not be negative")\n'
        "        self.balance += amount\n\n"
        "    def withdraw(self, amount):\n"
        "        if amount < 0:",
        "import os\nimport sys\n\n\n"
        "def read_file(path):\n"
        '    """Read a file and return its lines."""\n'
        "    with open(path) as f:\n"
        "        return f.readlines()\n\n\n"
        "def write_file(path, lines):\n"
        '    """Write the lines to a file."""\n'
        "    with open(path,",
    ),
    PromptClass.EDIT: (
        "def total(items):\n"
        "    result = 0\n"
        "    for item in items:\n"
        "        if item.price is not None:\n"
        "            result += item.price * item.count\n"
        "    return result\n\n\n"
        "# The same function, where result is called value:\n\n"
        "def total(items):\n"
        "    value = 0\n"
        "    for item in",
        'host = "localhost"\nport = 8080\ntimeout = 30\nretries = 3\nverbose = False\nlog_file = None\n\n'
        "# The same settings, where the port is 9090:\n\n"
        'host = "localhost"\nport =',
    ),
    PromptClass.CHAT: (
        "What is the difference between a list and a tuple in Python, and when should I use which?",
        "My program cannot open a file that is there. What could be wrong, and how do I find out?",
    ),
}


def bench_prompts(
    tokenizer: Tokenizer, classes: Iterable[PromptClass], most_tokens: int
) -> Iterator[BenchPrompt]:
    """Yield the prompts of these classes, each cut at its beginning to `most_tokens`.

    A chat prompt is rendered with the model's chat template; without one it is a question and an answer in
    plain text.

    Raises:
        RequestError: no prompt fits, or the template refuses a question.
    """
    if most_tokens < 1:
        raise RequestError(
            "the output fills the context and leaves no room for a prompt; ask for shorter answers "
            "(--lengths, or a suite's output_tokens), or convert with a longer --context"
        )
    for each in classes:
        for number, text in enumerate(_TEXTS[each], start=1):
            ids = _chat_ids(tokenizer, text) if each is PromptClass.CHAT else tokenizer.encode(text)
            yield BenchPrompt(each, number, tuple(ids[-most_tokens:]), str(each))


def _chat_ids(tokenizer: Tokenizer, question: str) -> Sequence[int]:
    if tokenizer.chat_template is None:
        return tokenizer.encode(f"Question: {question}\nAnswer:")
    rendered = rendered_chat(tokenizer, tokenizer.chat_template, [{"role": "user", "content": question}])
    return tokenizer.encode(rendered, add_special=False, parse_special=True)


def rendered_chat(tokenizer: Tokenizer, template: str, messages: Sequence[Mapping[str, str]]) -> str:
    """Return the messages in a chat template, up to where an answer begins.

    Raises:
        RequestError: the template refuses them.
    """
    bos, eos = (
        "" if id is None else tokenizer.decode([id], skip_special=False)
        for id in (tokenizer.bos_id, tokenizer.eos_id)
    )
    return render_chat(template, messages, add_generation_prompt=True, bos=bos, eos=eos)
