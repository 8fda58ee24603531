package app

// DemoConfig is what serve runs without a configuration: one source with the
// token scheme, one handler that logs, data in ./idemd-data. Its token is no
// secret: the demo listens on the loopback address only.
func DemoConfig() *Config {
	c := Default()
	c.DataDir = "idemd-data"
	c.Environment = Test
	c.Sources = []SourceConfig{{
		Name: "demo", Scheme: schemeToken, Token: SecretAt("demo-token"),
		IDHeader: "X-Event-Id", TypeHeader: "X-Event-Type", DefaultType: "demo",
	}}
	h := HandlerConfig{Name: "log", Sources: []string{"demo"}, Kind: kindLog, Effect: "retryable", StoreUnavailable: "refuse"}
	h.setDefaults()
	c.Handlers = []HandlerConfig{h}
	c.fill()
	return c
}
