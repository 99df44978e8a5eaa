"""Properties of every command, found by walking the tree of commands: flags, JSON, exit codes, answers to wrong words."""

import errno
import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import discreet as dp
from discreet._validate import ENDS, LEVEL
from discreet.interfaces.cli import _terminal
from discreet.interfaces.cli._app import app

from .world import RUN, WORDS, commands, enter, make

TELLS_OF_A_FIT = ("demo", "describe", "fit", "resume", "score", "synth")
WITH_JSON = list(commands())
# Files and numbers that are wrong somewhere; where one is right, the command is done, which is
# right too.
PATHS = ("absent", ".", "empty", "garbage", "utf16.txt", "table.csv", "schema.toml", "absent/there")
NUMBERS = ("nan", "inf", "-1", "0", "1e308", "x", "")
WHOLE = ("-1", "0", "1.5", "9" * 30, "x")
TEXTS = ("", "?", "-", "x" * 5_000, "\x00", "mine.py:absent", "mine.py")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make(tmp_path_factory.mktemp("world"))
    (folder / "empty").write_bytes(b"")
    (folder / "garbage").write_bytes(bytes(range(256)) * 20)
    (folder / "utf16.txt").write_bytes("age,smoker\n".encode("utf-16"))
    return folder


@pytest.fixture
def folder(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(world, tmp_path, monkeypatch)


def parameters():
    return [
        (name, x)
        for name, context in commands().items()
        for x in context.command.get_params(context)
    ]


def test_there_are_words_for_each_command() -> None:
    assert set(WORDS) == set(commands())


def test_each_command_gives_json_or_says_why_not() -> None:
    assert {name for name, x in parameters() if x.name == "as_json"} == set(commands())


def test_the_page_and_the_help_know_all_commands_and_exit_codes(repository: Path) -> None:
    page = (repository / "docs" / "command-line.md").read_text()
    assert {name.split()[0] for name in commands()} <= set(
        re.findall("^## (.+)$", page, re.MULTILINE)
    )
    shown = " ".join(RUN.invoke(app, ["--help"]).stdout.split())
    for code in _terminal.EXIT_CODES:
        assert f"| {code} | " in page
        assert f" {code}: " in shown


def test_what_has_one_name_is_one_thing() -> None:
    """An option means the same everywhere: its values are of one kind, and only one option has it for a name."""
    kinds: dict[str, set] = {}
    for _, x in parameters():
        for option in x.opts:
            if option.startswith("-"):
                kinds.setdefault(option, set()).add(
                    str(x.type_descriptor.annotation)
                    if hasattr(x, "type_descriptor")
                    else str(x.type)
                )
    # Of a fit `--by` is the method, of a description the columns that group.
    assert {option for option, kind in kinds.items() if len(kind) > 1} == {"--by"}


def test_each_parameter_and_command_is_explained() -> None:
    for name, x in parameters():
        assert x.help, (name, x.name)
        assert x.help.strip().endswith((".", ")")), (name, x.name)
    for name, context in commands().items():
        first = context.command.help.split("\n\n")[0].strip()
        assert first.endswith("."), name
        assert f"`discreet {name}" in context.command.help, f"{name} has no example"


def test_what_breaks_the_guarantee_says_so_in_its_name() -> None:
    for name, x in parameters():
        if "NOT PRIVATE" in (x.help or "") or "Breaks the guarantee" in (x.help or ""):
            assert "non-private" in x.opts[0], (name, x.opts)


# The slow one gives JSON in a test of its own.
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.exhaustive] if x == "demo" else []) for x in WITH_JSON],
)
def test_one_json_document(folder: Path, name: str) -> None:
    outcome = RUN.invoke(app, [*WORDS[name].split(), "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    facts = json.loads(outcome.stdout)
    assert re.fullmatch(r"discreet .+, version [1-9]", facts["format"])
    assert outcome.stdout.isascii()
    if name in TELLS_OF_A_FIT:
        assert facts["statement"]["epsilon"] > 0
    for file in facts.get("files", []):
        assert (folder / file).exists()


def test_what_a_model_prints_does_not_get_into_the_document(folder: Path) -> None:
    (folder / "mine.py").write_text("print('hello')\ndef model(x, y=None): ...\n")
    outcome = RUN.invoke(app, [*WORDS["fit"].split(), "--model", "mine.py:model", "--json"])
    assert json.loads(outcome.stdout)["statement"]["epsilon"] > 0
    assert "hello" in outcome.stderr


@pytest.mark.parametrize("name", commands())
def test_wrong_words_are_answered_with_exit_code_2(name: str) -> None:
    outcome = RUN.invoke(app, [*name.split(), "--unheard-of"])
    assert outcome.exit_code == 2
    assert " ".join(outcome.stderr.split()).startswith("Refused: No such option: --unheard-of")
    assert f"discreet {name} --help" in " ".join(outcome.stderr.split())
    assert RUN.invoke(app, [*name.split(), "--help"]).exit_code == 0
    if any(x.required for other, x in parameters() if other == name):
        bare = RUN.invoke(app, name.split())
        assert bare.exit_code == 2
        assert bare.stderr.startswith("Refused: Missing ")


def test_intervals_have_one_level_everywhere() -> None:
    """Those of fits held with 90 %, those of descriptions, scores and twins with 95 %."""
    stated = {x.default for _, x in parameters() if x.name == "level"}
    calls = (
        dp.describe,
        dp.marginals.Description.of,
        dp.scores.private_metrics,
        dp.synthetic.combine,
    )
    stated |= {inspect.signature(call).parameters["level"].default for call in calls}
    assert stated == {LEVEL} == {round(ENDS[1] - ENDS[0], 9)}


FAULTS = {
    "a full disk": (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "Stopped"),
    "a fault": (RuntimeError("secretcell"), 1, "RuntimeError"),
    "nobody reads": (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, ""),
}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(
            name,
            fault,
            marks=[]
            if (place + at) % len(FAULTS) == 0 and name != "demo"
            else pytest.mark.exhaustive,
        )
        for place, name in enumerate(WITH_JSON)
        for at, fault in enumerate(FAULTS)
    ],
)
def test_a_fault_at_the_end_has_its_exit_code(
    folder, name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, code, needle = FAULTS[fault]

    def fail(*args, **options):
        raise error

    monkeypatch.setattr(_terminal, "json", SimpleNamespace(dumps=fail))
    outcome = RUN.invoke(app, [*WORDS[name].split(), "--json"])
    assert outcome.exit_code == code, outcome.stderr
    assert needle in " ".join(outcome.stderr.split())
    one_paragraph(outcome)
    if name in ("demo", "describe", "fit", "resume", "score"):
        assert "budget is spent" in " ".join(outcome.stderr.split())


def one_paragraph(outcome) -> None:
    assert outcome.stdout == ""
    said = outcome.stderr
    assert "Traceback" not in said
    assert "secretcell" not in said
    assert len([part for part in said.split("\n\n") if part.strip()]) <= 1
    assert isinstance(outcome.exception, SystemExit)


def attempts():
    """Each parameter of each command with each value that is wrong for somebody."""
    for name, x in parameters():
        annotation = (
            str(x.type_descriptor.annotation) if hasattr(x, "type_descriptor") else str(x.type)
        )
        values = next(
            (
                v
                for k, v in {"Path": PATHS, "float": NUMBERS, "int": WHOLE, "bool": ()}.items()
                if k in annotation
            ),
            TEXTS,
        )
        for value in values:
            yield name, x, value


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        pytest.param(
            *attempt,
            id=f"{attempt[0]}-{attempt[1].name}-{attempt[2][:20]!r}",
            marks=[] if place % 12 == 3 else pytest.mark.exhaustive,
        )
        for place, attempt in enumerate(attempts())
    ],
)
def test_wrong_values(folder: Path, name: str, parameter, value: str) -> None:
    words = WORDS[name].split()
    if parameter.param_type_name == "argument":
        words[len(name.split())] = value
    else:
        words += [parameter.opts[0], value]
    outcome = RUN.invoke(app, words)
    assert outcome.exit_code in (0, 2), outcome.stderr + outcome.stdout
    if outcome.exit_code == 2:
        assert "Refused:" in outcome.stderr
        one_paragraph(outcome)
        # which was there before
        assert [x.parent.name for x in folder.glob("*/statement.json")] == ["twin"]
