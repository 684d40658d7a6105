"""What differs between two attempts: parameters, code, packages, environment, results. Pure, but for reading files."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.values import identity, text_of
from dispatcher.errors import CodeError
from dispatcher.outlets.code.git import Git
from dispatcher.provenance.blobs import Blobs
from dispatcher.provenance.read import package_lines, read_provenance
from dispatcher.provenance.record import GitState, Provenance
from dispatcher.query.attempts import read_or_why
from dispatcher.query.ran import RanWith, differences
from dispatcher.run_state.results import parse_result
from dispatcher.workspace import Layout

SAME: Final = "the same"
DIFFERENT: Final = "different"
UNKNOWN: Final = "unknown"
_DIGITS: Final = 12
_MOST_COMMITS: Final = 10
_LARGE: Final = 1e150
_FILE: Final = re.compile(r"^diff --git (.*)$", re.M)
_OF_GIT: Final = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-show-signature")


class Side(msgspec.Struct, frozen=True):
    """One attempt. `ended` is how it ended, its state while it has not."""

    job: str
    attempt: int
    ended: str


class FieldDifference(msgspec.Struct, frozen=True):
    """What differs, and what each of the two has; None: nothing, or unknown."""

    what: str
    a: Any
    b: Any


class Result(msgspec.Struct, frozen=True):
    """A value of result.json, `difference` b - a and `relative` to a where both are numbers."""

    what: str
    a: Any
    b: Any
    difference: float | None = None
    relative: float | None = None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between attempts. `code` is SAME, DIFFERENT or UNKNOWN; `code_rows` are what differs of it.

    `commits` are those that one has and the other has not, as `- 1a2b3c4 subject` (only a) and `+ ...` (only b), and
    `stat` is the size of the difference between the two commits, empty where that is not known. `unknown` says what
    could not be compared.
    """

    a: Side
    b: Side
    parameters: Sequence[FieldDifference]
    code: str
    code_rows: Sequence[FieldDifference]
    commits: Sequence[str]
    stat: str
    packages: Sequence[FieldDifference]
    environment: Sequence[FieldDifference]
    results: Sequence[Result]
    unknown: Sequence[str]

    @property
    def is_equal(self) -> bool:
        """Whether everything is known and nothing differs."""
        found = (self.parameters, self.code_rows, self.packages, self.environment, self.results, self.unknown)
        return self.code == SAME and self.a.ended == self.b.ended and not any(found)


def difference(layout: Layout, a: Side, b: Side) -> Difference:
    """What differs between two attempts; of what is not recorded, `unknown` says so."""
    unknown: list[str] = []
    one, other = (_provenance(layout, side, unknown) for side in (a, b))
    git, its = (found.git if found else None for found in (one, other))
    code = _code(one, other)
    if code == UNKNOWN and one and other:
        unknown.append("whether the code is the same")
    commits, stat = _commits(layout, git, its)
    return Difference(
        a=a,
        b=b,
        parameters=_parameters(layout, a, b, unknown),
        code=code,
        # The branch of the same code, and whether it was archived, are no difference.
        code_rows=[*_code_rows(layout, one, other)] if code != SAME else [],
        commits=commits,
        stat=stat,
        packages=_packages(layout, a, b, unknown),
        environment=[*_environment(one, other)],
        results=[*_results(_result(layout, a, unknown), _result(layout, b, unknown))],
        unknown=unknown,
    )


def _provenance(layout: Layout, side: Side, unknown: list[str]) -> Provenance | None:
    found = read_provenance(layout, side.job, side.attempt)
    if found is None:
        unknown.append(f"what {side.job} (attempt {side.attempt}) ran from: not recorded")
    return found


def _parameters(layout: Layout, a: Side, b: Side, unknown: list[str]) -> list[FieldDifference]:
    ran = RanWith(layout)
    one, other = (ran.attempt(side.job, side.attempt) for side in (a, b))
    for side, entry in ((a, one), (b, other)):
        if entry is None:
            unknown.append(f"the parameters of {side.job} (attempt {side.attempt}): {_why_no_entry(layout, side)}")
    if one is None or other is None:
        return []
    rows = differences(one, other)
    return [FieldDifference(row["key"], row["ran_with"], row["manifest"]) for row in rows if row["key"] != "job_id"]


