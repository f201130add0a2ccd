"""The known causes, in the order in which they are tried: the specific before the general."""

from wizard.diagnosis.causes import cluster, configuration, environment, files, ladder, memory, model, numerics

CAUSES = (
    *memory.CAUSES,
    *configuration.CAUSES,
    *files.CAUSES,
    *model.CAUSES,
    *numerics.CAUSES,
    *ladder.CAUSES,
    *environment.CAUSES,
    *cluster.CAUSES,
    files.OWN_CODE,
)
