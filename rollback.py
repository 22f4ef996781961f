"""Bring Sparks back to what they served before: sparkwright rollback INVENTORY --limit HOSTS

Canary first and wave by wave, as a deploy. The next deploy brings what the inventory says again.
"""

from operations import instances, rollout
from operations.rollback_command import instances_to_go_back

names = instances_to_go_back()

instances.survey_back(name="See what each host serves", names=names)

for wave in range(rollout.count()):
    title = rollout.title("Go back to the previous release and configuration", wave)
    instances.go_back(name=title, names=names, wave=wave)
