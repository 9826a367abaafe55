"""JSON and paths without the imports of `json` and `pathlib`, which cost more than all else that `status` does.

They bring `re`, `enum` and `functools`: 15 ms for every node that is asked, where Python itself takes 8. So what
`status` needs imports neither these nor `typing`, `contextlib`, `signal`; and what only checkers of types read
stands below `TYPE_CHECKING`, set here and there without an import, which they know. `dispatch` does without `json`
and `pathlib`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any


class _Rules:
    """What the scanner of `json` asks a decoder for."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


def _refuse(value: object) -> None:
    raise TypeError(f"{type(value).__name__} is no JSON")


try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _scan: Any = make_scanner(_Rules)  # type: ignore[arg-type]
    _encode: Any = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)
except (ImportError, TypeError):  # another Python, which has them elsewhere, or other ones
    _scan = _encode = None


def loads(data: bytes | str) -> Any:
    """As `json.loads`. Raises ValueError."""
    text = (data if isinstance(data, str) else data.decode(errors="surrogatepass")).strip(" \t\n\r")
    if _scan is not None:
        try:
            value, end = _scan(text, 0)
            if end == len(text):
                return value
        except StopIteration:
            pass
    import json

    return json.loads(text)  # which says what is wrong


def dumps(value: Any) -> bytes:
    """As `json.dumps`, on one line without blanks."""
    if _encode is None:
        import json

        return json.dumps(value, separators=(",", ":")).encode()
    return "".join(_encode(value, 0)).encode()


class Place(str):
    """The part of `pathlib.Path` that it takes to look at jobs, and to receive one."""

    __slots__ = ()

    def __truediv__(self, name: str) -> Place:
        return Place(f"{self}/{name}")

    @property
    def name(self) -> str:
        return self.rpartition("/")[2]

    @property
    def parent(self) -> Place:
        return Place(self.rpartition("/")[0])

    def with_name(self, name: str) -> Place:
        return self.parent / name

    def is_file(self) -> bool:
        return os.path.isfile(self)

    def is_dir(self) -> bool:
        return os.path.isdir(self)

    def exists(self) -> bool:
        return os.path.exists(self)

    def samefile(self, other: str | os.PathLike[str]) -> bool:
        return os.path.samefile(self, other)

    def iterdir(self) -> list[Place]:
        return [self / name for name in os.listdir(self)]

    def lstat(self) -> os.stat_result:
        return os.lstat(self)

    def mkdir(self, mode: int = 0o777, *, parents: bool = False, exist_ok: bool = False) -> None:
        try:
            if parents:
                os.makedirs(self, mode, exist_ok=exist_ok)
            else:
                os.mkdir(self, mode)
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def chmod(self, mode: int) -> None:
        os.chmod(self, mode)

    def rename(self, target: str | os.PathLike[str]) -> None:
        os.rename(self, target)

    def unlink(self, *, missing_ok: bool = False) -> None:
        try:
            os.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        os.rmdir(self)

    def open(self, mode: str = "r", buffering: int = -1, errors: str | None = None) -> IO[Any]:
        return open(self, mode, buffering, errors=errors)

    def read_bytes(self) -> bytes:
        with self.open("rb") as f:
            return bytes(f.read())

    def read_text(self, errors: str = "strict") -> str:
        return self.read_bytes().decode(errors=errors)
