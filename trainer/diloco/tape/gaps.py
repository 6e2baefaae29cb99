"""What is missing of a record: its beginning, deleted to bound the disk, or a later part, by damage or a cut."""

from diloco.tape.reader import TapeHeader
from diloco.tape.segments import TapeFiles, segment_number


def missing_front(tapes: tuple[TapeFiles, ...]) -> str:
    """One line that says what is missing before the first segment that is there; empty if nothing is."""
    first = tapes[0]
    number = segment_number(first.segments[0])
    if first.epoch == 1 and number == 0:
        return ""
    begins = f"segment {number} of epoch {first.epoch}" if number else f"epoch {first.epoch}"
    return f"the record begins with {begins}: nothing before it is there (the oldest segments are deleted first)"


def missing_between(before: TapeFiles, tape: TapeFiles, header: TapeHeader) -> str:
    """One line that says what is missing between two tapes, the second with ``header``; empty if nothing is."""
    number = segment_number(tape.segments[0])
    if number > 0:
        which = "segment 0 is" if number == 1 else f"segments 0 to {number - 1} are"
        return f"{which} missing of epoch {tape.epoch}, although older ones are there"
    if header.previous not in ("", before.last):
        return f"segment {header.previous}, which came before this one, is missing, although older ones are there"
    return ""


def missing_end(last: tuple[int, str], header: TapeHeader) -> str:
    """What the next epoch's ``header`` shows to be missing after a tape's ``last`` line, of this number and chain."""
    seq = header.previous_seq
    if not header.previous_chain or last == (seq, header.previous_chain):
        return ""
    if seq > last[0]:
        return f"the tape ends at line {last[0]}, the run went on to line {seq}, as the next epoch's tape says"
    return f"the tape is not the one that ended at line {seq} when epoch {header.epoch} began"
