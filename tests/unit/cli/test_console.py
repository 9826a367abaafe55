"""Text for people, JSON documents for programs, and no harmful output from a node on the terminal."""

from __future__ import annotations

import json
import time
import unicodedata
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.api.logs import parse_since
from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.console import Console, align, human_bytes, human_count, human_time, percent
from clusterctl.cli.declarations import app
from clusterctl.cli.hints import READ_CONF
from clusterctl.cluster import combined
from clusterctl.config import Host, Settings, from_values
from clusterctl.errors import ClusterctlError, NodeError, UsageError
from clusterctl.escape import clean
from clusterctl.inventory import build
from clusterctl.observe.record.references import job_name, job_ref


@pytest.mark.parametrize("harm", ["\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\x00", "\x08\x08", "\r", "\x7f", "\x1bc"])
def test_escape_sequences_and_control_characters_are_made_visible(harm: str) -> None:
    cleaned = clean(f"a{harm}b")
    assert cleaned[0] + cleaned[-1] == "ab"
    assert len(cleaned) == len(harm) + 2
    assert not any(unicodedata.category(char) == "Cc" for char in cleaned)


@pytest.mark.parametrize("mark", ["\u202a", "\u202b", "\u202c", "\u202d", "\u202e"])
def test_bidirectional_embedding_marks_are_replaced(mark: str) -> None:
    assert clean(f"a{mark}b") == "a\ufffdb"


@pytest.mark.parametrize("mark", ["\u2066", "\u2067", "\u2068", "\u2069"])
def test_bidirectional_isolate_marks_are_replaced(mark: str) -> None:
    assert clean(f"a{mark}b") == "a\ufffdb"


@pytest.mark.parametrize("mark", ["\u200b", "\u2028", "\u2029", "\ufeff", "\u2060", "\xad", "\U000e0041", "\U000e007f"])
def test_invisible_characters_are_replaced(mark: str) -> None:
    """They could make one name look like another, hide text in what is copied, or break a line in some viewers."""
    assert clean(f"a{mark}b") == "a\ufffdb"


def test_text_in_any_language_tabs_and_wanted_newlines_are_kept() -> None:
    text = "ünï\t日本 🙂 👩\u200d🔬 \u0646\u200c\u0647 \u0301"
    assert clean(text) == text
    assert clean("a\nb") == "a\u240ab"
    assert clean("a\nb", keep_newlines=True) == "a\nb"


@given(st.text())
def test_cleaned_text_can_be_printed(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert len(cleaned) == len(text)
    assert not any(unicodedata.category(char) in ("Cc", "Cs") and char != "\t" for char in cleaned)
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_400, "99.4 kB"),
        (99_500, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (123_456_789, "123 MB"),
        (5 * 10**12, "5000 GB"),
    ],
)
def test_bytes_are_formatted_for_people(count: float | None, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0"), (1204, "1,204"), (9999, "9,999"), (10_000, "10.0k"), (41_210.7, "41.2k")],
)
def test_counts_are_formatted_for_people(count: float | None, text: str) -> None:
    assert human_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00"), (59.9, "00:00:59"), (3661, "01:01:01"), (400_000, "111:06:40")]
)
def test_times_are_formatted_for_people(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


def test_shares_are_formatted_as_percentages() -> None:
    assert [percent(None), percent(0.0), percent(0.456), percent(1.5)] == ["-", "0%", "46%", "150%"]


def test_columns_are_aligned_with_numbers_to_the_right_and_no_trailing_blanks() -> None:
    lines = align(("name", "n", "state"), [["a", "7", "up"], ["longer", "1,204", ""]], numeric=("n",))
    assert lines == ["name        n  state", "a           7  up", "longer  1,204"]
    assert align(("a", "b"), []) == ["a  b"]
    assert align(("", ""), [["x", "y"]]) == ["x  y"]


def console(*, json: bool = False, quiet: bool = False) -> Console:
    return Console(GlobalOptions(json=json, quiet=quiet))


def test_without_json_text_goes_to_stdout_and_documents_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    console().say("hello")
    console().document({"a": 1})
    console().record({"a": 1})
    console().warn("careful")
    assert capsys.readouterr() == ("hello\n", "careful\n")


def test_with_json_only_documents_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    console(json=True).say("hello")
    console(json=True).table(("a",), [["1"]])
    console(json=True).document({"a": 1})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schema": "clusterctl/1", "a": 1}
    assert err == "hello\na\n1\n"


def test_quiet_prints_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = console(quiet=True)
    quiet.say("hello")
    quiet.table(("a",), [["1"]])
    quiet.error(NodeError("broke", node="node1", hint="mend it"))
    assert capsys.readouterr() == ("", "node1: broke\n  mend it\n")


def test_an_error_is_a_complete_document_and_harmless_text(capsys: pytest.CaptureFixture[str]) -> None:
    console(json=True).error(NodeError("bad \x1b[31mwords\nand more", node="node1", hint="mend it", details={"n": 1}))
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == {
        "kind": "node",
        "message": "bad \x1b[31mwords\nand more",
        "node": "node1",
        "hint": "mend it",
        "details": {"n": 1},
    }
    assert "\x1b" not in out + err
    assert "words\nand more" in err


def test_a_document_that_contains_an_error_is_not_followed_by_another(capsys: pytest.CaptureFixture[str]) -> None:
    session = console(json=True)
    with pytest.raises(ClusterctlError) as raised:
        session.finish({"nodes": []}, UsageError("no"))
    session.error(raised.value)
    out, _ = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "usage"


# Job names.


def settings(root: str = "~/clusterctl", **host: str) -> Settings:
    return from_values({"HOSTS": ["a", "b"], "ROOT_DIR": root})


@pytest.mark.parametrize(
    ("root", "ref", "asked"),
    [
        ("~/clusterctl", None, None),
        ("~/clusterctl", "JOB1", "JOB1"),
        ("~/clusterctl", "~/clusterctl/JOB1", "JOB1"),
        ("~/clusterctl", "~/clusterctl/JOB1/", "JOB1"),
        ("~/clusterctl", "{home}/clusterctl/JOB1", "JOB1"),
        ("~/clusterctl", "{home}/elsewhere/JOB1", "~/elsewhere/JOB1"),
        ("~/clusterctl", "/data/JOB1", "/data/JOB1"),
        ("~/clusterctl", "{home}x/clusterctl/JOB1", "{home}x/clusterctl/JOB1"),
        ("/data/jobs", "/data/jobs/JOB1", "JOB1"),
        ("/data/jobs", "{home}/JOB1", "{home}/JOB1"),
        ("~/clusterctl", "JOB1/", "JOB1"),
    ],
)
def test_a_job_directory_below_root_dir_becomes_its_id(root: str, ref: str | None, asked: str | None) -> None:
    home = str(Path.home())
    expected = asked and asked.format(home=home)
    assert job_ref(root, ref and ref.format(home=home)) == expected


def test_a_job_is_named_in_a_form_that_is_valid_on_every_node() -> None:
    same = settings()
    assert job_name(build(same), "JOB1") == "~/clusterctl/JOB1"

    mixed = from_values({"HOSTS": ["a", Host("b", root_dir="/data")]})
    assert job_name(build(mixed), "JOB1") == "JOB1"


# Points in time.


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1.5h", 5400), ("1d", 86400), ("0s", 0)]
)
def test_a_duration_means_that_long_ago(text: str, seconds: float) -> None:
    before = time.time()
    assert before - seconds <= (parse_since(text) or 0) <= time.time() - seconds


