"""Goal: profiles choose the cluster and its settings, and no secret is shown. Method: commands and one broker here."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from moldau_cli.client.address import bootstrap_of
from moldau_cli.client.settings import command_config, use_command_config
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.profiles.core.places import with_absolute_paths
from moldau_cli.profiles.selection import choose, other_choice
from moldau_cli.profiles.store import load_profiles, profiles_file, save_profiles
from support.client.socket_cluster import cluster
from support.commands import run_command

OPTION, ENVIRONMENT, PROFILE = "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user without profiles, in a directory without a cluster."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MOLDAU_PROFILE")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, code=0):
    done = run_command(*map(str, arguments))
    assert done.returncode == code, done
    return done


def used(**environ):
    return choose(None, config_address=None, named=None, environ=environ)


@pytest.mark.parametrize("place", ["~/.config", "config"])
def test_without_a_home_directory_there_are_no_profiles(home, monkeypatch, place):
    """A user without HOME and without an account wrote a directory named ~, and used such a file of others."""
    monkeypatch.setenv("XDG_CONFIG_HOME", place)
    assert "set HOME" in run("profile", "add", "one", "-b", PROFILE, code=1).stderr
    assert list(home.iterdir()) == []
    planted = home / profiles_file()
    planted.parent.mkdir(parents=True)
    planted.write_text(f'use = "other"\n[profiles.other]\nbootstrap = "{PROFILE}"\n')
    assert run("profile", "list", "--json").stdout == '{"profiles": []}\n'


def test_a_profile_lives_and_dies(home):
    assert run("profile", "list", "--json").stdout == '{"profiles": []}\n'
    assert "which is used" in run("profile", "add", "one", "-b", PROFILE).stdout
    run("profile", "add", "two", "-b", "b.example:9092,c.example:9092", "-X", "security.protocol=SSL")
    assert used().address == PROFILE
    run("profile", "use", "two")
    shown = json.loads(run("profile", "show", "--json").stdout)
    assert shown == {
        "profile": "two",
        "used": True,
        "bootstrap": "b.example:9092,c.example:9092",
        "command_config": None,
        "settings": {"security.protocol": "SSL"},
    }
    assert run("profile", "list").stdout.splitlines()[2].split()[:2] == ["two", "*"]
    run("profile", "use", "--none")
    assert used().address is None
    run("profile", "remove", "two")
    assert "there is no profile 'two'; known are one" in run("profile", "use", "two", code=2).stderr


def test_the_first_profile_is_used_and_others_on_demand(home):
    run("profile", "add", "one", "-b", PROFILE)
    assert "which is used" not in run("profile", "add", "two", "-b", PROFILE).stdout
    assert "which is used" in run("profile", "add", "three", "-b", PROFILE, "--use").stdout
    rows = json.loads(run("profile", "list", "--json").stdout)["profiles"]
    assert [(row["profile"], row["used"]) for row in rows] == [("one", False), ("three", True), ("two", False)]
    assert json.loads(run("profile", "show", "two", "--json").stdout)["used"] is False
    assert json.loads(run("profile", "remove", "three", "--json").stdout) == {"removed": "three"}
    assert used().address is None, "the one in use has gone, and no other takes its place"
    assert json.loads(run("profile", "use", "two", "--json").stdout) == {"current": "two"}
    assert json.loads(run("profile", "use", "--none", "--json").stdout) == {"current": None}


def test_the_file_is_its_owners_and_secrets_are_hidden(home):
    added = run("profile", "add", "s", "-b", PROFILE, "-X", "sasl.password=hush", "-X", "sasl.username=${env:USER_X}")
    (file,) = (home / "config").rglob("profiles.toml")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    for done in (added, run("profile", "show"), run("profile", "show", "--json"), run("profile", "list")):
        assert "hush" not in done.stdout + done.stderr
    assert "sasl.password: [hidden]\nsasl.username: ${env:USER_X}" in run("profile", "show").stdout
    file.chmod(0o644)
    assert "other users may read" in run("profile", "show").stderr
    run("profile", "use", "s")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_draft_of_a_command_that_was_killed_is_replaced(home):
    """Another process may have had the same id."""
    run("profile", "add", "one", "-b", PROFILE)
    draft = profiles_file().with_name(f".profiles.toml.{os.getpid()}")
    draft.write_text("half")
    draft.chmod(0o644)
    run("profile", "add", "two", "-b", PROFILE)
    assert not draft.exists()
    assert stat.S_IMODE(profiles_file().stat().st_mode) == 0o600
    assert len(json.loads(run("profile", "list", "--json").stdout)["profiles"]) == 2


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
@pytest.mark.parametrize("settings", [(), ("-X", "sasl.password=hush")])
def test_only_secrets_that_others_may_read_are_noted(home, mode, settings):
    run("profile", "add", "plain", "-b", PROFILE)
    run("profile", "add", "p", "-b", PROFILE, *settings)
    file = profiles_file()
    file.chmod(mode)
    noted = f"moldau: other users may read {file}, which may hold secrets; run: chmod 600 {file}\n"
    assert run("profile", "list").stderr == (noted if settings and mode != 0o600 else "")


def test_the_cluster_that_is_asked_in_place_of_another_is_named(home):
    """``moldau cluster start`` says so: the next command would not reach the cluster that it started."""
    assert other_choice(OPTION, {}) is None
    assert other_choice(OPTION, {"MOLDAU_BOOTSTRAP": OPTION}) is None
    assert other_choice(OPTION, {"MOLDAU_BOOTSTRAP": ENVIRONMENT}) == f"MOLDAU_BOOTSTRAP ({ENVIRONMENT})"
    run("profile", "add", "p", "-b", PROFILE)
    assert other_choice(PROFILE, {}) is None
    assert other_choice(OPTION, {}) == f"profile p in {profiles_file()} ({PROFILE})"
    assert other_choice(OPTION, {"MOLDAU_PROFILE": ""}) is None
    with pytest.raises(UsageError, match="there is no profile 'q'"):
        other_choice(OPTION, {"MOLDAU_PROFILE": "q"})


def test_files_of_settings_are_found_from_any_directory(home):
    """Files that the user named by relative paths were looked for in the directory of each later command."""
    settings = ["sasl.password=${file:secrets:shop}", "ssl.truststore.location=ca.pem", "sasl.username=${env:USER_X}"]
    settings += ["ssl.keystore.location=${env:KEYS}/own.pem", "ssl.key.password=${dir:/run/keys:own}"]
    run("profile", "add", "p", "-b", PROFILE, *(word for each in settings for word in ("-X", each)))
    assert used().profile.settings == {
        "sasl.password": f"${{file:{home}/secrets:shop}}",
        "sasl.username": "${env:USER_X}",
        "ssl.key.password": "${dir:/run/keys:own}",
        "ssl.keystore.location": "${env:KEYS}/own.pem",
        "ssl.truststore.location": f"{home}/ca.pem",
    }


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("file:my%20token", "file:/a%20b/my%20token"),
        ("file:${env:TOKENS}/shop", "file:${env:TOKENS}/shop"),
        ("file:///run/token", "file:///run/token"),
        ("https://issuer.example/token", "https://issuer.example/token"),
    ],
)
def test_a_token_file_is_found_from_any_directory(given, kept):
    settings = {"sasl.oauthbearer.token.endpoint.url": given}
    assert with_absolute_paths(settings, Path("/a b")) == {"sasl.oauthbearer.token.endpoint.url": kept}


def test_the_default_address_says_what_to_do(home, monkeypatch):
    monkeypatch.setattr("moldau_cli.client.address.DEFAULT_BOOTSTRAP", OPTION)
    (line,) = run("topics", "list", code=1).stderr.splitlines()
    assert line.endswith(
        "Connection refused), the default address; name another with --bootstrap-server, or run moldau cluster start"
    )


def test_option_comes_before_environment_before_profile(home):
    run("profile", "add", "p", "-b", PROFILE)
    assert OPTION in run("topics", "list", "-b", OPTION, code=1).stderr
    by_profile = run("topics", "list", code=1).stderr
    assert f"{PROFILE}: Connection refused" in by_profile
    assert f"the address of profile p in {home}" in by_profile
    environ = {"MOLDAU_BOOTSTRAP": ENVIRONMENT}
    assert (used(**environ).address, used(**environ).profile) == (ENVIRONMENT, None)
    named = choose(None, config_address=None, named="p", environ=environ)
    assert (named.address, named.profile.name) == (PROFILE, "p")
    run("profile", "add", "q", "-b", OPTION)
    assert choose(None, config_address=None, named="p", environ={"MOLDAU_PROFILE": "q"}).profile.name == "p"
    assert used(MOLDAU_PROFILE="q").profile.name == "q"
    assert used(MOLDAU_PROFILE="").address is None
    assert choose(OPTION, config_address="x", named=None, environ=environ).address == OPTION
    assert choose(None, config_address="x", named=None, environ=environ).address == "x"


def test_settings_go_to_no_other_cluster_by_accident(home):
    run("profile", "add", "p", "-b", PROFILE, "-X", "security.protocol=SSL")
    assert choose(OPTION, config_address=None, named=None, environ={}).profile is None
    assert used(MOLDAU_BOOTSTRAP=ENVIRONMENT).profile is None
    assert choose(OPTION, config_address=None, named="p", environ={}).profile.name == "p"
    both = used(MOLDAU_BOOTSTRAP=ENVIRONMENT, MOLDAU_PROFILE="p")
    assert (both.address, both.profile.name) == (ENVIRONMENT, "p"), "the variable with the address counts first"


def test_settings_go_to_one_of_the_addresses_of_a_profile(home):
    """An operator asks a single broker of the cluster in use; without its settings TLS would refuse the command."""
    several = f"{PROFILE},{OPTION}"
    run("profile", "add", "p", "-b", several, "-X", "security.protocol=SSL")

    def of(given, **environ):
        found = choose(given, config_address=None, named=None, environ=environ)
        return found.address, None if found.profile is None else found.profile.name

    assert of(OPTION) == of(None, MOLDAU_BOOTSTRAP=OPTION) == (OPTION, "p")
    assert of(f"{OPTION}, {PROFILE}") == (f"{OPTION}, {PROFILE}", "p")
    assert of(f"{OPTION},{ENVIRONMENT}") == (f"{OPTION},{ENVIRONMENT}", None)
    assert of(OPTION, MOLDAU_PROFILE="") == (OPTION, None)
    run("profile", "add", "q", "-b", ENVIRONMENT)
    run("profile", "use", "q")
    assert of(OPTION) == (OPTION, None)
    profiles_file().write_text("no profiles")
    assert of(OPTION) == (OPTION, None)


def test_commands_use_address_and_settings(home):
    with cluster() as fake:
        fake.add_topic("t")
        run("profile", "add", "here", "-b", fake.bootstrap)
        assert json.loads(run("topics", "list", "--json").stdout)["topics"][0]["topic"] == "t"
        run("profile", "add", "tls", "-b", fake.bootstrap, "-X", "security.protocol=SSL")
        words = "this listener does not speak TLS"
        assert words in run("topics", "list", "--profile", "tls", code=2).stderr
        assert words in run("topics", "list", "--profile=tls", "-b", fake.bootstrap, code=2).stderr
        run("topics", "list")
        config = home / "client.properties"
        config.write_text("security.protocol=SSL\n")
        run("profile", "add", "filed", "-b", fake.bootstrap, "--command-config", "client.properties")
        assert words in run("topics", "list", "--profile", "filed", code=2).stderr
        config.write_text("security.protocol=PLAINTEXT\n")
        run("topics", "list", "--profile", "filed")
        config.unlink()
        gone = run("topics", "list", "--profile", "filed", code=2).stderr
        assert "profile filed in" in gone
        assert str(config) in gone


def test_errors_name_the_source(home, monkeypatch):
    run("profile", "add", "p", "-b", PROFILE, "-X", "request.timeout.ms=${env:NO_SUCH_NUMBER}")
    missing = run("topics", "list", code=2).stderr
    assert "profile p in" in missing
    assert "NO_SUCH_NUMBER" in missing
    monkeypatch.setenv("NO_SUCH_NUMBER", "x")
    with cluster() as fake:
        wrong = run("topics", "list", "--profile", "p", "-b", fake.bootstrap, code=2).stderr
        assert "request.timeout.ms" in wrong
        assert "(profile p in" in wrong
    monkeypatch.setenv("MOLDAU_BOOTSTRAP", "nonsense")
    run("profile", "use", "--none")
    assert "MOLDAU_BOOTSTRAP: expected HOST:PORT, not 'nonsense'" in run("topics", "list", code=2).stderr
    monkeypatch.delenv("MOLDAU_BOOTSTRAP")
    monkeypatch.setenv("MOLDAU_PROFILE", "q")
    assert "MOLDAU_PROFILE: there is no profile 'q'; known are p" in run("topics", "list", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "a b", "-b", PROFILE], "a profile's name"),
        (["add", "p", "-b", "nonsense"], "expected HOST:PORT"),
        (["add", "p", "-b", PROFILE, "-X", "security.protocl=SSL"], "did you mean security.protocol?"),
        (["add", "p", "-b", PROFILE, "-X", "request.timeout.ms=x"], "moldau: -X: request.timeout.ms"),
        (["use"], "--none"),
        (["use", "p", "--none"], "give the name of a profile, or --none"),
        (["show"], "no profile is used"),
        (["remove", "p"], "moldau profile add makes one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line(arguments, words, home):
    done = run("profile", *arguments, code=2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_profile_is_replaced_only_with_force(home):
    run("profile", "add", "p", "-b", PROFILE)
    assert "--force replaces it" in run("profile", "add", "p", "-b", OPTION, code=2).stderr
    run("profile", "add", "p", "-b", OPTION, "--force")
    assert used().address == OPTION


def test_the_login_nearby_goes_to_its_own_cluster_only(home, monkeypatch):
    """The addresses of a secured cluster in ./moldau-cluster need no --command-config, as no address at all."""
    (home / "moldau-cluster").mkdir()
    login, own = home / "moldau-cluster" / "client.properties", home / "own.properties"
    login.write_text(f"bootstrap.servers={OPTION},{ENVIRONMENT}\nsasl.username=admin\n")
    own.write_text("sasl.username=shop\n")
    document = {"bootstrap": f"{OPTION},{ENVIRONMENT}", "client_config": str(login)}
    (home / "moldau-cluster" / "cluster.json").write_text(json.dumps(document))

    def login_for(given, config=None):
        use_command_config(None if config is None else str(config))
        assert bootstrap_of(given) == given or given is None
        assert given is None or "bootstrap.servers" not in command_config("admin"), "the user has named others"
        return command_config("admin").get("sasl.username")

    try:
        assert login_for(OPTION) == login_for(f"{ENVIRONMENT}, {OPTION}") == login_for(None) == "admin"
        assert login_for(PROFILE) is None
        assert login_for(f"{OPTION},{PROFILE}") is None
        assert login_for(OPTION, own) == "shop"
        monkeypatch.setenv("MOLDAU_BOOTSTRAP", ENVIRONMENT)
        use_command_config(None)
        assert (bootstrap_of(None), command_config("admin")["sasl.username"]) == (ENVIRONMENT, "admin")
    finally:
        use_command_config(None)


def test_a_full_disk_leaves_no_draft(home, monkeypatch):
    """Each attempt left a hidden file beside the profiles."""
    run("profile", "add", "one", "-b", PROFILE)
    before = profiles_file().read_text()

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CommandError, match="No space left on device"):
        save_profiles(load_profiles())
    assert [path.name for path in profiles_file().parent.iterdir()] == ["profiles.toml"]
    assert profiles_file().read_text() == before
