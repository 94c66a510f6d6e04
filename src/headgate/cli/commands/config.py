"""`headgate config …`: read, publish, compare and roll back values; as files for git, or in an editor."""

from __future__ import annotations

import asyncio
import difflib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter

from headgate.cli import output
from headgate.cli.error_advice import instead
from headgate.cli.options import Json
from headgate.cli.target import Url, target
from headgate.config.live_settings import DEFINITIONS, definitions_of
from headgate.config.live_settings import NAMESPACE as OWN
from headgate.config.model import MASK, ContentType, Draft, Update, Value, check_key, check_new_key, parse
from headgate.config.problems import ContentInvalid, UnknownKey
from headgate.kit.problems import HeadgateError, InvalidRequest, NotFound, VersionConflict
from headgate.sdk.backends.config import Present

REFUSED: Final = 1
RETRY_SECONDS: Final = 1.0
MOST_AT_ONCE: Final = 100
MOST_BYTES_AT_ONCE: Final = 8_000_000
INDEX: Final = ".headgate.json"
_ENDINGS: Final = {
    ".json": ContentType.JSON, ".toml": ContentType.TOML, ".yaml": ContentType.YAML, ".yml": ContentType.YAML,
    ".properties": ContentType.PROPERTIES,
}  # fmt: skip
_ENDING: Final = {ContentType.YAML: ".yaml", **{kind: ending for ending, kind in _ENDINGS.items() if ending != ".yml"}}

Namespace = Annotated[str, Parameter(help="The namespace.")]
Key = Annotated[str, Parameter(help="The key.")]
Reason = Annotated[str, Parameter(help="Why, for those who ask later.")]


