"""The API key: from a file or an environment variable, and in nothing that is written."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Final
from urllib.parse import quote

from dispatcher.base.secrets import SecretError, read_line
from dispatcher.errors import ConfigError
from dispatcher.runtime.http_api.config import ApiConfig

_HIDDEN: Final = "<the API key>"
# A shorter one is no secret but a word, such as the EMPTY of a local server, which a model may use in its answers.
_SHORTEST_SECRET: Final = 8
# What http.client puts into a header without an error that would quote it.
_KEY: Final = re.compile(r"[!-~]+")


class ApiKey:
    """A key that its representation does not show; `value` is empty for an API without one."""

    def __init__(self, value: str) -> None:
        self.value = value
        escaped = json.dumps(value)[1:-1]
        # As it is, in JSON, in JSON with escaped slashes, in an address; the longest first: one may contain another.
        self._forms = sorted(
            {value, escaped, escaped.replace("/", "\\/"), quote(value, safe="")}, key=len, reverse=True
        )

    def __repr__(self) -> str:
        return "ApiKey(...)" if self.value else "ApiKey()"

    def hidden(self, data: Any) -> Any:
        """`data`, text, bytes or JSON, without the key: servers quote it in errors."""
        if len(self.value) < _SHORTEST_SECRET:
            return data
        if isinstance(data, str):
            for form in self._forms:
                data = data.replace(form, _HIDDEN)
            return data
        if isinstance(data, bytes):
            for form in self._forms:
                data = data.replace(form.encode(), _HIDDEN.encode())
            return data
        if isinstance(data, list):
            return [self.hidden(each) for each in data]
        if isinstance(data, dict):
            return {self.hidden(name): self.hidden(each) for name, each in data.items()}
        return data


def read_key(config: ApiConfig) -> ApiKey:
    """The key that `config` names; ConfigError when it is not there or others can read it."""
    if config.key_file is not None:
        where = f"api.key_file = {config.key_file}"
        try:
            value = read_line(str(config.key_file))
        except SecretError as error:
            raise ConfigError(f"api.key_file: {error}") from None
    elif config.key_env is not None:
        where = f"api.key_env = {config.key_env}"
        value = os.environ.get(config.key_env, "").strip()
        if not value:
            raise ConfigError(f"{where}: this variable is not set where the job runs: set it, or use api.key_file")
    else:
        return ApiKey("")
    if not _KEY.fullmatch(value):
        raise ConfigError(f"{where}: the key has spaces or characters beyond ASCII: expected one word")
    return ApiKey(value)
