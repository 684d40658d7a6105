"""Options of a pod that match no job."""

from __future__ import annotations

import pytest
from fleet import Fleet, shell
from participants import backlog_of, shared_of

from dispatcher.matrix.condition import Where
from dispatcher.matrix.entry import Entry
from dispatcher.pod.options import PodOptions
from dispatcher.pod.participants.unmet import UnmetOptions


def entries(*params: dict[str, object], method: str = "fft") -> dict[str, Entry]:
    return {f"j{n}": Entry(job_id=f"j{n}", method=method, params=one) for n, one in enumerate(params)}


def unmet_of(*where: str, methods: tuple[str, ...] = ()) -> UnmetOptions:
    options = PodOptions(pod="pod", methods=methods, where=Where.parse(where))
    return UnmetOptions(shared_of(options=options), backlog_of())


def warnings(*where: str, methods: tuple[str, ...] = ()) -> list[str]:
    some = entries({"lang": "es", "seed": 1}, {"lang": "de"}, {"lang": "de", "seed": 2})
    return unmet_of(*where, methods=methods).check("m.json", some)


@pytest.mark.parametrize(
    "where", [(), ("lang=es",), ("lang=e*", "seed=1"), ("lang=nope,de",), ("lang!=es",), ("seed=",), ("seed!=1,2",)]
)
def test_options_that_match_some_job_are_fine(where: tuple[str, ...]) -> None:
    assert warnings(*where) == []
    assert warnings(*where, methods=("fft",)) == []


def test_a_value_that_no_job_has() -> None:
    assert warnings("lang=ess") == ["warning: --where lang=ess: no job of m.json matches (did you mean 'es'?)"]
    assert warnings("lang=nope") == ["warning: --where lang=nope: no job of m.json matches (known: de, es)"]
    assert warnings("lang!=es,de") == ["warning: --where lang!=es,de: no job of m.json matches"]


@pytest.mark.parametrize("option", ["lagn=es", "lagn!=es", "lagn="])
def test_a_key_that_no_job_has(option: str) -> None:
    assert warnings(option) == ["warning: --where: no job of m.json has a value for 'lagn' (did you mean 'lang'?)"]


def test_options_that_only_together_match_no_job() -> None:
    assert warnings("lang=es", "seed=2") == [
        "warning: no job of m.json matches all of --where lang=es and --where seed=2"
    ]


def test_methods_that_no_job_has() -> None:
    assert warnings(methods=("fft", "ftf")) == ["warning: --methods: m.json has no jobs of 'ftf' (did you mean 'fft'?)"]


def test_a_new_manifest_is_warned_of_once() -> None:
    unmet = unmet_of("lang=es")
    good, bad = entries({"lang": "es"}), entries({"lang": "de"})
    assert [len(unmet.check("m.json", one)) for one in (bad, bad, good, good, bad)] == [1, 0, 0, 0, 1]


def test_a_pod_that_idles_says_that_its_options_match_nothing(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true", lang="es")])
    pod = fleet.start("pod", "--where", "lang=es", "--where", "seed!=x")
    fleet.wait_for("a", "done")
    fleet.write_manifest([shell("a", "true", lang="de"), shell("b", "true", lang="de")])
    pod.says("warning: --where lang=es: no job of matrix.json matches (known: de)")
    assert pod.said.count("no job of matrix.json has a value for 'seed'") == 1
    fleet.write_manifest([shell("b", "true", lang="de")])
    fleet.write_manifest([shell("b", "true", lang="de"), shell("c", "true", lang="es")])
    fleet.wait_for("c", "done")
    assert pod.stop() == 0
    assert pod.said.count("--where lang=es: ") == 1
