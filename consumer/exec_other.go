//go:build !linux

package consumer

import (
	"context"
	"errors"
	"syscall"
)

// Elsewhere nothing would end a command whose idemd has died.
const execSupported = false

func ownGroup() *syscall.SysProcAttr { return nil }

func awaitExit(int) error { return errors.ErrUnsupported }

func processStart(int) (string, error) { return "", errors.ErrUnsupported }

func bootID() string { return "" }

func killOrphan(context.Context, command) (int, error) { return 0, nil }
