package objstore

import (
	"fmt"
	"net/http"
)

// statusError puts the HTTP status of a store's answer into the words of this
// package. What it does not know (5xx, no status at all) stays as it is and is tried
// again. A 412 has a meaning only for a create; see ErrExists there.
func statusError(status int, err error) error {
	var kind error
	switch {
	case status == http.StatusNotFound:
		kind = ErrNotFound
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		kind = ErrDenied
	case status == http.StatusRequestedRangeNotSatisfiable:
		kind = ErrTruncated
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		kind = ErrThrottled
	case status == http.StatusNotImplemented:
		kind = ErrUnsupported
	case status == http.StatusRequestTimeout, status == http.StatusConflict, status == http.StatusTooEarly:
		return err
	case status >= 400 && status < 500:
		kind = ErrRejected
	default:
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}
