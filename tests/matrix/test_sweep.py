"""Sweep specifications: what they stand for, always the same, and what is refused."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import ManifestError
from dispatcher.matrix import load_manifest, write_manifest
from dispatcher.matrix.sweep import expand

values = st.lists(st.integers(0, 99) | st.sampled_from("abc"), min_size=1, max_size=4, unique_by=str)
grids = st.dictionaries(st.sampled_from(["p", "q", "r"]), values, min_size=1)


def sweep(job_id: str, **keys: Any) -> dict[str, Any]:
    return {"defaults": {"method": "m"}, "job_id": job_id, "sweeps": [keys]}


def pattern(keys: Any) -> str:
    return "j" + "".join(f"_{key}{{{key}}}" for key in keys)


def faults(spec: Any) -> str:
    with pytest.raises(ManifestError) as caught:
        expand(spec)
    return "\n".join(caught.value.problems)


@given(grids)
def test_a_grid_is_the_product_in_order_with_unique_ids(grid: dict[str, list[Any]]) -> None:
    spec = sweep(pattern(grid), grid=grid)
    entries = expand(spec)
    assert [tuple(entry[key] for key in grid) for entry in entries] == list(itertools.product(*grid.values()))
    assert len({entry["job_id"] for entry in entries}) == len(entries)
    assert expand(spec) == entries


@given(grids, st.sampled_from(["p", "q", "r"]))
def test_a_pattern_that_leaves_a_key_out_is_refused_unless_it_has_one_value(
    grid: dict[str, list[Any]], out: str
) -> None:
    spec = sweep(pattern(key for key in grid if key != out), grid=grid)
    if len(grid.get(out, [1])) == 1:
        assert len(expand(spec)) == len(list(itertools.product(*grid.values())))
    else:
        text = faults(spec)
        assert "duplicate job_id: " in text and "equal combinations" not in text
        assert f"put {{{out}}} into the job_id pattern" in text


@given(st.lists(st.integers(1, 5), min_size=2, max_size=3))
def test_zipped_lists_go_together_and_must_have_one_length(lengths: list[int]) -> None:
    columns = {f"z{number}": list(range(length)) for number, length in enumerate(lengths)}
    spec = sweep("j_{z0}", zip=columns)
    if len(set(lengths)) == 1:
        assert [(entry["z0"], entry["z1"]) for entry in expand(spec)] == [(n, n) for n in range(lengths[0])]
    else:
        assert "expected lists of one length" in faults(spec)


@given(grids, st.data())
def test_exclude_drops_and_include_keeps_the_same_points(grid: dict[str, list[Any]], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(grid)))
    chosen = data.draw(st.lists(st.sampled_from(grid[key]), min_size=1, unique=True))
    every = expand(sweep(pattern(grid), grid=grid))
    kept = expand(sweep(pattern(grid), grid=grid, include=[{key: chosen}]))
    assert kept == [entry for entry in every if entry[key] in chosen]
    if len(kept) == len(every):
        assert "include and exclude drop all of its" in faults(sweep(pattern(grid), grid=grid, exclude=[{key: chosen}]))
    else:
        dropped = expand(sweep(pattern(grid), grid=grid, exclude=[{key: chosen}]))
        assert dropped == [entry for entry in every if entry not in kept]


DRAWS = {
    "lr": {"log-uniform": [1e-5, 1e-3]},
    "dropout": {"uniform": [0.0, 0.5]},
    "layers": {"integer": [2, 6]},
    "act": {"choice": ["relu", "gelu"]},
}


@given(st.integers(-(2**40), 2**40), st.integers(1, 20))
def test_random_draws_keep_their_ranges_and_do_not_depend_on_one_another(seed: int, count: int) -> None:
    def drawn(count: int, names: list[str]) -> list[dict[str, Any]]:
        draws = {name: DRAWS[name] for name in names}
        return expand(sweep("j_{draw}", random={"seed": seed, "count": count, "draw": draws}))

    entries = drawn(count, list(DRAWS))
    assert len(entries) == count and all("draw" not in entry for entry in entries)
    for entry in entries:
        assert 1e-5 <= entry["lr"] <= 1e-3 and 0 <= entry["dropout"] <= 0.5
        assert entry["layers"] in range(2, 7) and entry["act"] in ("relu", "gelu")
    assert drawn(count + 1, list(DRAWS))[:count] == entries
    assert [entry["lr"] for entry in drawn(count, ["lr"])] == [entry["lr"] for entry in entries]


@pytest.mark.parametrize("value", [True, 1, 1.0])
def test_a_condition_on_a_value_holds_for_that_value_alone(value: Any) -> None:
    values = [True, 1, 1.0, [1], [1.0]]
    kept = expand(sweep("j_{number}", zip={"number": list(range(5)), "x": values}, include=[{"x": value}]))
    assert [repr(entry["x"]) for entry in kept] == [repr(value)]


def test_random_draws_are_these_in_every_python() -> None:
    spec = sweep("j_{draw}", random={"seed": 7, "count": 3, "draw": {"lr": {"log_uniform": [1e-5, 1e-3]}}})
    assert [entry["lr"] for entry in expand(spec)] == [0.00036567, 0.00013291, 3.26068e-05]
    code = f"import json; from dispatcher.matrix.sweep import expand; print(json.dumps(expand({spec!r})))"
    for hash_seed in ("1", "2"):
        run = [sys.executable, "-c", code]
        result = subprocess.run(run, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
        assert json.loads(result.stdout) == expand(spec)


SPECIFICATION = """
defaults: {run_kind: main}
job_id: "{method}_{lang}_cfg{config_id}_s{seed:03d}_{run_kind}"
derive: {output_dir: "/checkpoints/{job_id}"}
sweeps:
  - name: languages
    defaults: {method: fft}
    grid: {config_id: [A, B], seed: [42, 43]}
    zip: {lang: [no, de], code: [nb_no, de_de]}
    exclude: [{lang: de, config_id: B}]
    needs: ["pretrain_*"]
  - defaults: {method: pretrain, lr: 1e-4, day: 2026-01-01}
    job_id: "{method}_{lang}"
    grid: {lang: [no, de]}
  - defaults: {method: eval}
    job_id: "eval_{lang}"
    grid: {lang: [no, de]}
    needs: ["fft_{lang}_*", "elsewhere_{lang}"]
