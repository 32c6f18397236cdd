"""Settings of the service: command line, then environment (`REPLAYSVC_*`), then a TOML file, then defaults.

The only module that reads the environment or a settings file; everything below gets plain dataclasses. A name that is no
setting is refused wherever it comes from: a mistyped one would else be a default in silence.
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from replaysvc.checks import shown
from replaysvc.config import StoreConfig
from replaysvc.errors import InvalidRequestError, ReplayError, SpecMismatchError
from replaysvc.rpc.limits import Limits

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*")
_PREFIX = "REPLAYSVC_"
_FILE = "REPLAYSVC_CONFIG"  # names the settings file, so it is no setting itself
_OTHERS = (_FILE, "REPLAYSVC_TOKEN_FILE", "REPLAYSVC_TLS_CA")  # nor are these: what commands that call a service show it
_DEFAULTS, _LIMITS = StoreConfig(), Limits()


class Settings(BaseSettings):
    """Every setting of `replaysvc serve`. Byte sizes are whole numbers; see StoreConfig and Limits for what they bound.

    host: the address to bind. tokens_file: who may call, see replaysvc/access.py. tls_certificate, tls_key: PEM files of the
    server; tls_client_ca: PEM file of the CA of clients, which then need a certificate. insecure: allow an address that other
    machines reach although these do not protect it. grace_s: seconds that calls under way get at the end.

    admin_port: where the dashboard, its API, metrics and probes are served, None: nowhere; admin_host: the address of it, to
    which the same protection applies; admin_names: host names, with commas between them, that browsers may call it by besides
    localhost and IP addresses. log_format: text, or a JSON object a line. reflection: whether gRPC tells what methods it has.
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True)

    data: Path | None = None
    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(7777, ge=0, le=65_535)
    insecure: bool = False
    tokens_file: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    grace_s: float = Field(10.0, ge=0, le=3600, allow_inf_nan=False)
    log_level: str = "info"
    log_format: str = "text"
    admin_port: int | None = Field(None, ge=0, le=65_535)
    admin_host: str = Field("127.0.0.1", min_length=1)
    admin_names: str = ""
    reflection: bool = False
    recent_cache_bytes: int = _DEFAULTS.recent_cache_bytes
    faulted_cache_bytes: int = _DEFAULTS.faulted_cache_bytes
    commit_interval_s: float = _DEFAULTS.commit_interval_s
    commit_bytes: int = _DEFAULTS.commit_bytes
    queue_bytes: int = _DEFAULTS.queue_bytes
    request_bytes: int = _LIMITS.request_bytes
    answer_bytes: int = _LIMITS.answer_bytes
    shared_bytes: int = _LIMITS.shared_bytes
    state_interval_s: float = _DEFAULTS.state_interval_s
    disk_reserve_bytes: int = _DEFAULTS.disk_reserve_bytes
    scrub_bytes_per_s: int = _DEFAULTS.scrub_bytes_per_s
    snapshot_dir: str | None = _DEFAULTS.snapshot_dir

    @field_validator("log_level")
    @classmethod
    def _known_level(cls, level: str) -> str:
        if level.lower() not in LOG_LEVELS:
            raise ValueError(f"expected one of {', '.join(LOG_LEVELS)}")
        return level.lower()

    @field_validator("log_format")
    @classmethod
    def _known_format(cls, name: str) -> str:
        if name.lower() not in LOG_FORMATS:
            raise ValueError(f"expected one of {', '.join(LOG_FORMATS)}")
        return name.lower()

    @field_validator("admin_names")
    @classmethod
    def _names_of_hosts(cls, names: str) -> str:
        for name in filter(None, map(str.strip, names.split(","))):
            if not _HOST_NAME.fullmatch(name):
                raise ValueError("expected host names with commas between them, without ports")
        return names

    @model_validator(mode="after")
    def _admin_door_knows_its_callers(self) -> Self:
        if self.admin_port is not None and self.tls_client_ca is not None and self.tokens_file is None:
            raise SpecMismatchError(
                "admin_port", "tokens_file with it, since browsers show no certificate of tls_client_ca", "none"
            )
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            there, absent = ("tls_key", "tls_certificate") if self.tls_certificate is None else ("tls_certificate", "tls_key")
            raise SpecMismatchError(there, f"{absent} with it", "none")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise SpecMismatchError("tls_client_ca", "tls_certificate and tls_key with it", "none")
        return self

    @model_validator(mode="after")
    def _snapshots_lie_outside_of_the_store(self) -> Self:
        if self.data is None or self.snapshot_dir is None:
            return self
        if Path(self.snapshot_dir).resolve().is_relative_to(self.data.resolve()):
            raise SpecMismatchError("snapshot_dir", f"a directory outside of the store {self.data}", self.snapshot_dir)
        return self

    @model_validator(mode="after")
    def _store_and_server_accept_their_share(self) -> Self:
        self.store()
        self.limits()
        return self

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        file = TomlConfigSettingsSource(settings_cls)  # reads `toml_file` of the class that `load` made
        return init_settings, env_settings, file

    @property
    def names(self) -> frozenset[str]:
        """Returns the host names in `admin_names`, in small letters."""
        return frozenset(name.strip().lower() for name in self.admin_names.split(",") if name.strip())

    @property
    def exposures(self) -> dict[str, str]:
        """Returns what leaves a door open to whoever reaches its address, in words, by the setting of the address."""
        hosts = {"host": self.host} | ({"admin_host": self.admin_host} if self.admin_port is not None else {})
        found = {name: self._exposure_of(host) for name, host in hosts.items()}
        return {name: words for name, words in found.items() if words is not None}

    def _exposure_of(self, host: str) -> str | None:
        asks_who_calls = self.tokens_file is not None or self.tls_client_ca is not None
        if _is_private(host) or (self.tls_certificate is not None and asks_who_calls):
            return None
        if self.tls_certificate is not None:
            return "nobody is asked who they are"
        return "tokens and data travel unencrypted" if asks_who_calls else "nobody is asked who they are, in plain text"

    def check_exposure(self) -> None:
        """Refuses an address that others reach and nothing protects, unless `insecure`. Raises InvalidRequestError."""
        for name, words in self.exposures.items():
            if not self.insecure:
                raise InvalidRequestError(
                    f"setting {name}: expected an address of this machine alone, found {getattr(self, name)}, where {words}; "
                    "for others, give tls_certificate and tls_key, with tokens_file or tls_client_ca (SECURITY.md), or "
                    "--insecure"
                )

    def limits(self) -> Limits:
        """Returns the server's share of the settings. Raises SpecMismatchError."""
        return Limits(**{name: getattr(self, name) for name in ("request_bytes", "answer_bytes", "shared_bytes")})

    def store(self) -> StoreConfig:
        """Returns the store's share of the settings. Raises SpecMismatchError."""
        return StoreConfig(**{name: getattr(self, name) for name in StoreConfig.__dataclass_fields__})