async def get(
    namespace: Namespace,
    key: Annotated[str | None, Parameter(help="The key.")] = None,
    *,
    version: int | None = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Print a value, or with no key the names of all; of `headgate`, what may be set there.

    Parameters
    ----------
    version
        An old version.
    json
        Print JSON, with who published it, when and why.
    """
    async with target(url) as headgate:
        if key is None:
            found = sorted(await headgate.config.list(namespace), key=lambda value: value.key)
            if not found and namespace != OWN:
                raise NotFound(f"{namespace} has no values; `headgate config set {namespace} KEY …` publishes one.")
            if json:
                output.as_json(found)
            elif namespace == OWN:
                _print_own(found)
            else:
                output.table(
                    ("key", "version", "type", "published", "by"),
                    [
                        (each.key, str(each.version), each.content_type, each.updated_at, each.updated_by)
                        for each in found
                    ],
                )
            return
        shows = f"`headgate config get {namespace}` shows those that are there."
        with instead(UnknownKey, f"There is no key {key} in {namespace}; {shows}"):
            value = await headgate.config.get(namespace, key, version=version)
    if json:
        output.as_json(value)
    else:
        sys.stdout.write(value.content if value.content.endswith("\n") else value.content + "\n")
        sys.stdout.flush()


async def set_value(
    namespace: Namespace,
    key: Key,
    content: str | None = None,
    *,
    file: Path | None = None,
    type: ContentType | None = None,
    version: int | None = None,
    secret: bool | None = None,
    reason: Reason = "",
    delete: bool = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Publish a new version of a value; it reaches everyone who follows it at once.

    Parameters
    ----------
    content
        The new content; `-` reads it from stdin.
    file
        Take the content from a file.
    type
        What it is written in; if not given, by the file's ending, or as before. A new key is text, one of Headgate's own
        settings JSON.
    version
        Only if this version is the newest (0: only if there is none).
    secret
        Show it only to those who may see secrets; as before if not said.
    delete
        Delete the key instead; its history stays.
    json
        Print JSON.
    """
    async with target(url) as headgate:
        if delete:
            made = await headgate.config.delete(namespace, key, version=version, reason=reason)
        else:
            text, kind = await asyncio.to_thread(_content, content, file)
            if type is None and kind is None:
                try:
                    before = await headgate.config.get(namespace, key)
                    kind = before.content_type
                except UnknownKey:
                    kind = _usual(namespace)
            made = await headgate.config.set(
                namespace, key, text, content_type=type or kind, version=version, secret=secret, reason=reason
            )
    if json:
        output.as_json(made)
    else:
        output.say(f"headgate: {key} is at version {made.version}.")


async def edit(namespace: Namespace, key: Key, *, reason: Reason = "", url: Url = None) -> int:
    """Change a value in your editor; nothing is published if somebody else was quicker or you change nothing."""
    async with target(url) as headgate:
        try:
            value = await headgate.config.get(namespace, key)
        except UnknownKey:
            usual = _ENDINGS.get(Path(key).suffix) or _usual(namespace)
            value = Value(key, 0, content=_default(namespace, key), content_type=usual)
        if value.secret and value.content == MASK:
            raise InvalidRequest("This token may not see the secret, so it cannot edit it.")
        draft = await asyncio.to_thread(_draft, value)
        while True:
            content = await _edited(draft)
            if content == value.content:
                await asyncio.to_thread(_delete_draft, draft)
                output.say("headgate: nothing changed.")
                return 0
            try:
                made = await headgate.config.set(
                    namespace, key, content, content_type=value.content_type, version=value.version,
                    secret=value.secret, reason=reason,
                )  # fmt: skip
                break
            except HeadgateError as error:
                if isinstance(error, ContentInvalid) and _edit_again(error, draft):
                    continue
                words = (
                    "headgate",
                    "config",
                    "set",
                    namespace,
                    key,
                    "--file",
                    str(draft),
                    "--type",
                    value.content_type,
                )
                step = f"`{shlex.join(words)}` publishes it"
                if isinstance(error, VersionConflict):
                    step = f"`headgate config get {namespace} {key}` shows what is there now, {step} all the same"
                output.complain(error.detail, f"Your text is kept in {draft}; {step}.")
                return REFUSED
    await asyncio.to_thread(_delete_draft, draft)
    output.say(f"headgate: {key} is at version {made.version}.")
    return 0


async def history(namespace: Namespace, key: Key, *, limit: int = 20, url: Url = None, json: Json = False) -> None:
    """Show a value's versions, newest first.

    Parameters
    ----------
    limit
        How many.
    json
        Print JSON, with contents and differences.
    """
    async with target(url) as headgate:
        found = await headgate.config.history(namespace, key, limit=limit)
    if json:
        output.as_json(found)
        return
    output.table(
        ("version", "published", "by", "what", "reason"),
        [(str(each.version), each.updated_at, each.updated_by, each.kind, each.reason) for each in found],
    )


async def diff(namespace: Namespace, key: Key, old: int, new: int | None = None, *, url: Url = None) -> int:
    """Show what differs between two versions, or between one and the newest; exit 1 if anything does.

    Parameters
    ----------
    old
        The older version.
    new
        The newer version; the newest if not given.
    """
    async with target(url) as headgate:
        before = await headgate.config.get(namespace, key, version=old)
        after = await headgate.config.get(namespace, key, version=new)
    lines = list(
        difflib.unified_diff(
            before.content.splitlines(), after.content.splitlines(), f"{key}@{before.version}", f"{key}@{after.version}",
            before.updated_at, after.updated_at, lineterm="",
        )
    )  # fmt: skip
    for line in lines:
        output.line(line)
    return 1 if lines else 0


async def roll_back(
    namespace: Namespace, key: Key, version: int, *, reason: Reason = "", url: Url = None, json: Json = False
) -> None:
    """Publish an old version's content as a new version.

    Parameters
    ----------
    version
        The version to go back to.
    json
        Print JSON.
    """
    async with target(url) as headgate:
        made = await headgate.config.roll_back(namespace, key, version, reason=reason)
    if json:
        output.as_json(made)
    else:
        output.say(f"headgate: {key} is at version {made.version}, with the content of version {version}.")


async def watch(namespace: Namespace, *, url: Url = None, json: Json = False) -> None:
    """Follow a namespace: what is there, then every change, until Ctrl-C.

    Parameters
    ----------
    json
        Print one line of JSON for each change, with its content.
    """
    position: int | None = None
    async with target(url) as headgate:
        while True:
            try:
                async with aclosing(headgate.config.watch(namespace, position=position)) as events:
                    async for event in events:
                        match event:
                            case Present():
                                for value in event.values:
                                    _print_change("present", value, json=json)
                            case Update():
                                for value in event.values:
                                    _print_change(value.kind, value, json=json)
                            case _:
                                position = event.position
            except HeadgateError as error:
                if error.status < 500:
                    raise
                output.say(f"headgate: {error.detail} Going on when it is back.")
            await asyncio.sleep(RETRY_SECONDS)


async def export(namespace: Namespace, directory: Path, *, url: Url = None) -> None:
    """Write all values of a namespace into a directory, one file each, for git.

    Parameters
    ----------
    directory
        Where to; made if it does not exist.
    """
    async with target(url) as headgate:
        values = await headgate.config.list(namespace)
    shown = [value for value in values if not (value.secret and value.content == MASK)]
    await asyncio.to_thread(_write_files, directory, shown)
    output.say(
        f"headgate: {output.counted(len(shown), 'value')} of {namespace} {'is' if len(shown) == 1 else 'are'} in {directory}."
    )
    if len(shown) < len(values):
        output.say(
            f"headgate: {output.counted(len(values) - len(shown), 'secret')} left out; this token may not see secrets."
        )


async def import_files(
    namespace: Namespace,
    directory: Path,
    *,
    prune: bool = False,
    dry_run: bool = False,
    reason: Reason = "",
    url: Url = None,
) -> None:
    """Publish what a directory of files says, as far as it differs.

    Up to 100 keys are published all at once, or not at all. More go in steps of 100: if one fails, what was printed is
    published, and the same command goes on with the rest.

    Parameters
    ----------
    directory
        The directory, as `export` writes it.
    prune
        Delete the keys that have no file.
    dry_run
        Only show what would change.
    """
    wanted = await asyncio.to_thread(_read_files, directory, _usual(namespace))
    async with target(url) as headgate:
        present = {value.key: value for value in await headgate.config.list(namespace)}
        drafts = [
            Draft(key, content, kind, present[key].version if key in present else 0, secret)
            for key, (content, kind, secret) in sorted(wanted.items())
            if key not in present or (present[key].content, present[key].content_type) != (content, kind)
        ]
        for draft in drafts:
            _check_file(directory / draft.key, draft.key, check_new_key)
        if prune:
            drafts += [Draft(key, None, expected=value.version) for key, value in present.items() if key not in wanted]
        if dry_run:
            _print_drafts(drafts)
        for done, step in enumerate(_steps(drafts) if not dry_run else ()):
            try:
                await headgate.config.publish(namespace, step, reason=reason or f"imported from {directory.name}")
            except HeadgateError as error:
                if not done:
                    raise
                published = sum(len(each) for each in _steps(drafts)[:done])
                output.say(f"headgate: {published} of {len(drafts)} keys changed; import again to go on with the rest.")
                raise error from None
            _print_drafts(step)
    output.say(f"headgate: {output.counted(len(drafts), 'key')} {'would change' if dry_run else 'changed'}.")


def _print_drafts(drafts: Sequence[Draft]) -> None:
    for draft in drafts:
        word = "delete" if draft.content is None else "change" if draft.expected else "create"
        output.line(f"{word}\t{draft.key}")


def _steps(drafts: Sequence[Draft]) -> list[list[Draft]]:
    """Divide drafts into batches for one call each, by number and by the size of the request."""
    steps: list[list[Draft]] = []
    size = MOST_BYTES_AT_ONCE
    for draft in drafts:
        weight = 200 + len(msgspec.json.encode(draft.content))
        if size + weight > MOST_BYTES_AT_ONCE or len(steps[-1]) == MOST_AT_ONCE:
            steps.append([])
            size = 0
        steps[-1].append(draft)
        size += weight
    return steps


def _usual(namespace: str) -> ContentType:
    return ContentType.JSON if namespace == OWN else ContentType.TEXT


def _default(namespace: str, key: str) -> str:
    """Return the default of one of Headgate's own settings, as the text to start editing from."""
    known = {each.key: each.default for each in definitions_of(DEFINITIONS)} if namespace == OWN else {}
    return known.get(key, "")


def _print_own(found: list[Value]) -> None:
    """Print all of Headgate's own settings, published or not, with their meaning and their default."""
    present = {value.key: value for value in found}
    output.table(
        ("key", "version", "value", "default", "meaning"),
        [
            (
                each.key,
                str(present[each.key].version) if each.key in present else "",
                present[each.key].masked().content.strip() if each.key in present else "",
                each.default,
                each.text,
            )
            for each in definitions_of(DEFINITIONS)
        ],
    )


def _content(content: str | None, file: Path | None) -> tuple[str, ContentType | None]:
    if (content is None) == (file is None):
        raise InvalidRequest("Give the content, or --file, or - for stdin.", field="content")
    if file is not None:
        return file.read_text("utf-8"), _ENDINGS.get(file.suffix)
    if content == "-":
        return sys.stdin.read(), None
    return content or "", None


def _draft(value: Value) -> Path:
    """Write a value to a temporary file for the editor, readable by this user only, kept until it is published."""
    path = Path(tempfile.mkdtemp(prefix="headgate-")) / f"value{_ENDING.get(value.content_type, '.txt')}"
    path.write_text(value.content, "utf-8")
    return path


async def _edited(draft: Path) -> str:
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    try:
        process = await asyncio.create_subprocess_exec(*editor, str(draft))
    except OSError as error:
        await asyncio.to_thread(_delete_draft, draft)
        raise InvalidRequest(
            f"The editor {editor[0]} cannot be run: {error.strerror}. Name another in EDITOR."
        ) from error
    if await process.wait() != 0:
        raise InvalidRequest(f"The editor failed, so nothing was published; the text is kept in {draft}.")
    return await asyncio.to_thread(draft.read_text, "utf-8")


def _delete_draft(draft: Path) -> None:
    shutil.rmtree(draft.parent, ignore_errors=True)


def _edit_again(error: ContentInvalid, draft: Path) -> bool:
    """Ask on a terminal whether to edit a text again that is not well-formed; elsewhere False."""
    if not sys.stdin.isatty():
        return False
    answer = output.ask(f"headgate: {error.detail} Your text is kept in {draft}. Edit it again? [Y/n] ")
    return answer.strip().lower() in {"", "y", "yes"}


def _write_files(directory: Path, values: list[Value]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    index = {}
    for value in values:
        path = directory / value.key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value.content, "utf-8")
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise InvalidRequest(f"{value.key} cannot be a file: another key has its name as a folder.") from error
        index[value.key] = {"contentType": value.content_type, "secret": value.secret}
    (directory / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index, order="sorted")) + b"\n")


