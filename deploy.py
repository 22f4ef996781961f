"""Turn the Sparks of an inventory into inference servers: pyinfra inventory/sparks.py deploy.py

The steps and their order; what each does is in operations/, what is decided is in sparkwright/.
"""

from operations import base, fabric, instances, preflight, releases, rollout, weights
from operations.planning import host_plan

plan = host_plan()

preflight.check(name="Check what the host is", plan=plan)

base.packages(name="Install system packages", plan=plan)
base.account_and_folders(name="Make the service account and folders")
base.host_files(name="Install host programs, memory guard and release locks", plan=plan)
fabric.set_up(name="Set up the link of a pair", plan=plan)
base.tools(name="Install uv and hf")

releases.build(name="Build the engine release", plan=plan)
weights.fetch(name="Fetch model weights", plan=plan)
instances.stage(name="Stage the configuration", plan=plan)

instances.survey(name="See what each host serves", plan=plan)
for wave in range(rollout.count()):
    title = rollout.title("Activate, and prove by a generation", wave)
    instances.activate(name=title, plan=plan, wave=wave)

fabric.take_down(name="Take down the link of a pair that is none any more")
releases.prune(name="Remove old releases", plan=plan)