def _is_private(host: str) -> bool:
    """Returns whether only this machine reaches an address. Names other than localhost may mean anything."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def load(options: Mapping[str, Any], file: Path | None) -> Settings:
    """Returns the settings; `options` are those given on the command line (None: not given).

    Raises:
      InvalidRequestError: an unknown name or a bad value; names the setting.
    """
    try:
        is_file = file is None or file.is_file()
    except OSError as error:
        raise InvalidRequestError(f"settings file {shown(str(file))}: cannot be looked at: {error.strerror}") from error
    if file is not None and not is_file:
        raise InvalidRequestError(
            f"settings file {file}: expected a TOML file, found {'no file' if file.exists() else 'nothing'}"
        )
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in _OTHERS and name.removeprefix(_PREFIX).lower() not in Settings.model_fields:
            raise _unknown(name)

    class WithFile(Settings):
        model_config = SettingsConfigDict(toml_file=file)

    try:
        return WithFile(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise _unknown(name) from error
        problem = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        raise InvalidRequestError(f"setting {name}: {problem}, found {first['input']!r}") from error
    except ReplayError as error:
        raise InvalidRequestError(f"setting {error}") from error
    except (ValueError, OSError) as error:  # TOML that cannot be read
        raise InvalidRequestError(f"settings file {file}: {error}") from error


def _unknown(name: str) -> InvalidRequestError:
    return InvalidRequestError(f"setting {name}: unknown; there are {', '.join(Settings.model_fields)}")
