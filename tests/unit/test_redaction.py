"""Redaction: reports contain no secrets of the box or its owner, at any position."""

from __future__ import annotations

import base64
import re
import secrets
import string
import uuid
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from edged.device.root import Root
from edged.doctor import box_report
from edged.doctor.box_report import BoxReport
from edged.doctor.check import Check, Name, Result
from edged.doctor.redaction import COMMON, Identity, Redactor
from edged.doctor.self_check import Tried
from tests.unit.device_files import tree

ALNUM = string.ascii_letters + string.digits
WORD = st.text(string.ascii_lowercase, min_size=4, max_size=9)
NAMES = st.builds(lambda a, dash, b: f"{a}{dash}{b}", WORD, st.sampled_from(["", "-", "_"]), WORD)
OCTETS = st.integers(0, 255)
IPV4 = st.builds(lambda *parts: ".".join(map(str, parts)), st.integers(1, 255), OCTETS, OCTETS, OCTETS)
IPV6 = st.ip_addresses(v=6).map(str)
MACS = st.builds(
    lambda data, mark: mark.join(f"{byte:02x}" for byte in data),
    st.binary(min_size=6, max_size=6),
    st.sampled_from(":-"),
)
HEX = st.binary(min_size=12, max_size=32).map(bytes.hex).filter(lambda text: any(c.isdigit() for c in text))
CODES = st.text(ALNUM, min_size=20, max_size=60).filter(lambda text: any(c.isdigit() for c in text))
OWN_TOKENS = st.binary(min_size=32, max_size=32).map(lambda seed: f"edged_{_urlsafe(seed)}")
URLS = st.builds(
    lambda scheme, user, password, host: f"{scheme}://{user}:{password}@{host}/main",
    st.sampled_from(["rtsp", "https", "mqtt"]),
    NAMES,
    st.text(ALNUM + "!$-_.", min_size=8, max_size=16),
    st.one_of(IPV4, NAMES),
)
MAILS = st.builds(lambda user, host: f"{user}@{host}.org", NAMES, NAMES)
HOMES = st.builds(lambda root, user, file: f"{root}/{user}/{file}", st.sampled_from(["/home", "/Users"]), NAMES, NAMES)
LOCAL = st.builds(lambda name, end: f"{name}.{end}", NAMES, st.sampled_from(["local", "lan", "fritz.home", "internal"]))
NAMED = st.builds(lambda name, value: f"{name}{value}", st.sampled_from(["token=", "password: ", "Bearer "]), NAMES)
# Secrets that are recognised by their form, and secrets that only the box knows.
SHAPED = st.one_of(IPV4, IPV6, MACS, HEX, CODES, OWN_TOKENS, URLS, MAILS, HOMES, LOCAL, NAMED, st.uuids().map(str))
KINDS = st.sampled_from(["host", "user", "home", "folder", "serial", "network card"])
KNOWN = st.one_of(
    NAMES,
    st.text(ALNUM, min_size=4, max_size=24).filter(lambda text: bool(text.strip("0"))),  # no serial number is zero
    st.builds("/srv/{} {}".format, NAMES, NAMES),
).filter(lambda text: text.lower() not in COMMON)
BEFORE, AFTER = (
    st.sampled_from(["", "on ", "'", "(", "at=", "x: ", "/", "“", "["]),
    st.sampled_from(["", " is", "'", ")", ": refused"]),
)
QUICK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _urlsafe(seed: bytes) -> str:
    return base64.urlsafe_b64encode(seed).rstrip(b"=").decode()


def report(text: str = "", subject: str = "") -> BoxReport:
    """Return a report with this text in every field that comes from the box."""

    def check(name: Name, result: Result) -> Check:
        return Check(name, subject, result, f"found {text}", f"do {text}")

    return BoxReport(
        format=box_report.FORMAT,
        edged="0.1.0",
        python="3.11.2",
        day="2026-11-25",
        by="Ada L.",
        facts={"board.model": f"Box {text}", "os.kernel": text, "tensorrt.version": "10.3.0.30", "gpu.0.pci": "0:1"},
        doctor=(check(Name.SOCKET, Result.WRONG), check(Name.CLOCK, Result.OK)),
        self_check=(check(Name.SELF_CHECK, Result.OK),),
        engines=(Tried("openvino", text, "cpu", f"a {text}", "fp32", True, 10.0, 5.0, 2.0, 2.0),),
        left_out=(f"left {text}",),
        hardware_tests=("test_engines.py::test_a",),
    )


PLAIN = box_report.render(box_report.redacted(report(), Identity())).lower()


