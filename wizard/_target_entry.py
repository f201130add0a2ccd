"""Runs one of our modules inside the target interpreter: `python _target_entry.py wizard.model.inspect ARGS…`.

The target has its own packages, and a training repository may hold a folder called `wizard`, so nothing is put
on `sys.path`: the package is registered from the folder this file lies in, and this file's own folder, which
Python puts first on the path, is taken off again (it holds `verl/` and would hide verl).
"""

import importlib.util
import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.util.spec_from_file_location(
        "wizard", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["wizard"] = package
    spec.loader.exec_module(package)
    module_name = sys.argv[1]
    sys.argv = [module_name, *sys.argv[2:]]
    sys.exit(importlib.import_module(module_name).main(sys.argv[1:]))
