"""What can go wrong with a model, told so that the person can act. Standard library only."""

from __future__ import annotations


class ModelError(Exception):
    """The model cannot be used; the message names the file, the field and the remedy."""


class RemoteCodeConsentNeeded(ModelError):
    """The model's config names Python files of its own; nothing of them was read or run."""

    def __init__(self, model: str, files: tuple[str, ...], classes: tuple[str, ...], revision: str) -> None:
        at = f" at revision {revision}"
        at += " (the part before -- is another repository, at whatever it holds then)" if "--" in "".join(files) else ""
        super().__init__(
            f"{model}: config.json names code of its own in `auto_map`: {', '.join(files)}{at}. It would be run on "
            "this machine and on every training node. Read it, then agree with model.trust_remote_code=true and "
            f"model.revision={revision} (--trust-remote-code --revision {revision})."
        )
        self.model = model
        """As the person named it."""
        self.files = files
        """Names of the Python files."""
        self.classes = classes
        """What would be executed, as `modeling_x.XForCausalLM`."""
        self.revision = revision
        """Commit of the hub that the files were listed at, or the digest of a local folder's."""

    @property
    def question(self) -> str:
        """What a person is asked, as lines."""
        return (
            f"{self.model} at {self.revision} brings code of its own. Agreeing runs these files here and on every "
            f"training node:\n  {', '.join(self.files)}\nfor the classes {', '.join(self.classes)}.\n"
            "Read them first. Without consent only config.json is read; when the files change, you are asked again."
        )
