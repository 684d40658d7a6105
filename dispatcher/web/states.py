"""What the page knows of states: files of `static/` that are made of the table of states."""

from __future__ import annotations

import json

from dispatcher.run_state.states import ENDED, STATES


def state_files() -> dict[str, bytes]:
    """`states.js` has the states in their order, `states.css` their colours."""
    return {"states.js": _script().encode(), "states.css": _style().encode()}


def _script() -> str:
    known = {state.value: {"path": row.look.path, "isEnded": state in ENDED} for state, row in STATES.items()}
    return f"export const KNOWN = {json.dumps(known, indent=2)};\n"


def _style() -> str:
    looks = {state.value: row.look for state, row in STATES.items()}
    light = "".join(f"  --{name}: {look.light};\n" for name, look in looks.items())
    dark = "".join(f"    --{name}: {look.dark};\n" for name, look in looks.items())
    rules = "".join(
        f".icon.s-{name} {{ color: var(--{look.icon or name});{' fill: currentColor;' if look.is_filled else ''} }}\n"
        f".bar .s-{name} {{ background: var(--{name}); }}\n"
        for name, look in looks.items()
    )
    return f":root {{\n{light}}}\n@media (prefers-color-scheme: dark) {{\n  :root {{\n{dark}  }}\n}}\n{rules}"
