"""Static evidence: what the images of an app refer to and call, and what its manifests declare."""
