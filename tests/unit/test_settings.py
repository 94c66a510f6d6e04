"""Settings: which origin wins, what is refused and how it is said, and that secrets stay secret."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest
from msgspec import Meta

from headgate.kit.settings import (
    MASK,
    Configuration,
    Doc,
    Flag,
    SettingInvalid,
    Settings,
    SettingUnknown,
    configure,
    spellings,
)


class Mode(StrEnum):
    FAST = "fast"
    SAFE = "safe"


class PumpSettings(Settings, section="pump"):
    """A pump."""

    port: Annotated[int, Meta(ge=0, le=65535), Doc("where it listens", env="HEADGATE_PORT")] = 80
    rate: Annotated[float, Doc("how fast")] = 1.5
    mode: Annotated[Mode, Doc("how")] = Mode.FAST
    dry: Annotated[bool, Doc("without water")] = False
    names: Annotated[tuple[str, ...], Doc("who may")] = ()
    weights: Annotated[dict[str, int], Doc("by name")] = {}
    directory: Annotated[Path | None, Doc("where it keeps things")] = None
    password: Annotated[str, Doc("what opens it", secret=True)] = ""
    url: Annotated[str, Doc("where the water is", env="HEADGATE_WATER", secret=True)] = "tap"


def read(file: Path | None = None, flags: dict[str, Flag] | None = None, **environment: str) -> Configuration:
    return configure([PumpSettings], flags=flags, environment=environment, file=file)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    file = tmp_path / "headgate.toml"
    file.write_text('[pump]\nport = 1\nrate = 2\nmode = "safe"\nnames = ["a", "b"]\nweights = { a = 1 }\n')
    return file


def test_flags_win_over_environment_over_file_over_default(toml: Path) -> None:
    found = read(toml, {"pump.port": Flag("--port", 3)}, HEADGATE_PORT="2", HEADGATE_PUMP_RATE="9")
    pump = found[PumpSettings]
    assert (pump.port, pump.rate, pump.mode, pump.dry) == (3, 9.0, Mode.SAFE, False)
    assert found.origin("pump.port") == "--port"
    assert found.origin("pump.rate") == "HEADGATE_PUMP_RATE"
    assert found.origin("pump.mode") == f"{toml} [pump]"
    assert found.origin("pump.dry") == "default"


def test_a_flag_that_was_not_given_leaves_the_next_origin_in_force() -> None:
    found = read(None, {"pump.port": Flag("--port", None)}, HEADGATE_PORT="2")
    assert found[PumpSettings].port == 2


def test_text_from_the_environment_becomes_what_the_setting_is() -> None:
    pump = read(
        HEADGATE_PUMP_PORT="8080",
        HEADGATE_PUMP_DRY="true",
        HEADGATE_PUMP_NAMES="a, b,c",
        HEADGATE_PUMP_WEIGHTS='{"a": 2}',
        HEADGATE_PUMP_DIRECTORY="/var/lib/pump",
    )[PumpSettings]
    assert pump.port == 8080
    assert pump.dry is True
    assert pump.names == ("a", "b", "c")
    assert pump.weights == {"a": 2}
    assert pump.directory == Path("/var/lib/pump")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"HEADGATE_PORT": "high"}, "pump.port from HEADGATE_PORT is 'high'"),
        ({"HEADGATE_PORT": "70000"}, "pump.port from HEADGATE_PORT is '70000'"),
        ({"HEADGATE_PUMP_MODE": "slow"}, "pump.mode from HEADGATE_PUMP_MODE is 'slow'"),
        ({"HEADGATE_PUMP_WEIGHTS": "{"}, "pump.weights from HEADGATE_PUMP_WEIGHTS must be JSON"),
        ({"HEADGATE_PORT": "1", "HEADGATE_PUMP_PORT": "2"}, "HEADGATE_PORT and HEADGATE_PUMP_PORT both give pump.port"),
        ({"HEADGATE_PUMP_PASSWORD_FILE": "/nowhere/x"}, r"pump.password .* HEADGATE_PUMP_PASSWORD_FILE \(/nowhere/x\)"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_origin(environment: dict[str, str], words: str) -> None:
    with pytest.raises(SettingInvalid, match=words):
        configure([PumpSettings], environment=environment)


def test_a_bad_value_in_the_file_is_refused_with_the_files_name(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text('[pump]\nport = "80"\n')
    with pytest.raises(SettingInvalid, match=r"pump.port from .*headgate.toml \[pump\] is '80'"):
        read(file)


@pytest.mark.parametrize("text", ["[pump", "pump = 3", "\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text(text)
    with pytest.raises(SettingInvalid, match=r"headgate\.toml"):
        read(file)


def test_what_is_not_a_setting_is_refused_and_the_nearest_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingUnknown, match=r"HEADGATE_PROT in the environment .* mean HEADGATE_PORT"):
        read(HEADGATE_PROT="1")
    with pytest.raises(SettingUnknown, match="HEADGATE_PUMP_RATE_FILE"):
        read(HEADGATE_PUMP_RATE_FILE="/only/secrets/have/files")
    file = tmp_path / "headgate.toml"
    file.write_text("[pump]\nrat = 1\n")
    with pytest.raises(SettingUnknown, match=r"pump.rat in .*headgate.toml .* mean pump.rate"):
        read(file)
    file.write_text("[pumpe]\nrate = 1\n")
    with pytest.raises(SettingUnknown, match=r"\[pumpe\] .* mean pump"):
        read(file)


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    found = read(HEADGATE_PUMP_PASSWORD_FILE=str(secret))
    assert found[PumpSettings].password == "open sesame"
    assert found.origin("pump.password") == f"HEADGATE_PUMP_PASSWORD_FILE ({secret})"


def test_secrets_are_masked_and_of_a_url_only_the_password() -> None:
    found = read(HEADGATE_PUMP_PASSWORD="open sesame", HEADGATE_WATER="valkey://me:hush@lake:1/0")
    shown = {value.name: value.shown for value in found.values()}
    assert shown["pump.password"] == MASK
    assert shown["pump.url"] == f"valkey://me:{MASK}@lake:1/0"
    assert set(found.secrets()) == {"open sesame", "hush"}


def test_a_default_is_no_secret() -> None:
    found = read()
    assert {value.name: value.shown for value in found.values()}["pump.url"] == "tap"
    assert list(found.secrets()) == []


def test_a_secret_is_not_repeated_in_the_complaint_about_it() -> None:
    class VaultSettings(Settings, section="vault"):
        pin: Annotated[str, Meta(min_length=8), Doc("the pin", secret=True)] = ""

    with pytest.raises(SettingInvalid) as caught:
        configure([VaultSettings], environment={"HEADGATE_VAULT_PIN": "1234"})
    assert "1234" not in caught.value.detail
    assert "vault.pin from HEADGATE_VAULT_PIN" in caught.value.detail


def test_every_spelling_of_a_setting_is_known() -> None:
    assert spellings(PumpSettings, "port") == ("HEADGATE_PORT", "HEADGATE_PUMP_PORT")
    assert set(spellings(PumpSettings, "password")) == {"HEADGATE_PUMP_PASSWORD", "HEADGATE_PUMP_PASSWORD_FILE"}


def test_a_setting_without_a_meaning_is_a_mistake_of_ours() -> None:
    class MuteSettings(Settings, section="mute"):
        level: int = 1

    with pytest.raises(TypeError, match=r"MuteSettings\.level has no Doc"):
        configure([MuteSettings])
