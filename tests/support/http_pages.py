"""Asks for a page of a process under test."""

import urllib.error
import urllib.request

WAIT_SECONDS = 60.0


def page(address: str, path: str) -> tuple[int, str]:
    """Its status and its text, also if it is an error."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=WAIT_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
