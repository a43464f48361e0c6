"""Add the counts of a pass to a sequence's ledger."""

from anespec.runtime.commit import Committed
from anespec.runtime.next_pass import SequenceRows
from anespec.runtime.passes import RowKind
from anespec.runtime.requests import FinishReason


def count_pass(part: SequenceRows, result: Committed, was_prefill: bool, now: float) -> None:
    """Count the rows that a sequence had in a pass that ended `now`, and what was committed of them."""
    sequence, ledger = part.sequence, part.sequence.ledger
    if was_prefill:
        ledger.prompt_passes += 1
    else:
        ledger.decode_passes += 1
        ledger.decoded_tokens += len(result.tokens) + (result.finish is FinishReason.STOP)
    ledger.output_tokens += len(result.tokens)
    ledger.forced_tokens += sum(token.kind is RowKind.FORCED for token in result.tokens)
    ledger.count_draft(part.draft.source, len(part.draft.tokens), result.accepted)
    ledger.remembered_tokens += result.accepted if part.draft.remembered else 0
    if sequence.has_begun:
        ledger.decode_seconds = now - sequence.since
        return
    ledger.prefill_seconds = now - sequence.since
    if result.tokens:
        sequence.has_begun, sequence.since = True, now
