"""Real clusters in containers of this machine, with the project's images: made, guarded and taken down."""
