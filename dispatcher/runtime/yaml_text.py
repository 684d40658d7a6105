"""YAML of job configurations, read and written so that every value comes back as what it was.

The dialect is that of dispatcher.yaml: plain words mean what YAML 1.2 says (`1e-4` is a number, `no` and a date are
text), and a key that stands twice is a fault. Written files quote whatever any version of YAML would read otherwise,
so that other tools read the same values. Nothing is ever constructed but plain data.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

import yaml

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

_LINE_BREAKS: Final = frozenset("\x85\u2028\u2029\ufeff")


def load(text: str, *, aliases: bool = True) -> Any:
    """What `text` says; ValueError with line and column when it is not YAML or names a key twice.

    Without `aliases` those, and anchors, are a fault too: ten lines of them can stand for billions of values.
    """
    try:
        if not aliases:
            _refuse_aliases(text)
        return yaml.load(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def load_word(text: str) -> Any:
    """The value that `text` has where one value stands: a plain word, quoted text, or a list or mapping in brackets.

    Other than in a file, `: ` and ` #` have no meaning in plain text, so that a URL or a sentence is one value.
    """
    stripped = text.strip()
    if stripped.startswith(("[", "{", '"', "'")):
        return load(stripped)
    loader: Any = _loader()("")
    tag = loader.resolve(yaml.ScalarNode, stripped, (True, False))
    if tag not in (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float")):
        return text
    return loader.construct_object(yaml.ScalarNode(tag, stripped))


def dump(document: Any) -> str:
    """`document` (mappings, lists, text, numbers, true, false, null) as YAML, keys in their order."""
    text: str = yaml.dump(
        document, Dumper=_dumper(), sort_keys=False, allow_unicode=True, default_flow_style=False, width=120
    )
    return text


def _refuse_aliases(text: str) -> None:
    event: Any
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if getattr(event, "anchor", None) is not None:
            raise yaml.composer.ComposerError(None, None, "expected no anchors (&) and aliases (*)", event.start_mark)


@cache
def _loader() -> type[yaml.SafeLoader]:
    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        problem = f"the key {key.value!r} stands here a second time"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

        def construct_int(self, node: yaml.ScalarNode) -> int:
            value = self.construct_scalar(node)
            return int(value, 0) if value.startswith(("0o", "0x")) else int(value)

    # Not the inherited table, in which `no` is false and `1e-4` is text.
    Loader.yaml_implicit_resolvers = {}
    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_int)
    _teach(Loader)
    return Loader


@cache
def _dumper() -> type[yaml.SafeDumper]:
    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            # Two keys with one list are two values to whoever edits the file.
            return True

        def represent_str(self, data: str) -> yaml.ScalarNode:
            # YAML breaks lines at these too, and only escaped do they come back as what they were.
            style = '"' if _LINE_BREAKS.intersection(data) else None
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Dumper.add_representer(str, Dumper.represent_str)
    # The inherited table stays: text that YAML 1.1 takes for something else is quoted as well.
    _teach(Dumper)
    return Dumper


def _teach(kind: Any) -> None:
    for name, pattern, first in _WORDS:
        # An empty word has no first character; PyYAML files it under the empty text.
        starts = ["" if letter == "\0" else letter for letter in first]
        kind.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(rf"(?:{pattern})\Z"), starts)
