"""Values as people write them: YAML (dispatcher.yaml, sweep files, configurations of jobs), and words beside it.

`read_value` reads a word of a command line or a cell of a CSV file, `split_values` a list of them. Their types are not
declared, so what a program would get as something else stays text; `lost_forms` finds in a document what does not.

PyYAML follows YAML 1.1, where `no` is false, `1e-4` is text and `1:30` is ninety. Here unquoted words follow the core
schema of YAML 1.2, as in newer tools; a date stays text, and a duplicate key is an error. Written text is quoted where
any version of YAML would read it as something else, so every reader gets the same values. Only plain data is ever
constructed. PyYAML itself is imported on first use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dispatcher.base.values import MOST_BITS, BadValueError, shown, text_of

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
# Ten lines of aliases to aliases expand to billions of values, and a loop over them never ends.
_MOST_ALIASED: Final = 100_000
_LINE_BREAKS: Final = frozenset("\x85\u2028\u2029\ufeff")

_OTHER_END: Final = {"[": "]", "{": "}", "(": ")", '"': '"', "'": "'"}
# An escaped comma and a glob's set of one letter are no marks: `[(]a` is text that begins with a bracket.
_MARK: Final = re.compile(r"""\\,|\[["'({]\]|[,\[\]{}()"']""")
# Quotation marks count at the beginning of a value, and where a value ends: `it's` and `5"` have none.
_QUOTED: Final = re.compile(r"""("[^"\\]*(?:\\.[^"\\]*)*"|'[^']*(?:''[^']*)*')(?=\s*(?:[,:\]})]|\Z))""", re.DOTALL)
_FRACTION: Final = re.compile(r"[-+]?[0-9.]+[eE]-[0-9]{1,3}", re.ASCII)


class LostForm(NamedTuple):
    """An unquoted word of a document that programs get as another one. `path` leads to it: keys and places in lists."""

    path: tuple[str | int, ...]
    line: int
    written: str
    value: Any


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


def split_values(text: str) -> list[str]:
    r"""The values in `text`: commas separate, but for those in brackets or quotes; `\,` is a comma of a value.

    Brackets and quotes that are not closed are letters like others.
    """
    found, value, begun = list[str](), "", 0
    for place in _marks(text)[0]:
        value += text[begun:place]
        if text[place] == ",":
            found.append(value)
            value, begun = "", place + 1
        else:
            value, begun = value + ",", place + 2
    return [*found, value + text[begun:]]


def last_value(text: str) -> str:
    """The last of the values in `text`, as it is written."""
    separators = [place for place in _marks(text)[0] if text[place] == ","]
    return text[separators[-1] + 1 :] if separators else text


def missing_end(value: str) -> str:
    """What a value lacks that begins with a bracket or a quotation mark, such as `its ]`; empty where nothing."""
    value = value.strip()
    if 0 not in _marks(value)[1]:
        return ""
    end = _OTHER_END[value[0]]
    return f"its {'other ' if end == value[0] else ''}{end}"


def _marks(text: str) -> tuple[list[int], set[int]]:
    """The places of the commas that separate, and of escaped ones; and those of what is opened and not closed."""
    commas: list[int] = []
    escapes: list[int] = []
    opened: list[int] = []
    unclosed: set[int] = set()
    left = dict.fromkeys(")]}", 0)
    place = 0
    while mark := _MARK.search(text, place):
        start, place, letter = mark.start(), mark.end(), mark[0]
        if letter == "\\,":
            escapes.append(start)
        elif letter == ",":
            commas.append(start)
        elif letter in ("[", "{", "("):
            opened.append(start)
            left[_OTHER_END[letter]] += 1
        elif left.get(letter):
            closes = ""
            while closes != letter:
                last = opened.pop()
                closes = _OTHER_END[text[last]]
                left[closes] -= 1
                if closes != letter:
                    unclosed.add(last)
            while commas and commas[-1] > last:
                commas.pop()
        elif letter in ('"', "'") and _begins_value(text, start):
            quoted = _QUOTED.match(text, start)
            if quoted is None:
                unclosed.add(start)
            else:
                place = quoted.end()
    return sorted(commas + escapes), unclosed.union(opened)


def _begins_value(text: str, place: int) -> bool:
    while place > 0 and text[place - 1] in " \t":
        place -= 1
    return place == 0 or text[place - 1] in ",:[{("


def read_value(text: str) -> Any:
    """The value of a word on a command line or in a cell, which has no declared type.

    It is a number, true, false, null, a list or a mapping as JSON has it, if a program gets what was written. What it
    would get as something else (`2.10`, `007`, `1e3`, `True`, `[a]`) is text, and so is anything in quotes. Blanks
    around it do not count.
    """
    text = text.strip()
    if text.startswith("'") and _QUOTED.fullmatch(text):
        return text[1:-1].replace("''", "'")
    try:
        return _json_decoder().decode(text)
    except (ValueError, RecursionError):
        return text


def _is_kept(written: str, value: Any) -> bool:
    """Whether programs get a value as it was written; `1e-4` is a number that all of them read alike."""
    if text_of(value) == written:
        return True
    if type(value) is not float or not _FRACTION.fullmatch(written):
        return False
    from decimal import Decimal

    return Decimal(written) == Decimal(repr(value))


@cache
def _json_decoder() -> json.JSONDecoder:
    def kept(kind: type[int | float]) -> Any:
        def parse(written: str) -> int | float:
            value = kind(written)
            if not _is_kept(written, value) or abs(value) > MOST_BITS:
                raise ValueError(written)
            return value

        return parse

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("duplicate key")
        return dict(pairs)

    def refused(word: str) -> None:
        raise ValueError(word)

    return json.JSONDecoder(
        parse_float=kept(float), parse_int=kept(int), parse_constant=refused, object_pairs_hook=unique
    )


def lost_forms(text: str) -> Iterator[LostForm]:
    """The unquoted words of a valid document that programs get as other ones: `2.10` is the number 2.1."""
    loader: Any = _loader()(text)
    node = loader.get_single_node()
    yield from () if node is None else _lost_forms(loader, node, ())


def _lost_forms(loader: Any, node: Any, path: tuple[str | int, ...]) -> Iterator[LostForm]:
    import yaml

    if isinstance(node, yaml.SequenceNode):
        for place, inner in enumerate(node.value):
            yield from _lost_forms(loader, inner, (*path, place))
    elif isinstance(node, yaml.MappingNode):
        for key, inner in node.value:
            yield from _lost_forms(loader, inner, (*path, str(key.value)))
    elif node.style is None and node.tag in _SCALAR_TAGS:
        value = loader.construct_object(node)
        if value is not None and not _is_kept(node.value, value):
            yield LostForm(path, node.start_mark.line + 1, node.value, value)


def load_scalar(text: str) -> Any:
    """The YAML value of `text` as given on a command line, for a key whose type is declared, which must be met.

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


def with_number(text: str, path: tuple[str, ...], number: int) -> str:
    """The document with another number at `path`; all else stays, comments too. ValueError where that cannot be so."""
    import yaml

    wanted: Any = load(text)
    wanted = {} if wanted is None else wanted
    here = wanted
    for key in path[:-1]:
        if not isinstance(here, dict) or not isinstance(here.get(key) or {}, dict):
            raise BadValueError("holds other things than keys and values")
        here[key] = here.get(key) or {}
        here = here[key]
    here[path[-1]] = number
    changed = _inserted(text, yaml.compose(text, Loader=_loader()), path, str(number))
    try:
        if load(changed) == wanted:
            return changed
    except ValueError:
        pass
    raise ValueError("is written in a way that a program cannot change safely")


def _inserted(text: str, node: Any, path: tuple[str, ...], value: str) -> str:
    """`text` with `value` at `path` below `node`, a mapping or nothing."""
    import yaml

    place = 0
    while isinstance(node, yaml.MappingNode):
        found = next((pair for pair in node.value if pair[0].value == path[place]), None)
        if found is None:
            break
        key, node = found
        place += 1
        if place == len(path):
            return text[: node.start_mark.index] + value + text[node.end_mark.index :]
        if isinstance(node, yaml.ScalarNode):
            # A key without a value.
            end = node.end_mark.index if node.value else text.index(":", key.end_mark.index) + 1
            return f"{text[:end]} {_flow(path[place:], value)}{text[end:]}"
    if not isinstance(node, yaml.MappingNode):
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{path[0]}: {_flow(path[1:], value)}\n"
    new = f"{path[place]}: {_flow(path[place + 1 :], value)}"
    start = node.start_mark.index
    if node.flow_style:
        return f"{text[: start + 1]}{new}{', ' if node.value else ''}{text[start + 1 :]}"
    return f"{text[:start]}{new}\n{' ' * node.start_mark.column}{text[start:]}"


def _flow(path: tuple[str, ...], value: str) -> str:
    return f"{{{path[0]}: {_flow(path[1:], value)}}}" if path else value


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
