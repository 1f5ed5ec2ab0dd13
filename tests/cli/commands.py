"""What a command ends with."""

import json
from typing import Any


def last(out: str) -> dict[str, Any]:
    """The last line, one JSON object."""
    return json.loads(out.splitlines()[-1])
