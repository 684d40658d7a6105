"""The process that sends one notice: reads what and where to on stdin, says on stdout how it went."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from dispatcher.base.secrets import SecretError
from dispatcher.notify import channels
from dispatcher.notify.process import BEGUN, Order, Outcome
from dispatcher.notify_config import Apprise, Channel, Command, Smtp, Webhook
from dispatcher.run_state.facets.notices import DOUBTFUL, FAILED, SENT

# Beyond its deadline, at which its parent kills it if that is still there.
_GRACE_S: Final = 5
_MODULES: Final = {
    Command: "dispatcher.notify.channels.command",
    Smtp: "dispatcher.notify.channels.smtp",
    Webhook: "dispatcher.notify.channels.webhook",
    Apprise: "dispatcher.notify.channels.apprise",
}


def main() -> None:
    """Send, say how it went, and exit at once: nothing that is still running counts."""
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    outcome = _sent(sys.stdin.buffer.read())
    sys.stdout.flush()
    os.write(1, msgspec.json.encode(outcome) + b"\n")
    os._exit(0)


def _sent(data: bytes) -> Outcome:
    order = msgspec.json.decode(data, type=Order)
    signal.alarm(int(order.limit_s) + _GRACE_S)
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        has_begun = True
        os.write(1, BEGUN + b"\n")

    try:
        why = _sender(order.channel)(order.channel, order.notice, begin, order.limit_s)
    except (SecretError, channels.RefusedError) as error:
        return Outcome(FAILED, str(error))
    except channels.UnknownError as error:
        return Outcome(DOUBTFUL, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a library raises; what it says may contain a secret
        name = channels.error_text(error)
        return Outcome(DOUBTFUL, f"{name}, and no answer") if has_begun else Outcome(FAILED, name)
    return Outcome(SENT, why)


def _sender(channel: Channel) -> Callable[[Any, Mapping[str, Any], Callable[[], None], float], str]:
    """The way to send by this channel: each is imported only where it is used."""
    module = importlib.import_module(_MODULES[type(channel)])
    return module.send  # type: ignore[no-any-return]  # what the page of channels/ says
