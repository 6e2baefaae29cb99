"""The commands of ``diloco cluster``: for the owners of remote clusters, and for those whose jobs run there.

They use the operator's API client and its rules. The command line of diloco imports them where this package is
installed; what takes long to import is imported where it is used.
"""

import typer

from diloco_operator.commands import check, kubeconfig, orphans, prepare, revoke

app = typer.Typer(
    name="cluster",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("prepare")(prepare.prepare)
app.command("kubeconfig")(kubeconfig.kubeconfig)
app.command("check")(check.check)
app.command("revoke")(revoke.revoke)
app.command("orphans")(orphans.orphans)


@app.callback()
def cluster() -> None:
    """Prepare and check other clusters, in which regions of a job can run.

    \b
    In this order:
      diloco cluster prepare learners | kubectl apply --context west -f -
      diloco cluster kubeconfig --context west -n learners --name west > west.yaml
      diloco cluster check west.yaml
      kubectl apply --context home --namespace training -f west.yaml
    """
