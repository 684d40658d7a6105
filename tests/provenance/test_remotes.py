"""Addresses of repositories have nothing secret in them when they are recorded."""

from __future__ import annotations

import pytest

from dispatcher.provenance.remotes import without_secrets

CLEAN = {
    "https://git.lab.org/ada/lab.git": "https://git.lab.org/ada/lab.git",
    "https://ada:s3cret@git.lab.org/ada/lab.git": "https://git.lab.org/ada/lab.git",
    "https://s3cret@git.lab.org:8443/ada/lab.git": "https://git.lab.org:8443/ada/lab.git",
    "https://x-access-token:s3cret@github.com/ada/lab": "https://github.com/ada/lab",
    "https://ada%3As3cret%40git.lab.org/ada": "https://git.lab.org/ada",
    "https://ada%253As3cret%2540git.lab.org/ada": "https://git.lab.org/ada",
    "https://ada:s3%40cret@git.lab.org/ada": "https://git.lab.org/ada",
    "https://ada:s3@cret@git.lab.org/ada": "https://git.lab.org/ada",
    "https://git.lab.org/ada/lab.git?private_token=s3cret": "https://git.lab.org/ada/lab.git",
    "https://git.lab.org/ada/lab.git#s3cret": "https://git.lab.org/ada/lab.git",
    "HTTPS://ada:s3cret@GIT.lab.org/ada": "HTTPS://GIT.lab.org/ada",
    "ssh://git:s3cret@git.lab.org:22/ada/lab.git": "ssh://git.lab.org:22/ada/lab.git",
    "ssh://git:s3cret@[2001:db8::1]:22/ada/lab.git": "ssh://[2001:db8::1]:22/ada/lab.git",
    "git+ssh://git:s3cret@git.lab.org/ada": "git+ssh://git.lab.org/ada",
    "git@github.com:ada/lab.git": "github.com:ada/lab.git",
    "ada:s3cret@git.lab.org:ada/lab.git": "git.lab.org:ada/lab.git",
    "git.lab.org:ada/lab.git": "git.lab.org:ada/lab.git",
    "/srv/git/lab.git": "/srv/git/lab.git",
    "../lab.git": "../lab.git",
    "file:///srv/git/lab.git": "file:///srv/git/lab.git",
}
LEFT_OUT = [
    "https://ada:s3/cret@git.lab.org/ada",
    "https://ada:123/s3cret@git.lab.org/ada",
    "https://ada:123#s3cret@git.lab.org/ada",
    "https://ada:123?s3cret@git.lab.org/ada",
    "https://ada:s3\\cret/@git.lab.org/ada",
    "https://git.lab.org/ada%3Fprivate_token=s3cret",
    "https://git.lab.org/https%3A%2F%2Fada%3As3cret%40git.lab.org",
    "https://git.lab.org/%2525252540s3cret",
    "https:ada:s3cret@git.lab.org/ada",
    "https:/ada:s3cret@git.lab.org/ada",
    "//ada:s3cret@git.lab.org/ada",
    "ada:s3@cret@git.lab.org:ada",
    "ada:s3/cret@git.lab.org:ada",
    "git@git.lab.org:ada@s3cret/lab",
    "ext::sh -c 's3cret %S'",
    "foo::https://ada:s3cret@git.lab.org/ada",
    "https://git.lab.org/ada\nhttps://s3cret",
    "https://ada:s3cret@",
    "https://git.lab.org:s3cret/ada",
    "https://proxy.lab.org/s3cret_ghp_abcdefghijklmnopqrstuvwxyz0123456789/ada",
    "https://proxy.lab.org/gl%70at-abcdefghijklmnop-s3cret",
]


@pytest.mark.parametrize(("url", "expected"), CLEAN.items())
def test_user_information_query_and_fragment_are_left_out(url: str, expected: str) -> None:
    assert without_secrets(url) == expected


@pytest.mark.parametrize("url", LEFT_OUT)
def test_an_address_in_which_a_secret_may_hide_is_left_out(url: str) -> None:
    found = without_secrets(url)
    assert found is None or "cret" not in found, found
    assert found is None


@pytest.mark.parametrize("url", [*CLEAN, *LEFT_OUT])
def test_no_secret_is_left_in_any_form(url: str) -> None:
    assert "cret" not in (without_secrets(url) or "")
