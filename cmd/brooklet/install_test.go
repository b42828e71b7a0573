package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestInstall(t *testing.T) {
	dest := t.TempDir()
	install := func() {
		t.Helper()
		// The binary of the test stands in for the one that would be built.
		cmd := exec.Command("make", "-s", "-o", "build", "install", "DESTDIR="+dest, "PREFIX=/opt/brooklet", "BINARY="+os.Args[0])
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make install: %v\n%s", err, out)
		}
	}
	install()
	unit, err := os.ReadFile(filepath.Join(dest, "opt/brooklet/lib/systemd/system/brooklet.service"))
	if err != nil || !strings.Contains(string(unit), "\nExecStart=/opt/brooklet/bin/brooklet serve\n") {
		t.Errorf("unit: %v\n%s", err, unit)
	}
	if info, err := os.Stat(filepath.Join(dest, "opt/brooklet/bin/brooklet")); err != nil || info.Mode() != 0o755 {
		t.Errorf("binary: %v, %v", info, err)
	}
	env := filepath.Join(dest, "etc/brooklet/brooklet.env")
	if info, err := os.Stat(env); err != nil || info.Mode() != 0o600 {
		t.Errorf("settings: %v, %v", info, err)
	}
	if err := os.WriteFile(env, []byte("BROOKLET_RACK=mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	install()
	if text, err := os.ReadFile(env); err != nil || string(text) != "BROOKLET_RACK=mine\n" {
		t.Errorf("settings after a second install: %q, %v", text, err)
	}
}
