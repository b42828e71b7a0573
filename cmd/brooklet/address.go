package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
)

// An address is a host and a port.
type address struct {
	host string
	port int
}

func (a address) String() string { return net.JoinHostPort(a.host, strconv.Itoa(a.port)) }

// wildcard tells whether a stands for every address of the machine, which is nothing that a client can connect to.
func (a address) wildcard() bool {
	ip, err := netip.ParseAddr(a.host)
	return a.host == "" || err == nil && ip.IsUnspecified()
}

func parseAddress(text string) (address, error) {
	host, portText, err := net.SplitHostPort(text)
	if err != nil {
		return address{}, errors.New("write host:port, such as 127.0.0.1:9092 or [::1]:9092")
	}
	port, err := strconv.Atoi(portText)
	if err != nil || port < 0 || port > 65535 {
		return address{}, fmt.Errorf("the port is %q: write a number from 0 to 65535", portText)
	}
	return address{host, port}, nil
}

func checkAddress(name, text string) error {
	if _, err := parseAddress(text); err != nil {
		return fmt.Errorf("--%s is %q: %w", name, text, err)
	}
	return nil
}

// advertised returns the address that clients are told. Its port is 0 if it is the one that the system chooses for
// --listen.
//
// Nothing is guessed: a broker that tells clients a wrong address looks healthy, and they fail after their first,
// successful, connection.
func (s *settings) advertised() (address, error) {
	listen, err := parseAddress(s.listen)
	if err != nil {
		return address{}, fmt.Errorf("--listen is %q: %w", s.listen, err)
	}
	if s.advertise == "" {
		if listen.wildcard() {
			return address{}, fmt.Errorf("--listen %s accepts connections on every address of this machine, so clients must be told which one to use: set --advertise to a host:port that they can reach, such as %s",
				s.listen, suggestAddress(listen.port))
		}
		return listen, nil
	}
	a, err := parseAddress(s.advertise)
	if err != nil {
		return address{}, fmt.Errorf("--advertise is %q: %w", s.advertise, err)
	}
	if a.wildcard() || a.port == 0 {
		return address{}, fmt.Errorf("--advertise %s is nothing that a client can connect to: write the host and port that they can reach, such as %s",
			s.advertise, suggestAddress(a.port))
	}
	return a, nil
}

// suggestAddress is an example for error messages: the address this machine would use to reach others.
func suggestAddress(port int) address {
	a := address{"broker.example.com", port}
	if a.port == 0 {
		a.port = kafkaPort
	}
	// Connecting a datagram socket sends nothing; it only makes the system choose a route. The address is reserved for
	// documentation (RFC 5737).
	conn, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		return a
	}
	defer conn.Close()
	a.host, _, _ = net.SplitHostPort(conn.LocalAddr().String())
	return a
}

// listenOn opens a listener. The error says what to do.
func listenOn(setting, text string) (net.Listener, error) {
	l, err := net.Listen("tcp", text)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--%s %s: another process listens there already; stop it, or choose another address: %w", setting, text, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("--%s %s: this machine has no such address: %w", setting, text, err)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("--%s %s: this user may not listen there; choose a port above 1023: %w", setting, text, err)
	}
	return nil, fmt.Errorf("--%s %s: %w", setting, text, err)
}

// portOf is the port of a TCP listener.
func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
