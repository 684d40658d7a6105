"""YAML that people write and read: dispatcher.yaml, sweep files, the configurations of jobs.

PyYAML follows YAML 1.1, where `no` is false, `1e-4` is text and `1:30` is ninety. Here unquoted words follow the core
schema of YAML 1.2, as in newer tools; a date stays text, and a duplicate key is an error. Written text is quoted where
any version of YAML would read it as something else, so every reader gets the same values. Only plain data is ever
constructed. PyYAML itself is imported on first use.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dispatcher.base.values import BadValueError, shown

if TYPE_CHECKING:
    import yaml

_TAG: Final = "tag:yaml.org,2002:"
_SCALAR_TAGS: Final = tuple(_TAG + name for name in ("null", "bool", "int", "float"))
# The type, the words that have it, and the characters with which they begin.
_WORDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("merge", r"<<", "<"),
)
# Ten lines of aliases to aliases expand to billions of values, and whoever goes through them never ends.
_MOST_ALIASED: Final = 100_000
_LINE_BREAKS: Final = frozenset("\x85\u2028\u2029\ufeff")


def load(text: str, *, aliases: bool = True) -> Any:
    """The value of the document `text`; ValueError with line and column for invalid YAML or a duplicate key.

    So are aliases that expand to too many values, or to themselves; without `aliases`, all anchors and aliases.
    """
    import yaml

    try:
        if not aliases:
            _refuse_anchors(text)
        return yaml.load(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def load_mapping(document: str | bytes, expected: str, *, aliases: bool = True) -> dict[Any, Any]:
    """The mapping in a document, empty when the document is; ValueError says what is wrong and what was `expected`."""
    if isinstance(document, bytes):
        try:
            document = document.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            byte = document[error.start]
            raise ValueError(f"the byte {byte:#04x} is not UTF-8: save the file as UTF-8") from None
    found = load(document, aliases=aliases)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadValueError(f"holds {shown(found)}: expected {expected}")
    return found


def load_scalar(text: str) -> Any:
    """The value of `text` as given on a command line: a word, quoted text, or a list or mapping in brackets.

    Unlike in a document, `: ` and ` #` have no meaning in unquoted text, so a URL or a sentence is one value.
    """
    import yaml

    stripped = text.strip()
    if stripped.startswith(("[", "{", '"', "'")):
        return load(stripped)
    loader: Any = _loader()("")
    tag = loader.resolve(yaml.ScalarNode, stripped, (True, False))
    if tag not in _SCALAR_TAGS:
        return text
    return loader.construct_object(yaml.ScalarNode(tag, stripped))


def dump(document: Any) -> str:
    """`document` (mappings, lists, text, numbers, true, false, null) as YAML, with its keys in their order."""
    import yaml

    text: str = yaml.dump(
        document, Dumper=_dumper(), sort_keys=False, allow_unicode=True, default_flow_style=False, width=120
    )
    return text


def _refuse_anchors(text: str) -> None:
    import yaml

    event: Any
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if getattr(event, "anchor", None) is not None:
            raise yaml.composer.ComposerError(None, None, "expected no anchors (&) and aliases (*)", event.start_mark)


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self._expanded = 0
            self._sizes: dict[yaml.Node, int] = {}

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call] # PyYAML's stubs lack its types
            node = super().compose_node(parent, index)
            if isinstance(event, yaml.AliasEvent) and node is not None:
                self._count(node, f"the alias *{event.anchor}", event.start_mark)
            return node

        def _count(self, node: yaml.Node, alias: str, mark: Any) -> None:
            if node.end_mark is None:
                raise yaml.composer.ComposerError(None, None, f"{alias} refers to a value that contains it", mark)
            self._expanded += self._size(node)
            if self._expanded > _MOST_ALIASED:
                problem = f"with {alias}, the aliases expand to more than {_MOST_ALIASED} values: use fewer of them"
                raise yaml.composer.ComposerError(None, None, problem, mark)

        def _size(self, node: yaml.Node) -> int:
            """How many nodes it has, with all that aliases in it expand to."""
            if isinstance(node, yaml.ScalarNode):
                return 1
            if node not in self._sizes:
                parts = node.value if isinstance(node, yaml.SequenceNode) else [n for pair in node.value for n in pair]
                self._sizes[node] = 1 + sum(map(self._size, parts))
            return self._sizes[node]

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            # Before merged keys (`<<`) are added: those may repeat on purpose.
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                    if key.value in seen:
                        problem = f"duplicate key {key.value!r}"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

        def construct_int(self, node: yaml.ScalarNode) -> int:
            value = self.construct_scalar(node)
            return int(value, 0) if value.startswith(("0o", "0x")) else int(value)

    # Replaces the inherited table, in which `no` is false and `1e-4` is text.
    Loader.yaml_implicit_resolvers = {}
    Loader.add_constructor(f"{_TAG}int", Loader.construct_int)
    _add_resolvers(Loader)
    return Loader


@cache
def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            # In an edited file, two keys that share a list must still be two values.
            return True

        def represent_str(self, data: str) -> yaml.ScalarNode:
            # YAML treats these as line breaks; only escaped do they survive.
            style = '"' if _LINE_BREAKS.intersection(data) else None
            return self.represent_scalar(f"{_TAG}str", data, style=style)

    Dumper.add_representer(str, Dumper.represent_str)
    # Adds to the inherited table: text that YAML 1.1 reads as another type is quoted as well.
    _add_resolvers(Dumper)
    return Dumper


def _add_resolvers(kind: Any) -> None:
    for name, pattern, first in _WORDS:
        # PyYAML files the empty word under the empty text.
        starts = ["" if letter == "\0" else letter for letter in first]
        kind.add_implicit_resolver(f"{_TAG}{name}", re.compile(rf"(?:{pattern})\Z"), starts)
