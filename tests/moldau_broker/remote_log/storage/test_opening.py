"""Which store a configuration opens, and the errors of configurations that open none."""

import pytest

from moldau.runtime.config import ConfigError
from moldau.runtime.ports.real import real_environment
from moldau_broker.remote_log.storage.directory import DirectoryStore
from moldau_broker.remote_log.storage.s3 import S3Store
from support.objects.stores import opened

PREFIX = "remote.log.storage.s3."


@pytest.mark.parametrize("url", ["file:///srv/tiered", "file://localhost/srv/tiered", "file:///srv/with%20space"])
def test_a_file_url_opens_a_directory(url):
    assert isinstance(opened(real_environment(1), url), DirectoryStore)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://my.bucket-1/prefix", "s3://bucket/some/prefix/"])
def test_an_s3_url_opens_a_bucket(url):
    assert isinstance(opened(real_environment(1), url), S3Store)


@pytest.mark.parametrize(
    "url",
    [
        "/srv/tiered",
        "file:///",
        "file:///tmp/..",
        "file:///srv/%2e%2e/./",
        "file://host/srv",
        "file:///srv?x=1",
        "s3://bucket?region=x",
        "gs://bucket",
        "file:srv/tiered",
        "file:///srv/%00",
        "file://[::1/srv",
    ],
)
def test_another_url_is_refused_with_the_two_forms(url):
    with pytest.raises(ConfigError, match=r"must be file:///path or s3://bucket/prefix"):
        opened(real_environment(1), url)


@pytest.mark.parametrize("url", ["s3://", "s3://Bucket", "s3://b", "s3://my_bucket/prefix", "s3://bucket:9000/a"])
def test_a_name_of_no_bucket_is_refused_with_the_rule(url):
    with pytest.raises(ConfigError, match=r"the name of a bucket must have 3 to 63 lower-case letters"):
        opened(real_environment(1), url)


@pytest.mark.parametrize("url", ["s3://bucket/a b", "s3://bucket/../a", "s3://bucket/" + "a" * 101])
def test_a_prefix_of_no_object_is_refused_with_the_rule(url):
    with pytest.raises(ConfigError, match=r"the prefix must have letters.*at most 100"):
        opened(real_environment(1), url)


def test_a_missing_url_is_named():
    with pytest.raises(ConfigError, match=r"remote.log.storage.url: missing"):
        opened(real_environment(1), "")


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"access.key.id": "a"}, "secret.access.key: missing"),
        ({"secret.access.key": "a"}, "access.key.id: missing"),
        ({"access.key.id": "a", "secret.access.key": ""}, "secret.access.key: missing"),
        ({"endpoint.url": "s3.example.com"}, "endpoint.url = 's3.example.com': must be a URL"),
        ({"endpoint.url": "https://u:p@s3.example.com"}, "endpoint.url: must be a URL"),
        ({"endpoint.url": "https://:p@s3.example.com"}, "without a login"),
        ({"endpoint.url": "https://s3.example.com:99999"}, "must be a URL"),
        ({"endpoint.url": "https://s3.example.com:port"}, "must be a URL"),
        ({"endpoint.url": "https://s3 example.com"}, "must be a URL"),
        ({"endpoint.url": "https://s3..example.com"}, "must be a URL"),
        ({"endpoint.url": "https://[fe80::1%eth0]:9000"}, "must be a URL"),
        ({"endpoint.url": "https://s3.example.com#bucket"}, "must be a URL"),
        ({"truststore.location": "/no/such/file"}, "truststore.location = '/no/such/file': cannot be read"),
        ({"truststore.location": "/dev/null"}, "truststore.location = '/dev/null': holds no certificates"),
    ],
)
def test_settings_that_cannot_work_are_named(keys, named):
    with pytest.raises(ConfigError) as caught:
        opened(real_environment(1), "s3://bucket", **{PREFIX + name: value for name, value in keys.items()})
    assert named in str(caught.value)