def _why_no_entry(layout: Layout, side: Side) -> str:
    found = read_or_why(layout.attempt(side.job, side.attempt).entry)
    if found is None:
        return "there is no entry.json"
    return f"entry.json cannot be read: {found if isinstance(found, str) else 'it is damaged'}"


def _code(one: Provenance | None, other: Provenance | None) -> str:
    """Whether two attempts ran the same code: only where commit, changes and untracked files are known of both."""
    if one is None or other is None or one.git is None or other.git is None:
        return UNKNOWN
    git, its = one.git, other.git
    # A template is rendered in the workspace, and need not be part of an archive.
    same_template = _digest(one) == _digest(other)
    if git.shipped is not None and its.shipped is not None:
        return SAME if git.shipped == its.shipped and same_template else DIFFERENT
    if not same_template or _differ(git.commit, its.commit):
        return DIFFERENT
    is_known = git.is_known and its.is_known
    if (git.shipped is None) != (its.shipped is None):
        # An archive has no untracked files, and no changes elsewhere in the repository; whether the other one has used
        # some is not known.
        return SAME if is_known and _is_clean(git) and _is_clean(its) else UNKNOWN
    if not is_known:
        return DIFFERENT if _differ(git.diff, its.diff) else UNKNOWN
    return SAME if _content(git) == _content(its) else DIFFERENT


def _differ(one: str | None, other: str | None) -> bool:
    """Whether both are known and not equal."""
    return one is not None and other is not None and one != other


def _digest(found: Provenance) -> str | None:
    return None if found.template is None else found.template.sha256


def _is_clean(git: GitState) -> bool:
    return not (git.is_dirty or git.untracked)


def _content(git: GitState) -> tuple[Any, ...]:
    return git.commit, git.diff, dict(git.untracked), dict(git.submodules)


def _code_rows(layout: Layout, one: Provenance | None, other: Provenance | None) -> Iterator[FieldDifference]:
    if one is None or other is None:
        return
    git, its = one.git or GitState(), other.git or GitState()
    pairs: list[tuple[str, Any, Any]] = [
        ("commit", _short(git.commit), _short(its.commit)),
        ("branch", git.branch, its.branch),
        ("remote", git.remote, its.remote),
        ("archive", _short(git.shipped), _short(its.shipped)),
        ("changes", _changes(git), _changes(its)),
    ]
    pairs += _per_key("changes of ", _patches(layout, git), _patches(layout, its))
    pairs += _per_key("untracked ", _shortened(git.untracked), _shortened(its.untracked))
    pairs += _per_key("submodule ", _shortened(git.submodules), _shortened(its.submodules))
    pairs.append(("template", _template(one), _template(other)))
    yield from (FieldDifference(what, a, b) for what, a, b in pairs if a != b)


def _template(found: Provenance) -> str | None:
    return None if found.template is None else f"{found.template.path} {_short(found.template.sha256)}"


def _per_key(prefix: str, one: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, Any, Any]]:
    return [(f"{prefix}{key}", one.get(key), other.get(key)) for key in sorted({*one, *other})]


def _shortened(values: Mapping[str, str]) -> dict[str, str]:
    return {key: _short(value) or UNKNOWN for key, value in values.items()}


def _short(digest: str | None) -> str | None:
    if digest is None:
        return None
    digest, plus, dirty = digest.partition("+")
    return f"{digest[:_DIGITS]}{plus}{dirty}"


def _changes(git: GitState) -> str | None:
    if not git.is_dirty:
        return None
    return git.diff_stat or UNKNOWN


def _patches(layout: Layout, git: GitState) -> dict[str, str]:
    """How large the changes of each file are, with a digest of them; nothing where they were not kept."""
    data = Blobs(layout).diff(git.diff) if git.diff is not None and not git.diff_omitted else None
    parts = _FILE.split(data.decode("utf-8", "replace")) if data else []
    found = {}
    for names, text in zip(parts[1::2], parts[2::2], strict=True):
        lines = text.splitlines()
        added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
        removed = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
        found[names.rpartition(" b/")[2]] = f"+{added} -{removed} ({zlib.crc32(text.encode()):08x})"
    return found


