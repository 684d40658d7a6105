"""What a commit has for a workspace: its files in order, the submodules among them, and a key for all of it."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base.messages import first_names
from dispatcher.errors import CodeError
from dispatcher.outlets.code.archive import ArchiveWriter, is_executable
from dispatcher.outlets.code.git import Git

_SUBMODULE: Final = b"160000"
_ATTRIBUTES: Final = ".gitattributes"
_LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/v1\n"
# A pointer has three short lines.
_LONGEST_POINTER: Final = 1024
# Part of every key: an archive of another form is not taken for the same.
_FORM: Final = b"1\n"


class Content(msgspec.Struct, frozen=True):
    """What a commit has below a directory. `key` is equal for equal content.

    `submodules` are their commits by path. `left_out` are the files and directories that are not archived.
    """

    git: Git
    commit: str
    key: str
    submodules: Mapping[str, str]
    left_out: Collection[str]


def content_of(git: Git, commit: str, left_out: Collection[str] = ()) -> Content:
    """What `commit` has below the directory of `git`; raises CodeError when that is nothing."""
    listed = [line for line in git.output("ls-tree", "-r", "-z", commit).split(b"\0") if line]
    kept = [line for line in listed if not _is_within(_path(line), left_out)]
    if not kept:
        raise CodeError(
            f"{git.directory}: commit {commit[:12]} has no file of this directory: `git add` and commit the code, "
            "or set `code: none` in dispatcher.yaml if the hosts have it already"
        )
    found = {_path(line): line.split()[2].decode() for line in kept if line.startswith(_SUBMODULE)}
    return Content(git, commit, _key(git, commit, kept), found, left_out)


def add_content(archive: ArchiveWriter, content: Content, prefix: str = "") -> None:
    """Add the files of a commit to an archive, below `prefix`; raises CodeError for what cannot be archived."""
    pointers: list[str] = []
    for member, tar in _members(content):
        name = f"{prefix}{member.name}"
        if member.isdir() and member.name in content.submodules:
            add_content(archive, _submodule(content, member.name), f"{name}/")
        elif member.issym():
            archive.add_link(name, member.linkname)
        elif member.isfile():
            file = tar.extractfile(member)
            assert file is not None
            if member.size <= _LONGEST_POINTER:
                file = io.BytesIO(file.read())
                if file.getvalue().startswith(_LFS_POINTER):
                    pointers.append(name)
            archive.add_file(name, file, member.size, is_executable=is_executable(member.mode))
    if pointers:
        raise CodeError(
            f"{content.git.directory}: only the Git LFS pointer is there instead of the file: "
            f"{first_names(pointers)}. Install git-lfs and run `git lfs pull`, or mark what the jobs do not need "
            "with `export-ignore` in .gitattributes"
        )


def _members(content: Content) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """The members of git's own archive, in its order, without what is left out."""
    prefix = _prefix(content.git)
    # From the top, so that the attributes of the directories above count, such as those of Git LFS.
    top = Git(content.git.directory / content.git.text("rev-parse", "--show-cdup"), {"GIT_LITERAL_PATHSPECS": "1"})
    words = ["archive", "--format=tar", content.commit, *(["--", prefix] if prefix else [])]
    with (
        top.stream(*words) as stream,
        tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape") as tar,
    ):
        for member in tar:
            name = f"{member.name}/" if member.isdir() else member.name
            if len(name) > len(prefix) and name.startswith(prefix):
                member.name = name.removeprefix(prefix).rstrip("/")
                if not _is_within(member.name, content.left_out):
                    yield member, tar


def _submodule(content: Content, path: str) -> Content:
    commit = content.submodules[path]
    git = Git(content.git.directory / path)
    # Without a repository of its own, git would answer for the one around it.
    if not os.path.lexists(git.directory / ".git") or not git.succeeds("cat-file", "-e", f"{commit}^{{commit}}"):
        raise CodeError(
            f"{git.directory}: the submodule is not checked out at commit {commit[:12]}: "
            "`git submodule update --init`, or mark it with `export-ignore` in .gitattributes"
        )
    return content_of(git, commit)


def _key(git: Git, commit: str, listed: Sequence[bytes]) -> str:
    """A key for listed files, and for what else decides how git archives them."""
    key = hashlib.sha256(_FORM)
    for line in listed:
        key.update(line + b"\0")
    attributes = [line for line in listed if os.path.basename(_path(line)) == _ATTRIBUTES]
    above = _attributes_above(git, commit)
    local = _read(Path(git.text("rev-parse", "--git-path", "info/attributes")), git.directory)
    key.update(above + b"\0" + local)
    blobs = [git.output("cat-file", "blob", line.split()[2].decode()) for line in attributes]
    if any(b"export-subst" in text for text in (above, local, *blobs)):
        key.update(commit.encode())
    return key.hexdigest()


def _attributes_above(git: Git, commit: str) -> bytes:
    """The attributes of the directories above, up to the top of the repository."""
    directory = _prefix(git).rstrip("/")
    found = b""
    while directory:
        directory = os.path.dirname(directory)
        name = os.path.join(directory, _ATTRIBUTES)
        if git.succeeds("cat-file", "-e", f"{commit}:{name}"):
            found += git.output("cat-file", "blob", f"{commit}:{name}")
    return found


def _prefix(git: Git) -> str:
    """The path of the directory below the top of its repository, with a slash at its end; empty for the top."""
    return git.text("rev-parse", "--show-prefix")


def _read(path: Path, relative_to: Path) -> bytes:
    try:
        return (relative_to / path).read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise CodeError(f"{path}: cannot be read: {error.strerror}") from error


def _path(line: bytes) -> str:
    """The path in a line of `git ls-tree`."""
    return line.partition(b"\t")[2].decode("utf-8", "surrogateescape")


def _is_within(path: str, names: Collection[str]) -> bool:
    return any(path == name or path.startswith(f"{name}/") for name in names)
