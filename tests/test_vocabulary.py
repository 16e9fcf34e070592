"""Goal: words that a reader must decode do not come back. Method: the tracked sources and pages are searched."""

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
REPLACED = {
    "reign": "controller epoch",
    "reigning": "active",
    "platters": "virtual disk, durable state",
    "Sought": "WitnessQuery",
    "Struck": "FaultScope",
    "Knowledge": "DecisionInputs",
    "worth_saying": "has_changes",
    "hurry": "reset_backoff",
    "deeds": "actions",
    "Tenant": "ConnectionOwner",
    "untell": "undeliver",
    "thereof": "of it",
    "struck": "fault_scope, took_effect, affected",
}
"""Words that have gone, with what stands in their place."""
FORMER_NAMES = re.compile(r'"struck": "(?:fault_scope|took_effect)"')
"""How readers of recordings write that earlier releases used another name."""
RENAMED = {
    "aborted-transactions-untold": "aborted-transactions-omitted-from-fetch",
    "commits-what-was-fetched": "commits-fetch-position",
    "dedup-off": "sequence-numbers-ignored",
    "divergence-unseen": "divergence-not-detected",
    "elr-earned": "elr-entry-valid",
    "fenced-broker-honoured": "fenced-broker-may-lead",
    "fenced-is-out": "fenced-not-in-isr",
    "follower-taken-for-caught-up": "lagging-follower-counts-as-caught-up",
    "former-log-claimed": "recreated-topic-reuses-old-log",
    "former-log-kept": "recreated-topic-keeps-longer-log",
    "isr-refusal-taken-for-success": "isr-refusal-treated-as-success",
    "remote-markers-abort": "remote-commit-markers-become-aborts",
    "seek-lands-behind": "seek-skips-target",
    "session-honoured": "session-timeout-enforced",
    "stale-leader-shrinks-alone": "isr-shrinks-without-controller",
    "topic-made-again": "topic-recreated",
    "unfenced-in-sync": "unfencing-rejoins-every-isr",
}
"""Former names of planted bugs and rules. Seeds of a run depend on some others (``stream`` of a profile)."""
PLAIN = {
    "anew": "again",
    "whoever": "the sender, the caller, any node that",
    "nobody": "no node, no client, none",
    "somebody": "a node, a client, a principal",
    "told": "reported, answered, asked, refused",
    "untold": "unreported",
    "hitherto": "until then",
    "whence": "from where",
    "thence": "from there",
    "lest": "so that ... not",
    "henceforth": "from then on",
    "whereupon": "and then",
    "thereupon": "then",
    "unto": "to",
    "shall": "must, or the simple present",
    "to be had": "available",
    "none the worse": "unaffected",
    "of late": "recently",
}
"""Words that hide the subject of a technical statement or are archaic, in any case, with what to write instead."""
PLAIN_SOURCES = ("*.py", "*.pyx", "*.pxi", "*.pyi", "*.md", "Makefile", "*.toml", "*.yml", "*.html", "*.js", "*.css")
OPENING = re.compile(
    r"\"\"\"((?:Who|Whoever|What|Whatever) [^?.:\n]*)[.:\n]"
    r"|(?:^ *(?:- )?|# |[.:] )((?:Who|Whoever|Nobody|Somebody|What) (?:[a-z]+ )?"
    r"(?:is|are|was|were|has|had|may|can|does|did|must)\b[^?.:\n]*)(?:[.:\n])",
    re.MULTILINE,
)
"""A sentence whose subject is a clause with "what" or "who". Questions may begin so, and headings of pages."""
EVENT = re.compile(r"(?:logger|_log|_logger)\.(?:debug|info|warning|error)\(\s*\"([a-z][a-z0-9]*(?:_[a-z0-9]+)+)\"")
TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
TEST_NAME_MAX = 60


@cache
def text_of(path):
    return path.read_text(encoding="utf-8")


def tracked(*patterns):
    names = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [ROOT / name for name in names if Path(name).name != Path(__file__).name]


def test_replaced_words_do_not_come_back():
    pattern = re.compile(r"(?<!\w)(" + "|".join(REPLACED) + r")(?!\w)")
    found = [
        f"{path.relative_to(ROOT)}: {word}; write: {REPLACED[word]}"
        for path in tracked("*.py", "*.pyx", "*.pxi", "*.md", "tests/simulation/corpus/*.json")
        for word in pattern.findall(FORMER_NAMES.sub("", text_of(path)))
    ]
    assert found == []


def test_planted_bugs_and_rules_have_their_new_names():
    """The changelog alone names some old ones, for users whose scripts hold them."""
    pattern = re.compile(r"(?<![\w-])(" + "|".join(RENAMED) + r")(?![\w-])")
    found = [
        f"{path.relative_to(ROOT)}: {name}; write: {RENAMED[name]}"
        for path in tracked("*.py", "*.md", "*.json", "Makefile")
        if path.name != "CHANGELOG.md"
        for name in pattern.findall(text_of(path))
    ]
    assert found == []


def test_technical_statements_have_a_subject():
    pattern = re.compile(r"(?<![a-z])(" + "|".join(PLAIN) + r")(?![a-z])", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}: {word}; write: {PLAIN[word.lower()]}"
        for path in tracked(*PLAIN_SOURCES)
        for word in pattern.findall(text_of(path))
    ]
    assert found == []


def test_no_sentence_begins_with_what_or_who():
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.end() - 1) + 1}: {match[1] or match[2]}"
        for path in tracked("*.py", "*.pyx", "*.md")
        for text in [text_of(path)]
        if "What " in text or "Who" in text or "body " in text
        for match in OPENING.finditer(text if path.suffix != ".md" else HEADING.sub("", text))
    ]
    assert found == []


def test_names_of_log_events_have_hyphens():
    found = [
        f"{path.relative_to(ROOT)}: {event}"
        for path in tracked("client/**/*.py", "metadata_quorum/**/*.py", "data_plane/**/*.py", "cli/**/*.py")
        for event in EVENT.findall(text_of(path))
    ]
    assert found == []


def test_names_of_tests_are_short():
    """A test's sentence belongs into its docstring."""
    found = [
        f"{path.relative_to(ROOT)}: {name} has {len(name)} characters; write at most {TEST_NAME_MAX}"
        for path in tracked("tests/*.py")
        for name in TEST.findall(text_of(path))
        if len(name) > TEST_NAME_MAX
    ]
    assert found == []
