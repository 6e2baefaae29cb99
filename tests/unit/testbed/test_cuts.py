from testbed.kind.cuts import MARK, Cut, removals, rules

PEERS = ("172.18.0.2", "172.18.0.3")


def test_everything_between_two_clusters_is_dropped_both_ways() -> None:
    one = ("-s", PEERS[0], "-j", "DROP"), ("-d", PEERS[0], "-j", "DROP")
    assert rules(Cut(PEERS[:1])) == [
        ("raw", "PREROUTING", one[0]),
        ("raw", "PREROUTING", one[1]),
        ("raw", "OUTPUT", one[1]),
    ]
    assert len(rules(Cut(PEERS))) == 6


def test_a_link_can_be_cut_in_one_direction() -> None:
    (leaving,) = {match for _, _, match in rules(Cut(PEERS[:1], way="out"))}
    assert leaving == ("-d", PEERS[0], "-j", "DROP")
    ((_, chain, arriving),) = rules(Cut(PEERS[:1], way="in"))
    assert (chain, arriving) == ("PREROUTING", ("-s", PEERS[0], "-j", "DROP"))


def test_one_port_alone_can_be_cut_on_either_side() -> None:
    ours = {match[2:-2] for _, _, match in rules(Cut(PEERS[:1], own_port=6443))}
    assert ours == {("-p", "tcp", "--dport", "6443"), ("-p", "tcp", "--sport", "6443")}
    (theirs,) = {match for _, _, match in rules(Cut(PEERS[:1], way="out", their_port=30000))}
    assert theirs == ("-d", PEERS[0], "-p", "tcp", "--dport", "30000", "-j", "DROP")


def test_a_cut_can_wait_until_bytes_have_passed() -> None:
    matches = [match for _, chain, match in rules(Cut(PEERS[:1], way="out", after_bytes=9000)) if chain == "OUTPUT"]
    # Put before the one that drops.
    assert matches == [
        ("-d", PEERS[0], "-j", "DROP"),
        ("-d", PEERS[0], "-m", "quota", "--quota", "9000", "-j", "ACCEPT"),
    ]


def test_a_refused_port_answers_the_peers_and_nobody_else() -> None:
    ((table, chain, match),) = rules(Cut(PEERS[:1], own_port=6443, refused=True))
    assert (table, chain) == ("filter", "INPUT")
    assert match[:2] == ("-s", PEERS[0])
    assert match[-2:] == ("--reject-with", "tcp-reset")


def test_only_cuts_are_removed() -> None:
    cut = f"-A PREROUTING -s 172.18.0.3/32 -m comment --comment {MARK} -j DROP"
    others = ["-P PREROUTING ACCEPT", "-A OUTPUT -j KUBE-FIREWALL", "-A INPUT -m comment --comment about -j ACCEPT"]
    assert removals([*others, cut]) == [cut.replace("-A ", "-D ", 1)]
