"""Goal: commands, log events and steps of walks through the code that pages name exist.

Method: commands in the text, in blocks that no test runs and in the comments of ``deploy`` are looked up in the tree of
commands, with their options. Names with hyphens, such as those of log events, must stand in the code. The files,
classes and functions of the walks through the code are looked up in the sources.
"""

import ast
import re
import shlex

import pytest

from moldau_cli.application import application
from support.pages import FENCE, ROOT, blocks, name_of

DATED = {"CHANGELOG.md", "cost-of-a-seed.md", "findings.md", "rounds-1-to-13.md", "rounds-from-14.md", "run-log.md"}
PAGES = [page for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]) if page.name not in DATED]
DEPLOYED = sorted(path for path in (ROOT / "deploy").rglob("*") if path.is_file())
EVERYWHERE = {"--json", "--command-config", "--profile", "--bootstrap-server", "-b", "-h", "--help"}
"""Options that any command takes, and ``-b`` also before it."""
COMMAND = re.compile(r"(?<![\w/.@-])moldau ((?:-b \S+ |--[a-z-]+ \S+ )?[a-z][a-z-]*\b.*)")
NAME = re.compile(r"`([a-z]+(?:-[a-z0-9]+)+)`")
NAMING = [page for page in PAGES if page.parent.name in {"guides", "internals"} and page.stem != "command-line"]
"""Pages that name log events; the one left out names options and commands of other tools."""
WALKS = re.compile(r"^## Five walks through the code\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^\d+\. .*(?:\n   .*)*", re.MULTILINE)
DEFINED = re.compile(r"`([A-Za-z_]\w*(?:\.[a-z]\w*)?)`")
"""A class, function or method; names of configuration keys have lower case before a dot, or several dots."""
PLAIN_WORDS = {"read_committed", "__consumer_offsets"}
PACKAGES = ("client", "metadata_quorum", "data_plane", "spark", "jepsen_like", "cli")


def commands_of(path):
    """Yields the words behind ``moldau`` of each command that the text, a comment or an unrun block has."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        unrun = [code for reason, language, code in FENCE.findall(text) if language == "sh" and reason]
        spans = re.findall(r"`(moldau [^`\n]+)`", FENCE.sub("", text))
        lines = [line for code in unrun for line in code.replace("\\\n", " ").splitlines()] + spans
    else:
        lines = re.findall(r"`(moldau [^`\n]+)`", text)
    for line in lines:
        if found := COMMAND.search(line):
            yield words_of(found[1])


def words_of(command):
    """Returns the words of one command, without the next one and the redirections behind it."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # the command stands inside quotes
        words = command.replace('"', " ").replace("'", " ").split()
    ends = [number for number, word in enumerate(words) if re.match(r"[|<>;&]", word)]
    return [word.rstrip(";") for word in words[: min(ends, default=len(words))]]


def complaint(words):
    """Returns why the command line would refuse these words; empty if it would not."""
    command, rest = application, list(words)
    while rest and rest[0] in EVERYWHERE:
        rest = rest[2:]
    while rest and not rest[0].startswith("-") and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if command is application:
        return f"no command {rest[:1]}"
    options = {word.partition("=")[0] for word in rest if re.match(r"--?[A-Za-z]", word)}
    if hasattr(command, "commands"):  # the group itself is named, or `moldau mirror FILE.toml`
        return "" if not rest or rest[0].endswith(".toml") else f"no subcommand {rest[0]}"
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return ", ".join(sorted(options - EVERYWHERE - known))


@pytest.mark.parametrize("path", [path for path in [*PAGES, *DEPLOYED] if any(commands_of(path))], ids=name_of)
def test_commands_that_a_page_names_exist(path):
    wrong = [(shlex.join(words), why) for words in commands_of(path) if (why := complaint(words))]
    assert wrong == []


