from __future__ import annotations

import pytest

from undaunted.coordinator.etcd.store import Access, Store, access, parse_store


@pytest.mark.parametrize(
    ("text", "store"),
    [
        ("etcd://host", Store(("host:2379",))),
        ("etcd://a:1,b:2, c", Store(("a:1", "b:2", "c:2379"))),
        ("etcd://[::1]:7/", Store(("[::1]:7",))),
        ("etcd://10.0.0.1:7/team/jobs/", Store(("10.0.0.1:7",), "team/jobs")),
    ],
)
def test_stores(text, store):
    assert parse_store(text) == store


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host:1", "host:1: give etcd://HOST:PORT"),
        ("etcd://", "no host: give etcd://HOST:PORT"),
        ("etcd://a:0", "a:0: give etcd://HOST:PORT, with a port from 1 to 65535"),
        ("etcd://a:65536", "a:65536: give"),
        ("etcd://a:1,", "no host: give"),
        ("etcd://a b", "a b: give"),
        ("etcd://me:secret@host", "everybody can see a command line: give user and password in"),
        ("etcd://a//b", "/b: a prefix has letters"),
        ("etcd://a/ü", "ü: a prefix has letters"),
    ],
)
def test_what_is_no_place(text, message):
    with pytest.raises(ValueError, match=r"give|prefix") as caught:
        parse_store(text)
    assert str(caught.value).startswith(message)
    assert "secret" not in str(caught.value)


def test_keys_are_of_one_job():
    store = parse_store("etcd://a/team")
    assert store.leader_key("job7") == b"/team/job7/leader"
    assert store.ledger_key("job7") == b"/team/job7/ledger"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Access()),
        ({"ETCDCTL_USER": "me:a:b"}, Access("me", "a:b")),
        ({"ETCDCTL_USER": "me", "ETCDCTL_PASSWORD": "x"}, Access("me", "x")),
        ({"ETCDCTL_CACERT": "ca"}, Access(ca="ca")),
        (
            {"ETCDCTL_CACERT": "ca", "ETCDCTL_CERT": "c", "ETCDCTL_KEY": "k"},
            Access(ca="ca", cert="c", key="k"),
        ),
    ],
)
def test_access(environ, expected):
    assert access(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {"ETCDCTL_USER": "me"},
        {"ETCDCTL_PASSWORD": "x"},
        {"ETCDCTL_CACERT": "ca", "ETCDCTL_CERT": "c"},
        {"ETCDCTL_CERT": "c", "ETCDCTL_KEY": "k"},
    ],
)
def test_access_that_cannot_be_meant(environ):
    with pytest.raises(ValueError, match="ETCDCTL_"):
        access(environ)
