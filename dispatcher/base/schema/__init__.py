"""One schema layer: a setting is one annotated field of a struct, and everything else is derived from it.

    class Container(msgspec.Struct, frozen=True, kw_only=True):
        EXAMPLE: ClassVar[str] = "{runtime: apptainer, image: docker://nvcr.io/nvidia/jax:24.04-py3}"

        runtime: Annotated[Runtime, Key("what runs the image")]
        image: Annotated[Word, Key("the image, as the runtime takes it")]
        timeout_s: Annotated[Duration | None, Key("how long the start may take", default="for ever")] = None

Key says how the field is written in a file: its name (`timeout`: the field without its unit), what it means, what
applies where it is missing, and whether it is secret or leaves the digest of an entry as it is. The type says which
values there are: bool, int, float, str, Path, Literal, an enum, unions, lists, mappings and structs of these, or
`Annotated[float, Value(parse_duration, ...)]` for text with a form of its own (kinds.py has those that files share).
A field without a default is required; a key whose value is null is missing. What two keys must not be together is
checked in the struct's `__post_init__`, which raises BadValueError.

faults         a fault and its place; a value with several of them
types          Value and Key; types in words
reading        the reader of any type, the keys of a struct, and the one reader of documents: all faults at once, each
               unknown key with the nearest known one
kinds          values that entries, methods and hosts share: durations, amounts of memory, commands ...
json_schema    the JSON schema of a struct, for editors (schemas.py has one for each kind of file)

To add a setting, add its field and the code that uses it. What pages say of it is written by
`DISPATCHER_WRITE_GOLDEN=1 pytest tests/test_tables.py`; the schemas follow. A subclass may give a field another type or
default and keep its Key. The dataclasses of jobs (runtime/places.py) have places instead of Keys, and the same readers.
"""
