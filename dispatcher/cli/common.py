"""The workspace's root, and options and questions that several commands share."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from dispatcher.base.values import MOST, MOST_BITS
from dispatcher.cli.complete import complete_jobs, complete_keys, complete_users, complete_where, complete_words
from dispatcher.errors import StateError, UsageError
from dispatcher.matrix.condition import Where, literal
from dispatcher.run_state.states import State
from dispatcher.workspace import Layout, find_workspace, named_workspace

if TYPE_CHECKING:
    from dispatcher.api import Workspace

F = TypeVar("F", bound=Callable[..., Any])

_FORMATS: Final = ("plain", "github", "latex", "csv", "json")
_DAY_S: Final = 86400
# More jobs than this are changed only after a question.
MANY: Final = 20
_STATE_WORDS: Final = tuple(state.value for state in State)


class SecondsRange(click.FloatRange):
    """A number of seconds, from `least` to a day."""

    def __init__(self, least: float) -> None:
        super().__init__(least, _DAY_S)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            # Neither more nor less than a bound.
            self.fail(f"{value} is no number of seconds: expected {self.min:g} to {_DAY_S}", param, ctx)
        return seconds


class WholeNumber(click.IntRange):
    """A whole number from `least` to `most`; None: no bound."""

    def __init__(self, least: int, most: int | None = None) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            text = str(value)
            is_large = text.isdecimal() and text.strip("0")
            is_open = self.max is None or (self.max == MOST and not is_large)
            within = f", {self.min} or more" if is_open else f" from {self.min} to {self.max}"
            self.fail(f"{text[:80]!r}: expected a whole number{within}", param, ctx)

    def _describe_range(self) -> str:
        # The help leaves out a bound that cannot be reached.
        return f"x>={self.min}" if self.max == MOST else "" if self.max == MOST_BITS else super()._describe_range()


def _keep_root(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.obj = value


def root_option() -> click.Option:
    """`--root DIR`, an option of every command; the context's object is the DIR."""
    return click.Option(
        ["--root"],
        type=click.Path(exists=True, file_okay=False),
        expose_value=False,
        is_eager=True,
        callback=_keep_root,
        help="The workspace.  [default: $DISPATCHER_ROOT, else the nearest one from the current directory upwards]",
    )


def add_root_option(command: click.Command) -> None:
    """Give `command` and its subcommands the option `--root`."""
    if not any(param.name == "root" for param in command.params):
        command.params.append(root_option())
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            add_root_option(inner)


def given_root() -> str | None:
    """What `--root` names, if it was given."""
    root = click.get_current_context().obj
    assert root is None or isinstance(root, str)
    return root


def layout() -> Layout:
    """The layout of the workspace that the running command works on; UsageError outside of one."""
    root = given_root()
    return find_workspace() if root is None else named_workspace(root, "--root: ")


def open_workspace() -> Workspace:
    """The workspace that the running command works on."""
    from dispatcher.api import Workspace
    from dispatcher.base import slow
    from dispatcher.cli.printing import note

    slow.tell_by(note)
    return Workspace(layout().root, warn=note)


def yes_option(function: F) -> F:
    """`--yes`, for commands that may change many jobs."""
    return click.option("-y", "--yes", is_flag=True, help=f"Do not ask, also for more than {MANY} jobs.")(function)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal, unless `yes` has answered already.

    Raises UsageError without a terminal, and StateError when the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} There is no terminal to ask on: add --yes")
    if not click.confirm(question, err=True):
        raise StateError("nothing was changed")


