package main

import (
	"bytes"
	"os"
	"testing"
)

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	for path, want := range map[string][]byte{
		"../../docs/configuration.md": configurationPage(),
		"../../deploy/brooklet.env":   environmentFile(),
	} {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs from the settings of the program: run make docs (%v)", path, err)
		}
	}
}
