package app

import (
	"fmt"
	"slices"
	"strings"

	"idemd/consumer"
)

// duplicateHandler is the name of the handler that h's duplicates are given to;
// empty when they are not given to one.
func (h *HandlerConfig) duplicateHandler() string {
	name, _ := strings.CutPrefix(h.OnDuplicate, string(consumer.OnDuplicateHandler))
	if name == h.OnDuplicate {
		return ""
	}
	return name
}

// duplicatesOnly reports whether a handler has no sources, and need not have: it
// gets the duplicates of another one.
func (c *Config) duplicatesOnly(h *HandlerConfig) bool {
	return h.Name != "" && len(h.Sources) == 0 && slices.ContainsFunc(c.Handlers, func(o HandlerConfig) bool {
		return o.duplicateHandler() == h.Name
	})
}

// onDuplicate checks what a handler does with duplicates.
func (v *validation) onDuplicate(table string, h *HandlerConfig) {
	at, to := table+".on_duplicate", h.duplicateHandler()
	const values = `write "drop", "dead-letter" or "handler:NAME"`
	switch {
	case h.Effect == "idempotent":
		if v.c.has(at) {
			v.add(at, "means nothing for an idempotent handler: no record tells duplicates", "remove it")
		}
	case h.OnDuplicate == string(consumer.OnDuplicateDrop), h.OnDuplicate == string(consumer.OnDuplicateDead):
	case to == "":
		v.add(at, fmt.Sprintf("%q is not one of its values", h.OnDuplicate), values)
	case to == h.Name:
		v.add(at, "names the handler itself", "name another handler, one that makes good what a duplicate did")
	default:
		v.duplicateChain(at, h, to)
	}
}

// duplicateChain follows handlers that give their duplicates to one another.
func (v *validation) duplicateChain(at string, h *HandlerConfig, to string) {
	next := to
	for range v.c.Handlers {
		i := slices.IndexFunc(v.c.Handlers, func(o HandlerConfig) bool { return o.Name == next })
		if i < 0 {
			if next == to {
				v.add(at, fmt.Sprintf("there is no handler %q", to), suggestName(to, v.handlerNames()))
			}
			return
		}
		if next = v.c.Handlers[i].duplicateHandler(); next == "" {
			return
		}
		if next == h.Name {
			break
		}
	}
	v.add(at, fmt.Sprintf("%q gives its duplicates back to %q: they go in a circle", to, h.Name),
		`let one of them have on_duplicate = "drop" or "dead-letter"`)
}

func (v *validation) handlerNames() []string {
	var names []string
	for i := range v.c.Handlers {
		names = append(names, v.c.Handlers[i].Name)
	}
	return names
}

// duplicatePolicy gives the consumer's form of on_duplicate: with the id in place
// of the name.
func (c *Config) duplicatePolicy(h *HandlerConfig) consumer.OnDuplicate {
	to := h.duplicateHandler()
	for i := range c.Handlers {
		if c.Handlers[i].Name == to {
			return consumer.OnDuplicateHandler + consumer.OnDuplicate(c.Handlers[i].ID)
		}
	}
	return consumer.OnDuplicate(h.OnDuplicate)
}
