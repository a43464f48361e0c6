"""Log each request on the logger `anespec.serve`; texts of prompts and answers only if requested."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starlette.types import Scope

from anespec.runtime.engine.completion import Summary
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.formatting import counted

LOGGER = logging.getLogger("anespec.serve")

FACTS = "facts"
"""The attribute of a logging.LogRecord that holds a request's facts."""

RECORD = "record"
"""The key in an ASGI scope's state of the request's record."""

CLIENT_GONE = 499
"""nginx's status for a client that disconnected before its answer began."""


@dataclass
class RequestRecord:
    """The facts of a request, filled in while it is served.

    `endpoint` is the declared path, never the client's text; empty if there is no such path. `tenant` is the
    tenant of the request, and `key` the key's name in logs. `is_counted`: the handler counts the preparation
    time itself (see shares.py).
    """

    request_id: str
    method: str
    endpoint: str = ""
    quiet: bool = False
    key: str = ""
    tenant: str = ""
    is_counted: bool = False
    model: str = ""
    status: int = CLIENT_GONE
    is_complete: bool = False
    finish: str = ""
    counts: dict[str, float] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def answered(self, model: str, summaries: Sequence[Summary]) -> None:
        """Note the results of the answers: the sums of tokens and passes, and the longest times."""
        self.model = model
        self.finish = "+".join(dict.fromkeys(summary.finish.value for summary in summaries))
        all_counts = [summary.statistics for summary in summaries]
        self.counts = {
            "choices": len(summaries),
            "prompt_tokens": sum(each.prompt_tokens for each in all_counts),
            "reused_tokens": sum(each.reused_tokens for each in all_counts),
            "output_tokens": sum(each.output_tokens for each in all_counts),
            "drafted": sum(source.proposed for each in all_counts for source in each.by_source),
            "accepted": sum(source.accepted for each in all_counts for source in each.by_source),
            "queue_seconds": max((each.queue_seconds for each in all_counts), default=0.0),
            "prefill_seconds": max((each.prefill_seconds for each in all_counts), default=0.0),
            "decode_seconds": max((each.decode_seconds for each in all_counts), default=0.0),
        }

    def said(self, tokenizer: Tokenizer, summaries: Sequence[Summary]) -> None:
        """Note the texts of the prompts and answers, for --log-text."""
        prompts = dict.fromkeys(summary.prompt_ids for summary in summaries)
        self.texts = {
            "prompts": [tokenizer.decode(ids, skip_special=False) for ids in prompts],
            "answers": [summary.text for summary in summaries],
        }

    def facts(self) -> Mapping[str, object]:
        """Return all facts by name; times are in seconds."""
        return {
            "request_id": self.request_id,
            "method": self.method,
            "endpoint": self.endpoint,
            "status": self.status,
            "key": self.key,
            "model": self.model,
            "seconds": round(time.monotonic() - self.began, 4),
            **{name: round(value, 4) for name, value in self.counts.items()},
            "finish": self.finish if self.is_complete and self.status != CLIENT_GONE else "client_gone",
            **self.texts,
        }

    def log(self) -> None:
        """Log the request, at a lower level if it is frequent and uninteresting, such as /metrics."""
        level = logging.DEBUG if self.quiet and self.status < 400 else logging.INFO
        LOGGER.log(level, "%s", _Sentence(self), extra={FACTS: self.facts})


def record_of(scope: Scope) -> RequestRecord:
    """Return the record of the request in this scope."""
    found = scope["state"][RECORD]
    assert isinstance(found, RequestRecord)
    return found


@dataclass(frozen=True)
class _Sentence:
    """A request's record as text, which is formatted only if it is logged."""

    record: RequestRecord

    def __str__(self) -> str:
        record = self.record
        facts = record.facts()
        parts = [f"{record.status} {record.method} {record.endpoint or 'an unknown path'}", record.request_id]
        parts += [name for name in (record.model, record.key and f"key {record.key}") if name]
        if record.counts:
            output = int(record.counts["output_tokens"])
            parts.append(
                f"{int(record.counts['prompt_tokens'])} + {counted(output, 'token')}, "
                f"{int(record.counts['accepted'])} of {int(record.counts['drafted'])} drafts accepted"
            )
            parts.append(
                f"queue {facts['queue_seconds']} s, prefill {facts['prefill_seconds']} s, "
                f"decode {facts['decode_seconds']} s"
            )
        parts += [str(facts["finish"])] if facts["finish"] else []
        parts += [f"{name}: {texts!r}" for name, texts in record.texts.items()]
        return f"{'; '.join(parts)}; {facts['seconds']} s"
