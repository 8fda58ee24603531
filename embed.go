// Package idemd holds what the program carries along as files.
package idemd

import _ "embed" // for the files

//go:embed config.example.toml
var exampleConfig string

// ExampleConfig is config.example.toml: every key with a comment and its
// default.
func ExampleConfig() string { return exampleConfig }
