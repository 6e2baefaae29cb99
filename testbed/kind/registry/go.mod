module registry

go 1.23.0

require github.com/google/go-containerregistry v0.20.3
