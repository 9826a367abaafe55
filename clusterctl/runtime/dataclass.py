"""`dataclass`, `field` and `replace` as in the standard library, with classes that are quicker to make.

A process of a run defines fifty. The standard library compiles up to six methods of each, in a quarter of a
millisecond. Here only `__init__` is compiled, and the others are shared. Type checkers see the standard library's.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace
else:

    def dataclass(cls=None, *, init=True, repr=True, frozen=False):
        """Complete a class. Fields are inherited, and methods of its own are kept."""
        if cls is None:
            return lambda cls: dataclass(cls, init=init, repr=repr, frozen=frozen)
        cls._fields = fields = _fields_of(cls)
        methods = {"__eq__": _is_equal, "__hash__": _hash if frozen else None}
        if repr:
            methods["__repr__"] = _describe
        if init:
            methods["__init__"] = _compile_init(cls, fields, frozen)
        if frozen:
            methods["__setattr__"] = methods["__delattr__"] = _refuse
        for name in methods.keys() - vars(cls).keys():
            setattr(cls, name, methods[name])
        return cls

    def field(*, default_factory):
        """Let `default_factory()` make the default of each value."""
        return _Factory(default_factory)

    def replace(value, /, **changes):
        """Return a copy in which these fields have other values."""
        return type(value)(**{**{name: getattr(value, name) for name in value._fields}, **changes})

    class _Factory:
        def __init__(self, make):
            self.make = make

    _REQUIRED = object()

    def _fields_of(cls):
        """Return the declared type and the default of each field."""
        kinds = getattr(cls, "__annotations__", {})
        fields = {name: pair for base in cls.__mro__[:0:-1] for name, pair in vars(base).get("_fields", {}).items()}
        if any(kinds is getattr(base, "__annotations__", None) for base in cls.__mro__[1:]):
            return fields  # in Python 3.9, those of a base
        own = [name for name, kind in kinds.items() if not kind.startswith("ClassVar")]
        fields.update({name: (kinds[name], vars(cls).get(name, _REQUIRED)) for name in own})
        for name in own:
            if isinstance(fields[name][1], _Factory):
                delattr(cls, name)
        return fields

    def _compile_init(cls, fields, frozen):
        assign = "_put(self, {0!r}, {1})" if frozen else "self.{0} = {1}"
        parameters, body, bound = ["self"], [], {"_put": object.__setattr__, "_missing": _REQUIRED}
        for name, (_, default) in fields.items():
            is_made = isinstance(default, _Factory)
            bound[f"_default_{name}"] = default.make if is_made else default
            chosen = "_missing" if is_made else f"_default_{name}"
            parameters.append(name if default is _REQUIRED else f"{name}={chosen}")
            body.append(
                assign.format(name, f"_default_{name}() if {name} is _missing else {name}" if is_made else name)
            )
        if hasattr(cls, "__post_init__"):
            body.append("self.__post_init__()")
        lines = [f"def __init__({', '.join(parameters)}):", *(f"    {line}" for line in body or ["pass"])]
        source = "\n    ".join([f"def bind({', '.join(bound)}):", *lines, "return __init__"])
        names = {}
        exec(source, vars(sys.modules[cls.__module__]), names)
        init = names["bind"](**bound)
        init.__qualname__ = f"{cls.__qualname__}.__init__"
        init.__annotations__ = {name: kind for name, (kind, _) in fields.items()}
        return init

    def _values(value):
        return tuple([getattr(value, name) for name in value._fields])

    def _is_equal(self, other):
        return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _hash(self):
        return hash(_values(self))

    def _describe(self):
        return f"{type(self).__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in self._fields])})"

    def _refuse(self, name, *_):
        raise AttributeError(f"cannot change {name!r} of {type(self).__name__}, which is frozen")


__all__ = ["dataclass", "field", "replace"]
