"""What no template may do: compute without end or measure, look around, or outlive who renders it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import PATIENCE
from slow import slow_but
from waiting import until

from anespec.runtime.text.templates import rendering as template_process
from anespec.runtime.text.templates.rendering import Limits, TemplateProcesses, resident_bytes
from anespec.system.errors import RequestError

LIMITS = Limits(seconds=0.15, memory=192 << 20, characters=1 << 20)
MESSAGES = [{"role": "user", "content": "Hi"}]

LOOP = "{% for a in range(99999) %}"


def repeated(start: str, step: str, loop: str = "{% for i in range(60) %}") -> str:
    """A template that applies `step` to n.x again and again."""
    return (
        f"{{% set n = namespace(x={start}) %}}{loop}{{% set n.x = {step} %}}{{% endfor %}}{{{{ n.x != 1 }}}}"
    )


HOSTILE = {
    "nested loops": f"{LOOP}{LOOP}{{% endfor %}}{{% endfor %}}",
    "nested loops that count": "{% set n = namespace(i=0) %}"
    f"{LOOP}{LOOP}{{% set n.i = n.i + 1 %}}{{% endfor %}}{{% endfor %}}",
    "squaring": repeated("3", "n.x * n.x"),
    "a power": "{{ 10 ** (10 ** 8) > messages|length }}",
    "a power of constants": "{{ 7 ** (7 ** (7 ** 7)) > 1 }}",
    "a long number written out": "{{ (2 ** 200000)|string }}",
    "products and quotients": repeated("9 ** 9999", "n.x * n.x // 3"),
    "~ doubling": repeated("'x'", "n.x ~ n.x"),
    "+ doubling": repeated("'x'", "n.x + n.x"),
    "* doubling": repeated("'x'", "n.x * 2"),
    "list doubling": repeated("[0]", "n.x + n.x"),
    "list repeated": "{{ ([0] * 10 ** 9)|length }}",
    "text repeated": "{{ ('x' * 10 ** 10)|length }}",
    "%*d": "{{ ('%*d' % (10 ** 9, 1))|length }}",
    "%d of constant width": "{{ ('%999999999d' % 1)|length }}",
    "a precision": "{{ ('%.999999999f' % 1)|length }}",
    "format filter": "{{ ('%*d'|format(10 ** 9, 1))|length }}",
    "format method": "{{ '{:>999999999}'.format('x')|length }}",
    "format method, nested": "{{ '{:>{}}'.format('x', 10 ** 9)|length }}",
    "center filter": "{{ 'x'|center(10 ** 9)|length }}",
    "center": "{{ 'x'.center(10 ** 9)|length }}",
    "ljust": "{{ 'x'.ljust(10 ** 9)|length }}",
    "rjust": "{{ 'x'.rjust(10 ** 9)|length }}",
    "zfill": "{{ 'x'.zfill(10 ** 9)|length }}",
    "expandtabs": "{{ '\t'.expandtabs(10 ** 9)|length }}",
    "replace": "{{ ('x' * 10 ** 5).replace('x', 'y' * 10 ** 5)|length }}",
    "replace filter": "{{ ('x' * 10 ** 5)|replace('x', 'y' * 10 ** 5)|length }}",
    "replace between letters": "{% set t = 'x' * 10 ** 5 %}{{ t.replace('', t)|length }}",
    "join": "{{ ('y' * 10 ** 5).join(['x'] * 10 ** 5)|length }}",
    "join filter": "{{ (['x'] * 10 ** 5)|join('y' * 10 ** 5)|length }}",
    "indent": "{{ ('x\n' * 10 ** 5)|indent(10 ** 5)|length }}",
    "tojson of a width": "{{ [[1]]|tojson(indent=10 ** 9)|length }}",
    "tojson of separators": "{{ range(99999)|list|tojson(separators=('x' * 10 ** 5, ':'))|length }}",
    "tojson of much": "{{ ([[0] * 999] * 99999)|tojson|length }}",
    "wordwrap": "{{ ('x' * 10 ** 5)|wordwrap(1, wrapstring='y' * 10 ** 5)|length }}",
    "batch": "{{ [1]|batch(10 ** 9, 0)|list|length }}",
    "slice": "{{ [1]|slice(10 ** 9)|list|length }}",
    "sum of lists": "{{ ([[0] * 999] * 99999)|sum(start=[])|length }}",
    "macros that call macros": "".join(
        f"{{% macro m{i}() %}}{{{{ m{i + 1}() }}}}{{{{ m{i + 1}() }}}}{{% endmacro %}}" for i in range(40)
    )
    + "{% macro m40() %}x{% endmacro %}{{ m0() }}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(99) }}",
    "recursive loop": "{% for a in [1] recursive %}{{ loop([1, 1]) }}{{ loop([1, 1]) }}{% endfor %}",
    "set blocks": "{% set t %}xxxxxxxxxx{% endset %}"
    + "".join("{% set t %}" + "{{ t }}" * 20 + "{% endset %}" for _ in range(12))
    + "{{ t|length }}",
    "call blocks": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 30
    + "x"
    + "{% endcall %}" * 30,
    "much text": f"{LOOP}{{{{ 'x' * 9999 }}}}{{% endfor %}}",
    "lorem ipsum": "{{ lipsum(n=10 ** 9)|length }}",
    "a regular expression": f"{LOOP}{{{{ ('<' * 10 ** 5)|striptags }}}}{{% endfor %}}",
    "many brackets": "{{ " + "(" * 50000 + "1" + ")" * 50000 + " }}",
    "a deep list": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "a time of any width": "{{ strftime_now('%Y' * 10 ** 9) }}",
}  # fmt: skip


@pytest.fixture(scope="module")
def processes() -> Iterator[TemplateProcesses]:
    made = TemplateProcesses(LIMITS)
    yield made
    made.close()


@pytest.fixture
def patient() -> Iterator[TemplateProcesses]:
    """For what is to succeed, however busy the machine is."""
    made = TemplateProcesses(Limits(seconds=60.0))
    yield made
    made.close()


@pytest.mark.parametrize("name", slow_but(HOSTILE, *list(HOSTILE)[::4]))
def test_hostile_templates_end_in_one_sentence(name: str, processes: TemplateProcesses) -> None:
    with pytest.raises(RequestError) as caught:
        processes.render(HOSTILE[name], {"messages": MESSAGES})
    sentence = str(caught.value)
    assert sentence.startswith("the model's chat template ")
    assert "instead of a conversation" in sentence
    assert len(sentence) < 700 and "\n" not in sentence
    # Whoever comes next is served.
    assert processes.render("{{ messages[0].content }}", {"messages": MESSAGES}) == "Hi"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "longer than 0.15 s",
        ),
        ("{{ ('x' * 10 ** 9)|length }}", "more than 192 MB"),
        ("{{ 'x' * 1048577 }}", "more than 1048576 characters"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ],
)
def test_the_sentence_names_the_limit(template: str, words: str, processes: TemplateProcesses) -> None:
    with pytest.raises(RequestError, match=words):
        processes.render(template, {})


def test_processes_are_kept_warm_and_replaced_when_killed() -> None:
    processes = TemplateProcesses(LIMITS)
    tell = "{{ 1 }}"
    processes.render(tell, {})
    (first,) = processes._idle
    processes.render(tell, {})
    assert processes._idle == [first]
    os.kill(first._process.pid, signal.SIGKILL)
    first._process.wait()
    assert processes.render(tell, {}) == "1"
    assert processes._idle != [first]
    processes.close()


@pytest.fixture
def stopped() -> Iterator[tuple[TemplateProcesses, int]]:
    """A process that is stopped, as it is where a machine has no time for it."""
    made = TemplateProcesses(Limits(seconds=0.2))
    made.render("x", {})
    (process,) = made._idle
    os.kill(process._process.pid, signal.SIGSTOP)
    yield made, process._process.pid
    made.close()


def test_a_rendering_s_own_time_is_limited(processes: TemplateProcesses) -> None:
    processes.render("x", {})
    (process,) = processes._idle
    with pytest.raises(RequestError, match=r"ran longer than 0.15 s"):
        processes.render(HOSTILE["nested loops"], {})
    assert process._process.returncode == -signal.SIGPROF, "the clock ended it"


def test_time_in_which_a_process_waits_is_not_its_own(stopped: tuple[TemplateProcesses, int]) -> None:
    processes, pid = stopped
    with ThreadPoolExecutor(1) as pool:
        rendered = pool.submit(processes.render, "{{ 1 }}", {})
        with pytest.raises(TimeoutError):
            rendered.result(1.0)
        os.kill(pid, signal.SIGCONT)
        assert rendered.result(PATIENCE) == "1"


def test_a_process_that_never_goes_on_is_given_up(
    stopped: tuple[TemplateProcesses, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_process.worker, "SECONDS_TO_WAIT", 0.1)
    processes, _ = stopped
    with pytest.raises(RequestError, match=r"ran longer than 0.2 s"):
        processes.render("{{ 1 }}", {})


def test_several_threads_get_their_own_answers(patient: TemplateProcesses) -> None:
    def render(number: int) -> bool:
        text = patient.render("{% for i in range(n) %}{{ i }},{% endfor %}", {"n": number})
        return text == "".join(f"{i}," for i in range(number))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(render, range(200)))
    assert len(patient._idle) <= 4


def test_an_interrupted_rendering_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = TemplateProcesses(LIMITS)
    processes.render("x", {})
    (process,) = processes._idle

    def interrupt(stream: object, content: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(template_process.worker, "write_frame", interrupt)
        with pytest.raises(KeyboardInterrupt):
            processes.render("x", {})
    assert process._process.returncode == -signal.SIGKILL
    assert processes._idle == []


def test_any_text_comes_through_as_it_is(patient: TemplateProcesses) -> None:
    text = "".join(map(chr, range(0x300))) + "\ud800 \U0001f680 \u2028 =!mc \x00" + "\xff" * 70000
    assert patient.render("{{ text }}", {"text": text}) == text


def test_what_json_cannot_write_is_refused(processes: TemplateProcesses) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for names in ({"a": object()}, {"a": deep}):
        with pytest.raises(RequestError, match="cannot be written as JSON"):
            processes.render("x", names)


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jinja2", "markupsafe", "json", "anespec", "sitecustomize", "resource"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "json.py"))
    processes = TemplateProcesses()
    assert processes.render("{{ a|tojson }}", {"a": [1]}) == "[1]"
    processes.close()
    assert not (tmp_path / "sprung").exists()


PARENT = """
import os, threading, time
import psutil
from anespec.runtime.text.templates.rendering import Limits, TemplateProcesses
processes = TemplateProcesses(Limits(seconds=0.5))
processes.render("x", {})
print(processes._idle[0]._process.pid, flush=True)
endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
"""
BUSY = """
renderer = psutil.Process(processes._idle[0]._process.pid)
idle = sum(renderer.cpu_times()[:2])
threading.Thread(target=processes.render, args=(endless, {}), daemon=True).start()
while sum(renderer.cpu_times()[:2]) < idle + 0.1:
    time.sleep(0.01)