@QUICK
@given(SHAPED, BEFORE, AFTER)
@example("2001:db8:0:1:2:3:4:5", "", ": refused")
@example("::1:0:0:1:0:0", "", ": refused")
def test_report_with_text_in_the_form_of_a_secret_is_redacted(secret: str, before: str, after: str) -> None:
    text = f"{before}{secret}{after}"
    found = box_report.render(box_report.redacted(report(text, text), Identity())).lower()
    value = re.sub(r"^(token|password|Bearer|[a-z]+:/)[=: /]+", "", secret)
    for part in {secret, value, *(part for part in value.split("/") if "@" in part)}:
        assert part.lower() in PLAIN or part.lower() not in found


@QUICK
@given(KINDS, KNOWN, BEFORE, AFTER)
def test_report_with_a_secret_known_to_the_box_is_redacted(kind: str, secret: str, before: str, after: str) -> None:
    for written in (secret, secret.upper()):
        text = f"{before}{written}{after}"
        found = box_report.render(box_report.redacted(report(text, text), Identity({kind: (secret,)}))).lower()
        assert secret.lower() in PLAIN or secret.lower() not in found


@QUICK
@given(st.lists(st.one_of(SHAPED, KNOWN), min_size=1, max_size=6), st.randoms())
def test_redactor_several_secrets_in_one_text_are_all_removed(planted: list[str], chance: object) -> None:
    redactor = Redactor(Identity({"host": tuple(planted)}))
    text = redactor.text(f"camera {', '.join(planted)} failed")
    assert not [each for each in planted if each.lower() in text.lower() and each.lower() not in "camera failed"]


@pytest.mark.parametrize(
    "text",
    [
        "1.31.1 loads",
        "TensorRT 10.3.0.30 is installed",
        "tensorrt_rtx_cu12_libs==1.7.1.116",
        "NvTensorRTRTXExecutionProvider and libonnxruntime_providers_cuda.so are there",
        "since 12:30:45 the card at 0000:01:00.0 is closed to /dev/dri/renderD128",
        "NVIDIA Jetson AGX Orin Developer Kit, p3737-0000-p3701-0005",
        "the driver is 540.4.0, the kernel 6.18.44-generic; /var/lib/edged is writable",
        "onnxruntime::Model::Load failed :: no reason",
        "sse4_2 avx512_vnni avx512_bf16 avx512_vpopcntdq",
        "Intel(R) Core(TM) Ultra 7 155H, AMD EPYC 9354P 32-Core Processor",
        "python -m pip install 'onnxruntime-gpu[cuda,cudnn]' --force-reinstall",
    ],
)
def test_redactor_keeps_useful_text(text: str) -> None:
    assert Redactor(Identity(), ("10.3.0.30", "1.7.1.116")).text(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rtsp://ada:pw@10.0.0.7/main is dead", "rtsp://<address> is dead"),
        ("no daemon answers at tls:dock-1:8001", "no daemon answers at tls:<address>"),
        ("/home/ada/models is full", "<home> is full"),
        ("token=abc, password: hunter2", "token=<secret>, password: <secret>"),
        ("Authorization: Bearer abcdefgh", "Authorization: <secret> <secret>"),
        ("nano1 at 10.0.0.7", "<host> at <address>"),
        ("connect to 2001:db8::5: refused", "connect to <address>: refused"),
        ("ipv6:%5B2001:db8::5%5D:8001", "ipv6:[<address>]:8001"),
        ("ipv6:[fe80::1%eth0]:8001 is down", "ipv6:[<address>]:8001 is down"),
        ("::ffff:192.168.1.5:80, ::ffff:10.0.0.7.", "<address>:80, <address>."),
        ("nano12 is another", "nano12 is another"),
    ],
)
def test_redactor_names_the_kind_of_each_secret(text: str, expected: str) -> None:
    assert Redactor(Identity({"host": ("nano1",)})).text(text) == expected


def test_identity_of_a_box_is_read_and_removed(tmp_path: Path) -> None:
    serial, machine, mac = "1424523012345", uuid.uuid4().hex, "48:b0:2d:aa:bb:cc"
    root = tree(
        tmp_path,
        {
            "etc/hostname": "garage-box-7\n",
            "etc/machine-id": f"{machine}\n",
            "proc/device-tree/serial-number": f"{serial}\0",
            "proc/cpuinfo": "Serial\t\t: 10000000abcdef01\n",
            "sys/class/net/eth0/address": f"{mac}\n",
            "sys/class/net/lo/address": "00:00:00:00:00:00\n",
            "sys/class/dmi/id/product_serial": "To Be Filled By O.E.M.\n",
        },
    )
    folder = Path.home() / "My Models" / secrets.token_hex(2)
    redactor = Redactor(Identity.of(root, (folder,)))
    text = redactor.text(f"garage-box-7 {serial} {machine} 10000000abcdef01 {mac} {folder} To Be Filled By O.E.M.")
    assert text == "<host> <serial> <serial> <serial> <network card> <folder> To Be Filled By O.E.M."
    assert Redactor(Identity.of(root, hosts=["gate7.example.com"])).text("at gate7.example.com:9") == "at <host>:9"
    assert Identity.of(Root()).texts["host"]
