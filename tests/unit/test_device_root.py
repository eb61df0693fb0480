"""Reading below a root: it stays inside a recorded tree, does not block and does not raise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edged.device.root import Root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "outside").write_text("outside")
    top = tmp_path / "root"
    (top / "etc").mkdir(parents=True)
    (top / "etc" / "name").write_text("inside\n")
    return top


def test_read_file_below_the_root_is_returned(tree: Path) -> None:
    root = Root(tree)
    assert root.read("etc/name") == "inside\n"
    assert root.read("/etc//./name") == "inside\n"
    assert not root.is_live
    assert root.path == tree
    assert Root().is_live


@pytest.mark.parametrize(
    "target", ["../secret", "../../secret", f"{'../' * 8}secret", "/secret", "{tmp}/secret", "nowhere", "link"]
)
def test_read_link_out_of_the_tree_is_absent(tree: Path, target: str) -> None:
    (tree / "link").symlink_to(target.format(tmp=tree.parent))
    root = Root(tree)
    assert root.read("link") is None
    assert not root.exists("link")
    assert root.real_name("link") is None
    assert root.glob("lin*") == ()


@pytest.mark.parametrize("target", ["/etc/name", "etc/name", "../../etc/name", "/hop", "etc/../../../etc/name"])
def test_read_link_inside_is_followed(tree: Path, target: str) -> None:
    (tree / "hop").symlink_to("/etc/name")
    (tree / "link").symlink_to(target)
    assert Root(tree).read("link") == "inside\n"
    assert Root(tree).real_name("link") == "name"


@pytest.mark.parametrize("target", ["../dir", "{tmp}/dir"])
def test_glob_and_read_never_leave_the_tree(tree: Path, target: str) -> None:
    (tree / "out").symlink_to(target.format(tmp=tree.parent))
    root = Root(tree)
    assert root.glob("out/*") == ()
    assert root.read("out/outside") is None
    assert root.read("out/../../secret") is None
    assert root.read("../secret") is None


def test_glob_absolute_directory_links_stay_inside(tree: Path) -> None:
    (tree / "alias").symlink_to("/etc")
    assert Root(tree).glob("al*/na??") == ("alias/name",)
    assert Root(tree).read("alias/name") == "inside\n"


def test_read_irregular_file_is_absent_without_blocking(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    (tree / "device").symlink_to("/dev/zero")
    (tree / "loop-a").symlink_to("loop-b")
    (tree / "loop-b").symlink_to("loop-a")
    root = Root(tree)
    odd = ("", "no/such", "etc/name/below", "a\0b", "x" * 5000, "\ud800")
    for name in ("fifo", "device", "loop-a", "etc", *odd):
        assert root.read(name) is None
        assert root.strings(name) == ()
        assert isinstance(root.exists(name), bool)


def test_read_live_device_is_not_opened() -> None:
    assert Root().read("dev/zero") is None
    assert Root().read("proc/self/mem") is None


def test_read_large_or_undecodable_file_is_absent(tree: Path) -> None:
    (tree / "full").write_bytes(b"x" * 10)
    (tree / "over").write_bytes(b"x" * 11)
    (tree / "binary").write_bytes(b"\xff\xfe\x00garbage")
    root = Root(tree)
    assert root.read("full", limit=10) == "x" * 10
    assert root.read("over", limit=10) is None
    assert root.read("binary") is None


def test_strings_are_separated_by_nul(tree: Path) -> None:
    (tree / "compatible").write_bytes(b"nvidia,p3767-0005\0nvidia,tegra234\0")
    root = Root(tree)
    assert root.strings("compatible") == ("nvidia,p3767-0005", "nvidia,tegra234")
    assert root.read("compatible") == "nvidia,p3767-0005\0nvidia,tegra234"


def test_glob_is_sorted_and_skips_hidden_and_missing(tree: Path) -> None:
    for name in ("b", "a", ".c"):
        (tree / name).mkdir()
        (tree / name / "x").touch()
    root = Root(tree)
    assert root.glob("[abc]/x") == ("a/x", "b/x")
    assert root.glob("*/x") == ("a/x", "b/x")
    assert root.glob(".*/x") == (".c/x",)
    assert root.glob("a/y") == ()
