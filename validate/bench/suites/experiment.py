"""Run a suite: continue its prompts in all of its ways, in turns, and keep what each run gave."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from anespec.runtime.drafters import DraftSource, Outcome, TopKLogits
from anespec.runtime.drafters.mod import ModFacts
from anespec.runtime.engine.requests import Request
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.formatting import counted
from anespec.validate.bench.energy import EnergyMeter
from anespec.validate.bench.measure import BenchRun, Case, Variant, Way, run_prompt
from anespec.validate.bench.prompts import BenchPrompt, bench_prompts
from anespec.validate.bench.suites.arms import Arm, KnownTexts
from anespec.validate.bench.suites.prompts import Frame, further_turns, prompt_ids
from anespec.validate.bench.suites.schema import Conversation, Suite
from anespec.validate.bench.suites.table_size import TableSize, smallest_table
from anespec.validate.bench.traces import ReplayRequest

Progress = Callable[[str, float], None]
"""Takes the name of what runs next, and the share of everything that is done (0 to 1)."""


@dataclass(frozen=True)
class Script:
    """Prompts that follow one another: the turns of a conversation, or a single prompt."""

    turns: tuple[BenchPrompt, ...]

    def __str__(self) -> str:
        return str(self.turns[0])


@dataclass(frozen=True)
class TableUse:
    """The use of a way's table after a prompt was continued, in the first counted run."""

    prompt: BenchPrompt
    way: Way
    facts: ModFacts


@dataclass(frozen=True)
class Measured:
    """All cases of an experiment, one for each prompt, the use of tables, and how large they have to be."""

    cases: tuple[Case, ...]
    tables: tuple[TableUse, ...] = ()
    sizes: tuple[TableSize, ...] = ()


def whole_texts(scripts: Sequence[Script], known: KnownTexts) -> tuple[tuple[int, ...], ...]:
    """Return the texts of scripts from their first prompt to their last answer."""
    return tuple((*last.ids, *known[last.ids]) for last in (script.turns[-1] for script in scripts))


