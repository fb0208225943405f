//go:build race

package cli

// race builds the daemon as the test itself is built.
const race = "-race=true"
