"""Turn the results of a pass into committed tokens of a sequence."""

from dataclasses import dataclass, field

from anespec.runtime.drafters import Draft
from anespec.runtime.engine.requests import FinishReason, OutputToken
from anespec.runtime.engine.sequences import ActiveSequence
from anespec.runtime.passes import PassResult, RowKind, RowLogits
from anespec.runtime.sampling import Sampled
from anespec.system.errors import AnespecError

_NOTHING = RowLogits()


@dataclass
class Committed:
    """The results of one pass for one sequence.

    `accepted` counts the draft rows that were right. `rows` are the results of the rows that ran, from the
    last known token's row on: `tokens[i]` came from `rows[i]`. Further rows followed a wrong draft.
    """

    tokens: list[OutputToken] = field(default_factory=list)
    rows: list[RowLogits] = field(default_factory=list)
    accepted: int = 0
    finish: FinishReason | None = None
    error: str | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens alone."""
        return tuple(token.id for token in self.tokens)


def commit_rows(
    sequence: ActiveSequence, scheduled: int, draft: Draft, first_lane: int, found: PassResult
) -> Committed:
    """Sample and commit tokens, one for each row, while the next row's token is the sampled one.

    The sequence's rows begin at `first_lane`: `scheduled` rows, then the rows of `draft`. A token that the
    grammar forces is not sampled. Nothing is committed while rows of committed tokens are left to run.
    """
    result = Committed()
    known = len(sequence.tokens) - sequence.computed
    sequence.computed += min(scheduled, known)
    if scheduled < known:
        return result
    lane = first_lane + known - 1
    # `ran` are the tokens of the rows after the first one that gives a token.
    forced_rows = sequence.forced[: scheduled - known]
    ran = [*forced_rows, *draft.tokens]
    result.rows = [found.get(lane + place, _NOTHING) for place in range(len(ran) + 1)]
    follows = 0
    try:
        if sequence.sampler.finished:
            result.finish = FinishReason.STOP
        while result.finish is None:
            row = result.rows[follows]
            is_given, is_forced = sequence.sampler.is_given, bool(sequence.forced)
            sampled = _next(sequence, row)
            if sampled.token in sequence.request.end_ids and not is_given:
                result.finish = FinishReason.STOP
                break
            has_row = follows < len(ran) and ran[follows] == sampled.token
            is_draft = has_row and follows >= len(forced_rows)
            _append(sequence, sampled.token, is_forced)
            kind = RowKind.DRAFT if is_draft else RowKind.FORCED if is_forced else RowKind.CARRY
            kind = RowKind.PROMPT if is_given else kind
            source = draft.source if is_draft else None
            result.tokens.append(OutputToken(sampled.token, kind, source, sampled.logprob, sampled.top))
            if has_row:
                follows += 1
                sequence.computed += 1
                result.accepted += is_draft
            if sequence.sampler.finished:
                result.finish = FinishReason.STOP
            elif len(sequence.tokens) == sequence.limit:
                result.finish = sequence.finish_at_limit
            if not has_row:
                break
    except AnespecError as error:
        # The error, such as a grammar that is too costly to follow, ends this sequence; the others go on.
        result.finish, result.error = FinishReason.FAILED, str(error)
    return result


def look_ahead(sequence: ActiveSequence) -> None:
    """Set the sequence's forced tokens: the next ones, if no others may follow, within its limit.

    Raises AnespecError as `Sampler.sample` does.
    """
    sequence.forced = list(sequence.sampler.forced())[: sequence.limit - len(sequence.tokens)]


def _next(sequence: ActiveSequence, row: RowLogits) -> Sampled:
    if sequence.forced:
        return sequence.sampler.score(row, sequence.forced[0], len(sequence.tokens))
    return sequence.sampler.sample(row, len(sequence.tokens))


def _append(sequence: ActiveSequence, token: int, is_forced: bool) -> None:
    sequence.tokens.append(token)
    sequence.sampler.accept(token)
    if is_forced:
        del sequence.forced[0]
    if not sequence.forced:
        look_ahead(sequence)
