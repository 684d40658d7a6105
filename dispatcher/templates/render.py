"""What an attempt needs before it can start, from a method and an entry: its command line, script and wrapper."""

from dispatcher.templates.command import command_line, uses_script
from dispatcher.templates.launcher import render_launcher
from dispatcher.templates.training import encode_script, render_training

__all__ = [
    "command_line",
    "encode_script",
    "render_launcher",
    "render_training",
    "uses_script",
]
