"""`run.sh`: starts verl with the generated configuration."""

from __future__ import annotations

import shlex

from generators.heading import heading
from generators.run_yaml import CONFIG_NAME
from generators.split_roles import exports
from wizard.plan import Plan


def run_sh(plan: Plan) -> str:
    """Return a bash script that works from any folder and passes further overrides on."""
    python = shlex.quote(plan.target.python or "python3")
    return (
        "#!/usr/bin/env bash\n"
        + heading(plan, "starts training; arguments are further overrides, as in ./run.sh trainer.total_epochs=1")
        + f"""set -euo pipefail

here=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)
python={python}
{exports(plan)}
exec "$python" -m verl.trainer.main_ppo --config-dir "$here" --config-name {CONFIG_NAME} "$@"
"""
    )
