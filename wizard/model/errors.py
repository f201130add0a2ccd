"""What can go wrong with a model, told so that the person can act. Standard library only."""

from __future__ import annotations


class ModelError(Exception):
    """The model cannot be used; the message names the file, the field and the remedy."""


class RemoteCodeConsentNeeded(ModelError):
    """The model's config names Python files of its own; nothing of them was read or run."""

    def __init__(self, model: str, files: tuple[str, ...], classes: tuple[str, ...], revision: str) -> None:
        at = f" at revision {revision}" if revision else ""
        at += " (the part before -- is another repository, at whatever it holds then)" if "--" in "".join(files) else ""
        pinned = f" and model.revision={revision} (--trust-remote-code --revision {revision})" if revision else ""
        super().__init__(
            f"{model}: config.json names code of its own in `auto_map`: {', '.join(files)}{at}. It would be run on "
            "this machine and on every training node. Read it, then agree with model.trust_remote_code=true"
            f"{pinned or ' (--trust-remote-code)'}."
        )
        self.files = files
        """Names of the Python files."""
        self.classes = classes
        """What would be executed, as `modeling_x.XForCausalLM`."""
        self.revision = revision
        """Commit the files were listed at; empty for a local folder."""
