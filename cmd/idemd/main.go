// Command idemd receives webhooks durably and runs handlers for them, each event
// once as far as that can be. This package is flags, output and exit codes; what
// is done stands in the packages app and admin.
package main

import "os"

// version is set by the linker: -X main.version=v1.2.3.
var version = ""

func main() {
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}