"""


@pytest.mark.fast_only("exits at once")
@pytest.mark.parametrize(
    "end",
    [
        "",
        "os._exit(0)",
        "os.kill(os.getpid(), 9)",
        "raise KeyboardInterrupt",
        f"{BUSY}os.kill(os.getpid(), 9)",
    ],
    ids=["returns", "exits at once", "is killed", "is interrupted", "is killed in a rendering"],
)
def test_no_process_outlives_its_parent(end: str) -> None:
    command = [sys.executable, "-c", PARENT + end]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    pid = int(told.stdout)
    try:
        until(lambda: not runs(pid))
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    # In a container nobody may collect what has ended.
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_process_is_ended_for_its_memory_where_the_system_sets_no_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not resident_bytes(os.getpid()):
        pytest.skip("ps does not tell how much memory a process holds")
    processes = TemplateProcesses(Limits(seconds=30.0))
    assert processes.render("x", {}) == "x"
    monkeypatch.setattr(template_process.sys, "platform", "darwin")
    (process,) = processes._idle
    # The process keeps its own limit of 512 MB; who watches it now has one of 64.
    process._limits = Limits(seconds=30.0, memory=64 << 20)
    with pytest.raises(RequestError, match="more than 64 MB"):
        processes.render("{% set t = 'x' * 10 ** 8 %}" + HOSTILE["nested loops"], {})
    assert process._process.returncode == -signal.SIGKILL
