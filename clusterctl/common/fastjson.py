"""JSON and paths without importing `json` and `pathlib`, which would take longer than the rest of `status`.

They import `re`, `enum` and `functools`: 15 ms on every node, where Python itself takes 8. So the modules that `status`
loads import neither these nor `typing`, `contextlib` or `signal`. Imports for type checkers are below `TYPE_CHECKING`,
a constant that each module sets itself to avoid an import. `dispatch` does without `json` and `pathlib`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any


class _Rules:
    """The attributes of a decoder that the scanner of `json` reads."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


def _refuse(value: object) -> None:
    raise TypeError(f"{type(value).__name__} cannot be JSON")


try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _scan: Any = make_scanner(_Rules)  # type: ignore[arg-type]
    _encode: Any = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)
except (ImportError, TypeError):  # another Python, without these functions or with other arguments
    _scan = _encode = None


def loads(data: bytes | str) -> Any:
    """Parse JSON like `json.loads`. Raises ValueError, also if it is nested too deeply.

    For text of this account; `safe_json.parse` is for that of others.
    """
    try:
        return _loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _loads(data: bytes | str) -> Any:
    text = (data if isinstance(data, str) else data.decode(errors="surrogatepass")).strip(" \t\n\r")
    if _scan is not None:
        try:
            value, end = _scan(text, 0)
            if end == len(text):
                return value
        except (StopIteration, SystemError):  # the latter while `json`, whose error it is, has not been imported
            pass
    import json

    return json.loads(text)  # its error describes the problem


def dumps(value: Any) -> bytes:
    """Encode JSON like `json.dumps`, on one line without spaces."""
    if _encode is None:
        import json

        return json.dumps(value, separators=(",", ":")).encode()
    return "".join(_encode(value, 0)).encode()


class LightPath(str):
    """The part of `pathlib.Path` that `status`, `jobs` and a dispatch use.

    With pathlib in its place `status` takes 21.4 ms of CPU instead of 11.7, and a dispatch of a changed workspace 32.8
    instead of 30.4 (least of 25, Python 3.11). An unchanged dispatch needs neither: seal.py alone answers it.
    """

    __slots__ = ()

    def __truediv__(self, name: str) -> LightPath:
        return LightPath(f"{self}/{name}")

    @property
    def name(self) -> str:
        return self.rpartition("/")[2]

    @property
    def parent(self) -> LightPath:
        return LightPath(self.rpartition("/")[0])

    def with_name(self, name: str) -> LightPath:
        return self.parent / name

    def is_file(self) -> bool:
        return os.path.isfile(self)

    def is_dir(self) -> bool:
        return os.path.isdir(self)

    def exists(self) -> bool:
        return os.path.exists(self)

    def samefile(self, other: str | os.PathLike[str]) -> bool:
        return os.path.samefile(self, other)

    def iterdir(self) -> list[LightPath]:
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
