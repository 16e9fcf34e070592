import pytest

from moldau.runtime.config.urls import registry_problem, split_login, split_url


@pytest.mark.parametrize(
    "url", ["http://h", "http://h:65535/p?q#f", "https://[::1]:1", "http://é.example", "file:///p", ""]
)
def test_a_url_is_split(url):
    assert split_url(url).geturl() == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://u:secret@[::1", "[ and ] enclose"),
        ("http://u:secret@h:65536", "a port is a number up to 65535"),
        ("http://u:secret@h:1x", "a port is a number"),
        ("http://u:secret@a..b", "1 to 63 letters"),
        (f"http://u:secret@{'a' * 64}.b", "1 to 63 letters"),
        ("http://u:secret@one:1,http://two:2", "no comma and no space"),
        ("http://u:secret@one,two", "no comma and no space"),
        ("http://u:secret@one two", "no comma and no space"),
    ],
)
def test_a_host_or_port_that_cannot_be_is_named(url, said):
    with pytest.raises(ValueError, match=r"letters|port|IPv6|comma") as caught:
        split_url(url)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert registry_problem(url) == f"is no URL; {caught.value}"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "must begin with http"),
        ("h:8081", "must begin with http"),
        ("HTTP//h", "must begin with http"),
        ("http://", "must be the address of the registry"),
        ("http://h?a=b", "must be the address of the registry"),
        ("http://h#a", "must be the address of the registry"),
        ("http://u:1/secret@h", "is no URL; a login in it has %2F for /"),
        ("http://h?secret@h", "is no URL; a login in it has %2F for /"),
        ("http://h#secret@h", "is no URL; a login in it has %2F for /"),
    ],
)
def test_what_is_no_address_of_a_registry(url, said):
    with pytest.raises(ValueError, match=r"^(must|is)") as caught:
        split_login(url)
    assert str(caught.value) == registry_problem(url)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address", "login"),
    [
        ("http://h:1/p", "http://h:1/p", ""),
        ("https://al:p%40%3A@[::1]:1", "https://[::1]:1", "al:p@:"),
        ("http://al@h", "http://h", "al"),
        ("http://a@b:c@h/p", "http://h/p", "a@b:c"),
    ],
)
def test_a_login_is_split_off(url, address, login):
    assert split_login(url) == (address, login)
