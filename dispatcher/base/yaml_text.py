"""Reading the YAML that people write: duplicate keys are faults, and words mean what they look like.

PyYAML follows YAML 1.1, where `no` (Norwegian) is false, `1e-4` is text and `1:30` is ninety. Here plain words follow
the core schema of YAML 1.2, as in every newer tool; a date stays text. PyYAML itself is imported on the first use.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

_TAGS: tuple[tuple[str, str, str], ...] = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
)


def load_yaml(text: str) -> Any:
    """What `text` says; ValueError with line and column when it is not YAML or names a key twice."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            # Merged keys (`<<`) may repeat on purpose, so what stands here is looked at before they come in.
            seen: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                    continue
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} stands here a second time", key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

        def construct_int(self, node: yaml.ScalarNode) -> int:
            value = self.construct_scalar(node)
            return int(value, 0) if value.startswith(("0o", "0x")) else int(value)

    # Not the inherited table, in which `no` and `on` are booleans.
    Loader.yaml_implicit_resolvers = {}
    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_int)
    for tag, pattern, first in _TAGS:
        # An empty word has no first character; PyYAML files it under the empty text.
        starts = ["" if letter == "\0" else letter for letter in first]
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), starts)
    return Loader
