//go:build !linux

package queue

import "os"

// groupSync returns nil: only Linux can sync a whole file system and say
// whether it worked, so the server has to sync every message.
func groupSync(*os.File) (func() error, error) { return nil, nil }

// capacity returns the size in bytes of the file system of dir, 0 when unknown.
func capacity(*os.File) uint64 { return 0 }
