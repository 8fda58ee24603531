//go:build !linux

package consumer

import (
	"errors"
	"syscall"
)

// Elsewhere nothing would end a command whose idemd has died.
const execSupported = false

func ownGroup() *syscall.SysProcAttr { return nil }

func awaitExit(int) error { return errors.ErrUnsupported }
