"""Runs one job and tells the server how it ended: `pbs_mom.py DIRECTORY JOB`. SIGUSR1 says that `told` has changed."""

from __future__ import annotations

import os
import signal
import sys
import time

from pbs_state import State

WALLTIME_EXCEEDED = -29
SIGNALS = (signal.SIGCHLD, signal.SIGUSR1)


def environment(state, job_id, job, node=0):
    """That of every task of a job: what the server was given, and what the mom sets on each node."""
    cpus = str(job["placed"][node]["takes"].get("ncpus", 1))
    return {
        **job["variables"],
        "HOME": os.path.expanduser("~"),
        "USER": job["user"],
        "LOGNAME": job["user"],
        "SHELL": "/bin/bash",
        # As after a login whose /etc/profile.d knows nothing of PBS.
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PBS_CONF_FILE": os.path.join(state.directory, "pbs.conf"),
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": job_id,
        "PBS_JOBNAME": job["Job_Name"],
        "PBS_NODEFILE": os.path.join(state.job_folder(job_id), "nodefile"),
        "PBS_NODENUM": str(node),
        "PBS_QUEUE": job["queue"],
        "NCPUS": cpus,
        "OMP_NUM_THREADS": cpus,
        "TMPDIR": os.path.join(state.job_folder(job_id), "tmp"),
    }


def spool(state, job_id):
    return os.path.join(state.job_folder(job_id), "spool")


def processes(sessions):
    """The processes of these sessions."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    words = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[3]) in sessions and words[0] != "Z":
                found.append(int(name))
    return found


def send(sessions, number):
    for pid in processes(sessions):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def end_all(sessions):
    """Kill them, also what they start meanwhile."""
    while processes(sessions):
        send(sessions, signal.SIGKILL)
        time.sleep(0.01)


class Mom:
    def __init__(self, directory, job_id):
        self.state = State(directory)
        self.id = job_id
        self.begun_s = time.monotonic()
        self.kill_at_s = None
        self.over_walltime = False
        self.log = open(spool(self.state, job_id), "ab")  # noqa: SIM115 - for as long as the job runs

    def job(self):
        return self.state.read()["jobs"][self.id]

    def run(self):
        import subprocess

        os.chdir("/")
        job = self.job()
        os.makedirs(os.path.join(self.state.job_folder(self.id), "tmp"), exist_ok=True)
        with open(os.path.join(self.state.job_folder(self.id), "nodefile"), "w", encoding="utf-8") as file:
            file.writelines(chunk["node"] + "\n" for chunk in job["placed"])
        self.shell = subprocess.Popen(
            ["/bin/bash", os.path.join(self.state.job_folder(self.id), "script")],
            env=environment(self.state, self.id, job),
            cwd=os.path.expanduser("~"),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            umask=job["umask"],
        )
        # After the start, as a child inherits it; nobody signals this process before it is named.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        with self.state.change() as data:
            if self.id not in data["jobs"]:
                # The server was closed.
                end_all({self.shell.pid})
                return
            data["jobs"][self.id] |= {"mom": os.getpid(), "sessions": [self.shell.pid]}
        self.watch()

    def watch(self):
        handled = None
        while True:
            job = self.job()
            if job["told"] != handled:
                handled = job["told"]
                if self.obey(job, handled):
                    return
            if self.shell.poll() is not None:
                self.end(job)
                return
            self.keep_limits(job)
            signal.sigtimedwait(SIGNALS, self.wait_s(job))

    def obey(self, job, told):
        """Do what the server was told; whether this mom is done with the job."""
        if told == "rerun":
            end_all(set(job["sessions"]))
            self.shell.wait()
            self.back_to_queue(job)
            return True
        if told == "delete":
            self.send(signal.SIGCONT)
            # What runs on other nodes is not told; nor are, here, tasks on the first one.
            send({self.shell.pid}, signal.SIGTERM)
            self.kill_at_s = time.monotonic() + self.state.read()["config"]["kill_delay_s"]
        elif told == "suspend":
            self.send(signal.SIGSTOP)
        elif told == "resume":
            self.send(signal.SIGCONT)
        return False

    def send(self, number):
        send(set(self.job()["sessions"]), number)

    def keep_limits(self, job):
        now = time.monotonic()
        limit_s = job["walltime_s"]
        if limit_s is not None and not self.over_walltime and now - self.begun_s >= limit_s:
            self.over_walltime = True
            self.log.write(
                f"=>> PBS: job killed: walltime {int(now - self.begun_s)} exceeded limit {limit_s}\n".encode()
            )
            self.log.flush()
            self.send(signal.SIGTERM)
            self.kill_at_s = now + self.state.read()["config"]["kill_delay_s"]
        if self.kill_at_s is not None and now >= self.kill_at_s:
            self.send(signal.SIGKILL)
            self.kill_at_s = now + 1

    def wait_s(self, job):
        ends = [self.kill_at_s]
        if job["walltime_s"] is not None and not self.over_walltime:
            ends.append(self.begun_s + job["walltime_s"])
        waits = [end - time.monotonic() for end in ends if end is not None]
        return max(0.0, min(waits, default=60.0))

    def end(self, job):
        """The batch shell has ended, so everything else of the job is killed."""
        with self.state.change() as data:
            data["jobs"][self.id]["job_state"] = "E"
        end_all(set(self.job()["sessions"]))
        code = self.shell.returncode
        status = 256 - code if code < 0 else code
        self.stage_out(job)
        with self.state.change() as data:
            one = data["jobs"][self.id]
            one |= {"job_state": "F", "Exit_status": WALLTIME_EXCEEDED if self.over_walltime else status}
            one["comment"] = f"Job run at now on ({one['placed'][0]['node']}:ncpus=1) and " + (
                "exceeded resource walltime" if self.over_walltime else "terminated" if code < 0 else "finished"
            )
            if job["told"] == "delete" and job["told_by"]:
                one["comment"] = job["told_by"]
            if not data["config"]["history"]:
                del data["jobs"][self.id]
        self.state.schedule()

    def stage_out(self, job):
        self.log.close()
        if job["output"] != "/dev/null":
            import shutil

            try:
                shutil.copyfile(spool(self.state, self.id), job["output"])
            except OSError:
                # PBS keeps it on the node and sends a mail.
                return

    def back_to_queue(self, job):
        with self.state.change() as data:
            data["jobs"][self.id] |= {"job_state": "Q", "placed": [], "sessions": [], "told": "", "mom": None}
        self.state.schedule()


if __name__ == "__main__":
    Mom(*sys.argv[1:]).run()
