"""What differs between container runtimes: words of their command lines, and which images are converted. Pure.

What is known on the node alone (GPUs, variables, the rank's directories) is added there by
templates/node_containers.sh.j2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from dispatcher.errors import TemplateError
from dispatcher.hosts.types import Container, Runtime

# How long an attempt waits while another one converts the image that it needs.
IMAGE_WAIT_S: Final = 1800
# Converted images that no attempt has begun with for so long are removed when another one is converted.
IMAGE_KEEP_DAYS: Final = 60
# How long a tag is taken for what it was.
_TAG_MINUTES: Final = 60

_BEGIN: Final[dict[Runtime, tuple[str, ...]]] = {
    "apptainer": ("apptainer", "exec"),
    "singularity": ("singularity", "exec"),
    # An init process passes signals on and collects orphans; a container that an earlier run by hand left is replaced.
    # It is not removed by --rm but at the end of the script, which asks it first how it ended.
    "podman": ("podman", "run", "--init", "--replace"),
    "enroot": ("enroot", "start"),
}
_MOUNT: Final[dict[Runtime, str]] = {
    "apptainer": "--bind",
    "singularity": "--bind",
    "podman": "--volume",
    "enroot": "--mount",
}
# Options of podman that a job of several nodes or GPUs needs, unless the configuration says something else about them:
# its ports and its shared memory are the host's, and SELinux would refuse the directories of the host.
_PODMAN_DEFAULTS: Final = (("--network", "host"), ("--ipc", "host"), ("--security-opt", "label=disable"))
_CONVERT: Final[dict[Runtime, tuple[str, ...]]] = {
    "apptainer": ("apptainer", "pull"),
    "singularity": ("singularity", "pull"),
    "enroot": ("enroot", "import", "--output"),
}
_SUFFIX: Final[dict[Runtime, str]] = {"apptainer": ".sif", "singularity": ".sif", "enroot": ".sqsh"}
# What ends a path where a runtime reads mounts; none of them has a way to write it in a path.
_SEPARATORS: Final[dict[Runtime, str]] = {"apptainer": ":,", "singularity": ":,", "podman": ":", "enroot": ": \t\n"}
# An address of a registry: its host, the repository and the tag.
_TAGGED: Final = re.compile(r"docker://(?:([^/]+[.:][^/]*|localhost)/)?([^:@]+)(?::([\w.-]+))?")
# Names of Docker Hub, which is not where its registry is.
_HUB: Final = ("docker.io", "index.docker.io", "registry-1.docker.io")
# The same for enroot, which separates the registry with a # and may have a user before it.
_TAGGED_FOR_ENROOT: Final = re.compile(r"(docker://(?!.*@sha256:)[^:]+?(?::\d+[/#][^:]+?)?)(?::[\w.-]+)?")
# What a tag may lead to; an index is for several kinds of machines.
_MANIFESTS: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_PINNED: Final = re.compile(r".*@sha256:([0-9a-f]{64})", re.S)
# Removes a container whatever state it is in; apptainer and singularity leave none behind.
_REMOVE: Final[dict[Runtime, tuple[str, ...]]] = {
    "podman": ("podman", "rm", "--force", "--ignore"),
    "enroot": ("enroot", "remove", "--force"),
}


class Tag(msgspec.Struct, frozen=True, kw_only=True):
    """A tag that may move: where its registry tells its digest (`url`), and what curl has to `accept`.

    Without `url` the runtime asks the registry. `repository` with `@sha256:` and a digest is the image of that digest.
    `file` keeps the digest beside the images, and is believed for so many `minutes`.
    """

    url: str = ""
    accept: tuple[str, ...] = ()
    repository: str
    file: str
    minutes: int


class ContainerWords(msgspec.Struct, frozen=True, kw_only=True):
    """Words of a container: `begin`, what the node knows (see node_containers.sh.j2), `options` and the image.

    `image` is the image as configured; when `image_file` is not empty, that file in the directory of images, which
    `convert`, a path and the image make. `remove`, followed by the container's name, removes it.
    """

    runtime: Runtime
    begin: tuple[str, ...]
    options: tuple[str, ...]
    image: str
    image_file: str
    convert: tuple[str, ...]
    remove: tuple[str, ...]
    tag: Tag | None


def container_words(container: Container, paths: Sequence[str]) -> ContainerWords:
    """The words for `container`, in which the directories `paths` will be mounted; raises TemplateError."""
    runtime = container.runtime
    for path in paths:
        found = [mark for mark in _SEPARATORS[runtime] if mark in path]
        if found:
            raise TemplateError(f"container: {runtime} cannot mount {path!r}, which contains {found[0]!r}")
    mounts = [word for mount in container.mounts for word in (_MOUNT[runtime], _both_sides(mount))]
    defaults = _defaults(container.options) if runtime == "podman" else ()
    image_file = _image_file(container)
    return ContainerWords(
        runtime=runtime,
        begin=(*_BEGIN[runtime], *defaults),
        options=(*mounts, *container.options),
        image=container.image,
        image_file=image_file,
        convert=_CONVERT[runtime] if image_file else (),
        remove=_REMOVE.get(runtime, ()),
        tag=_tag(container),
    )


def _both_sides(mount: str) -> str:
    """`/data` alone means the same path on both sides, which not every runtime knows."""
    return mount if ":" in mount else f"{mount}:{mount}"


def _defaults(options: Sequence[str]) -> tuple[str, ...]:
    given = {option.partition("=")[0] for option in options}
    given |= {"--network"} if "--net" in given else set()
    return tuple(word for name, value in _PODMAN_DEFAULTS if name not in given for word in (name, value))


def _image_file(container: Container) -> str:
    """The name of a converted image; empty for one that is a file or that the runtime itself keeps.

    An image with a digest has that digest as its name; any other the digest of its address, unless the registry tells
    the node which digest the tag has.
    """
    if container.runtime == "podman" or "://" not in container.image:
        return ""
    pinned = _PINNED.fullmatch(container.image)
    address = pinned[1] if pinned else hashlib.sha256(container.image.encode()).hexdigest()
    return address + _SUFFIX[container.runtime]


def _tag(container: Container) -> Tag | None:
    """What there is to follow; None for an image that is no tag of a registry, or that the runtime itself keeps."""
    file = f"{hashlib.sha256(container.image.encode()).hexdigest()}.tag"
    if container.runtime == "enroot" and (of_enroot := _TAGGED_FOR_ENROOT.fullmatch(container.image)):
        return Tag(repository=of_enroot[1], file=file, minutes=_TAG_MINUTES)
    found = _TAGGED.fullmatch(container.image)
    if container.runtime not in ("apptainer", "singularity") or found is None:
        return None
    host, repository, tag = found.groups()
    of_hub = repository if "/" in repository else f"library/{repository}"
    base = f"registry-1.docker.io/v2/{of_hub}" if host in (None, *_HUB) else f"{host}/v2/{repository}"
    return Tag(
        url=f"https://{base}/manifests/{tag or 'latest'}",
        accept=tuple(word for kind in _MANIFESTS for word in ("-H", f"Accept: {kind}")),
        repository=f"docker://{host}/{repository}" if host else f"docker://{repository}",
        file=file,
        minutes=_TAG_MINUTES,
    )
