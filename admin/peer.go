package admin

import (
	"context"
	"net"
	"net/http"
	"os/user"
)

type peerKey struct{}

// withPeer notes in a connection's context who made it.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, peerUser(conn))
}

// who names the user that sent a request, as well as it is known: "alice (uid
// 1000)".
func who(r *http.Request) string {
	uid, ok := r.Context().Value(peerKey{}).(string)
	if !ok || uid == "" {
		return "unknown"
	}
	u, err := user.LookupId(uid)
	if err != nil {
		return "uid " + uid
	}
	return u.Username + " (uid " + uid + ")"
}
