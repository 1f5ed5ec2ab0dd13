"""Frozen dataclasses as JSON and back. Reading is strict: an unknown key is an error by name."""

import dataclasses
import difflib
import importlib
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Config = TypeVar("Config")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Configs that can stand in one place: ours by a short name, users' own by dotted path.

    In JSON such a config has one key more, `kind`: `dense` for a class `DenseConfig` of the
    family, `package.module:Class` for any other.
    """

    what: str
    """The word for errors."""
    members: tuple[type, ...]

    @property
    def names(self) -> dict[str, type]:
        """Each member by its short name."""
        return {short_name(member): member for member in self.members}

    def kind(self, config: object) -> str:
        """What JSON calls the class of a config."""
        mine = type(config)
        if mine in self.members:
            return short_name(mine)
        return f"{mine.__module__}:{mine.__qualname__}"

    def write(self, config: object) -> dict[str, Any]:
        """The config as JSON holds it.

        Raises:
            ValueError: not a dataclass, or one that could not be found again by its name.
        """
        kind = self.kind(config)
        if not dataclasses.is_dataclass(config) or "<locals>" in kind or "__main__:" in kind:
            raise ValueError(
                f"{self.what}: {kind} cannot be saved; its config must be a frozen dataclass at "
                "the top of a module that can be imported"
            )
        return {"kind": kind, **write(config)}

    def read(self, given: Any, where: str = "") -> Any:
        """The config that `write` has written; a foreign class is imported.

        Raises:
            ValueError: an unknown kind or field.
        """
        where = where or self.what
        if not isinstance(given, Mapping) or "kind" not in given:
            raise ValueError(f"{where}: got {given!r}; it must be an object with a kind")
        fields = {name: value for name, value in given.items() if name != "kind"}
        return read(self.find(given["kind"]), fields, where)

    def find(self, kind: str) -> type:
        """The class of that name or dotted path.

        Raises:
            ValueError: neither a name of the family nor a class that can be imported.
        """
        if ":" in kind:
            found = imported(kind, self.what)
            if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
                raise ValueError(f"{self.what}: {kind} is not a dataclass")
            return found
        if kind not in self.names:
            raise ValueError(
                f"{self.what}: got {kind!r}; known are {', '.join(self.names)}"
                f"{nearest(kind, self.names)}, or name your own as package.module:Class"
            )
        return self.names[kind]


def short_name(kind: type) -> str:
    """`FixedExitConfig` -> `fixed_exit`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__.removesuffix("Config")).lower()


def imported(path: str, what: str) -> Any:
    """The object at `package.module:name`.

    Raises:
        ValueError: no such module or name.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{what}: {path}: {error}; its folder must be on PYTHONPATH, or be the working folder"
        ) from None
    except (AttributeError, ValueError):
        raise ValueError(
            f"{what}: {path}: the module {module!r} has no {name!r}; name it as package.module:Name"
        ) from None


def nearest(name: str, known: Any) -> str:
    """`; did you mean X?` where something known is near, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


Families = Mapping[object, Family]
"""By the annotation of the fields that hold one of the family."""


def write(config: Any, families: Families | None = None) -> Any:
    """A config as JSON holds it: objects, lists, numbers, text, null."""
    if dataclasses.is_dataclass(config):
        hints = get_type_hints(type(config))
        made = {}
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            family = (families or {}).get(hints[field.name])
            made[field.name] = family.write(value) if family else write(value, families)
        return made
    if isinstance(config, Mapping):
        return {name: write(value, families) for name, value in config.items()}
    if isinstance(config, (tuple, list)):
        return [write(value, families) for value in config]
    return config


def read(kind: type[Config], given: Any, where: str, families: Families | None = None) -> Config:
    """A config from what JSON holds.

    Args:
        kind: a dataclass.
        given: what `write` has made of it.
        where: the path to it, for errors.
        families: fields that name their class themselves.

    Raises:
        ValueError: an unknown or missing field, or a value of another type, by name.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}: got {given!r}; it must be an object")
    fields = {field.name: field for field in dataclasses.fields(cast(Any, kind)) if field.init}
    for name in given:
        if name not in fields:
            raise ValueError(
                f"{where}: unknown field {name!r}{nearest(name, fields)}; known are "
                f"{', '.join(fields) or 'none'}"
            )
    missing = [name for name, field in fields.items() if name not in given and not _optional(field)]
    if missing:
        raise ValueError(f"{where}: missing {', '.join(missing)}")
    hints = get_type_hints(kind)
    return kind(
        **{
            name: _value(hints[name], value, f"{where}.{name}", families or {})
            for name, value in given.items()
        }
    )


def _optional(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _value(hint: Any, given: Any, where: str, families: Families) -> Any:
    if hint in families:
        return families[hint].read(given, where)
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return read(cast(type, hint), given, where, families)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(hint), given, where, families)
    if origin is Literal:
        if given in get_args(hint) and type(given) in map(type, get_args(hint)):
            return given
        raise ValueError(
            f"{where}: got {given!r}; allowed are {', '.join(map(str, get_args(hint)))}"
        )
    if origin is tuple:
        return _tuple(get_args(hint), given, where, families)
    if origin is not None and isinstance(given, Mapping):
        item = get_args(hint)[1]
        return {name: _value(item, one, f"{where}.{name}", families) for name, one in given.items()}
    return _plain(hint, given, where)


def _one_of(hints: tuple[Any, ...], given: Any, where: str, families: Families) -> Any:
    if given is None and type(None) in hints:
        return None
    errors = []
    for hint in hints:
        if hint is type(None):
            continue
        try:
            return _value(hint, given, where, families)
        except ValueError as error:
            errors.append(str(error))
    raise ValueError(errors[0])


def _tuple(hints: tuple[Any, ...], given: Any, where: str, families: Families) -> Any:
    if not isinstance(given, (list, tuple)):
        raise ValueError(f"{where}: got {given!r}; it must be a list")
    each = [hints[0]] * len(given) if hints[-1] is Ellipsis else list(hints)
    if len(each) != len(given):
        raise ValueError(f"{where}: got {len(given)} values; it must have {len(each)}")
    pairs = enumerate(zip(each, given, strict=True))
    return tuple(_value(hint, one, f"{where}[{index}]", families) for index, (hint, one) in pairs)


_CHECKS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda one: isinstance(one, bool), "true or false"),
    int: (lambda one: isinstance(one, int) and not isinstance(one, bool), "a whole number"),
    float: (lambda one: isinstance(one, (int, float)) and not isinstance(one, bool), "a number"),
    str: (lambda one: isinstance(one, str), "text"),
}


def _plain(hint: Any, given: Any, where: str) -> Any:
    if hint not in _CHECKS:
        raise ValueError(f"{where}: a config cannot hold {hint}; use numbers, text, tuples")
    fits, word = _CHECKS[hint]
    if not fits(given):
        raise ValueError(f"{where}: got {given!r}; it must be {word}")
    return float(given) if hint is float else given
