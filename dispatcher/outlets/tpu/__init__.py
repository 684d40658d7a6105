"""Cloud TPU VMs (`type: tpu`): a VM with the host's name, which gcloud creates, describes, deletes and reaches.

gcloud      The words of gcloud for VMs and queued resources, and what its answers and failures mean.
"""
