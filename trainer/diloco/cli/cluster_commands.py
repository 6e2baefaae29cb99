"""The commands of ``diloco cluster``: for the owners of remote clusters, and for those whose jobs run there."""

import typer

from diloco.cli import cluster_check, cluster_kubeconfig, cluster_orphans, cluster_prepare, cluster_revoke

app = typer.Typer(
    name="cluster",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("prepare")(cluster_prepare.prepare)
app.command("kubeconfig")(cluster_kubeconfig.kubeconfig)
app.command("check")(cluster_check.check)
app.command("revoke")(cluster_revoke.revoke)
app.command("orphans")(cluster_orphans.orphans)


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
