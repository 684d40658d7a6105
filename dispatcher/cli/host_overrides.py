"""Options that change keys of configured hosts for one run: `--volcano-image`, `--tpu-spot` and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from dispatcher.cli.one_argument import Decorator, one_argument
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


def override_options(option: Callable[..., Any] = click.option) -> Decorator:
    """The options as one argument `host_overrides`; `option` makes each of them."""
    options = []
    for names, attributes in _OPTIONS:
        callback = None if "/" in names[0] else _read_word
        options.append(option(*names, default=None, callback=callback, **attributes))
    return one_argument("host_overrides", HostOverrides, options)
