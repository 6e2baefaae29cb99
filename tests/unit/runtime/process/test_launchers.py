from diloco.runtime.process.launchers import as_torchrun, forget_launchers


def test_what_launchers_tell_is_forgotten_and_the_rest_stays() -> None:
    stays = {"PATH": "/bin", "SLURM_JOB_ID": "7", "NCCL_SOCKET_IFNAME": "eth0", "CUDA_VISIBLE_DEVICES": "0"}
    launchers = ("MASTER_ADDR", "RANK", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "WORLD_SIZE")
    environment = {**stays, **dict.fromkeys(launchers, "1")}
    assert forget_launchers(environment) == launchers
    assert environment == stays
    assert forget_launchers(environment) == ()


def test_a_loop_in_several_processes_finds_what_torchrun_says() -> None:
    told = as_torchrun(5, 8, 4, "10.0.0.1", 29500)
    numbers = {name: told[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")}
    assert numbers == dict(zip(numbers, ("5", "8", "1", "4", "1"), strict=True))
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("10.0.0.1", "29500")
    assert forget_launchers(dict(told)) == tuple(sorted(told))
