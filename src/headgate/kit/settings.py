"""Settings: one frozen struct per feature, each value with its origin.

A value comes from a flag, else from the environment, else from `headgate.toml`, else from the struct's default. An unknown
setting is an error: a misspelt limit must not look like a limit. This module does not read the process's environment; the
command line passes it in.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

import msgspec

from headgate.kit.problems import HeadgateError
from headgate.kit.validation import requirement

FILE_NAME = "headgate.toml"
DEFAULT = "default"
MASK = "••••••"
_SECRET_FILE = "_FILE"
_PASSWORD = re.compile(r"(://[^/\s:@]*:)([^@/\s]+)@")


class SettingInvalid(HeadgateError):
    """A setting has a value that Headgate cannot use."""

    code = "setting_invalid"


class SettingUnknown(HeadgateError):
    """There is no such setting."""

    code = "setting_unknown"


class Doc(msgspec.Struct, frozen=True):
    """The description of a setting; `env` is a second environment variable, `secret` masks the value."""

    text: str
    env: str | None = None
    secret: bool = False


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _SettingsMeta(msgspec.StructMeta):
    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, object], section: str = "") -> _SettingsMeta:
        made = super().__new__(cls, name, bases, body, frozen=True, kw_only=True)
        if section:
            made.section = section  # type: ignore[attr-defined]  # a ClassVar of Settings, which does not exist yet
        return made

    def __init__(self, name: str, bases: tuple[type, ...], body: dict[str, object], section: str = "") -> None:
        super().__init__(name, bases, body)


class Settings(msgspec.Struct, metaclass=_SettingsMeta):
    """The settings of one feature: `class StoreSettings(Settings, section="store")`."""

    section: ClassVar[str] = ""


S = TypeVar("S", bound=Settings)


class Flag(msgspec.Struct, frozen=True):
    """A value given on the command line, with the flag's own spelling."""

    spelling: str
    value: object


class SettingValue(msgspec.Struct, frozen=True):
    """One setting in force, for display; `shown` is masked if it is secret."""

    name: str
    shown: str
    origin: str
    environment: tuple[str, ...]
    doc: str
    secret: bool


