"""Where a setting comes from, and what is refused."""

import pytest

from replaysvc import StoreConfig
from replaysvc.errors import InvalidRequestError
from replaysvc.settings import load


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a settings file and returns its path."""

    def make(text):
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return path

    return make


def test_defaults_are_those_of_the_store(tmp_path):
    settings = load({}, None)
    assert (settings.data, settings.host, settings.port, settings.insecure) == (None, "127.0.0.1", 7777, False)
    assert settings.store() == StoreConfig()


@pytest.mark.parametrize(
    ("option", "variable", "in_file", "port"),
    [
        (None, None, None, 7777),
        (None, None, 3, 3),
        (None, 2, None, 2),
        (None, 2, 3, 2),
        (1, None, None, 1),
        (1, None, 3, 1),
        (1, 2, None, 1),
        (1, 2, 3, 1),
        (0, 2, 3, 0),
    ],
)
def test_option_beats_environment_beats_file_beats_default(monkeypatch, write, option, variable, in_file, port):
    if variable is not None:
        monkeypatch.setenv("REPLAYSVC_PORT", str(variable))
    file = write(f"port = {in_file}") if in_file is not None else None
    assert load({"port": option}, file).port == port


def test_sources_mix_setting_by_setting(monkeypatch, write):
    monkeypatch.setenv("REPLAYSVC_COMMIT_BYTES", "100000")
    file = write("recent_cache_bytes = 2000000\ncommit_bytes = 200000\ncommit_interval_s = 0.5\nlog_level = 'WARNING'")
    settings = load({"recent_cache_bytes": 3_000_000, "faulted_cache_bytes": None}, file)
    assert settings.store() == StoreConfig(recent_cache_bytes=3_000_000, commit_bytes=100_000, commit_interval_s=0.5)
    assert settings.log_level == "warning"


def test_variable_that_names_the_file_is_no_setting(monkeypatch, write):
    file = write("port = 5")
    monkeypatch.setenv("REPLAYSVC_CONFIG", str(file))
    assert load({}, file).port == 5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1", r"^setting prot: unknown; there are data, host, port, .*snapshot_dir$"),
        ("[server]\nport = 1", "^setting server: unknown; there are data"),
        ("port = 'http'", "^setting port: .*integer.*, found 'http'$"),
        ("port = 70000", "^setting port: expected less than or equal to 65535, found 70000$"),
        ("port = 1.5", "^setting port: .*integer.*, found 1.5$"),
        ("host = ''", "^setting host: .*at least 1 character, found ''$"),
        ("log_level = 'loud'", "^setting log_level: expected one of debug, info, warning, error, found 'loud'$"),
        ("log_format = 'xml'", "^setting log_format: expected one of text, json, found 'xml'$"),
        ("admin_port = -1", "^setting admin_port: expected greater than or equal to 0, found -1$"),
        ("admin_host = ''", "^setting admin_host: .*at least 1 character, found ''$"),
        ("admin_names = 'a.example:80'", "^setting admin_names: expected host names with commas.*, found 'a.example:80'$"),
        ("admin_names = 'https://a.example'", "^setting admin_names: expected host names"),
        ("admin_names = '*.example'", "^setting admin_names: expected host names"),
        ("reflection = 'maybe'", "^setting reflection: .*boolean.*, found 'maybe'$"),
        ("insecure = 'maybe'", "^setting insecure: .*boolean.*, found 'maybe'$"),
        ("grace_s = -1", "^setting grace_s: expected greater than or equal to 0, found -1$"),
        ("grace_s = nan", "^setting grace_s: .*, found nan$"),
        ("recent_cache_bytes = 10", "^setting recent_cache_bytes: expected a whole number from 1048576 to .*, found 10$"),
        ("commit_interval_s = inf", "^setting commit_interval_s: expected a number from 0 to 10, found inf$"),
        ("port = ", "^settings file .*settings.toml: "),
        ("port = 1\nport = 2", "^settings file .*settings.toml: "),
    ],
)
def test_wrong_file_is_refused_by_setting(write, text, sentence):
    with pytest.raises(InvalidRequestError, match=sentence) as caught:
        load({}, write(text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("REPLAYSVC_PROT", "1", "^setting REPLAYSVC_PROT: unknown; there are data"),
        ("REPLAYSVC_PORT", "http", "^setting port: .*integer.*, found 'http'$"),
        ("REPLAYSVC_QUEUE_BYTES", "1", "^setting queue_bytes: expected a whole number from 1048576 to .*, found 1$"),
    ],
)
def test_wrong_variable_is_refused_by_name(monkeypatch, name, value, sentence):
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequestError, match=sentence):
        load({}, None)


def test_wrong_option_is_refused_although_variable_and_file_are_right(monkeypatch, write):
    monkeypatch.setenv("REPLAYSVC_PORT", "2")
    with pytest.raises(InvalidRequestError, match="^setting port: .*, found 70000$"):
        load({"port": 70_000}, write("port = 3"))


def test_settings_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(InvalidRequestError, match="absent.toml: expected a TOML file, found nothing$"):
        load({}, tmp_path / "absent.toml")
    with pytest.raises(InvalidRequestError, match="expected a TOML file, found no file$"):
        load({}, tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRequestError, match="^settings file .*binary.toml: "):
        load({}, tmp_path / "binary.toml")


def test_admin_door_is_closed_unless_its_port_is_given():
    settings = load({}, None)
    assert (settings.admin_port, settings.admin_host, settings.names) == (None, "127.0.0.1", frozenset())
    assert load({"admin_port": 0}, None).admin_port == 0


def test_names_of_the_admin_door_are_read_in_small_letters():
    assert load({"admin_names": " Replay.Example.org, b ,"}, None).names == {"replay.example.org", "b"}


def test_each_door_has_an_exposure_of_its_own():
    nobody = "nobody is asked who they are, in plain text"
    assert load({"admin_host": "0.0.0.0"}, None).exposures == {}  # it is closed
    assert load({"admin_host": "0.0.0.0", "admin_port": 0}, None).exposures == {"admin_host": nobody}
    assert load({"host": "0.0.0.0", "admin_port": 0}, None).exposures == {"host": nobody}
    with pytest.raises(InvalidRequestError, match="^setting admin_host: expected an address of this machine alone"):
        load({"admin_host": "::", "admin_port": 0}, None).check_exposure()
    load({"admin_host": "::", "admin_port": 0, "insecure": True}, None).check_exposure()
