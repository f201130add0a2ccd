"""A program that lets verl compose and validate the `run.yaml` of a folder, and tells what it read there."""

ACCEPTED_BY_VERL = """
import pathlib, sys
from hydra import compose, initialize_config_dir
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
with initialize_config_dir(sys.argv[1], version_base=None):
    config = compose("run", overrides=["hydra.searchpath=[pkg://verl.trainer.config]"])
validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
print(
    pathlib.Path(config.actor_rollout_ref.model.path).name, config.data.max_response_length,
    config.trainer.n_gpus_per_node, config.actor_rollout_ref.actor.fsdp_config.reshard_after_forward,
    config.algorithm.adv_estimator,
)
"""