"""


def test_a_file_becomes_a_manifest(tmp_path: Path) -> None:
    spec = tmp_path / "sweep.yaml"
    spec.write_text(SPECIFICATION)
    entries = {entry["job_id"]: entry for entry in expand(spec)}
    assert list(entries)[:2] == ["fft_no_cfgA_s042_main", "fft_de_cfgA_s042_main"]
    assert len(entries) == 6 + 2 + 2
    first = entries["fft_no_cfgA_s042_main"]
    assert first["output_dir"] == "/checkpoints/fft_no_cfgA_s042_main" and first["code"] == "nb_no"
    assert first["needs"] == ["pretrain_de", "pretrain_no"]
    # Norwegian is no "false", 1e-4 is a number, and a date is text.
    assert entries["pretrain_no"]["lr"] == 0.0001 and entries["pretrain_no"]["day"] == "2026-01-01"
    assert entries["eval_de"]["needs"] == ["fft_de_cfgA_s042_main", "fft_de_cfgA_s043_main", "elsewhere_de"]
    with pytest.raises(ManifestError, match="elsewhere_no"):
        write_manifest(tmp_path / "m.json", entries.values())
    write_manifest(tmp_path / "m.json", entries.values(), known_ids=["elsewhere_no", "elsewhere_de"])
    assert len(load_manifest(tmp_path / "m.json", ["elsewhere_no", "elsewhere_de"]).entries) == 10


def test_conditions_know_globs_lists_and_bounds() -> None:
    def kept(condition: dict[str, Any]) -> list[tuple[str, Any]]:
        grid = {"lang": ["es", "et", "de"], "lr": [0.1, 0.2, True]}
        return [(e["lang"], e["lr"]) for e in expand(sweep("{lang}_{lr}", grid=grid, include=[condition]))]

    assert kept({"lang": "e*", "lr": {"above": 0.1}}) == [("es", 0.2), ("et", 0.2)]
    assert kept({"lang": ["de"], "lr": {"min": 0.1, "below": 0.2}}) == [("de", 0.1)]
    assert kept({"lang": {"not": ["es", "et"]}, "lr": True}) == [("de", True)]


def test_every_grid_point_has_its_own_copy_of_nested_values() -> None:
    one, other = expand(sweep("j_{p}", defaults={"layers": [1]}, grid={"p": [1, 2]}))
    one["layers"].append(2)
    assert other["layers"] == [1]


def test_all_faults_are_listed_at_once() -> None:
    text = faults(
        {
            "defalts": {},
            "sweeps": [
                {"grid": {"a": [1], "b": 3, "draw": [1]}, "zip": {"c": [1], "d": [1, 2]}},
                {"job_id": "x", "random": {"count": 0, "draw": {"lr": {"unifrm": [0, 1]}, "x": {"uniform": [1, 0]}}}},
                {"job_id": "x_{seed}", "defaults": {"job_id": "q"}, "grid": {"seed": [1]}, "exclude": {"sed": 1}},
                {"name": "n", "job_id": "x", "zip": {"a": [1]}, "grid": {"a": [2]}, "derive": {"d": 3}, "needs": 4},
                7,
            ],
        }
    )
    for expected in (
        "defalts: unknown key (did you mean 'defaults'?)",
        "sweep 1: job_id = null: expected a pattern",
        "sweep 1: grid.b = 3: expected a list",
        "sweep 1: grid.draw: is set by the expansion",
        "sweep 1: zip: expected lists of one length, but c has 1, d has 2",
        "sweep 2: random.seed: is missing",
        "sweep 2: random.count = 0: expected a whole number, 1 or more",
        "unknown distribution \"unifrm\" (did you mean 'uniform'?)",
        "the lower end 1 is not below the upper end 0",
        "sweep 3: defaults.job_id: is set by the expansion",
        "sweep 3: exclude: sed is not a key of this sweep (did you mean 'seed'?)",
        "sweep n: a: is in more than one of grid, zip and random",
        "sweep n: derive.d = 3: expected text",
        "sweep n: needs = 4: expected a list of job ids",
        "sweep 5 = 7: expected keys",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "sweeps = null: expected a list"),
        (sweep("x_{sed}", grid={"seed": [1]}), "{sed} is not a key of the entry (did you mean 'seed'?)"),
        (sweep("x_{seed", grid={"seed": [1]}), "is not a pattern"),
        (sweep("x_{seed.real}", grid={"seed": [1]}), "{seed.real} is not a key of the entry"),
        (sweep("x_{seed!r}", grid={"seed": [1]}), "is not a pattern"),
        (sweep("x_{seed:03d}", grid={"seed": ["a"]}), "cannot be written in the format '03d'"),
        (
            sweep("x_{lang}", grid={"lang": ["zh/CN"]}),
            'job_id "x_zh/CN" cannot be used (from method="m", lang="zh/CN")',
        ),
        (sweep("x_{lang}", grid={"lang": ["a", "A"]}), "x_a and x_A: differ only in case"),
        (sweep("x_{p}", grid={"p": [1, 1]}), "duplicate job_id: x_1, for equal combinations in sweep 1 and sweep 1"),
        (sweep("x_{p}", grid={"p": [1]}, needs=["y_*"]), 'needs "y_*": no other job id'),
        (sweep("x_{p}", grid={"p": [1, 2]}, needs=["x_*"]), "x_1 -> x_2 -> x_1"),
        (sweep("x_{p}", defaults={"gpus": -1}, grid={"p": [1]}), "gpus = -1: expected a whole number"),
        (sweep("x", grid={key: list(range(101)) for key in "abc"}), "101 x 101 x 101 = 1,030,301 combinations"),
    ],
)
def test_what_is_refused(spec: dict[str, Any], expected: str) -> None:
    assert expected in faults(spec)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2", "line 2, column 1: duplicate key 'a'"),
        ("sweeps: [", "line 1, column"),
        ("[]", "expected the keys sweeps, defaults, job_id, derive"),
        ("[" * 5000, "nested too deeply"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
    ],
)
def test_files_that_are_no_specification(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    assert expected in faults(path)


def test_all_ids_that_cannot_be_used_are_named() -> None:
    langs = ["a", "b/c", "d e", "f"]
    lines = faults(sweep("x_{lang}", grid={"lang": langs, "seed": [1, 2]})).splitlines()
    assert len(lines) == 2
    assert 'sweep 1: job_id "x_b/c" cannot be used (from method="m", lang="b/c", seed=1): expected at most' in lines[0]
    assert lines[1] == 'sweep 1: job_id "x_d e" cannot be used (from method="m", lang="d e", seed=1)'
    many = faults(sweep("x {a}", grid={"a": list(range(3000))})).splitlines()
    assert (len(many), many[-1]) == (21, "... and 2,980 more like this")
    alike = faults(sweep("x", grid={"a": list(range(3000))})).splitlines()
    assert (len(alike), alike[-1]) == (21, "... and 2,979 more like this")


@pytest.mark.parametrize(
    ("sweep", "advice"),
    [
        ({"grid": {"lr": {"values": [0.1, "a"]}}}, 'expected a list of values; here lr: [0.1, "a"]'),
        ({"grid": {"lr": {"value": 3}}}, "here lr: [3]"),
        ({"grid": {"lr": "0.1,2.10,x"}}, 'here lr: [0.1, "2.10", "x"]'),
        ({"zip": {"lr": "choice(1,2)"}}, "here lr: [1, 2]"),
        (
            {"grid": {"lr": {"distribution": "log_uniform_values", "min": 1e-3, "max": 0.1}}},
            "here random: {seed: 0, count: 10, draw: {lr: {log_uniform: [0.001, 0.1]}}}",
        ),
        ({"grid": {"lr": "interval(0, 1)"}}, "here random: {seed: 0, count: 10, draw: {lr: {uniform: [0, 1]}}}"),
        ({"random": {"seed": 1, "count": 1, "draw": {"lr": {"min": 0, "max": 1.5}}}}, "here lr: {uniform: [0, 1.5]}"),
        ({"random": {"seed": 1, "count": 1, "draw": {"n": {"min": 1, "max": 5}}}}, "here n: {integer: [1, 5]}"),
        ({"random": {"seed": 1, "count": 1, "draw": {"lr": {"values": [1, 2]}}}}, "here lr: {choice: [1, 2]}"),
    ],
)
def test_values_in_the_form_of_other_tools_are_told_ours(sweep, advice):
    with pytest.raises(ManifestError) as raised:
        expand({"defaults": {"method": "m"}, "job_id": "{lr}", "sweeps": [sweep]})
    assert f"{advice}" in str(raised.value)


@pytest.mark.parametrize(
    "sweep",
    [
        {"grid": {"seed": [1], "lr": "x"}},
        {"zip": {"seed": [1], "lr": "x"}},
        {"random": {"seed": 1, "count": 1, "draw": {"seed": {"choice": [1, 2]}, "lr": 3}}},
    ],
)
def test_one_fault_makes_no_others_of_the_keys_beside_it(sweep):
    with pytest.raises(ManifestError) as raised:
        expand({"defaults": {"method": "m"}, "job_id": "{seed}", "sweeps": [{"include": [{"seed": 1}], **sweep}]})
    assert len(raised.value.problems) == 1


@pytest.mark.parametrize("value", ["x", "range(0,3)", {}, 3, {"values": 3}, {"min": 1}, ""])
def test_other_values_get_no_such_advice(value):
    with pytest.raises(ManifestError) as raised:
        expand({"defaults": {"method": "m"}, "job_id": "{lr}", "sweeps": [{"grid": {"lr": value}}]})
    assert "; here" not in str(raised.value)


@pytest.mark.parametrize("form", [">999999999", "0>201", ".1000000000f", "099999999d"])
@pytest.mark.parametrize("where", ["job_id", "derive", "needs"])
def test_a_format_of_a_billion_letters_is_refused(form, where):
    pattern = f"{{x:{form}}}"
    sweep = {"grid": {"x": [1]}, **({"needs": [pattern]} if where == "needs" else {})}
    document = {"defaults": {"method": "m"}, "job_id": "j", "sweeps": [sweep]}
    document |= {"job_id": {"job_id": pattern}, "derive": {"derive": {"y": pattern}}, "needs": {}}[where]
    with pytest.raises(ManifestError, match="is wider than 200 letters"):
        expand(document)
