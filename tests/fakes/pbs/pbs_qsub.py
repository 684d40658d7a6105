"""qsub: its options, and what client and server refuse."""

from __future__ import annotations

import getopt
import os
import pwd
import re
import time

from pbs_state import SERVER, Refusal

OPTIONS = "a:A:c:C:e:fGhIj:J:k:l:m:M:N:o:p:q:r:R:S:u:v:VW:XzP:"
USAGE = "usage: qsub [-a date_time] [-A account_string] [-c interval] ... [script | -- command [arg ...]]"
ATTRIBUTES = ("umask", "depend", "group_list", "block", "sandbox", "stagein", "stageout", "release_nodes_on_stageout")
PLACES = ("free", "pack", "scatter", "vscatter", "excl", "share", "exclhost", "shared")
DURATION = re.compile(r"(?:(?:(\d+):)?(\d+):)?(\d+)(?:\.\d+)?")
SIZE = re.compile(r"(\d+)([kmgtp]?)[bw]?", re.IGNORECASE)


def submit(state, words):
    options, script = _parse(words)
    source = _script(script)
    with state.change() as data:
        job = _job(data["config"], options, script)
        _check_limits(data, job)
        job_id = f"{data['next']}.{SERVER}"
        data["next"] += 1
        data["jobs"][job_id] = job
        os.makedirs(state.job_folder(job_id), exist_ok=True)
        with open(os.path.join(state.job_folder(job_id), "script"), "wb") as file:
            file.write(source)
        is_lossy = data["config"]["lossy"]
    state.schedule()
    if is_lossy:
        raise Refusal(15031, "Protocol error")
    if ("-z", "") not in options:
        print(job_id)
    return 0


def _parse(words):
    try:
        options, rest = getopt.getopt(words, OPTIONS)
    except getopt.GetoptError as error:
        raise Refusal(2, f"{error.msg}\n{USAGE}") from None
    if len(rest) != 1:
        raise Refusal(2, USAGE)
    for option, value in options:
        if option in ("-I", "-X", "-G", "-J", "-f"):
            raise Refusal(2, f"the stand-in does not know {option}")
        if option == "-N" and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_+.-]{0,229}", value):
            raise Refusal(2, "illegal -N value")
        if (
            (option == "-r" and value not in ("y", "n"))
            or (option == "-j" and value not in ("oe", "eo", "n"))
            or (option in ("-o", "-e") and not _is_path(value))
            or (option == "-p" and not re.fullmatch(r"-?\d{1,4}", value))
            or (option == "-q" and not value)
        ):
            raise Refusal(2, f"illegal {option} value")
    return options, rest[0]


def _is_path(value):
    """What prepare_path.c takes: printable characters, the first colon after a host's name."""
    host, colon, path = value.partition(":")
    if colon and not re.fullmatch(r"[A-Za-z0-9._-]*", host):
        return False
    return bool(value.strip()) and all(" " <= character <= "~" for character in (path if colon else value))


def _script(path):
    if os.path.isdir(path):
        raise Refusal(1, "script not a file")
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise Refusal(1, f"script file:: {error.strerror}") from None
    # The stand-in does not read directives, so a script that has some is not what it seems.
    if re.search(rb"^#PBS", source, re.MULTILINE):
        raise Refusal(2, "the stand-in knows no directives in scripts")
    return source


def _job(config, options, script):
    found = dict(options)
    queue = found.get("-q", config["default_queue"])
    if queue not in config["queues"]:
        raise Refusal(15018, "Unknown queue")
    if not config["queues"][queue]["enabled"]:
        raise Refusal(15021, "Queue is not enabled")
    if set(found.get("-P", "")) & set('/[]";:|<>+,?*@'):
        raise Refusal(15014, "Illegal attribute or resource value project")
    attributes = _attributes(options)
    resources = _resources(config, [value for option, value in options if option == "-l"])
    user = pwd.getpwuid(os.getuid()).pw_name
    return {
        "Job_Name": found.get("-N", os.path.basename(script)[:15]),
        "user": user,
        "job_state": "H" if "-h" in found else "Q",
        "queue": queue,
        "project": found.get("-P", "_pbs_project_default"),
        "Account_Name": found.get("-A"),
        "Rerunable": found.get("-r", "y") == "y",
        "umask": int(attributes.get("umask", "077"), 8),
        "join": found.get("-j", "n"),
        "output": found.get("-o", "/dev/null").rpartition(":")[2],
        "variables": _variables(found),
        "comment": "",
        "run_count": 0,
        "Exit_status": None,
        "placed": [],
        "sessions": [],
        "mom": None,
        "told": "",
        "told_by": "",
        "qtime": time.time(),
        **resources,
    }


