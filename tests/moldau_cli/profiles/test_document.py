"""Goal: the file of profiles comes back as it was written, and a damaged one is refused. Method: pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_cli.errors import UsageError
from moldau_cli.profiles.core.document import Profile, Profiles, check_name, parse_profiles, write_profiles

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=12)


@st.composite
def profiles(draw):
    made = {
        name: Profile(
            name=name,
            bootstrap=draw(TEXTS),
            command_config=draw(st.just("") | TEXTS),
            settings=draw(st.dictionaries(TEXTS, TEXTS, max_size=3)),
        )
        for name in draw(st.lists(NAMES, unique=True, max_size=3))
    }
    return Profiles(current=draw(st.sampled_from(["", *made])), by_name=made)


@given(known=profiles())
def test_written_profiles_are_read_back(known):
    assert parse_profiles(write_profiles(known), "file") == known
    assert parse_profiles("\ufeff" + write_profiles(known), "file") == known


def test_the_first_profile_is_used_until_it_goes():
    first, second = (Profile(name=name, bootstrap="b:1") for name in ("one", "two"))
    known = Profiles().with_profile(first).with_profile(second)
    assert known.current == "one"
    assert known.using("two").without("one").current == "two"
    assert known.without("one") == Profiles(current="", by_name={"two": second})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("current = ", "is not TOML"),
        ("[profile.x]", "expected the keys current and profiles"),
        ("current = 0", "expected the keys current and profiles"),
        ("profiles = 0", "expected the keys current and profiles"),
        ("currents = 0", "expected the keys current and profiles"),
        ('current = "x"', "which is no profile"),
        ("[profiles]\nx = 0", "profile x needs bootstrap"),
        ("[profiles.x]\nbootstrap = 0", "profile x needs bootstrap"),
        ('[profiles.x]\nbootstrap = ""', "profile x needs bootstrap"),
        ('[profiles.x]\nbootstrap = "b:1"\nsettings = 0', "must be texts"),
        ('[profiles.x]\nbootstrap = "b:1"\ncommand-config = 0', "must be texts"),
        ("[profiles.x]", "profile x needs bootstrap"),
        ('[profiles.x]\nbootstrap = "b:1"\nbotstrap = 1', "unknown key 'botstrap'"),
        ('[profiles.x]\nbootstrap = "b:1"\nsettings = {a = 1}', "must be texts"),
        ('[profiles."a b"]\nbootstrap = "b:1"', "a profile's name"),
    ],
)
def test_a_damaged_file_is_refused(text, words):
    with pytest.raises(UsageError, match=words):
        parse_profiles(text, "file")


def test_control_characters_are_refused():
    with pytest.raises(UsageError, match="control characters"):
        write_profiles(Profiles(by_name={"x": Profile(name="x", bootstrap="a\nb")}))


@pytest.mark.parametrize("name", ["", ".hidden", "a b", "a/b", "x" * 64])
def test_names_are_plain(name):
    with pytest.raises(UsageError):
        check_name(name)
