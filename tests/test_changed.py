"""What `scripts/test --changed` runs for a change: in the sources of a small checkout, and in those of this one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from changed import ABOUT, EVERYTHING, Selection, describe, selection_of
from dependents import LISTS, PACKAGE, graph_of, is_test
from import_graph import CHECKOUT, Sources, of_checkout

FILES = {
    "dispatcher/__init__.py": "",
    "dispatcher/base.py": "",
    "dispatcher/query/__init__.py": "",
    "dispatcher/query/tables.py": "def f():\n    import dispatcher.base\n",
    "dispatcher/outlets/__init__.py": "",
    "dispatcher/outlets/kinds.py": "KINDS = {'slurm': 'dispatcher.outlets.slurm', 'pbs': 'dispatcher.outlets.pbs'}\n",
    "dispatcher/outlets/slurm/__init__.py": "",
    "dispatcher/outlets/slurm/states.py": "",
    "dispatcher/outlets/pbs/__init__.py": (
        "import dispatcher.outlets.pbs.words\ndef make():\n    import dispatcher.outlets.pbs.scheduler\n"
    ),
    "dispatcher/outlets/pbs/resources.py": "",
    "dispatcher/outlets/pbs/scheduler.py": "",
    "dispatcher/outlets/pbs/words.py": "",
    "dispatcher/pod.py": "from dispatcher.outlets import kinds\n",
    "dispatcher/cli/__init__.py": "",
    "dispatcher/cli/main.py": (
        "COMMANDS = {'status': 'dispatcher.cli.status'}\ndef main():\n    import dispatcher.pod\n"
    ),
    "dispatcher/cli/status.py": (
        "from typing import TYPE_CHECKING\nfrom dispatcher.query.tables import f\n"
        "if TYPE_CHECKING:\n    from dispatcher.outlets.pbs import X\n"
    ),
    "dispatcher/web/__init__.py": "",
    "dispatcher/web/pages.py": "",
    "dispatcher/web/static/app.js": "",
    "tests/conftest.py": "import fleet\n",
    "tests/fleet.py": "MAIN = 'from dispatcher.cli.main import main'\n",
    "tests/beds/slurm.py": "NAME = 'slurm'\n",
    "tests/beds/fixtures.py": "from .slurm import SlurmBed\n",
    "tests/query/test_tables.py": "from dispatcher.query import tables\n",
    "tests/cli/test_status.py": "def test(fleet): fleet.run('status', '--json')\n",
    "tests/pod/test_claiming.py": "def test(fleet): fleet.start()\n",
    "tests/outlets/test_contract.py": "def test(start_slurm): pass\nKINDS = ['slurm', 'pbs']\n",
    "tests/outlets/pbs/test_resources.py": "from dispatcher.outlets.pbs import resources\n",
    "tests/pod/test_hosts.py": "CONFIG = 'hosts: {hpc: {type: slurm}}'\n",
    "tests/outlets/slurm/test_states.py": "from dispatcher.outlets.slurm import states\n",
    "tests/browser/test_page.py": "from dispatcher.web import pages\n",
    "tests/test_docs.py": "PAGES = 'docs'\n",
    "docs/web.md": "",
}


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return sources_in(tmp_path, FILES)


def sources_in(checkout: Path, files: Mapping[str, str]) -> Sources:
    for name, text in files.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    return Sources(checkout)


def concerned_by(sources: Sources, *changed: str) -> set[str]:
    selection = selection_of(list(changed), sources)
    return {path for path in sources.by_path if is_test(path) and selection.has(path)}


def test_an_import_inside_a_function_concerns_those_that_name_the_function(sources: Sources) -> None:
    assert concerned_by(sources, "dispatcher/base.py") == {"tests/cli/test_status.py"}
    both = {"tests/query/test_tables.py", "tests/cli/test_status.py"}
    assert concerned_by(sources, "dispatcher/query/tables.py") == both


@pytest.mark.parametrize(
    "function",
    [
        "def f():\n    g()\ndef g():\n    import dispatcher.base\n",
        "class C:\n    def f(self):\n        self.g()\n    def g(self):\n        import dispatcher.base\n",
        "class C(Handler):\n    def handle(self):\n        import dispatcher.base\nf = C\n",
        "@command()\ndef call():\n    import dispatcher.base\ndef f():\n    pass\n",
        "def g():\n    import dispatcher.base\ng()\n",
    ],
    ids=["another", "a method", "an inherited name", "decorated", "at once"],
)
def test_the_ways_to_call_a_function(tmp_path: Path, function: str) -> None:
    changed = {**FILES, "dispatcher/query/tables.py": function}
    assert "tests/cli/test_status.py" in concerned_by(sources_in(tmp_path, changed), "dispatcher/base.py")


def test_a_file_that_is_given_an_object_imports_its_class_for_types(tmp_path: Path) -> None:
    changed = {
        **FILES,
        "dispatcher/query/tables.py": "class C:\n    def f(self):\n        import dispatcher.base\n",
        "dispatcher/user.py": (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dispatcher.query.tables import C\n"
            "def g(c: C):\n    c.f()\n"
        ),
        "tests/test_user.py": "from dispatcher.user import g\n",
    }
    assert "tests/test_user.py" in concerned_by(sources_in(tmp_path, changed), "dispatcher/base.py")


def test_a_test_depends_on_the_commands_that_it_names_and_not_on_all(sources: Sources) -> None:
    assert concerned_by(sources, "dispatcher/cli/status.py") == {"tests/cli/test_status.py"}


def test_a_test_depends_on_what_the_programs_of_its_fixtures_import(sources: Sources) -> None:
    assert concerned_by(sources, "dispatcher/pod.py") == {"tests/cli/test_status.py", "tests/pod/test_claiming.py"}


def test_a_test_depends_on_the_outlets_that_it_names(sources: Sources) -> None:
    """And imports for type checking are no dependency: `status` does not depend on PBS."""
    all_of_slurm = {"tests/outlets/test_contract.py", "tests/outlets/slurm/test_states.py", "tests/pod/test_hosts.py"}
    assert concerned_by(sources, "dispatcher/outlets/slurm/states.py") == all_of_slurm


def test_who_imports_a_module_imports_its_package_and_calls_nothing_of_it(sources: Sources) -> None:
    both = {"tests/outlets/test_contract.py", "tests/outlets/pbs/test_resources.py"}
    for name in ("__init__", "words", "resources"):
        assert concerned_by(sources, f"dispatcher/outlets/pbs/{name}.py") == both
    assert concerned_by(sources, "dispatcher/outlets/pbs/scheduler.py") == {"tests/outlets/test_contract.py"}


def test_a_bed_is_used_by_those_whose_fixture_it_is(sources: Sources) -> None:
    assert concerned_by(sources, "tests/beds/slurm.py") == {"tests/outlets/test_contract.py"}


def test_data_is_used_by_the_modules_beside_it_and_pages_by_the_tests_that_name_their_folder(sources: Sources) -> None:
    assert concerned_by(sources, "dispatcher/web/static/app.js") == {"tests/browser/test_page.py"}
    assert concerned_by(sources, "docs/web.md") == {"tests/test_docs.py"}


def test_what_every_test_depends_on(sources: Sources) -> None:
    every = set(filter(is_test, FILES))
    assert concerned_by(sources, "pyproject.toml") == every
    assert concerned_by(sources, "tests/conftest.py") == every
    assert concerned_by(sources) == set()


def test_slow_tests_are_of_what_they_are_about(sources: Sources) -> None:
    selection = selection_of(["dispatcher/outlets/slurm/states.py"], sources)
    assert selection.is_about("tests/outlets/slurm/test_states.py")
    assert not selection.is_about("tests/outlets/test_contract.py")
    assert selection.is_about_one_of(["slurm"])
    assert not selection.is_about_one_of(["pbs", 3])
    assert selection_of(["dispatcher/web/pages.py"], sources).is_about("tests/browser/test_page.py")
    assert selection_of(["pyproject.toml"], sources).is_about("tests/browser/test_page.py")


def test_the_reasons_are_told(sources: Sources) -> None:
    lines = list(describe(selection_of(["dispatcher/base.py"], sources), sources))
    assert lines == [
        "changed: dispatcher/base.py",
        "1 modules depend on it: cli/status",
        "tests/cli/test_status.py: cli/status <- query/tables:f <- base",
        "slow tests and beds too in 0 of these files; the others' are left to scripts/test",
    ]
    assert list(describe(Selection([]), sources)) == ["changed: nothing"]


@pytest.fixture(scope="module")
def checkout() -> Sources:
    return of_checkout()


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("dispatcher/web/static/views.css", "tests/web/test_columns.py"),
        ("dispatcher/web/app.py", "tests/browser/test_first_screen.py"),
        ("dispatcher/query/usage/reading.py", "tests/query/usage/test_usage_command.py"),
        ("dispatcher/query/pace.py", "tests/cli/test_status_command.py"),
        ("dispatcher/outlets/pbs/scheduler.py", "tests/outlets/test_contract.py"),
        ("dispatcher/outlets/slurm/scheduler.py", "tests/pod/test_moves_on_slurm.py"),
        ("dispatcher/run_state/store.py", "tests/pod/test_claiming.py"),
        ("dispatcher/runtime/training/loop.py", "tests/runtime/training/test_step.py"),
        ("scripts/test", "tests/test_scripts.py"),
        ("docs/entries.md", "tests/test_docs.py"),
    ],
)
def test_of_this_checkout(checkout: Sources, changed: str, test: str) -> None:
    assert selection_of([changed], checkout).has(test)


def test_a_change_of_any_module_concerns_a_test(checkout: Sources) -> None:
    """Else it is loaded or started in a way that is not seen."""
    graph = graph_of(checkout)
    modules = [path for path in checkout.by_path if path.startswith(f"{PACKAGE}/")]
    assert [path for path in modules if not any(map(is_test, graph.of([path])))] == []


OUTLETS = ("plain", "slurm", "pbs", "tpu", "volcano")


@pytest.mark.parametrize("changed", ["web/ledger.py", *(f"outlets/{name}/scheduler.py" for name in OUTLETS)])
def test_a_change_of_the_page_or_of_an_outlet_leaves_most_alone(checkout: Sources, changed: str) -> None:
    tests = [*filter(is_test, checkout.by_path)]
    selection = selection_of([f"dispatcher/{changed}"], checkout)
    assert len([path for path in tests if selection.has(path)]) < len(tests) / 4


def test_what_the_tables_name_exists() -> None:
    for path in (*EVERYTHING, *LISTS, *(f"tests/{folder}" for folder in ABOUT)):
        assert (CHECKOUT / path).exists(), path
    for package in ABOUT.values():
        assert (CHECKOUT / "dispatcher" / package).is_dir(), package
