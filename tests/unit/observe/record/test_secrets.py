"""Values of ENV, and whatever is named like a secret, are hidden in records."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clusterctl.observe.record.secrets import HIDDEN, MOST_CHARS, Redactor, is_secret


@pytest.mark.parametrize("name", ["HF_TOKEN", "--api-key", "accessKey", "dbpassword", "PWD", "key"])
def test_a_name_with_the_word_for_a_secret_is_one(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["max_tokens", "KeyError", "monkey", "TOKENIZERS_PATH"])
def test_a_name_that_only_resembles_such_a_word_is_none(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token=abc def", "token=[hidden] def"),
        ("config: token = abc", "config: token = [hidden]"),
        ("{'api_key': 'a b', 'lr': 1}", "{'api_key': [hidden], 'lr': 1}"),
        ("python train.py --token abc --lr 1", "python train.py --token [hidden] --lr 1"),
        ("GET /?access_token=abc&x=1", "GET /?access_token=[hidden]&x=1"),
        ("Authorization: Bearer abc", "Authorization: Bearer [hidden]"),
        ("token: Bearer abc", "token: [hidden]"),
        ("KeyError: 'learning_rate'", "KeyError: 'learning_rate'"),
        ("tokens=4096 loss: 0.5", "tokens=4096 loss: 0.5"),
    ],
)
def test_a_value_is_hidden_where_its_name_says_that_it_is_a_secret(text: str, shown: str) -> None:
    assert Redactor({}).hide(text) == shown


def test_values_of_env_become_the_names_of_their_variables() -> None:
    secrets = Redactor({"WANDB": "abcdef123", "DATA": "/data/criteo", "DEEP": "/data/criteo/deep", "DEBUG": "1"})
    assert secrets.hide("login abcdef123, 1 read of /data/criteo/deep/x") == "login $WANDB, 1 read of $DEEP/x"


def test_every_value_of_a_variable_that_differs_between_nodes_is_hidden() -> None:
    secrets = Redactor({"API": "first-value"}, {"API": "second-value"}, {})
    assert secrets.hide("first-value, second-value") == "$API, $API"
    assert secrets.has_same("API", Redactor({"API": "second-value"}, {"API": "first-value"}))
    assert not secrets.has_same("API", Redactor({"API": "first-value"}))


def test_arguments_keep_their_names_and_lose_their_secrets() -> None:
    words = ["--token", "abc", "--lr", "0.1", "--api-key=zz", "--verbose", "password=x", "--secret", "--next"]
    shown = (
        "--token",
        HIDDEN,
        "--lr",
        "0.1",
        f"--api-key={HIDDEN}",
        "--verbose",
        f"password={HIDDEN}",
        "--secret",
        "--next",
    )
    assert Redactor({}).arguments(words) == shown


def test_a_long_line_takes_linear_time() -> None:
    """Within a limit of CPU time that a search that begins anew at each character would exceed a hundred times."""
    program = (
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "from clusterctl.observe.record.secrets import Redactor\n"
        "secrets = Redactor({'NAME': 'a value of a variable'})\n"
        "for unit in ('a', '_', 'a.', ' ', 'a=', 'key=', 'key=\"', '[', '--a'):\n"
        "    secrets.hide(unit * ((1 << 17) // len(unit)))\n"
        "    secrets.arguments([unit * 100] * 200)\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def test_what_is_beyond_a_megabyte_is_left_out_since_it_is_not_looked_at() -> None:
    text = "x" * MOST_CHARS + " token=abc"
    assert Redactor({}).hide(text) == "x" * MOST_CHARS + "... (10 more characters)"
