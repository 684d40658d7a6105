"""`container:` of a host, a method or an entry; the entry's is used, else the method's, else the host's."""

from __future__ import annotations

from typing import get_args

from dispatcher.hosts.types import Container, Runtime


def parse_container(value: object) -> Container:
    """The container that `value` describes; BadValueError names every fault in it."""
    # Imported here: every command reads entries, few of which have a container.
    from dispatcher.hosts import fields

    readers = {
        "runtime": fields.one_of(*get_args(Runtime)),
        "image": fields.parse_word,
        "mounts": fields.listed(fields.parse_text),
        "options": fields.parse_arguments,
    }
    expected = "keys such as {runtime: apptainer, image: docker://nvcr.io/nvidia/jax:24.04-py3}"
    return Container(**fields.read_struct(value, readers, ("runtime", "image"), expected))
