from diloco.runtime.process.launchers import forget_launchers


def test_what_launchers_tell_is_forgotten_and_the_rest_stays() -> None:
    stays = {"PATH": "/bin", "SLURM_JOB_ID": "7", "NCCL_SOCKET_IFNAME": "eth0", "CUDA_VISIBLE_DEVICES": "0"}
    launchers = ("MASTER_ADDR", "RANK", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "WORLD_SIZE")
    environment = {**stays, **dict.fromkeys(launchers, "1")}
    assert forget_launchers(environment) == launchers
    assert environment == stays
    assert forget_launchers(environment) == ()
