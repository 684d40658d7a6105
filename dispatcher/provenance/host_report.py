"""What a Python reports of itself, and of the host on which an attempt runs: a program that others run from its text.

It runs by any Python from 3.6 on, with -I and -S, so that nothing of an environment is imported or run; it imports
nothing else of this package. `interpreter NO_USER_SITE` prints a JSON object. `host FILE PACKAGES HAS_PYTHON GPUS
ALLOWED LEFT_OUT` writes HostFacts into FILE: it runs beside the command of an attempt, by its Python if HAS_PYTHON. The
list of packages is written into the directory PACKAGES where all attempts share one. GPUS is how many the attempt was
given, over all its nodes.
"""

import hashlib
import json
import os
import re
import signal
import site
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple

Data = Dict[str, Any]

# Where it is set, by what name others know this host.
NODE = "DISPATCHER_NODE"
# Of a program that asks for GPUs, and of all.
SMI_S = 10
DEADLINE_S = 30
SECRET = re.compile("TOKEN|SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
INFO = re.compile(r"(.+?)-([^-]+?)(?:-py[0-9.]+)?\.(?:dist-info|egg-info)")


def interpreter(no_user_site: str) -> Data:
    """The version and path of this Python, the directories of its packages, and a line for each of these."""
    # A venv is known by its file: with -S it was not looked for.
    prefix, base = os.path.dirname(os.path.dirname(sys.executable)), sys.base_prefix
    settings = os.path.join(prefix, "pyvenv.cfg")
    prefixes, has_user_site = [base], not no_user_site
    if os.path.exists(settings):
        with open(settings) as file:
            words = [[word.strip().lower() for word in line.partition("=")[::2]] for line in file]
        has_system_site = ["include-system-site-packages", "true"] in words
        prefixes = [prefix, base] if has_system_site else [prefix]
        has_user_site = has_user_site and has_system_site
        sys.prefix = prefix
    places = site.getsitepackages(prefixes)
    if has_user_site:
        places.append(site.getusersitepackages())
    places = [place for place in dict.fromkeys(places) if os.path.isdir(place)]
    lines = sorted({line for place in places for line in packages(place)})
    python = {"executable": sys.executable, "version": sys.version.split()[0]}
    return {"python": python, "settings": settings, "places": places, "package_lines": lines}


def packages(place: str) -> Iterator[str]:
    """The packages in one directory, such as `numpy==2.1.0`."""
    for name in os.listdir(place):
        found = INFO.match(name)
        if found is not None and found.end() == len(name):
            title = re.sub("[-_.]+", "-", found.group(1)).lower()
            yield plain("{}=={}{}".format(title, found.group(2), origin(os.path.join(place, name))))


def origin(info: str) -> str:
    """Where a package comes from that was installed from a directory or a commit."""
    try:
        fd = os.open(os.path.join(info, "direct_url.json"), os.O_RDONLY | os.O_NONBLOCK)
        with open(fd, encoding="utf-8", errors="replace") as file:
            document = json.loads(file.read(1 << 16))
        if document.get("dir_info", {}).get("editable"):
            # A file's address has no user information.
            return " (editable: {})".format(document["url"].partition("file://")[2])
        if "vcs_info" in document:
            return " ({} {})".format(document["vcs_info"]["vcs"], document["vcs_info"]["commit_id"])
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        pass
    return ""


def gpus(count: int, problems: List[str]) -> Tuple[Optional[str], List[Data]]:
    """The driver, and the GPUs that the attempt was given: `count` of them over all its nodes."""
    query = ["nvidia-smi", "--query-gpu=index,name,uuid,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SMI_S, check=True
        )
    except FileNotFoundError:
        return None, []
    except (OSError, subprocess.SubprocessError) as error:
        problems.append("nvidia-smi: {}".format(error))
        return None, []
    rows = [[word.strip() for word in line.split(",")] for line in done.stdout.decode("utf-8", "replace").splitlines()]
    rows = [row for row in rows if len(row) == 4 and row[0].isdigit()]
    driver = rows[0][3] if rows else None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        words = [word.strip() for word in visible.split(",")]
        rows = [row for row in rows if row[0] in words or any(word and row[2].startswith(word) for word in words)]
    elif len(rows) * nodes() > count:
        problems.append("which of the {} GPUs of its host it was given".format(len(rows)))
        rows = []
    return driver, [{"index": int(row[0]), "name": row[1], "uuid": row[2]} for row in rows]


def nodes() -> int:
    """On how many nodes the attempt runs."""
    words = [os.environ.get(name, "") for name in ("SLURM_NNODES", "DISPATCHER_NUM_PROCESSES")]
    return max([int(word) for word in words if word.isdigit()], default=1)


def host(file: str, directory: str, has_python: str, count: str, allowed: str, left_out: str) -> None:
    """Write what this host knows of the attempt."""
    signal.alarm(DEADLINE_S)
    problems: List[str] = []
    facts: Data = {"host": os.environ.get(NODE) or os.uname().nodename}
    if int(count):
        facts["driver"], facts["gpus"] = gpus(int(count), problems)
    if has_python:
        try:
            found = interpreter(os.environ.get("PYTHONNOUSERSITE", ""))
            facts["python"] = found["python"]
            facts.update(kept(found["package_lines"], directory))
        except OSError as error:
            problems.append("python: {}".format(error))
    facts["environment"] = environment(allowed.split(), left_out.split())
    if os.environ.get("DISPATCHER_CODE_DIGEST"):
        commit, plus, _ = os.environ.get("DISPATCHER_CODE_COMMIT", "").partition("+")
        digest = os.environ["DISPATCHER_CODE_DIGEST"]
        facts["git"] = {"commit": commit or None, "is_dirty": bool(plus), "shipped": digest}
    facts["problems"] = problems
    write(file, json.dumps(facts).encode() + b"\n")


def environment(allowed: List[str], left_out: List[str]) -> Dict[str, str]:
    """The variables of the allow-list but for those that look like a secret, as dispatcher/base/variables.py has it."""
    names = {name for name in allowed if not name.endswith("*")}
    beginnings = tuple(name[:-1] for name in allowed if name.endswith("*"))
    found = {name for name in os.environ if name in names or (beginnings and name.startswith(beginnings))}
    return {name: plain(os.environ[name]) for name in found - set(left_out) if not SECRET.search(name)}


def plain(text: str) -> str:
    """Text that JSON can have: bytes that are no UTF-8 as `\\xff`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def kept(lines: List[str], directory: str) -> Data:
    """The list of packages, by its digest where all attempts share a directory for them."""
    if not directory:
        return {"package_lines": lines}
    data = "".join(line + "\n" for line in lines).encode("utf-8")
    digest = hashlib.sha256(data).hexdigest()
    place = os.path.join(directory, digest + ".txt")
    if not os.path.exists(place):
        os.makedirs(directory, exist_ok=True)
        write(place, data)
    return {"packages": digest}


def write(path: str, data: bytes) -> None:
    """Write a file that appears complete."""
    temporary = "{}.{}.{}.tmp".format(path, os.uname().nodename, os.getpid())
    with open(temporary, "wb") as file:
        file.write(data)
    os.rename(temporary, path)


if __name__ == "__main__":
    if sys.argv[1] == "interpreter":
        print(json.dumps(interpreter(sys.argv[2])))
    else:
        host(*sys.argv[2:])