def _attributes(options):
    found = {}
    for option, value in options:
        if option == "-W":
            for part in value.split(","):
                name, _, text = part.partition("=")
                if name not in ATTRIBUTES:
                    raise Refusal(15002, "Undefined attribute")
                found[name] = text
    if not re.fullmatch(r"0?[0-7]{1,3}", found.get("umask", "077")):
        raise Refusal(15014, "Illegal attribute or resource value umask")
    return found


def _variables(found):
    own = {f"PBS_O_{name}": os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    own["PBS_O_WORKDIR"] = os.getcwd()
    if "-V" in found:
        own |= {name: value for name, value in os.environ.items() if not name.startswith("PBS_")}
    for part in filter(None, found.get("-v", "").split(",")):
        name, equals, value = part.partition("=")
        own[name] = value if equals else os.environ.get(name, "")
    return own


def _resources(config, values):
    asked = {}
    for value in values:
        # Only `select` and `place` have signs of their own after the first equals sign.
        parts = [value] if value.startswith(("select=", "place=")) else value.split(",")
        for part in parts:
            name, equals, text = part.partition("=")
            if not equals or not text:
                raise Refusal(2, "illegal -l value")
            asked[name] = text
    for name in asked:
        if name not in ("select", "place", *config["resources"]):
            raise Refusal(15035, f"Unknown resource: {name}")
    old = [name for name in ("ncpus", "ngpus", "mem", "nodes") if name in asked]
    if "select" in asked and old:
        raise Refusal(15109, f'"-lresource=" cannot be used with "select" or "place", resource is: {old[0]}')
    if "place" in asked and "select" not in asked:
        raise Refusal(15111, 'Cannot have "place" without "select"')
    return {
        "select": _select(config, asked.get("select", "1:ncpus=1")),
        "place": _place(asked.get("place", "free")),
        "walltime_s": _seconds(asked["walltime"]) if "walltime" in asked else None,
        "select_text": asked.get("select", "1:ncpus=1"),
    }


def _select(config, text):
    chunks = []
    for chunk in text.split("+"):
        first, *rest = chunk.split(":")
        if not first.isdigit():
            rest, first = [first, *rest], "1"
        takes = {}
        for part in rest:
            name, equals, value = part.partition("=")
            if not equals or not value or int(first) < 1:
                raise Refusal(15014, f"Illegal attribute or resource value {text}")
            if name not in config["resources"]:
                raise Refusal(15035, f"Unknown resource: {name}")
            if name == "walltime":
                raise Refusal(15108, f'Resource invalid in "select" specification: {name}')
            if name in takes:
                raise Refusal(15116, f"Duplicate resource: {name}")
            takes[name] = _amount(name, value)
        chunks.append([int(first), takes or {"ncpus": 1}])
    return chunks


def _amount(name, value):
    if name in ("mem", "vmem"):
        match = SIZE.fullmatch(value)
        if match is None:
            raise Refusal(15014, f"Illegal attribute or resource value Resource_List.{name}")
        return int(match[1]) * 1024 ** "bkmgtp".index((match[2] or "b").lower())
    if name in ("ncpus", "ngpus", "mpiprocs", "ompthreads"):
        if not value.isdigit():
            raise Refusal(15014, f"Illegal attribute or resource value Resource_List.{name}")
        return int(value)
    return value


def _place(text):
    words = text.split(":")
    if any(word not in PLACES and not word.startswith("group=") for word in words):
        raise Refusal(15014, "Illegal attribute or resource value Resource_List.place")
    return words


def _seconds(text):
    match = DURATION.fullmatch(text)
    if match is None:
        raise Refusal(15014, "Illegal attribute or resource value Resource_List.walltime")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def _check_limits(data, job):
    waiting = [one for one in data["jobs"].values() if one["job_state"] not in "FM"]
    most = data["config"]["max_queued"]
    if most is not None and len(waiting) >= most:
        raise Refusal(15142, "would exceed complex's per-user limit")
    limit = data["config"]["queues"][job["queue"]].get("max_queued")
    if limit is not None and len([one for one in waiting if one["queue"] == job["queue"]]) >= limit:
        raise Refusal(15142, "would exceed queue generic's per-user limit")
    longest = data["config"]["queues"][job["queue"]].get("max_walltime_s")
    if longest is not None and (job["walltime_s"] or 0) > longest:
        raise Refusal(15036, "Job violates queue and/or server resource limits")
