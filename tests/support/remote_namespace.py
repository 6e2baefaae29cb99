"""A namespace of a real API server as ``diloco cluster`` prepares it, and the Secret that leads there."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from diloco.cli.main import execute
from diloco_operator.clusters.rules import Rule
from testbed.api_server.server import ApiServer
from tests.support.kubeconfigs import changed, kubeconfig_in


class Done(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


class Program:
    """``diloco cluster``, as a user with every right on the server runs it."""

    def __init__(self, server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
        self._server = server
        self._capsys = capsys

    def run(self, *arguments: str) -> Done:
        """Run it without a cluster's flags."""
        self._capsys.readouterr()
        code = execute(["cluster", *arguments])
        return Done(code, *self._capsys.readouterr())

    def there(self, *arguments: str) -> Done:
        """Run it with the server's kubeconfig."""
        return self.run(*arguments, "--kubeconfig", str(self._server.kubeconfig))


class Remote:
    """A prepared namespace."""

    def __init__(self, server: ApiServer, program: Program, namespace: str, directory: Path) -> None:
        self.server = server
        self.namespace = namespace
        self._program = program
        self._directory = directory
        self.prepared = program.run("prepare", namespace).out
        server.kubectl("apply", "--filename=-", text=self.prepared)
        self.secret = self.new_secret()

    def new_secret(self, *flags: str) -> Path:
        """The file of a new Secret."""
        done = self._program.there("kubeconfig", "--name", "west", "--namespace", self.namespace, *flags)
        assert (done.code, done.err) == (0, "")
        return self.written(done.out)

    def written(self, text: str) -> Path:
        path = self._directory / f"secret-{len(list(self._directory.iterdir()))}.yaml"
        path.write_text(text)
        return path

    def changed(self, **user: Any) -> Path:
        """The Secret with another user in its kubeconfig."""
        return self.written(changed(self.secret.read_text(), **user))

    @property
    def kubeconfig(self) -> dict[str, Any]:
        return kubeconfig_in(self.secret.read_text())

    @property
    def token(self) -> str:
        return str(self.kubeconfig["users"][0]["user"]["token"])

    def check(self, secret: Path | None = None) -> Done:
        return self._program.run("check", str(secret or self.secret))

    def as_home(self, *arguments: str, text: str | None = None) -> tuple[int, str]:
        """Exit code and errors of kubectl with the Secret's own kubeconfig."""
        path = self._directory / "home.kubeconfig"
        path.write_text(json.dumps(self.kubeconfig))
        done = self.server.kubectl(*arguments, text=text, check=False, kubeconfig=path)
        return done.returncode, done.stderr

    def set_rules(self, without: Rule) -> None:
        """Give the Role all rules but one."""
        (role,) = [one for one in yaml.safe_load_all(self.prepared) if one["kind"] == "Role"]
        taken = ([without.group], [without.resource], list(without.verbs))
        role["rules"] = [
            rule for rule in role["rules"] if (rule["apiGroups"], rule["resources"], rule["verbs"]) != taken
        ]
        self.server.kubectl("apply", "--filename=-", text=yaml.safe_dump(role))