def read_where(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> Where:
    """Parse `key=glob` and `key!=glob`; all conditions must hold."""
    return Where.parse(values)


def read_list(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Parse a comma-separated list."""
    return tuple(part.strip() for part in (value or "").split(",") if part.strip())


def read_memory(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """An amount of memory in MiB."""
    if value is None:
        return None
    from dispatcher.base.values import BadValueError, parse_memory

    try:
        return parse_memory(value)
    except BadValueError as error:
        raise click.BadParameter(f"{value!r}: {error}") from None


def read_duration(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """A time in seconds: `90`, `30s`, `10m`."""
    if value is None:
        return None
    from dispatcher.base.values import BadValueError, parse_duration

    try:
        return parse_duration(number_or_text(value))
    except BadValueError as error:
        raise click.BadParameter(f"{value!r}: {error}") from None


def number_or_text(value: str) -> float | str:
    """A time as settings have it: a number of seconds, or a text with a unit."""
    try:
        return float(value)
    except ValueError:
        return value


def _read_keys(context: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    keys = read_list(context, param, value)
    if value is not None and not keys:
        raise UsageError(f"{param.opts[0]} {value!r} names no key: expected keys with commas between them")
    return keys


# What `--user` and `--mine` have named, until `--where` is read.
_USERS: Final = "dispatcher.users"


def _keep_users(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    users = read_list(ctx, param, value)
    if value is not None and not users:
        raise UsageError(f"--user {value!r} is empty: expected users with commas between them")
    ctx.meta.setdefault(_USERS, []).extend(users)


def _keep_me(ctx: click.Context, _param: click.Parameter, is_given: bool) -> None:
    from dispatcher.base.users import user_name

    if is_given:
        ctx.meta.setdefault(_USERS, []).append(literal(user_name()))


def _read_filters(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Where:
    return read_where(ctx, param, values).of_users(ctx.meta.get(_USERS, ()))


def _user_options(function: F) -> F:
    """`--user` and `--mine`; they are read first, and become part of `--where`."""
    user = click.option(
        "--user",
        expose_value=False,
        is_eager=True,
        callback=_keep_users,
        metavar="NAMES",
        shell_complete=complete_users,
        help="Only jobs of this user, or of these (comma-separated).",
    )
    mine = click.option(
        "--mine", is_flag=True, expose_value=False, is_eager=True, callback=_keep_me, help="Only your own jobs."
    )
    return user(mine(function))


def where_option(function: F) -> F:
    """`--where`, `--user` and `--mine`: which jobs are meant, passed to the command as `where`."""
    return click.option(
        "--where",
        multiple=True,
        callback=_read_filters,
        metavar="KEY=VALUE",
        shell_complete=complete_where,
        help="Only jobs with this value (a glob) or one of several (KEY=A,B); repeated filters combine with AND.",
    )(_user_options(function))


def keys_option(name: str, help: str) -> Callable[[F], F]:
    """An option whose value is a list of keys."""
    return click.option(name, callback=_read_keys, metavar="KEYS", shell_complete=complete_keys, help=help)


def state_option(function: F) -> F:
    return click.option(
        "--state",
        "states",
        multiple=True,
        metavar="STATE",
        shell_complete=complete_words(_STATE_WORDS),
        help="Only jobs in this state, or in these (comma-separated).",
    )(function)


def format_option(function: F) -> F:
    """`--format` and `--json`, passed to the command as `style`."""
    json_flag = click.option("--json", "style", flag_value="json", help="Same as --format json.")
    choice = click.option("--format", "style", type=click.Choice(_FORMATS), default="plain", help="[default: plain]")
    return json_flag(choice(function))


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def utc_option(function: F) -> F:
    """`--utc`, for commands that print times: `dispatcher.base.times.Clock` writes them."""
    text = "Times in UTC instead of local time. JSON and CSV have UTC in any case."
    return click.option("--utc", is_flag=True, help=text)(function)


def jobs_argument(function: F) -> F:
    return click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=complete_jobs)(function)


def interval_option(function: F) -> F:
    """`--interval`, for commands with `--watch`."""
    option = click.option("--interval", type=SecondsRange(0.1), default=2.0, metavar="SECONDS", help="[default: 2]")
    return option(function)
