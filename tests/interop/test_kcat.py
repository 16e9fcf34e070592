"""Goal: kcat, the tool that people reach for first, lists, produces and consumes. Method: the Debian package's
program.
"""

import shutil
import subprocess

import pytest

from support.interop.clients import WAIT_S

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (Debian package kcat)"),
]


def kcat(*arguments, given=""):
    return subprocess.run(
        ["kcat", *arguments], input=given, capture_output=True, text=True, timeout=WAIT_S, check=True
    ).stdout


def test_metadata_names_brokers_topics_and_replicas(bootstrap, topic):
    listing = kcat("-b", bootstrap, "-L")
    assert "3 brokers:" in listing
    assert f'topic "{topic}" with 3 partitions' in listing
    replicas = [line for line in kcat("-b", bootstrap, "-L", "-t", topic).splitlines() if "replicas:" in line]
    assert len(replicas) == 3
    assert all(line.split("isrs: ")[1].count(",") == 2 for line in replicas)


def test_lines_go_in_and_come_out(bootstrap, topic):
    kcat("-b", bootstrap, "-P", "-t", topic, "-K", ":", given="a:1\nb:2\na:3\n")
    found = kcat("-b", bootstrap, "-C", "-t", topic, "-e", "-q", "-f", "%k=%s\n")
    assert sorted(found.splitlines()) == ["a=1", "a=3", "b=2"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs_and_headers(codec, bootstrap, topic):
    """kcat does not compress single small records, so the test sends one that repeats itself."""
    value = codec * 200
    kcat("-b", bootstrap, "-P", "-t", topic, "-z", codec, "-H", f"codec={codec}", given=value)
    assert kcat("-b", bootstrap, "-C", "-t", topic, "-e", "-q", "-f", "%h|%s") == f"codec={codec}|{value}"


def test_a_group_consumes(bootstrap, topic):
    kcat("-b", bootstrap, "-P", "-t", topic, given="one\ntwo\n")
    found = kcat("-b", bootstrap, "-G", f"kcat-{topic}", "-X", "auto.offset.reset=earliest", "-c", "2", "-q", topic)
    assert sorted(found.splitlines()) == ["one", "two"]
