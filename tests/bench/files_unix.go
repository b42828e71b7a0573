//go:build unix

package main

import "syscall"

// mostFiles is how many files a process may have open. The broker, as every Go program, raises its limit to it by itself.
func mostFiles() (int, error) {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	return int(limit.Max), err
}
