//go:build race

package endtoend

// race builds the daemon as the test itself is built.
const race = "-race=true"