def test_a_wrong_command_is_noticed():
    assert complaint(words_of("topics list --internal > names")) == ""
    assert complaint(words_of("bench")) == "no command ['bench']"
    assert complaint(words_of("configs --entity-type groups")) == "no subcommand --entity-type"
    assert complaint(words_of("elect --all | cat --number")) == "--all"


def test_commands_that_ssh_runs_keep_their_words():
    """ssh joins its words by spaces, and the remote shell splits them again: quotes of the first shell are gone."""
    named = [words for path in PAGES for words in commands_of(path) if "--restart-command" in words]
    templates = [shlex.split(words[words.index("--restart-command") + 1]) for words in named]
    remote = [template[2:] for template in templates if template[0] == "ssh"]
    assert len(remote) > 3
    assert [words for words in remote if shlex.split(" ".join(words)) != words] == []


def test_the_example_of_a_mirror_gets_all_its_variables():
    """A variable that is missing ends the command."""
    example = (ROOT / "deploy" / "mirror" / "hub.toml").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "guides" / "mirror.md").read_text(encoding="utf-8")
    commands = re.findall(r"^[# ]*((?:[A-Z]+=\S+ )+)moldau mirror \S*hub\.toml$", example + guide, re.MULTILINE)
    assert len(commands) == 2
    needed = set(re.findall(r"\$\{env:(\w+)\}", example))
    assert [set(re.findall(r"([A-Z]+)=", command)) for command in commands] == [needed, needed]


def test_names_with_hyphens_stand_in_the_code():
    """A log event that is renamed would stay on the pages: nothing else looks at names in their text."""
    code = "\n".join(path.read_text(encoding="utf-8") for folder in PACKAGES for path in (ROOT / folder).rglob("*.py"))
    named = [(name, name_of(page)) for page in NAMING for name in NAME.findall(page.read_text(encoding="utf-8"))]
    assert len(named) > 50
    assert [(name, page) for name, page in named if name not in code] == []


def test_pages_say_what_stands_for_the_address():
    """A reader who copies an example gets a NameError otherwise."""
    using = [page for page in PAGES if any("BOOTSTRAP" in code for code in blocks(page, "python"))]
    assert len(using) > 10
    texts = {name_of(page): FENCE.sub("", page.read_text(encoding="utf-8")) for page in using}
    assert [name for name, text in texts.items() if "`BOOTSTRAP`" not in text] == []


def test_pages_that_install_say_from_where():
    """The name ``moldau`` is not on the package index: the command of the first page would fail."""
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    commands = re.findall(r"^pip install (\S+)", page, re.MULTILINE)
    assert commands
    assert [name for name in commands if not name.strip("'").startswith("./moldau")] == []


def definitions(path):
    """Returns the names of the classes, functions and methods in a file."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        found.add(getattr(node, "name", ""))
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if hasattr(inner, "name")}
    return found


def files_of(step):
    """Returns the files that a step names: with their paths, or beside the last one that it names so."""
    files = []
    for name in re.findall(r"`([\w/]+\.py)`", step):
        files.append(ROOT / name if "/" in name else files[-1].parent / name)
    return files


def unknown_names(text):
    """Returns the files of steps that do not exist, and the names that none of the files defines."""
    steps = STEP.findall(text)
    files = {path for step in steps for path in files_of(step)}
    known = set().union(*(definitions(path) for path in files if path.exists())) | PLAIN_WORDS
    named = {name for step in steps for name in DEFINED.findall(step) if not re.match(r"[a-z]\w*\.", name)}
    return sorted([*(str(path) for path in files if not path.exists()), *(named - known)])


def test_walks_through_the_code_name_what_is_there():
    walks = WALKS.search((ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8"))[0]
    assert walks.count("\n### ") == 5
    assert len(STEP.findall(walks)) > 35
    assert all(files_of(step) or "The same function" in step or "Spark writes" in step for step in STEP.findall(walks))
    assert unknown_names(walks) == []
    assert unknown_names(walks.replace("Replica.followed", "Replica.was_followed")) == ["Replica.was_followed"]
