"""Stand-ins for the commands of OpenPBS 23.06: `python3 tests/fakes/pbs DIRECTORY PROGRAM ARGUMENTS...`.

They refuse what the real ones refuse, with the same words and exit statuses (the low byte of PBS's error numbers), and
run jobs as processes of this machine. There is no server: pbs_state.py keeps everything in one file below DIRECTORY,
and each running job has a pbs_mom.py that watches it. beds/pbs.py puts them on PATH and does what an administrator
would do.
"""

import sys

import pbs_commands
from pbs_state import Refusal, State


def main() -> int:
    directory, program, *arguments = sys.argv[1:]
    state = State(directory)
    state.note_call(program, arguments)
    try:
        if program != "pbs_tmrsh" and state.read()["config"]["down"]:
            print("Connection refused", file=sys.stderr)
            if program == "qstat" and "json" in arguments:
                pbs_commands.print_empty()
            raise Refusal(255 if program == "qstat" else 15010, "cannot connect to server pbs (errno=15010)")
        return pbs_commands.PROGRAMS[program](state, arguments)
    except Refusal as refusal:
        print(f"{program}: {refusal.text}", file=sys.stderr)
        return refusal.number & 0xFF


if __name__ == "__main__":
    sys.exit(main())
