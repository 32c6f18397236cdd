"""Settings of the service: command line, then environment (`REPLAYSVC_*`), then a TOML file, then defaults.

The only module that reads the environment or a settings file; everything below gets plain dataclasses.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from replaysvc.config import StoreConfig
from replaysvc.errors import InvalidRequestError

_DEFAULTS = StoreConfig()


class Settings(BaseSettings):
    """Every setting of `replaysvc serve`. Byte sizes are whole numbers; see StoreConfig for what they bound."""

    model_config = SettingsConfigDict(env_prefix="REPLAYSVC_", extra="forbid", frozen=True)

    data: Path | None = None
    host: str = "127.0.0.1"
    port: int = 7777
    insecure: bool = False
    grace_s: float = 10.0
    log_level: str = "info"
    recent_cache_bytes: int = _DEFAULTS.recent_cache_bytes
    faulted_cache_bytes: int = _DEFAULTS.faulted_cache_bytes
    commit_interval_s: float = _DEFAULTS.commit_interval_s
    commit_bytes: int = _DEFAULTS.commit_bytes
    queue_bytes: int = _DEFAULTS.queue_bytes

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        file = TomlConfigSettingsSource(settings_cls)  # reads `toml_file` of the class that `load` made
        return init_settings, env_settings, file

    def store(self) -> StoreConfig:
        """Returns the store's share of the settings."""
        return StoreConfig(**{name: getattr(self, name) for name in StoreConfig.__dataclass_fields__})


def load(options: dict[str, Any], file: Path | None) -> Settings:
    """Returns the settings; `options` are those given on the command line (None: not given).

    Raises:
      InvalidRequestError: an unknown name or a bad value; names the setting.
    """
    if file is not None and not file.is_file():
        raise InvalidRequestError(f"settings file {file}: it does not exist")

    class WithFile(Settings):
        model_config = SettingsConfigDict(toml_file=file)

    try:
        return WithFile(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        found = "" if first["type"] == "extra_forbidden" else f", found {first['input']!r}"
        raise InvalidRequestError(f"setting {name}: {first['msg']}{found}") from error
    except ValueError as error:  # TOML that cannot be read
        raise InvalidRequestError(f"settings file {file}: {error}") from error
