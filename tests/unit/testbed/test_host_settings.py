"""Images take over from the host how it reaches packages, and nothing else."""

from configparser import ConfigParser

from testbed.kind.debian import apt_settings, pip_settings, proxy_arguments

APT = """\
APT::Architecture "amd64";
Acquire::http "";
Acquire::http::Proxy "http://proxy.example:3142";
Acquire::Check-Date "false";
Acquire::Languages:: "none";
"""
PIP = """\
global.index-url='https://packages.example/first'
:env:.index-url='https://packages.example/simple'
:env:.find-links='/somewhere/here'
global.extra-index-url='\\nhttps://a.example\\nhttps://b.example'
"""


def test_apts_way_to_packages_is_taken_over() -> None:
    assert apt_settings(APT) == 'Acquire::http::Proxy "http://proxy.example:3142";\nAcquire::Check-Date "false";\n'


def test_pips_way_to_packages_is_taken_over() -> None:
    parser = ConfigParser()
    parser.read_string(pip_settings(PIP))
    settings = parser["global"]
    # The environment comes after the files; a folder of the host is not in an image.
    assert settings["index-url"] == "https://packages.example/simple"
    assert settings["extra-index-url"].split() == ["https://a.example", "https://b.example"]
    assert set(settings) == {"index-url", "extra-index-url", "cert"}


def test_builds_use_the_hosts_proxy() -> None:
    env = {"https_proxy": "http://proxy.example:3128", "http_proxy": "", "HOME": "/root"}
    assert proxy_arguments(env) == ["--build-arg=https_proxy=http://proxy.example:3128"]
