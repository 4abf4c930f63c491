"""HAMi's device-config.yaml from disk."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from hami.domain.errors import InvalidInput
from hami.vendors.config import DeviceConfig, device_config


def read_device_config(path: str) -> DeviceConfig:
    """Defaults when no path is given. Raises InvalidInput."""
    document = read_document(path)
    return device_config(document) if path else DeviceConfig()


def read_document(path: str) -> Mapping[str, object]:
    """The file as it stands, empty when no path is given. Raises InvalidInput."""
    if not path:
        return {}
    try:
        document = yaml.safe_load(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InvalidInput("scheduler.device_config", path, error.strerror or "cannot be read") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput("scheduler.device_config", path, " ".join(str(error).split())) from error
    if not isinstance(document, dict):
        raise InvalidInput("scheduler.device_config", path, "must be a YAML mapping")
    return document
