package streamstore

// coveredBelow: log objects with lower numbers are no longer needed to rebuild the
// index. Until there are checkpoints, all are needed.
func (s *Store) coveredBelow() uint64 { return 0 }
