"""What an attempt's command needs on a node, as plain data made from the configuration of its cluster and host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import unquote

import msgspec

from dispatcher.base.variables import PLACES
from dispatcher.checkpoints.storage import is_url
from dispatcher.hosts.types import Cluster, Container, Host, PlainHost

Gpus = Literal["", "cuda", "rocm"]

# An address with a password: what is before it, the password, and what follows.
_PASSWORD: Final = re.compile(r"(?P<before>[A-Za-z0-9+.-]+://[^:@/]*):(?P<password>.+)@(?P<after>[^@]*)", re.S)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class JuiceFS(msgspec.Struct, frozen=True, kw_only=True):
    """A JuiceFS to be mounted at `root`. `url` is its metadata engine without the password, which no script may have.

    The other fields are options of `juicefs mount`, None: not given.
    """

    url: str
    root: str
    password: str | None = None
    cache_size: str | None = None
    cache_dir: str | None = None
    all_squash: str | None = None
    installer: str | None = None

    def __repr__(self) -> str:
        return f"JuiceFS({self.url!r}, {self.root!r})"


class NodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What is set up on every node of an attempt before its command runs. Paths are those of the node.

    `work_id` tells workspaces apart that share a work directory. `env` are variables of the cluster and the host, which
    the method and the entry override. `work` is where code is extracted, empty: the node's directory for temporary
    files. `images` is where converted images of containers are kept. `directories` are shown to containers. `gpus` is
    the kind of GPUs that the nodes have. `local_dir` is a directory of the node itself, for locks.
    """

    work_id: str
    modules: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    juicefs: JuiceFS | None = None
    uv_dir: str = ""
    uv_installer: str = ""
    uv_groups: tuple[str, ...] = ()
    work: str = ""
    images: str = ""
    directories: tuple[str, ...] = ()
    container: Container | None = None
    gpus: Gpus = "cuda"
    local_dir: str = "/tmp"


def node_setup(cluster: Cluster, host: Host, *, work_id: str, base: str, gpus: Gpus = "cuda") -> NodeSetup:
    """What nodes of `host` need. `base` is the directory for what the dispatcher keeps there."""
    places = (cluster.root, cluster.data, cluster.checkpoints, cluster.results)
    return NodeSetup(
        work_id=work_id,
        modules=host.modules,
        env={**_store(cluster), **cluster.env, **_environment(host)},
        juicefs=_juicefs(cluster),
        uv_dir=cluster.uv_dir or "",
        uv_installer=cluster.uv_installer or "",
        uv_groups=host.uv_groups,
        work=cluster.work or "",
        images=f"{cluster.share or base}/images",
        directories=tuple(dict.fromkeys(path for path in places if path and not is_url(path))),
        container=host.container,
        gpus=gpus,
    )


def _store(cluster: Cluster) -> dict[str, str]:
    """The variable of an object store for checkpoints, which job classes obey on every host of the cluster."""
    url = cluster.checkpoints
    return {PLACES["checkpoints"]: url} if url is not None and is_url(url) else {}


def _environment(host: Host) -> dict[str, str]:
    """The host's variables, but for those of a plain host's GPUs: the launch chooses among them, for each attempt."""
    taken = ("CUDA_VISIBLE_DEVICES",) if host.type == PlainHost.type else ()
    return {name: value for name, value in host.env.items() if name not in taken}


def code_file(digest: str, commit: str, archive: str) -> bytes:
    """The content of an attempt's file `code`, which says what is extracted. `digest`: the SHA-256 of the archive."""
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is no SHA-256 in hexadecimal digits")
    if "\n" in commit + archive:
        raise ValueError(f"a line break in {commit + archive!r}")
    return f"{digest}\n{commit}\n{archive}\n".encode("utf-8", "surrogateescape")


def _juicefs(cluster: Cluster) -> JuiceFS | None:
    if cluster.mount is None or cluster.root is None:
        return None
    url, password = _without_password(cluster.mount)
    return JuiceFS(
        url=url,
        root=cluster.root,
        password=password,
        cache_size=cluster.cache_size,
        cache_dir=cluster.cache_dir,
        all_squash=cluster.all_squash,
        installer=cluster.juicefs_installer,
    )


def _without_password(address: str) -> tuple[str, str | None]:
    """`redis://:secret@host/1` as `redis://:@host/1`, in which every JuiceFS inserts META_PASSWORD, and `secret`."""
    found = _PASSWORD.fullmatch(address)
    if found is None:
        return address, None
    password = found["password"]
    # The address of MySQL is a data source name, in which nothing is escaped.
    return f"{found['before']}:@{found['after']}", password if address.startswith("mysql:") else unquote(password)