class _File(msgspec.Struct, frozen=True, rename="camel"):
    content_type: ContentType = ContentType.TEXT
    secret: bool = False


def _read_files(directory: Path, usual: ContentType) -> dict[str, tuple[str, ContentType, bool]]:
    if not directory.is_dir():
        raise InvalidRequest(f"{directory} is not a directory.", field="directory")
    index_file = directory / INDEX
    try:
        index = msgspec.json.decode(index_file.read_bytes(), type=dict[str, _File]) if index_file.exists() else {}
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{index_file} cannot be read: {error}.") from error
    found = {}
    for path in sorted(directory.rglob("*")):
        key = path.relative_to(directory).as_posix()
        if not path.is_file() or key == INDEX or Path(key).parts[0] == ".git":
            continue
        _check_file(path, key, check_key)
        known = index.get(key) or _File(_ENDINGS.get(path.suffix, usual))
        try:
            content = path.read_text("utf-8")
            parse(content, known.content_type)
        except UnicodeDecodeError as error:
            raise ContentInvalid(f"{path} is not UTF-8 text.") from error
        except ContentInvalid as error:
            raise ContentInvalid(f"{path}: {error.detail}") from error
        found[key] = (content, known.content_type, known.secret)
    return found


def _check_file(path: Path, key: str, check: Callable[[str], str]) -> None:
    """Check the key that a file's path gives; the error names the file."""
    try:
        check(key)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.detail}", field="key") from error


def _print_change(kind: str, value: Value, *, json: bool) -> None:
    if json:
        output.as_json({"kind": kind, "value": value})
    else:
        output.line("\t".join((kind, value.key, str(value.version), value.updated_by, value.reason)))
