"""`dispatcher`: runs a pod, or a subcommand. The only place where errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from dispatcher import contract
from dispatcher.base.files import PASSING, storage_error
from dispatcher.base.messages import is_utf8, readable
from dispatcher.base.values import MOST
from dispatcher.cli import time_limit
from dispatcher.cli.common import (
    F,
    WholeNumber,
    given_root,
    layout,
    read_duration,
    read_list,
    read_memory,
    read_where,
    root_option,
)
from dispatcher.cli.complete import complete_methods, complete_where
from dispatcher.cli.host_overrides import override_options
from dispatcher.cli.lazy import LazyGroup
from dispatcher.cli.outlet_option import MOST_AT_ONCE, read_outlets
from dispatcher.cli.streams import PodLog, clean_terminals, discard_output, open_closed_streams
from dispatcher.errors import INTERRUPTED, TIMED_OUT, DispatcherError, UsageError, nearest

if TYPE_CHECKING:
    from pathlib import Path

    from dispatcher.hosts.types import Hosts
    from dispatcher.pod.options import PodOptions
    from dispatcher.workspace import Layout

# The commands by what they are for, as --help lists them, and the module of each.
_COMMANDS: Final = {
    "Make and submit jobs": {
        "init": "dispatcher.cli.init",
        "matrix": "dispatcher.cli.matrix",
        "submit": "dispatcher.cli.submit",
        "job": "dispatcher.cli.job",
        "ship": "dispatcher.cli.ship",
    },
    "See what happens": {
        "status": "dispatcher.cli.status",
        "wait": "dispatcher.cli.waiting",
        "show": "dispatcher.cli.show",
        "logs": "dispatcher.cli.logs",
        "history": "dispatcher.cli.history",
        "diff": "dispatcher.cli.diff",
        "web": "dispatcher.cli.web",
        "notify": "dispatcher.cli.notify",
    },
    "Results": {
        "results": "dispatcher.cli.results",
        "export": "dispatcher.cli.export",
        "usage": "dispatcher.cli.usage",
    },
    "Change jobs": {
        "requeue": "dispatcher.cli.change",
        "hold": "dispatcher.cli.change",
        "cancel": "dispatcher.cli.change",
        "update": "dispatcher.cli.change",
        "mark": "dispatcher.cli.change",
        "edit": "dispatcher.cli.edit",
        "delete": "dispatcher.cli.change",
        "clean": "dispatcher.cli.clean",
    },
    "Pods": {
        "pods": "dispatcher.cli.pods",
        "drain": "dispatcher.cli.pods",
        "undrain": "dispatcher.cli.pods",
        "pause": "dispatcher.cli.pods",
        "unpause": "dispatcher.cli.pods",
        "doctor": "dispatcher.cli.doctor",
    },
    "Hosts and clusters": {
        "outlets": "dispatcher.cli.outlets",
        "solve": "dispatcher.cli.solve",
        "poll": "dispatcher.cli.submit",
    },
}
# Words that people try, and what does it.
_HINTS: Final = {
    "run": "--pod NAME", "start": "--pod NAME", "list": "status", "ls": "status", "jobs": "status",
    "retry": "requeue", "rerun": "requeue", "restart": "requeue", "stop": "cancel", "kill": "cancel",
    "abandon": "cancel", "forget": "delete", "remove": "delete", "rm": "delete", "resume": "unpause",
}  # fmt: skip
_HAS_COMMAND: Final = "dispatcher.has_command"
# Set by the completion of shells.
_COMPLETES: Final = "_DISPATCHER_COMPLETE"
_BROKEN_PIPE: Final = 141


class _PodOption(click.Option):
    """An option that may also come from `DISPATCHER_<NAME>`.

    Ignored by the commands, which have no use for it, and inside a job: its environment has variables of these names
    (DISPATCHER_POD), and a job that calls `dispatcher` must not start a second pod under its own pod's name.
    """

    def __init__(self, param_decls: Sequence[str], **attributes: Any) -> None:
        first = param_decls[0].partition("/")[0]
        variable = f"DISPATCHER_{first.removeprefix('--').replace('-', '_').upper()}"
        super().__init__(param_decls, envvar=variable, **attributes)
        self._variable = variable

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        # What remains of the command line is a command and its arguments.
        ctx.meta[_HAS_COMMAND] = bool(args)
        try:
            return super().handle_parse_result(ctx, opts, args)
        except (UsageError, click.BadParameter) as error:
            if ctx.get_parameter_source(self.name or "") is not ParameterSource.ENVIRONMENT:
                raise
            what = error.message if isinstance(error, click.BadParameter) else str(error)
            raise UsageError(f"${self._variable}: {what}") from None

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        if ctx.meta[_HAS_COMMAND] or contract.JOB_ID in os.environ:
            return None
        value = super().resolve_envvar_value(ctx)
        if value is not None and not is_utf8(value):
            raise UsageError(f"${self._variable}: '{readable(value)}' is not UTF-8: write it in UTF-8")
        return value


def _pod_option(*declarations: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(*declarations, cls=_PodOption, **attributes)


@click.group(
    cls=LazyGroup,
    commands_in=_COMMANDS,
    hints=_HINTS,
    name="dispatcher",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Options of a pod may also come from the environment: DISPATCHER_POD, DISPATCHER_GPUS, "
    "DISPATCHER_POLL_INTERVAL and so on (several --where or --outlet separated by spaces).",
)
@_pod_option("--pod", metavar="NAME", help="Run a pod with this name, unique in the workspace.")
@_pod_option("--gpus", default="", metavar="LIST", help="Its GPUs: 0,1,2,3 or 0-7 or all that it may use.")
@_pod_option(
    "--slots", type=WholeNumber(0, MOST_AT_ONCE), default=0, metavar="N",
    help=f"Its CPU slots, at most {MOST_AT_ONCE}: for jobs that ask for no GPU or do not specify `gpus`. With "
    "--outlet: the number of attempts in flight on each host that is named without a number.",
)  # fmt: skip
@_pod_option(
    "--outlet", "outlets", multiple=True, metavar="HOST[:N]",
    help="Submit to this configured host, at most N attempts at once; repeat for several, the preferred first. "
    "`auto` is all of them, each job where its hardware is free; `local:N` are N CPU slots here.",
)  # fmt: skip
@_pod_option(
    "--hosts", "hosts_file", type=click.Path(dir_okay=False), metavar="FILE",
    help="Read further clusters and hosts from this file, such as ~/.theseus.yaml.",
)  # fmt: skip
@override_options(_pod_option)
@_pod_option(
    "--jobs-per-gpu", type=WholeNumber(1, MOST_AT_ONCE), default=1, metavar="N",
    help="Number of single-GPU jobs that share one GPU; those with `gpu_memory` share by that.  [default: 1]",
)  # fmt: skip
@_pod_option(
    "--cpus", type=WholeNumber(1, MOST), metavar="N",
    help="CPUs for jobs that ask for some (`resources: {cpus: N}`).  [default: those of this host]",
)  # fmt: skip
@_pod_option(
    "--memory", "memory_mib", callback=read_memory, metavar="SIZE",
    help="Memory for jobs that ask for some (`resources: {memory: 64G}`).  [default: that of this host]",
)  # fmt: skip
@_pod_option(
    "--methods", default="", callback=read_list, metavar="LIST", shell_complete=complete_methods,
    help="Claim only jobs of these methods.",
)  # fmt: skip
@_pod_option(
    "--matrix", "matrix_file", type=click.Path(dir_okay=False), metavar="FILE",
    help="The manifest; outside of a workspace, its directory becomes one.  "
    "[default: matrix in dispatcher.yaml, else matrix/matrix.json]",
)  # fmt: skip
@_pod_option(
    "--where", multiple=True, callback=read_where, metavar="KEY=VALUE", shell_complete=complete_where,
    help="Claim only jobs with this value (a glob) or one of several (KEY=A,B); repeated filters combine with AND.",
)  # fmt: skip
@_pod_option(
    "--poll-interval", callback=read_duration, metavar="TIME",
    help="Maximum delay until changes by other hosts are noticed: seconds, 30s, 10m.",
)  # fmt: skip
@_pod_option("--until-empty", is_flag=True, help="End when no job is left to run.")
@_pod_option("--max-jobs", type=WholeNumber(1, MOST), metavar="N", help="End after this many jobs.")
@_pod_option(
    "--max-fails", type=WholeNumber(1, MOST), metavar="N",
    help="Once N of its jobs have failed for good, whichever pod ran them: claim nothing more, and end with status 1.",
)  # fmt: skip
@_pod_option(
    "--anyway", is_flag=True,
    help="Claim jobs also while your own script may claim them in a status file that no dispatcher reads.",
)  # fmt: skip
@_pod_option("--dry-run", is_flag=True, help="Show what a start would do and why; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print JSON.")
@_pod_option(
    "--on-exit", type=click.Choice(["drain", "stop", "leave"]), default="drain",
    help="On the first SIGINT or SIGTERM: let jobs finish, stop and requeue them, or leave them running.",
)  # fmt: skip
@click.option("--utc", is_flag=True, help="Print times in UTC instead of local time.")
@click.version_option(package_name="dispatcher")
@click.pass_context
def cli(ctx: click.Context, /, **given: Any) -> int:
    """Run a matrix of training runs over the GPUs of hosts that share this directory.

    Without a command, run a pod: `dispatcher --pod NAME --gpus 0,1,2,3`.
    """
    typed = _given_by(ctx, ParameterSource.COMMANDLINE)
    if ctx.invoked_subcommand is not None:
        if typed:
            raise click.UsageError(
                f"{typed[0]} is an option of a pod and cannot be used with `{ctx.invoked_subcommand}`"
            )
        return 0
    if not typed and not _given_by(ctx, ParameterSource.ENVIRONMENT):
        click.echo(ctx.get_help())
        return 0
    return _run(given)


cli.params.insert(0, root_option())


def _given_by(ctx: click.Context, source: ParameterSource) -> list[str]:
    """The options of a pod that came from there."""
    options = (param for param in ctx.command.params if param.expose_value)
    return [param.opts[0] for param in options if ctx.get_parameter_source(param.name or "") is source]


def _run(given: dict[str, Any]) -> int:
    from pathlib import Path

    import msgspec

    from dispatcher.config import load_config

    where = _workspace(given["matrix_file"])
    hosts_file = given["hosts_file"]
    config = load_config(where, None if hosts_file is None else Path(hosts_file))
    options = _options(where, config.hosts, given)
    hosts = given["host_overrides"].over(config.hosts, options.submissions)
    config = msgspec.structs.replace(config, hosts=hosts)
    if given["dry_run"]:
        from dispatcher.cli.dry_run import show_dry_run

        return show_dry_run(config.layout, config, options, utc=given["utc"], as_json=given["as_json"])
    from dispatcher.pod.run import run_pod

    return run_pod(config.layout, config, options, log=PodLog(utc=given["utc"]))


def _workspace(manifest: str | None) -> Layout:
    """The workspace; outside of one, the directory of the manifest that `--matrix` names becomes one."""
    from pathlib import Path

    from dispatcher.workspace import nearest_workspace, usable_layout

    is_named = given_root() is not None or bool(os.environ.get(contract.ROOT))
    if manifest is None or is_named or not Path(manifest).is_file() or nearest_workspace(Path.cwd()) is not None:
        return layout()
    directory = Path(manifest).absolute().parent
    # A manifest in matrix/ is where a workspace above it has its manifests.
    above = usable_layout(directory.parent)
    return nearest_workspace(directory) or (above if above.matrix_dir == directory else usable_layout(directory))


def _options(where: Layout, hosts: Hosts, given: dict[str, Any]) -> PodOptions:
    from dispatcher.base.values import BadValueError, parse_name
    from dispatcher.pod.options import PodOptions

    pod = given["pod"] or ("dry-run" if given["dry_run"] else None)
    if not pod:
        raise UsageError("a pod needs a name that is unique in the workspace: --pod NAME")
    try:
        parse_name(pod)
    except BadValueError as error:
        raise UsageError(f"--pod {pod!r}: {error}") from None
    asked = read_outlets(given["outlets"], given["slots"], hosts)
    return PodOptions(
        pod=pod,
        gpus=given["gpus"],
        cpu_slots=asked.cpu_slots,
        submissions=asked.submissions,
        by_hardware=asked.by_hardware,
        jobs_per_gpu=given["jobs_per_gpu"],
        cpus=given["cpus"],
        memory_mib=given["memory_mib"],
        methods=given["methods"],
        matrix=_find_manifest(where, given["matrix_file"]),
        where=given["where"],
        poll_interval_s=given["poll_interval"],
        until_empty=given["until_empty"],
        max_jobs=given["max_jobs"],
        max_fails=given["max_fails"],
        anyway=given["anyway"],
        on_exit=given["on_exit"],
    )


def _find_manifest(where: Layout, name: str | None) -> Path | None:
    """The path of `--matrix NAME`: in the current directory, the workspace's root or its matrix/."""
    from pathlib import Path

    if name is None:
        return None
    places = list(dict.fromkeys(base / name for base in (Path.cwd(), where.root, where.matrix_dir)))
    for place in places:
        if place.exists():
            if not is_utf8(str(place)):
                raise UsageError(f"--matrix: the path {readable(str(place))} is not UTF-8: rename its directory (mv)")
            return place
    known = [path.name for path in where.manifests()]
    raise UsageError(f"--matrix {name}: not found as {' or '.join(map(str, places))}{nearest(name, known)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name); the exit code."""
    code = _run_command(argv)
    if time_limit.end():
        _complain("the time of --timeout is over: `dispatcher status` shows how far the jobs are")
        return TIMED_OUT
    return code


def _run_command(argv: Sequence[str] | None) -> int:
    open_closed_streams()
    clean_terminals()
    if _COMPLETES in os.environ:
        from dispatcher.cli import bash

        bash.use()
    try:
        words = sys.argv[1:] if argv is None else list(argv)
        _refuse_undecodable(words)
        code = cli.main(args=words, prog_name="dispatcher", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (DispatcherError, click.ClickException) as error:
        _complain(_message(error))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _leave_broken_pipe()
    except SystemExit as error:
        # click itself exits on a broken pipe, and after shell completion.
        return _leave_broken_pipe() if error.code == 1 else int(error.code or 0)
    except OSError as error:
        return _leave_failed_files(error)


def _leave_failed_files(error: OSError) -> int:
    """Of a file or a directory that cannot be used, which the error names, or of the output."""
    if error.filename is not None:
        failed = storage_error(error, "this command cannot go on")
        _complain(str(failed))
        return failed.exit_code
    if error.errno not in PASSING:
        raise error
    discard_output()
    click.echo(f"dispatcher: cannot write the output: {error.strerror}", err=True)
    return 1


def _complain(message: str) -> None:
    from dispatcher.base.terminal import one_line

    # Names and values in files, which are quoted, may hold what a terminal would obey.
    click.echo("\n".join(map(one_line, f"dispatcher: {message}".split("\n"))), err=True)


def _refuse_undecodable(words: Sequence[str]) -> None:
    """Raise UsageError for an argument that is not UTF-8: it could be neither recorded nor printed."""
    for number, word in enumerate(words, 1):
        if not is_utf8(word):
            raise UsageError(f"argument {number}, '{readable(word)}', is not UTF-8: write it in UTF-8")


def _message(error: Exception) -> str:
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "dispatcher"
        return f"{error.format_message()}\nTry '{command} --help'."
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def _leave_broken_pipe() -> int:
    """The reader has gone (`dispatcher status | head`): exit without a message."""
    discard_output()
    return _BROKEN_PIPE
