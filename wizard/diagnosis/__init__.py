"""From a failure to its cause and the change that removes it."""

from wizard.diagnosis.diagnose import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
