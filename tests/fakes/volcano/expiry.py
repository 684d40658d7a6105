"""Volcano's garbage collector of Jobs: deletes what finished `ttlSecondsAfterFinished` ago, aborted ones never."""

from __future__ import annotations

from api import Api
from cluster import Cluster
from objects import is_terminating, job_phase, key, seconds_since
from states import FINISHED


class Expiry:
    def __init__(self, api: Api, cluster: Cluster) -> None:
        self._api, self._cluster = api, cluster

    def work(self) -> None:
        for job in self._cluster.all("jobs"):
            ttl_s = job["spec"].get("ttlSecondsAfterFinished")
            if ttl_s is None or is_terminating(job) or job_phase(job) not in FINISHED:
                continue
            if seconds_since(job["status"]["state"]["lastTransitionTime"]) >= ttl_s:
                same = {"uid": job["metadata"]["uid"]}
                namespace, name = key(job)
                self._api.delete("jobs", namespace, name, {"propagationPolicy": "Foreground", "preconditions": same})
