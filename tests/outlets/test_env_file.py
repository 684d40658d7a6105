"""Files with secrets: which attempts read them, and where there are none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dispatcher.config import Config, load_config
from dispatcher.errors import TemplateError
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.env_file import env_files, refuse_env_file
from dispatcher.workspace import Layout

HOSTS = """
methods:
  m: {env_file: ~/method.env}
hosts:
  s: {type: plain, ssh: s}
  k: {type: volcano, image: x, pvc_name: data, pvc_mount_path: /data}
  t: {type: tpu, project: p, zone: z, accelerator_type: v4-8, version: x}
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "dispatcher.yaml").write_text(HOSTS)
    return load_config(Layout(tmp_path))


def test_that_of_the_method_comes_first(config: Config) -> None:
    entry = Entry(job_id="j", method="m", env_file="/own.env")
    assert env_files(config, entry) == ["~/method.env", "/own.env"]
    assert env_files(config, msgspec.structs.replace(entry, method="other", env_file=None)) == []


@pytest.mark.parametrize(("outlet", "instead"), [("k", "envFrom"), ("t", "setup"), ("s", ""), ("local", "")])
def test_hosts_without_files_of_a_user_are_refused(config: Config, outlet: str, instead: str) -> None:
    plain = Entry(job_id="j", method="other")
    refuse_env_file(config, plain, outlet)
    secret = msgspec.structs.replace(plain, env_file="/own.env")
    if not instead:
        refuse_env_file(config, secret, outlet)
        return
    with pytest.raises(TemplateError, match=instead):
        refuse_env_file(config, secret, outlet)
