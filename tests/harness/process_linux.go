package harness

import "syscall"

// processAttributes make a broker end when the test program is killed.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
