package lua

import (
	"os"
	"strings"
	"testing"
)

func TestFamilies(t *testing.T) {
	source, err := os.ReadFile("headgate/families.lua")
	if err != nil {
		t.Fatal(err)
	}
	all := Families()
	if want := strings.Count(string(source), `{ "headgate_proxy_`); len(all) != want || want < 10 {
		t.Errorf("%d families are read, %d are written", len(all), want)
	}
	for _, f := range all {
		if f.Help == "" || strings.Contains(f.Help, "..") || !strings.HasSuffix(f.Help, ".") {
			t.Errorf("%s: help %q", f.Name, f.Help)
		}
	}
}
