"""From a failure to its cause and the change that removes it."""

from wizard.diagnosis.diagnose import Diagnosis, diagnose, diagnose_verdict

__all__ = ["Diagnosis", "diagnose", "diagnose_verdict"]
