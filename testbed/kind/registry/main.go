// A container registry that tests push images to: `registry FOLDER ADDRESS...`. It is for one test, and asks nobody who
// they are; manifests are in memory, blobs in FOLDER.
package main

import (
	"log"
	"net"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	handler := registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(os.Args[1])))
	ended := make(chan error)
	for _, address := range os.Args[2:] {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			log.Fatal(err)
		}
		go func() { ended <- http.Serve(listener, handler) }()
	}
	log.Fatal(<-ended)
}