def test_a_date_is_in_local_time_unless_it_has_an_offset() -> None:
    assert parse_since(None) is None
    assert parse_since("2026-11-21T08:15") == datetime(2026, 11, 21, 8, 15).timestamp()
    assert parse_since("2026-11-21 08:15:30") == datetime(2026, 11, 21, 8, 15, 30).timestamp()
    assert parse_since("2026-11-21T08:15:00+00:00") == 1795248900.0


@pytest.mark.parametrize("text", ["", "5", "5 m", "-5m", "yesterday", "2026-13-01", "5m30s"])
def test_a_malformed_time_is_a_usage_error_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="write 90s, 5m, 2h"):
        parse_since(text)


def pasted(capsys: pytest.CaptureFixture[str], text: str, **options: Any) -> str:
    Console(GlobalOptions(conf="my lab/conf.py"), **options).say(text)
    return capsys.readouterr().out.rstrip("\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("next: clusterctl collect J", "next: clusterctl --conf 'my lab/conf.py' collect J"),
        (
            "follow: clusterctl logs -f J   stop: clusterctl stop J",
            "follow: clusterctl --conf 'my lab/conf.py' logs -f J   stop: clusterctl --conf 'my lab/conf.py' stop J",
        ),
        ("try clusterctl\n    check", "try clusterctl --conf 'my lab/conf.py'\n    check"),
    ],
)
def test_commands_in_our_text_keep_the_conf_of_the_call(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pasted(capsys, text) == shown
    assert pasted(capsys, shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "clusterctl fake up",
        "clusterctl init try",
        "use the same version of clusterctl for the whole job",
        "clusterctl start-up",
        "ls ~/clusterctl stop",
    ],
)
def test_other_text_is_unchanged(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pasted(capsys, text) == text


def test_commands_that_ignore_conf_do_not_pass_it_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert pasted(capsys, "next: clusterctl dispatch", reads_conf=False) == "next: clusterctl dispatch"


def test_output_of_programs_is_not_rewritten(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Console(GlobalOptions(conf="c.py"))
    printer.output("clusterctl stop")
    with pytest.raises(ClusterctlError):
        printer.finish({}, ClusterctlError("it printed: clusterctl stop"))
    printer.error(ClusterctlError("it printed: clusterctl stop"))
    assert capsys.readouterr() == ("clusterctl stop\n", "it printed: clusterctl stop\n")


def test_hints_of_one_node_and_of_many_keep_the_conf_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    errors = [NodeError("clusterctl stop", node=f"node{n}", hint=f"clusterctl why {n}") for n in range(2)]
    error = combined(errors, 2, "start")
    error.hint = "clusterctl stop J"
    Console(GlobalOptions(conf="c.py", json=True)).error(error)
    out, err = capsys.readouterr()
    shown = json.loads(out)["error"]
    assert shown["hint"] == "clusterctl --conf c.py stop J"
    assert [one["hint"] for one in shown["details"]["nodes"]] == [f"clusterctl --conf c.py why {n}" for n in range(2)]
    lines = [
        "start failed on 2 of 2 nodes",
        *("  node0  clusterctl stop", "      clusterctl --conf c.py why 0"),
        *("  node1  clusterctl stop", "      clusterctl --conf c.py why 1"),
    ]
    assert shown["message"].splitlines() == lines
    assert err.splitlines() == [*lines, "  clusterctl --conf c.py stop J"]


def test_every_command_is_known_to_read_conf_or_not() -> None:
    declared = {info.name for info in [*app.registered_commands, *app.registered_groups]}
    assert declared == {*READ_CONF, "init", "split", "demo", "fake", "completion", "help", "disconnect"}
