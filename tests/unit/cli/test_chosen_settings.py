"""`start --set`, and arguments of the program that are named like settings."""

from __future__ import annotations

import pytest

from clusterctl.cli.app import START_OPTIONS, parse
from clusterctl.cli.arguments import take_program_options
from clusterctl.cli.chosen_settings import named_like_settings, parse_chosen, shown_option
from clusterctl.errors import UsageError


def test_the_text_after_the_first_equals_sign_is_the_value_and_the_last_one_counts() -> None:
    words = ["MODE=async", "PADDLE_PORT=7000", "TRAINER_COMMAND=python t.py --lr=1", "PORT=7100", "MODE=", "Mode=x"]
    assert parse_chosen(words) == {
        "MODE": "",
        "TRAINER_COMMAND": "python t.py --lr=1",
        "PORT": "7100",
        "Mode": "x",
    }


@pytest.mark.parametrize("name", ["HOSTS", "ROOT_DIR", "SHARDS"])
def test_settings_that_dispatch_has_decided_are_refused_with_a_reason(name: str) -> None:
    with pytest.raises(UsageError, match=f"--set {name} is not possible: .*dispatch") as raised:
        parse_chosen([f"{name}=x"])
    assert raised.value.exit_code == 2
    assert f"change {name} in conf.py" in str(raised.value.hint)


@pytest.mark.parametrize("word", ["MODE", "=async", ""])
def test_a_set_without_a_key_and_a_value_is_a_usage_error(word: str) -> None:
    with pytest.raises(UsageError, match="--set needs KEY=VALUE"):
        parse_chosen([word])


def test_the_engine_is_named_once() -> None:
    assert parse_chosen(["ENGINE=torch"]) == {"ENGINE": "torch"}
    with pytest.raises(UsageError, match="--engine and --set ENGINE"):
        parse_chosen(["ENGINE=torch"], "none")


def test_an_option_is_shown_as_typed_but_without_secrets() -> None:
    assert shown_option("MODE", "ssp(4)") == "--set 'MODE=ssp(4)'"
    assert shown_option("KEEP", "5") == "--set KEEP=5"
    assert shown_option("ENV", "{'TOKEN': 'secret'}") == "--set ENV=..."


@pytest.mark.parametrize(
    ("words", "hints"),
    [
        (["--mode=async", "--lr=1"], ["--set MODE=async"]),
        (["--pservers", "3"], ["--set PSERVERS=3"]),
        (["--SAVE_EVERY=500 steps"], ["--set 'SAVE_EVERY=500 steps'"]),
        (["--save-every", "--keep=2"], ["--set SAVE_EVERY=VALUE", "--set KEEP=2"]),
        (["--Paddle_Port=7000"], ["--set PORT=7000"]),
        (["--hosts=a,b"], ["in conf.py"]),
        (["mode=async", "-mode", "MODE", "--modes=1", "--", "--"], []),
    ],
)
def test_an_argument_of_the_program_that_is_named_like_a_setting_gets_one_warning(
    words: list[str], hints: list[str]
) -> None:
    warnings = list(named_like_settings(words))
    assert [line.partition("To change it: ")[2] for line in warnings] == hints
    assert all("goes to the program; the setting " in line for line in warnings)


def test_options_of_a_program_that_resemble_set_reach_the_program() -> None:
    words = ["--seq=128", "--net=big", "--sets=2"]
    assert take_program_options(["start", *words], START_OPTIONS) == (["start"], words)
    assert parse(["start", "--set", "MODE=async", "--set=KEEP=2"]).ours == [
        "start",
        "--set",
        "MODE=async",
        "--set=KEEP=2",
    ]
