"""The far end of `wizard.probe.ask`: how a probe in the target interpreter reports. Standard library only."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

MARK = "verl-wizard-report:"
"""Stands before the report, since a target's start-up files and libraries print whatever they like."""


def end_with_asker() -> None:
    """End this process when stdin closes: a hanging import must not outlive the one who asked."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def answer(report: Any) -> None:
    """Print `report` as one marked line of JSON."""
    print(f"\n{MARK}{json.dumps(report)}", flush=True)