class _Field(msgspec.Struct, frozen=True):
    section: str
    name: str
    type: Any
    doc: Doc

    @property
    def dotted(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def environment(self) -> tuple[str, ...]:
        regular = f"HEADGATE_{self.section}_{self.name}".upper()
        return (self.doc.env, regular) if self.doc.env and self.doc.env != regular else (regular,)


class Configuration:
    """All settings in force: `configuration[StoreSettings]` is the struct, `values()` tells where each came from."""

    def __init__(self, structs: Mapping[type[Settings], Settings], origins: Mapping[str, str]) -> None:
        self._structs = structs
        self._origins = origins

    def __getitem__(self, kind: type[S]) -> S:
        found = self._structs[kind]
        assert isinstance(found, kind)
        return found

    def origin(self, dotted: str) -> str:
        """Say where the value of `section.name` came from."""
        return self._origins[dotted]

    def values(self) -> Iterator[SettingValue]:
        """Give every setting in force, in the order of the structs."""
        for kind, struct in self._structs.items():
            for field in _fields(kind):
                value = getattr(struct, field.name)
                yield SettingValue(
                    name=field.dotted,
                    shown=self._masked(field, value) if field.doc.secret else _shown(value),
                    origin=self._origins[field.dotted],
                    environment=field.environment,
                    doc=field.doc.text,
                    secret=field.doc.secret,
                )

    def secrets(self) -> Iterator[str]:
        """Give the secret values, so that logs can mask them; of a URL, its password."""
        for kind, struct in self._structs.items():
            for field in _fields(kind):
                value = getattr(struct, field.name)
                if field.doc.secret and value and self._origins[field.dotted] != DEFAULT:
                    found = _PASSWORD.search(value)
                    if found or "://" not in value:
                        yield found[2] if found else value

    def _masked(self, field: _Field, value: str) -> str:
        if not value or self._origins[field.dotted] == DEFAULT:
            return value
        return _PASSWORD.sub(rf"\1{MASK}@", value) if "://" in value else MASK


def spellings(kind: type[Settings], name: str) -> tuple[str, ...]:
    """Give every environment variable of this setting, the regular one last."""
    field = next(field for field in _fields(kind) if field.name == name)
    files = tuple(spelling + _SECRET_FILE for spelling in field.environment) if field.doc.secret else ()
    return (*files, *field.environment)


def configure(
    kinds: Sequence[type[Settings]],
    *,
    flags: Mapping[str, Flag] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Configuration:
    """Build all structs from flags (by dotted name), environment and file, which must exist if given."""
    flags, environment = flags or {}, environment or {}
    tables = _tables(file) if file else {}
    fields = {kind: _fields(kind) for kind in kinds}
    every = [field for kind in kinds for field in fields[kind]]
    _refuse_unknown_environment(every, environment)
    _refuse_unknown_tables(every, tables, file)
    structs: dict[type[Settings], Settings] = {}
    origins: dict[str, str] = {}
    for kind in kinds:
        given: dict[str, object] = {}
        for field in fields[kind]:
            found = (
                _from_flags(field, flags) or _from_environment(field, environment) or _from_tables(field, tables, file)
            )
            origins[field.dotted] = found[1] if found else DEFAULT
            if found:
                given[field.name] = found[0]
        structs[kind] = kind(**given)
    return Configuration(structs, origins)


def _fields(kind: type[Settings]) -> list[_Field]:
    hints = get_type_hints(kind, include_extras=True)
    made = []
    for name in kind.__struct_fields__:
        doc = next((note for note in getattr(hints[name], "__metadata__", ()) if isinstance(note, Doc)), None)
        if doc is None:
            raise TypeError(f"{kind.__name__}.{name} has no Doc")
        made.append(_Field(kind.section, name, hints[name], doc))
    return made


def _from_flags(field: _Field, flags: Mapping[str, Flag]) -> tuple[object, str] | None:
    flag = flags.get(field.dotted)
    if flag is None or flag.value is None:
        return None
    value = _from_text(field, flag.value, flag.spelling) if isinstance(flag.value, str) else flag.value
    return _converted(field, value, flag.spelling, strict=True), flag.spelling


def _from_environment(field: _Field, environment: Mapping[str, str]) -> tuple[object, str] | None:
    spellings = field.environment
    if field.doc.secret:
        spellings += tuple(spelling + _SECRET_FILE for spelling in field.environment)
    said = [spelling for spelling in spellings if spelling in environment]
    if len(said) > 1:
        raise SettingInvalid(f"{said[0]} and {said[1]} both give {field.dotted}; keep one of them.")
    if not said:
        return None
    origin, text = said[0], environment[said[0]]
    if field.doc.secret and origin.endswith(_SECRET_FILE):
        path, origin = text, f"{origin} ({text})"
        try:
            text = Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise SettingInvalid(f"{field.dotted} could not be read from {origin}: {reason}.") from error
    return _from_text(field, text, origin), origin


def _from_tables(field: _Field, tables: Mapping[str, Any], file: Path | None) -> tuple[object, str] | None:
    table = tables.get(field.section, {})
    if field.name not in table:
        return None
    origin = f"{file} [{field.section}]"
    return _converted(field, table[field.name], origin, strict=True), origin


def _from_text(field: _Field, text: str, origin: str) -> object:
    """Parse a value given as text: lists are split at commas, other compound values are JSON."""
    inner = _bare(field.type)
    if get_origin(inner) in (list, tuple, set, frozenset):
        if not text.lstrip().startswith("["):
            parts = [part.strip() for part in text.split(",") if part.strip()]
            return _converted(field, parts, origin, strict=False)
    elif not (get_origin(inner) is dict or (isinstance(inner, type) and issubclass(inner, msgspec.Struct))):
        return _converted(field, text, origin, strict=False)
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise SettingInvalid(f"{field.dotted} from {origin} must be JSON: {error}.") from error
    return _converted(field, value, origin, strict=True)


def _converted(field: _Field, value: object, origin: str, *, strict: bool) -> object:
    if _bare(field.type) is Path and isinstance(value, str):
        return Path(value)
    try:
        made: object = msgspec.convert(value, field.type, strict=strict)
    except msgspec.ValidationError as error:
        if field.doc.secret:
            raise SettingInvalid(f"{field.dotted} from {origin} is not usable.") from None
        rule = requirement(error, field.type)
        raise SettingInvalid(f"{field.dotted} from {origin} is {value!r}, but it {rule}.") from error
    return made


def _bare(annotation: Any) -> Any:
    """Remove Annotated and Optional."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [part for part in get_args(annotation) if part is not type(None)]
        if len(rest) == 1:
            return _bare(rest[0])
    return annotation


def _tables(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise SettingInvalid(f"{file} could not be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"{file} is not valid TOML: {_lowered(str(error))}.") from error


def _refuse_unknown_environment(fields: Sequence[_Field], environment: Mapping[str, str]) -> None:
    known = {spelling for field in fields for spelling in field.environment}
    known |= {spelling + _SECRET_FILE for field in fields if field.doc.secret for spelling in field.environment}
    for spelling in environment:
        if spelling.startswith("HEADGATE_") and spelling not in known:
            raise SettingUnknown(f"{spelling} in the environment is not a setting.{_nearest(spelling, known)}")


def _refuse_unknown_tables(fields: Sequence[_Field], tables: Mapping[str, Any], file: Path | None) -> None:
    sections = {field.section for field in fields}
    known = {field.dotted for field in fields}
    for section, table in tables.items():
        if section not in sections:
            raise SettingUnknown(f"[{section}] in {file} is not a section of settings.{_nearest(section, sections)}")
        if not isinstance(table, dict):
            raise SettingInvalid(f"{section} in {file} must be a table: [{section}].")
        for name in table:
            if f"{section}.{name}" not in known:
                raise SettingUnknown(
                    f"{section}.{name} in {file} is not a setting.{_nearest(f'{section}.{name}', known)}"
                )


def _nearest(word: str, known: set[str]) -> str:
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return f" Did you mean {near[0]}?" if near else " `headgate settings` lists them all."


def _lowered(text: str) -> str:
    text = text.rstrip(".")
    return text[:1].lower() + text[1:]


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(_shown(part) for part in value)
    if isinstance(value, dict | msgspec.Struct):
        return msgspec.json.encode(value).decode()
    return "" if value is None else str(value)
