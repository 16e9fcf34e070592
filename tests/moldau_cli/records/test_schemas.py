"""Goal: Avro, Protobuf and JSON Schema work bare and with a registry. Method: whole commands, a registry over HTTP."""

import base64
import json

import pytest
from google.protobuf import descriptor_pb2

from moldau_cli.records.schemas import _BareAvro
from support.client.socket_cluster import cluster
from support.commands import run_command
from support.schema_registry import schema_registry

AVRO = {"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "string"}]}
JSON = {"type": "object", "title": "Flight", "properties": {"carrier": {"type": "string"}}, "required": ["carrier"]}
LINE = '{"carrier":"UA"}\n'


def descriptors():
    """A descriptor set as protoc writes it, with two messages."""
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    for message, field in (("Other", "x"), ("Flight", "carrier")):
        made = file.message_type.add(name=message)
        made.field.add(name=field, number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    return descriptor_pb2.FileDescriptorSet(file=[file])


@pytest.fixture(scope="module")
def broker():
    with cluster() as fake:
        yield fake


@pytest.fixture
def shell(broker, request):
    topic = request.node.name.translate(str.maketrans("[]", "--"))
    (partition,) = broker.add_topic(topic, 1)

    def run(command, *arguments, given="", code=0):
        done = run_command(command, topic, *map(str, arguments), "-b", broker.bootstrap, given=given)
        assert done.returncode == code, done
        return done

    run.topic, run.partition = topic, partition
    return run


@pytest.fixture
def files(tmp_path):
    paths = {name: tmp_path / name for name in ("avro", "json-schema", "protobuf")}
    paths["avro"].write_text(json.dumps(AVRO))
    paths["json-schema"].write_text(json.dumps(JSON))
    paths["protobuf"].write_bytes(descriptors().SerializeToString())
    return paths


BARE = {"avro": b"\x04UA", "json-schema": b'{"carrier":"UA"}', "protobuf": b"\n\x02UA"}


def message(name):
    return ("--value-message", "air.Flight") if name == "protobuf" else ()


@pytest.mark.parametrize("name", BARE)
def test_a_schema_file_alone_means_bare_values(shell, files, name):
    options = ("--value-format", name, "--value-schema", files[name], *message(name))
    shell("produce", *options, given=LINE)
    assert shell.partition.values() == [BARE[name]]
    assert shell("consume", "-e", *options).stdout == LINE


@pytest.mark.parametrize("name", BARE)
def test_a_registry_means_confluents_wire_format(shell, files, name):
    with schema_registry() as registry:
        options = ("--value-format", name, "--registry", registry.url)
        shell("produce", *options, "--value-schema", files[name], *message(name), given=LINE)
        (value,) = shell.partition.values()
        assert value[:5] == b"\0\0\0\0\1"
        assert value.endswith(BARE[name])
        assert shell("consume", "-e", *options).stdout == LINE
        if name != "protobuf":
            shell("produce", *options, given=LINE)  # by the latest version of the subject
            assert shell("consume", "-e", *options, "--json").stdout.count('"value": {"carrier": "UA"}') == 2
        assert f"{shell.topic}-value" in registry.state.subjects


def test_keys_have_a_format_of_their_own(shell, files):
    options = ("--key-format", "avro", "--key-schema", files["avro"], "-K", "|")
    shell("produce", *options, given='{"carrier":"UA"}|v\n')
    assert shell("consume", "-e", *options).stdout == '{"carrier":"UA"}|v\n'


def test_values_that_do_not_fit_name_their_line(shell, files):
    options = ("--value-format", "avro", "--value-schema", files["avro"])
    done = shell("produce", *options, given='{"carrier":"UA"}\n{"carrier":1}\n', code=2)
    assert "stdin:2: " in done.stderr


@pytest.mark.parametrize("name", BARE)
def test_a_wrong_schema_is_one_line(shell, files, name):
    files[name].write_text('{"type": "nonsense"')
    done = shell("consume", "-e", "--value-format", name, "--value-schema", files[name], *message(name), code=2)
    assert str(files[name]) in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_message_must_be_named_and_exist(shell, files):
    options = ("--value-format", "protobuf", "--value-schema", files["protobuf"])
    assert "--value-message is missing" in shell("consume", "-e", *options, code=2).stderr
    assert "has no message X; it has air.Other, air.Flight" in (
        shell("consume", "-e", *options, "--value-message", "X", code=2).stderr
    )


def test_a_registry_that_refuses_is_one_line(shell, files, tmp_path):
    with schema_registry() as registry:
        registry.state.require_basic("alice:secret")
        options = ("--value-format", "avro", "--value-schema", files["avro"])
        refused = shell("produce", *options, "--registry", registry.url, given=LINE, code=1)
        assert refused.stderr.count("\n") == 1
        login = tmp_path / "registry.properties"
        login.write_text(f"schema.registry.url={registry.url}\nbasic.auth.user.info=alice:secret\n")
        shell("produce", *options, "--registry-config", login, given=LINE)
        assert shell("consume", "-e", "--value-format", "avro", "--registry-config", login).stdout == LINE
        login.write_text("no.such.key=1\n")
        unknown = shell("consume", "-e", "--value-format", "avro", "--registry-config", login, code=2)
        assert "no.such.key" in unknown.stderr


@pytest.mark.parametrize(("name", "kind"), [("avro", "JSON"), ("json-schema", "AVRO"), ("protobuf", "AVRO")])
def test_a_schema_of_another_type_writes_nothing(shell, files, name, kind):
    """The latest schema of the subject is that of another format."""
    text = files["json-schema" if kind == "JSON" else "avro"].read_text()
    with schema_registry() as registry:
        registry.state.register(f"{shell.topic}-value", {"schema": text, "schemaType": kind})
        done = shell("produce", "--value-format", name, "--registry", registry.url, given=LINE, code=2)
    assert done.stderr == f"moldau: the schema of {shell.topic}-value is of type {kind}\n"
    assert shell.partition.values() == []


def test_descriptors_that_lack_a_file_are_refused(shell, tmp_path):
    """protoc writes the files that are imported only if it is asked to."""
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    file.dependency.append("other.proto")
    file.message_type.add(name="Flight")
    path = tmp_path / "flight.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    options = ("--value-format", "protobuf", "--value-schema", path, "--value-message", "air.Flight")
    done = shell("produce", *options, given="{}\n", code=2)
    assert "; use --include_imports" in done.stderr


def test_proto_texts_of_a_registry_need_a_descriptor_set(shell):
    with schema_registry() as registry:
        registry.state.register("s", {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"})
        shell("produce", "--value-format", "base64", given=base64.b64encode(b"\0\0\0\0\1\0").decode() + "\n")
        done = shell("consume", "-e", "--value-format", "protobuf", "-r", registry.url, code=1)
        assert "as .proto text" in done.stderr


def test_defaults_of_a_json_schema_change_no_value(shell, tmp_path):
    """The validator would fill them in: a record would get a field that its producer did not write."""
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"type": "object", "properties": {"delay": {"default": 0}}}))
    options = ("--value-format", "json-schema", "--value-schema", path)
    shell("produce", *options, given="{}\n")
    assert shell.partition.values() == [b"{}"]
    assert shell("consume", "-e", *options).stdout == "{}\n"
    with schema_registry() as registry:
        shell("produce", *options, "--registry", registry.url, given="{}\n")
        read = ("--value-format", "json-schema", "--registry", registry.url, "--skip-errors")
        assert shell("consume", "-e", *read).stdout == "{}\n"


@pytest.mark.parametrize(
    "value",
    ['{"delay":7.9,"open":true}', '{"delay":7,"open":null}', '{"delay":4294967296}'],
    ids=["fraction", "null", "long"],
)
def test_no_avro_value_is_written_as_another_one(shell, tmp_path, value):
    """The writer would make 7 of 7.9, and false of null."""
    fields = [{"name": "delay", "type": "int"}, {"name": "open", "type": "boolean", "default": True}]
    path = tmp_path / "gate.avsc"
    path.write_text(json.dumps({"type": "record", "name": "Gate", "fields": fields}))
    done = shell("produce", "--value-format", "avro", "--value-schema", path, given=value + "\n", code=2)
    assert "Gate." in done.stderr
    assert shell.partition.values() == []


@pytest.mark.parametrize("name", ["json", "json-schema"])
def test_a_number_that_no_float_holds_is_one_bad_record(shell, tmp_path, name):
    """Python reads 1e400 as infinity, which JSON cannot show: the command ended with a traceback at such a record."""
    path = tmp_path / "schema.json"
    path.write_text("{}")
    schema = ("--value-schema", path) if name == "json-schema" else ()
    shell("produce", given='{"delay":1e400}\n{"delay":1}\n')
    done = shell("consume", "-e", "--value-format", name, *schema, "--skip-errors")
    assert done.stdout == '{"delay":1}\n'
    assert "1e400 is too large for a float" in done.stderr


def test_a_registrys_messages_may_use_googles_files(shell, tmp_path):
    """A registry knows these files by itself, so the schema does not refer to them."""
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    file.dependency.append("google/protobuf/duration.proto")
    made = file.message_type.add(name="Flight")
    made.field.add(name="delay", number=1, type=11, label=1, type_name=".google.protobuf.Duration")
    path = tmp_path / "flight.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    with schema_registry() as registry:
        options = ("--value-format", "protobuf", "--registry", registry.url)
        shell("produce", *options, "--value-schema", path, given='{"delay":"7s"}\n')
        assert shell("consume", "-e", *options).stdout == '{"delay":"7s"}\n'


def test_bare_avro_of_great_depth_is_refused():
    """The command ended with SIGSEGV at such a record, and with such a line."""
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    bare = _BareAvro(json.dumps(node), "node.avsc")
    value = {"next": None}
    value["next"] = value
    with pytest.raises(ValueError, match="levels deep"):
        bare.serialize(value, None)
    with pytest.raises(ValueError, match="levels deep"):
        bare.deserialize(b"\x02" * 100_000 + b"\0", None)