def _commits(layout: Layout, git: GitState | None, its: GitState | None) -> tuple[list[str], str]:
    """The commits between those of two attempts and the size of their difference, where the repository has both."""
    one, other = (state.commit if state else None for state in (git, its))
    if one is None or other is None or one == other:
        return [], ""
    # Of a partial clone nothing is fetched.
    repository = Git(layout.root, {"GIT_NO_LAZY_FETCH": "1"})
    try:
        if not all(repository.succeeds("cat-file", "-e", f"{commit}^{{commit}}") for commit in (one, other)):
            return [], ""
        words = ("log", "--left-right", "--pretty=%m %h %s", f"--max-count={_MOST_COMMITS + 1}", "--no-color")
        found = repository.text(*words, "--no-show-signature", f"{one}...{other}", "--").splitlines()
        stat = repository.text("diff", "--shortstat", *_OF_GIT[:3], one, other, "--").strip()
    except CodeError:
        return [], ""
    lines = [f"{'-' if line.startswith('<') else '+'}{line[1:]}" for line in found[:_MOST_COMMITS]]
    return [*lines, *(["... more commits"] if len(found) > _MOST_COMMITS else [])], stat


def _packages(layout: Layout, a: Side, b: Side, unknown: list[str]) -> list[FieldDifference]:
    lists = [package_lines(layout, side.job, side.attempt) for side in (a, b)]
    if lists[0] is None or lists[1] is None:
        unknown.append("the packages: not recorded for both")
        return []
    one, other = (dict(_package(line) for line in lines or ()) for lines in lists)
    pairs = _per_key("", one, other)
    return [FieldDifference(name, its, others) for name, its, others in pairs if its != others]


def _package(line: str) -> tuple[str, str]:
    name, _, version = line.partition("==")
    return name, version or "?"


def _environment(one: Provenance | None, other: Provenance | None) -> Iterator[FieldDifference]:
    if one is None or other is None:
        return
    pairs: list[tuple[str, Any, Any]] = [
        ("python", _python(one), _python(other)),
        ("host", one.host, other.host),
        ("driver", one.driver, other.driver),
        ("GPUs", _gpus(one), _gpus(other)),
        *_per_key("", one.environment, other.environment),
        ("names in env", " ".join(one.env_names) or None, " ".join(other.env_names) or None),
    ]
    yield from (FieldDifference(what, a, b) for what, a, b in pairs if a != b)


def _python(found: Provenance) -> str | None:
    if found.python is None:
        return None
    return " ".join(filter(None, (found.python.version, found.python.executable)))


def _gpus(found: Provenance) -> str | None:
    return ", ".join(gpu.name or UNKNOWN for gpu in found.gpus) or None


def _result(layout: Layout, side: Side, unknown: list[str]) -> Mapping[str, Any]:
    data = read_or_why(layout.attempt(side.job, side.attempt).result)
    found = parse_result(data) if isinstance(data, bytes) else None
    if found is None and data is not None:
        why = data if isinstance(data, str) else "not a JSON object"
        unknown.append(f"the result of {side.job} (attempt {side.attempt}): result.json: {why}")
    return found or {}


def _results(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Result]:
    for key in dict.fromkeys([*one, *other]):
        a, b = one.get(key), other.get(key)
        if identity(a) == identity(b):
            continue
        one_number, other_number = _number(a), _number(b)
        if one_number is None or other_number is None:
            yield Result(key, a, b)
        else:
            by = other_number - one_number
            yield Result(key, a, b, by, by / abs(one_number) if one_number else None)


def _number(value: object) -> float | None:
    """A number whose difference to others is one; None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGE
    return float(value) if is_number and isinstance(value, (int, float)) else None


def shown(value: Any) -> str:
    """A value of a row as text; `-` for none."""
    return "-" if value is None else text_of(value)