@dataclass
class Experiment:
    """Runs scripts with a baseline and other arms.

    Every run of a script has a tenant of its own, so that nothing is known from an earlier run; the turns of
    a conversation share theirs. All arms continue the prompts that the baseline's answers led to.
    """

    tokenizer: Tokenizer
    context: int
    suite: Suite
    baseline: Arm
    meter: EnergyMeter | None = None
    known: KnownTexts = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _runs: int = 0

    @property
    def longest(self) -> int:
        """Return the most tokens of an answer."""
        return max(self.suite.output_tokens)

    def scripts(self, report: Progress) -> list[Script]:
        """Return the prompts of the suite, and keep their continuations in `known` if they must be known.

        Prompts that the context cannot hold are left out; `notes` names them. Samples are cut instead.

        Raises:
            RequestError: a sample's template refuses it, or there is no room for one.
        """
        suite, frame = self.suite, Frame.of(self.tokenizer)
        found: list[Script] = []
        if suite.samples:
            samples = bench_prompts(self.tokenizer, suite.samples, self.context - self.longest)
            found += map(self._alone, samples)
        for texts in suite.texts:
            for tokens in texts.tokens:
                group = f"{texts.kind}, {tokens} tokens"
                if not self._fits(tokens, group):
                    continue
                for number in range(1, texts.prompts + 1):
                    report(f"{group}, {number}", 0.0)
                    ids = prompt_ids(self.tokenizer, frame, texts.kind, tokens, suite.seed, number)
                    found.append(self._alone(BenchPrompt(texts.kind, number, ids, group)))
        for conversation in suite.conversations:
            if self._fits(conversation.tokens, conversation.name):
                report(conversation.name, 0.0)
                found.append(Script(tuple(self._turns(conversation, frame, suite.seed))))
        return found

    def run(self, scripts: Sequence[Script], arms: Sequence[Arm], report: Progress) -> Measured:
        """Continue every prompt with each arm and the baseline, as often and by as many tokens as the suite
        says.

        The arms take turns in every round, each round beginning with another one, after a warm-up of each on
        the first prompt.
        """
        every, runs = (self.baseline, *arms), self.suite.runs
        for arm in every:
            report(f"warming up, {arm.way}", 0.0)
            self._continued(arm, scripts[0].turns[0], self._tenant(), self.longest)
        cases: list[Case] = []
        tables: list[TableUse] = []
        pairs = list(product(scripts, self.suite.output_tokens))
        for done, (script, length) in enumerate(pairs):
            rounds: list[dict[Way, list[BenchRun]]] = []
            for number in range(runs):
                first = number % len(every)
                found: dict[Way, list[BenchRun]] = {}
                for arm in (*every[first:], *every[:first]):
                    share = (done * runs + number) / (len(pairs) * runs)
                    report(f"{script}, {length} tokens, {arm.way}", share)
                    found[arm.way], used = self._in_turns(arm, script, length)
                    tables += used if not number else ()
                rounds.append(found)
            for turn, prompt in enumerate(script.turns):
                plain, *others = (
                    Variant(arm.way, tuple(runs[arm.way][turn] for runs in rounds)) for arm in every
                )
                cases.append(Case(prompt, length, plain, tuple(others)))
        return Measured(tuple(cases), tuple(tables), tuple(self._sizes(scripts, arms)))

    def _sizes(self, scripts: Sequence[Script], arms: Sequence[Arm]) -> Iterator[TableSize]:
        """Yield the smallest table of each way that has one, with the most drafts, if the texts are known."""
        if not self.suite.knows_texts:
            return
        texts = [
            [ReplayRequest(str(script), turn.ids, self.known[turn.ids]) for turn in script.turns]
            for script in scripts
        ]
        with_table = {arm.way.name: arm for arm in sorted(arms, key=lambda arm: arm.way.most) if arm.table}
        for arm in with_table.values():
            assert arm.table is not None
            yield smallest_table(arm.way, arm.table.settings, texts)

    def _alone(self, prompt: BenchPrompt) -> Script:
        if self.suite.knows_texts:
            run = self._continued(self.baseline, prompt, self._tenant(), self.longest)
            self.known[prompt.ids] = run.ids
        return Script((prompt,))

    def _in_turns(self, arm: Arm, script: Script, length: int) -> tuple[list[BenchRun], list[TableUse]]:
        tenant = self._tenant()
        for text in arm.taught:
            teach(arm.source, tenant, text)
        found, used = [], []
        for prompt in script.turns:
            found.append(self._continued(arm, prompt, tenant, length))
            if arm.table is not None:
                used.append(TableUse(prompt, arm.way, arm.table.facts_of(tenant)))
        return found, used

    def _turns(self, conversation: Conversation, frame: Frame, seed: int) -> Iterator[BenchPrompt]:
        """Yield the turns of a conversation, each with the baseline's answers to those before it."""
        ids = prompt_ids(self.tokenizer, frame, conversation.kind, conversation.tokens, seed)
        more = further_turns(self.tokenizer, frame, seed)
        tenant = self._tenant()
        for turn in range(1, conversation.turns + 1):
            group = f"{conversation.name}, turn {turn}"
            if not self._fits(len(ids), group):
                return
            prompt = BenchPrompt(conversation.name, 1, ids, group)
            answer = self._continued(self.baseline, prompt, tenant, self.longest).ids
            self.known[ids] = answer
            yield prompt
            ids = (*ids, *answer, *next(more))

    def _fits(self, tokens: int, name: str) -> bool:
        if tokens + self.longest <= self.context:
            return True
        self.notes.append(
            f"{name} is left out: {counted(tokens, 'token')} and {self.longest} of output do not fit "
            f"the context of {self.context}; convert with --context {tokens + self.longest}"
        )
        return False

    def _tenant(self) -> str:
        self._runs += 1
        return f"suite {self._runs}"

    def _continued(self, arm: Arm, prompt: BenchPrompt, tenant: str, length: int) -> BenchRun:
        sampling = SamplingParameters(temperature=self.suite.temperature, seed=self.suite.seed)
        request = Request(prompt.ids, length, sampling, tenant=tenant, end_ids=self.tokenizer.end_ids)
        return run_prompt(arm.engine, request, prompt, self.meter)


def teach(source: DraftSource | None, tenant: str, text: Sequence[int]) -> None:
    """Let a source learn a text of a tenant, as if a request had ended with it."""
    if source is None:
        return
    session = source.open(tenant, text[:1])
    try:
        session.observe(text[1:], Outcome(), TopKLogits(()))
    finally:
        session.close()
