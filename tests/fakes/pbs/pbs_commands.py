"""The programs besides qsub: qstat, qselect, qdel, qsig, qhold, qrls, qrerun, pbsnodes and pbs_tmrsh."""

from __future__ import annotations

import contextlib
import getopt
import json
import os
import pwd
import re
import signal
import sys
import time

import pbs_mom
import pbs_qsub
from pbs_state import FINISHED, SERVER, Refusal

# With which qstat and qselect exit with 0.
NO_HISTORY = 15140
JOB_ID = re.compile(r"(\d+)(\.[A-Za-z][\w.-]*)?")


def _options(program, letters, words):
    try:
        return getopt.getopt(words, letters)
    except getopt.GetoptError as error:
        raise Refusal(2, f"{error.msg}\nusage: {program} ...") from None


def _known(data, text, *, finished):
    """The full id of a job; refuses unknown ones, and finished ones unless these are meant."""
    match = JOB_ID.fullmatch(text)
    if match is None:
        raise Refusal(1, f"illegally formed job identifier: {text}")
    job_id = f"{match[1]}.{SERVER}"
    if job_id not in data["jobs"]:
        raise Refusal(15001, f"Unknown Job Id {job_id}")
    if not finished and data["jobs"][job_id]["job_state"] in FINISHED:
        raise Refusal(15139, f"Job has finished, use -x or -H to obtain historical job information {job_id}")
    return job_id


def _each(program, ids, what):
    """Do it for each job; the last refusal counts."""
    failed = 0
    for one in ids:
        try:
            what(one)
        except Refusal as refusal:
            print(f"{program}: {refusal.text}", file=sys.stderr)
            failed = refusal.number & 0xFF
    return failed


def qstat(state, words):
    options, rest = _options("qstat", "aEfF:iQBxstTu:wnGMpHJ", words)
    flags = dict(options)
    if "-f" in flags and "-u" in flags:
        raise Refusal(2, "conflicting options")
    data = state.read()
    if "-Q" in flags and "-f" in flags and "-F" not in flags:
        return _print_queues(data, rest)
    if flags.get("-F") != "json" or "-f" not in flags:
        raise Refusal(2, "the stand-in knows -f -F json, and -Q -f of queues")
    document = _head()
    if "-B" in flags:
        most = data["config"]["max_queued"]
        server = {"server_state": "Active", "default_queue": data["config"]["default_queue"]} | (
            {} if most is None else {"max_queued": f"[u:PBS_GENERIC={most}]"}
        )
        _print({**document, "Server": {SERVER: server}})
        return 0
    if "-Q" in flags:
        queues = data["config"]["queues"].items()
        waiting = [job["queue"] for job in data["jobs"].values() if job["job_state"] == "Q"]
        _print({**document, "Queue": {name: _queue(queue, waiting.count(name)) for name, queue in queues}})
        return 0
    with_finished = "-x" in flags
    if not rest:
        rest = [one for one, job in data["jobs"].items() if with_finished or job["job_state"] not in FINISHED]
    found = {}

    def show(one):
        job_id = _known(data, one, finished=with_finished)
        if with_finished and not data["config"]["history"]:
            raise Refusal(NO_HISTORY, f"PBS is not configured to maintain job history {job_id}")
        found[job_id] = _job(state, job_id, data["jobs"][job_id])

    if "-E" in flags and len(rest) > 1:
        # One request for all: the server leaves out those that it refuses, unless it refuses all.
        for one in rest:
            with contextlib.suppress(Refusal):
                show(one)
        failed = 0 if found else _each("qstat", rest[:1], show)
    else:
        failed = _each("qstat", rest, show)
    if data["config"]["shows_first_only"] and "-E" not in flags and len(rest) > 1:
        found = dict(list(found.items())[:1])
    _print({**document, **({"Jobs": found} if found else {})})
    return 0 if failed == NO_HISTORY & 0xFF else failed


def _print_queues(data, names):
    for name in names:
        if name not in data["config"]["queues"]:
            raise Refusal(15018, f"Unknown queue {name}")
        print(f"Queue: {name}")
        for key, value in _queue(data["config"]["queues"][name], 0).items():
            print(f"    {key} = {value}")
        print()
    return 0


def _queue(queue, waiting):
    return {
        "queue_type": "Execution",
        "state_count": f"Transit:0 Queued:{waiting} Held:0 Waiting:0 Running:0 Exiting:0 Begun:0 ",
        "enabled": str(queue["enabled"]),
        "started": str(queue["started"]),
    }


