"""README.md and docs/: what can be run is run, links lead somewhere, and no key of the code is left out."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import click
import kept_programs
import pytest
from fleet import wait_until
from pages import REASONS, Reader, alike, blocks, check_syntax, first_column

from dispatcher import config, notify_config
from dispatcher.base.values import FAILURE_REASONS, RESOURCE_WORDS
from dispatcher.cli import main
from dispatcher.hosts import read
from dispatcher.matrix import condition, draw, sweep
from dispatcher.matrix.entry import READERS, RESERVED
from dispatcher.run_state.states import MARKABLE, REQUESTABLE, State
from dispatcher.runtime.http_api.config import ApiConfig
from dispatcher.runtime.places import layout
from dispatcher.topics import Topic
from dispatcher.tuning import halving, settings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SKILL = ROOT / "dispatcher" / "cli" / "readmes" / "skill.md"
FOLLOWED = [ROOT / "README.md", SKILL, *sorted(DOCS.glob("*.md"))]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "dispatcher").rglob("*.md"))]


# Described with the outlets; commands only lead there.
OVERRIDES = re.findall(r"`(--(?:volcano|tpu)[^`]*)`", (DOCS / "outlets" / "README.md").read_text(encoding="utf-8"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def environment() -> dict[str, str]:
    """That of somebody who has installed the package: nothing leads to the checkout but the installation."""
    known = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DISPATCHER_", "CUDA_")) and name not in ("PYTHONPATH", "COLUMNS")
    }
    return {**known, "DISPATCHER_HOST": "ws1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in FOLLOWED if any(one.kind == "console" and not one.not_run for one in blocks(page.read_text()))],
    ids=name_of,
)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, jax_cache: Path) -> None:
    # Other pages show what is recorded of their environment.
    cache = kept_programs.environment(jax_cache) if page.name == "jax.md" else {}
    reader = Reader(tmp_path / "home", {**environment(), **cache})
    try:
        reader.follow(page)
        wait_until(lambda: not reader.running(), "the end of what the page has started")
    finally:
        for process in reader.running():
            os.kill(process, 9)


# How many blocks of a page are not run, by reason: none is to become one of them unnoticed.
NOT_RUN = {
    "README.md": {"elsewhere": 2, "installs": 3, "another host": 2},
    # tests/cli/test_large_matrix.py
    "docs/commands.md": {"elsewhere": 2},
    # tests/query/test_export.py
    "docs/analysis.md": {"elsewhere": 1},
    "docs/jax.md": {"elsewhere": 3},
    "docs/measurements.md": {"elsewhere": 1},
    # Of a script with Hydra, which is not installed here.
    "docs/templates.md": {"form": 1},
    # A line for cron.
    "docs/notify.md": {"form": 1},
    # tests/pod/test_idle_gpus.py, tests/cli/test_init.py
    "docs/pods.md": {"GPUs": 1, "elsewhere": 1},
    # tests/pod/test_shared_gpus.py, tests/beds/test_cgroups.py
    "docs/sharing.md": {"GPUs": 1, "form": 1},
    "docs/tuning.md": {"installs": 1, "form": 1},
    "docs/usage.md": {"elsewhere": 1},
    # tests/examples/test_week.py
    "docs/week.md": {"elsewhere": 1},
    # tests/browser
    "docs/web.md": {"installs": 1, "terminal": 1, "another host": 1},
}


@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
def test_what_is_not_run_is_counted_with_its_reason(page: Path) -> None:
    reasons = Counter(block.not_run for block in blocks(page.read_text(encoding="utf-8")) if block.not_run is not None)
    assert reasons.keys() <= REASONS.keys()
    assert dict(reasons) == NOT_RUN.get(name_of(page), {})


def documented(page: str, after: str) -> set[str]:
    """The keys in the first column of the table that follows `after` in a page of docs/."""
    return first_column((DOCS / page).read_text(encoding="utf-8"), after)


def test_every_key_of_the_code_is_documented_and_no_other() -> None:
    assert documented("sweeps.md", "## Keys of the file\n") == set(sweep._TOP_KEYS)
    assert documented("sweeps.md", "## Keys of a sweep\n") == set(sweep._SWEEP_KEYS)
    assert documented("sweeps.md", "## `random`\n") == set(sweep._RANDOM_KEYS)
    assert documented("entries.md", "Every entry has\n") == RESERVED - READERS.keys()
    assert documented("entries.md", "All other keys are parameters of the training script.\n") == READERS.keys()
    assert documented("entries.md", "`resources`:\n") == set(RESOURCE_WORDS)
    assert documented("configuration.md", "## Settings\n") == {
        *config._SETTINGS, config._NOTIFY, "methods", *config._HOSTS_KEYS
    }  # fmt: skip
    assert documented("configuration.md", "## Methods\n") == config._METHOD_KEYS.keys()


def test_every_key_of_a_study_is_documented_and_no_other() -> None:
    assert documented("tuning.md", "## Keys of the file\n") == set(settings._KEYS)
    assert documented("tuning.md", "each with its place.\n") == settings.SAMPLERS.keys()
    assert documented("tuning.md", "once for each trial and rung.\n") == set(halving._KEYS)


def test_every_setting_of_an_api_is_documented_and_no_other() -> None:
    assert documented("api-rollouts.md", "## Settings\n") == {path.removeprefix("api.") for path in layout(ApiConfig)}


def test_every_key_of_notify_is_documented_and_no_other() -> None:
    limits = notify_config._LIMITS.keys()
    assert documented("notify.md", "## Keys\n") == {*limits, *notify_config._FIELDS, "targets"}
    assert documented("notify.md", "## Targets\n") == {*limits, *notify_config._CHANNELS, "events"}
    assert documented("notify.md", "## Events\n") == {topic.value for topic in Topic}


def test_every_key_of_a_host_is_on_a_page_of_the_outlets() -> None:
    pages = {page.name: page.read_text(encoding="utf-8") for page in (DOCS / "outlets").glob("*.md")}
    of_all = "\n".join(pages.values())
    places = {"plain": pages["ssh.md"], **{kind: pages[f"{kind}.md"] for kind in read._KINDS.keys() - {"plain"}}}
    wanted = [(key, of_all) for key in (*read._CLUSTER_KEYS, *read._HOST_KEYS)]
    wanted += [(key, places[kind]) for kind, described in read._KINDS.items() for key in described.readers]
    assert [key for key, text in wanted if not re.search(rf"(?<![\w-]){key}(?![\w-])", text)] == []


def test_the_page_of_a_workspace_names_the_keys_of_entries() -> None:
    page = (ROOT / "dispatcher" / "cli" / "readmes" / "matrix.md").read_text(encoding="utf-8")
    assert [key for key in RESERVED if f"`{key}`" not in page] == []


def test_every_distribution_and_condition_is_documented() -> None:
    distributions = {text.partition(":")[0].strip("{") for text in documented("sweeps.md", "required |\n\n")}
    assert distributions == draw._KINDS.keys()
    conditions = " ".join(documented("sweeps.md", "several are a list.\n"))
    assert set(re.findall(r"(\w+):", conditions)) == {*condition._BOUNDS, "not"}


def test_every_command_and_option_of_a_pod_is_documented() -> None:
    told = " ".join(documented("commands.md", "`run_state/journal/`.\n"))
    commands = main.cli.list_commands(click.Context(main.cli))
    assert [name for name in commands if not re.search(rf"\b{name}\b", told)] == []
    options = " ".join(documented("pods.md", "## Options\n"))
    given = {option for parameter in main.cli.params for option in parameter.opts if option.startswith("--")}
    assert {option for option in given - {"--help"} if not re.search(rf"{option}(?![\w-])", options)} == set()
    assert set(re.findall(r"--[a-z-]+", options)) <= given


def own_options(command: click.Command) -> set[str]:
    """The options of a command and of those below it, but for the ones that all of them have."""
    found = {name for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("--")}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found |= own_options(command.get_command(context, name) or command)
    return found - {"--root", "--help"}


def test_every_option_of_a_command_is_documented_and_no_other() -> None:
    text = (DOCS / "commands.md").read_text(encoding="utf-8").partition("## Options\n")[2].partition("\n## ")[0]
    rows = [row.split("|") for row in text.splitlines() if row.startswith("| `")]
    told = {name: set(re.findall(r"--[a-z-]+", "".join(rest))) for _, names, *rest in rows for name in names.split()}
    told = {name.strip("`,"): options for name, options in told.items()}
    context = click.Context(main.cli)
    # Their own: those of hardware are in the row of solve, those of one kind of host on the page of outlets.
    shared = {*told["solve"], *re.findall(r"--[a-z-]+", " ".join(OVERRIDES))}
    for name in {*main.cli.list_commands(context)} - {"job"}:
        command = main.cli.get_command(context, name)
        assert command is not None
        own = own_options(command)
        assert told.get(name, set()) <= own, name
        assert own - told.get(name, set()) <= (shared if name in ("submit", "outlets") else set()), name


def test_the_page_of_measurements_has_the_rows_of_the_benchmark() -> None:
    source = (ROOT / "scripts" / "benchmarks" / "rows" / "__init__.py").read_text(encoding="utf-8")
    rows = set(re.findall(r'^    "(\w+)": ', source, re.MULTILINE))
    page = (DOCS / "measurements.md").read_text(encoding="utf-8")
    table = next(block.text for block in blocks(page) if block.text.startswith("row "))
    shown = {line.split()[0] for line in table.splitlines()[2:] if line[:1].strip()}
    left_out = set(re.findall(r"`(\w+)`", page.partition("Not in the table of results")[2]))
    assert shown | left_out == rows


def test_every_state_is_documented() -> None:
    section = (DOCS / "architecture.md").read_text().partition("\n## States of a job\n")[2].partition("\n## ")[0]
    assert set(State) <= set(re.findall(r"[a-z]+", section.partition("```")[2].partition("```")[0]))
    fields = (DOCS / "status-file.md").read_text().partition("\n## Editable fields\n")[2]
    assert {*REQUESTABLE, *MARKABLE} == set(
        re.findall(r'"(\w+)"', "".join(re.findall(r"\n\| `\"state\": ([^|]*)", fields)))
    )


def test_every_failure_reason_is_documented() -> None:
    told = {re.sub(r" [0-9]+$", "", reason) for reason in documented("pods.md", "## Failures\n")}
    assert told == set(FAILURE_REASONS)


@pytest.mark.parametrize("page", sorted((DOCS / "outlets").glob("*.md")), ids=name_of)
def test_what_a_page_of_an_outlet_shows_can_be_read(page: Path) -> None:
    """Their hosts are other ones: nothing is run, but a dispatcher.yaml is one."""
    for block in blocks(page.read_text(encoding="utf-8")):
        check_syntax(block, f"{page.name}, line {block.line}")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title)).strip().lower() for title in titles]
    return {word.replace(" ", "-") for word in words}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if ":" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_the_index_of_docs_leads_to_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md") if page != DOCS / "README.md"]
    assert [str(page) for page in pages if f"]({page})" not in index] == []


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        ("a\n...c\n", "a \nb\nc\n", True),
        ("a\n", "a\nb\n", False),
        ("...\n", "\n", True),
        ("", "x\n", False),
        ("n   loss\n--  -----\n1   0.512\n", "n   loss\n--  ----\n1   0.46\n", True),
        ("n   loss\n--  -----\n1   0.512\n", "n   loss\n--  ----\n2   0.46\n", False),
        ("loss 0.512\n", "loss 0.8\n", False),
        ("since 19:03:05, 12 s ago\n", "since 2026-11-22 07:14:59, 3 min ago\n", True),
        ("2m05s, pid 20067, 7% 46/600\n", "4s, pid 811, 0% 5/600\n", True),
        ("2 jobs\n", "3 jobs\n", False),
        ("[-1.5, 3.1e-05]\n", "[-1.51, 3.0e-05]\n", True),
    ],
)
def test_output_is_compared(wanted: str, got: str, same: bool) -> None:
    assert alike(wanted, got) is same
