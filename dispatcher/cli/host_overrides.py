"""Options that change keys of configured hosts for one run: `--volcano-image`, `--tpu-spot` and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from dispatcher.hosts.overrides import HostOverrides


def _read_word(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from dispatcher.base.values import BadValueError
    from dispatcher.hosts.fields import parse_word

    try:
        return parse_word(value)
    except BadValueError as error:
        raise click.BadParameter(f"{value!r}: {error}") from None


_OPTIONS: Final[tuple[tuple[tuple[str, ...], dict[str, Any]], ...]] = (
    (("--volcano-image",), {"metavar": "IMAGE", "help": "Volcano: run jobs in this image."}),
    (("--volcano-namespace",), {"metavar": "NAME", "help": "Volcano: submit to this namespace of Kubernetes."}),
    (("--tpu-version",), {"metavar": "NAME", "help": "TPU: create VMs with this runtime version."}),
    (("--tpu-spot/--tpu-on-demand", "tpu_spot"), {"help": "TPU: create spot VMs, or none that are preempted."}),
    (
        ("--tpu-preemptible/--tpu-no-preemptible", "tpu_preemptible"),
        {"help": "TPU: create preemptible VMs, or none of these."},
    ),
)


def override_options(option: Callable[..., Any] = click.option) -> Callable[..., Any]:
    """Adds the options to a command that has `**given`, for `take_overrides`; `option` makes each of them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for declarations, attributes in reversed(_OPTIONS):
            reading = {} if "/" in declarations[0] else {"callback": _read_word}
            command = option(*declarations, default=None, **reading, **attributes)(command)
        return command

    return decorate


def take_overrides(given: dict[str, Any]) -> HostOverrides:
    """Remove the overrides from the options that were given, and return them."""
    return HostOverrides(**{name: given.pop(name) for name in HostOverrides.__struct_fields__})
