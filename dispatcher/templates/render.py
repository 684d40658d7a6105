"""What an attempt needs before it can start, from a method and an entry: its command line, script and wrapper."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dispatcher.templates.command import command_line, uses_script
from dispatcher.templates.launcher import render_launcher
from dispatcher.templates.training import encode_script, render_params, render_training

__all__ = [
    "command_line",
    "encode_script",
    "render_bootstrap",
    "render_launcher",
    "render_training",
    "uses_script",
]

_BOOTSTRAP: Final = Path(__file__).parent / "bootstrap.py"


def render_bootstrap(entry: Mapping[str, Any], hardware: Mapping[str, Any], identity: Mapping[str, Any]) -> bytes:
    """The bootstrap of an attempt; templates/bootstrap.py says what the parameters hold."""
    given = {"entry": entry, "hardware": hardware, "identity": identity}
    return encode_script(render_params(_BOOTSTRAP, given, str(identity["job_id"])))
