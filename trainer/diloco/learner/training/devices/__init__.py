"""What the inner steps run on: devices, their memory, and copies between them and the host."""