def _job(state, job_id, job):
    shown = {
        "Job_Name": job["Job_Name"],
        "Job_Owner": f"{job['user']}@login",
        "job_state": job["job_state"],
        "queue": job["queue"],
        "server": SERVER,
        "exec_host": "+".join(f"{chunk['node']}/{index}" for index, chunk in enumerate(job["placed"])),
        "Join_Path": job["join"],
        "Output_Path": f"login:{job['output']}",
        "Rerunable": str(job["Rerunable"]),
        "Resource_List": {"select": job["select_text"]},
        "comment": job["comment"],
        "run_count": job["run_count"],
        "Exit_status": job["Exit_status"],
        "Variable_List": job["variables"],
        "project": job["project"],
        "Account_Name": job["Account_Name"],
    }
    return {key: value for key, value in shown.items() if value not in (None, "")}


def _head():
    return {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": SERVER}


def print_empty():
    """What qstat prints besides its complaint when the server is away."""
    _print(_head())


def _print(document):
    """As qstat prints: the values of an environment as they are, whatever is in them."""
    raw = {}

    def hide(value):
        if isinstance(value, dict) and "Variable_List" in value:
            hidden = {}
            for name, text in value["Variable_List"].items():
                mark = f"@{len(raw)}@"
                raw[mark] = text
                hidden[name] = mark
            return {**value, "Variable_List": hidden}
        return value

    if "Jobs" in document:
        document = {**document, "Jobs": {name: hide(job) for name, job in document["Jobs"].items()}}
    text = json.dumps(document, indent=4, separators=(",", ":"))
    print(re.sub(r"@\d+@", lambda match: raw.get(match[0], match[0]), text))


def qselect(state, words):
    options, rest = _options("qselect", "a:A:c:h:HJl:N:p:P:q:r:s:t:Tu:x", words)
    if rest:
        raise Refusal(2, "usage: qselect ...")
    flags = dict(options)
    data = state.read()
    if "-x" in flags and not data["config"]["history"]:
        print("qselect: PBS is not configured to maintain job history", file=sys.stderr)
        return 0
    for job_id, job in data["jobs"].items():
        if (
            (job["job_state"] not in FINISHED or "-x" in flags)
            and job["Job_Name"] == flags.get("-N", job["Job_Name"])
            and job["user"] in flags.get("-u", job["user"]).split(",")
        ):
            print(job_id)
    return 0


def _tell(state, job_id, told, by=""):
    """Tell the mom of a running job."""
    with state.change() as data:
        job = data["jobs"][job_id]
        job |= {"told": told, "told_by": by}
        pid = job["mom"]
    if pid is not None:
        os.kill(pid, signal.SIGUSR1)


def qdel(state, words):
    _, ids = _options("qdel", "W:x", words)
    if not ids:
        raise Refusal(2, "usage:\tqdel [-W force|suppress_email=X] [-x] job_identifier...")

    def delete(one):
        with state.change() as data:
            job_id = _known(data, one, finished=False)
            job = data["jobs"][job_id]
            if job["user"] != pwd.getpwuid(os.getuid()).pw_name:
                raise Refusal(15007, f"Unauthorized Request {job_id}")
            if job["told"] == "delete":
                raise Refusal(15085, f"Deletion of job is in progress {job_id}")
            if job["job_state"] in "QHW":
                job["job_state"] = "F"
                if not data["config"]["history"]:
                    del data["jobs"][job_id]
                return
        _tell(state, job_id, "delete")

    return _each("qdel", ids, delete)


def qsig(state, words):
    options, ids = _options("qsig", "s:", words)
    name = dict(options).get("-s", "SIGTERM").removeprefix("SIG")
    if name not in ("suspend", "resume") and not hasattr(signal, f"SIG{name}"):
        raise Refusal(15013, f"Unknown/illegal signal name {name}")

    def send(one):
        data = state.read()
        job_id = _known(data, one, finished=False)
        if data["jobs"][job_id]["job_state"] not in "RS":
            raise Refusal(15016, f"Request invalid for state of job {job_id}")
        pbs_mom.send(set(data["jobs"][job_id]["sessions"]), getattr(signal, f"SIG{name}"))

    return _each("qsig", ids, send)


def qhold(state, words):
    _, ids = _options("qhold", "h:", words)

    def hold(one):
        with state.change() as data:
            job = data["jobs"][_known(data, one, finished=False)]
            if job["job_state"] == "Q":
                job["job_state"] = "H"

    return _each("qhold", ids, hold)


def qrls(state, words):
    _, ids = _options("qrls", "h:", words)

    def release(one):
        with state.change() as data:
            job = data["jobs"][_known(data, one, finished=False)]
            if job["job_state"] == "H":
                job["job_state"] = "Q"

    failed = _each("qrls", ids, release)
    state.schedule()
    return failed


def qrerun(state, words):
    options, ids = _options("qrerun", "W:", words)

    def rerun(one):
        data = state.read()
        job_id = _known(data, one, finished=False)
        job = data["jobs"][job_id]
        if job["job_state"] != "R":
            raise Refusal(15016, f"Request invalid for state of job {job_id}")
        if not job["Rerunable"] and ("-W", "force") not in options:
            raise Refusal(15038, f"Job is not rerunable {job_id}")
        _tell(state, job_id, "rerun")

    return _each("qrerun", ids, rerun)


def pbsnodes(state, words):
    options, _ = _options("pbsnodes", "aF:vSjL", words)
    if ("-a", "") not in options or ("-F", "json") not in options:
        raise Refusal(2, "the stand-in knows -a -F json only")
    data = state.read()
    nodes = {}
    for name, node in data["nodes"].items():
        taken = {}
        jobs = []
        for job_id, job in data["jobs"].items():
            for chunk in job["placed"] if job["job_state"] in "RES" else ():
                if chunk["node"] == name:
                    jobs.append(job_id)
                    for resource, amount in chunk["takes"].items():
                        taken[resource] = taken.get(resource, 0) + amount
        is_full = taken.get("ncpus", 0) >= node["has"].get("ncpus", 1)
        nodes[name] = {
            "Mom": name,
            "state": "down" if not node["up"] else "job-busy" if is_full else "free",
            "jobs": jobs,
            "resources_available": {**node["has"], "host": name, "vnode": name},
            "resources_assigned": taken,
        }
    _print({"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": SERVER, "nodes": nodes})
    return 0


def pbs_tmrsh(state, words):
    """Runs a command as a task of the job on one of its nodes: in a session of its own, which outlives this program.

    Neither this program's environment nor its output is the task's: that goes to the output of the job.
    """
    words = [word for word in words if word != "-n"]
    if len(words) < 2 or words[0].startswith("-"):
        print("usage: pbs_tmrsh [-n][-l username] host [-n][-l username] command", file=sys.stderr)
        return 255
    host, *command = words
    if "PBS_ENVIRONMENT" not in os.environ:
        print("pbs_tmrsh: not executing under PBS", file=sys.stderr)
        return 255
    job_id = os.environ.get("PBS_JOBID", "")
    data = state.read()
    with open(os.environ["PBS_NODEFILE"], encoding="utf-8") as file:
        names = list(dict.fromkeys(file.read().split()))
    if host not in names:
        print(f'pbs_tmrsh: host "{host}" is not a node in job <{job_id}>', file=sys.stderr)
        return 255
    if data["jobs"][job_id]["told"] == "delete":
        print(f'pbs_tmrsh: tm_poll(obit): host "{host}" err not connected (17002) 15010', file=sys.stderr)
        return 255
    if not data["nodes"][host]["up"]:
        print(f'pbs_tmrsh: tm_poll(spawn): host "{host}" err TM_ESYSTEM 17002', file=sys.stderr)
        return 255
    return _task(state, job_id, data["jobs"][job_id], names.index(host), command)


def _task(state, job_id, job, node, command):
    import subprocess

    with open(pbs_mom.spool(state, job_id), "ab") as spool:
        task = subprocess.Popen(
            # A task begins with the signals of the mom, whatever this program ignores.
            ["env", "--default-signal=TERM,INT", *command],
            env=pbs_mom.environment(state, job_id, job, node),
            cwd=os.path.expanduser("~"),
            stdin=subprocess.DEVNULL,
            stdout=spool,
            stderr=spool,
            start_new_session=True,
        )
    with state.change() as changed:
        changed["jobs"][job_id]["sessions"].append(task.pid)
    code = task.wait()
    return (256 - code if code < 0 else code) & 0xFF


PROGRAMS = {
    "qsub": pbs_qsub.submit,
    "qstat": qstat,
    "qselect": qselect,
    "qdel": qdel,
    "qsig": qsig,
    "qhold": qhold,
    "qrls": qrls,
    "qrerun": qrerun,
    "pbsnodes": pbsnodes,
    "pbs_tmrsh": pbs_tmrsh,
}
