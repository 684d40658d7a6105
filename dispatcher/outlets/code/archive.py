"""The archive of a snapshot of code: its bytes depend on nothing but the files in it."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import IO, Any, Final

# The mode of a file, as git knows them.
_PLAIN: Final = 0o644
_EXECUTABLE: Final = 0o755
_PART: Final = 1 << 20


class ArchiveWriter:
    """Writes a tar archive to `file`. The caller adds files in a reproducible order; `close` returns the digest."""

    def __init__(self, file: IO[bytes], time_s: int) -> None:
        self._file = file
        self._time_s = time_s
        self._digest = hashlib.sha256()

    def add_file(self, name: str, content: IO[bytes], size: int, *, is_executable: bool) -> None:
        """Add a file with the first `size` bytes of `content`; raises EOFError when there are fewer."""
        self._add_header(name, mode=_EXECUTABLE if is_executable else _PLAIN, size=size)
        left = size
        while left:
            part = content.read(min(left, _PART))
            if not part:
                raise EOFError(f"{name}: {left} of {size} bytes are missing")
            self._write(part)
            left -= len(part)
        self._write(bytes(-size % tarfile.BLOCKSIZE))

    def add_bytes(self, name: str, content: bytes, *, is_executable: bool) -> None:
        """Add a file with this content."""
        self.add_file(name, io.BytesIO(content), len(content), is_executable=is_executable)

    def add_link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        self._add_header(name, mode=0o777, type=tarfile.SYMTYPE, linkname=target)

    def close(self) -> str:
        """Complete the archive; its digest."""
        # Two empty blocks end an archive.
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        return self._digest.hexdigest()

    def _add_header(self, name: str, **fields: Any) -> None:
        member = tarfile.TarInfo(name)
        member.mtime = self._time_s
        member.uname = member.gname = "root"
        for field, value in fields.items():
            setattr(member, field, value)
        # GNU's format takes any bytes as a name, of any length, and every tar reads it.
        self._write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)


def is_executable(mode: int) -> bool:
    """Whether the owner may execute a file of this mode, which is all that git keeps of it."""
    return bool(mode & 0o100)
